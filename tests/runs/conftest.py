"""Agents that are recorded, and the stores that keep their runs."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import InMemoryStateStore, SQLiteStore
from tests.state.conftest import postgres, redis  # noqa: F401  # the servers

SECRET = "sk-0123456789abcdef"


async def find(name: str) -> str:
    return f"found {name}"


def call(call_id: str, tool: str = "find", arguments: str = '{"name": "it"}') -> ToolCallBlock:
    return ToolCallBlock(call_id, tool, arguments)


def make_agent(store: Any, *layers: MiddlewareBase, script: Any = None, tools: Any = (find,), **options: Any) -> Agent:
    model = ScriptedChatModel(script or [[call("c1")], "It is there."])
    recorder = RunRecorder(store, **options)
    return Agent("finder", "You find things.", model, list(tools), [*layers, recorder], state_store=store)


@pytest.fixture
async def store() -> AsyncIterator[InMemoryStateStore]:
    async with InMemoryStateStore() as opened:
        yield opened


@pytest.fixture
async def open_sqlite(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """Opens stores over one file; they are closed at the end."""
    opened: list[SQLiteStore] = []

    def open_store() -> SQLiteStore:
        opened.append(SQLiteStore(tmp_path / "agent.db"))
        return opened[-1]

    async with AsyncExitStack() as stack:
        yield open_store
        for store in opened:
            await stack.enter_async_context(store)
