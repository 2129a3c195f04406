"""An agent that pays, and a runner of it that works while the test does."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner, execution
from agentrt.runner import runner as runner_module
from agentrt.state import FileStateStore, InMemoryStateStore, SQLiteStore
from agentrt.tool import FunctionTool

Working = Callable[..., AbstractAsyncContextManager[Runner]]


def last_words(messages: Any) -> str:
    return next(message.get_text_content() or "" for message in reversed(messages) if message.role == "user")


def call_or_answer(messages: Any, _: Any) -> Any:
    """Call the tool that the user names, if there is one, and then say what it gave."""
    since = len(messages) - next(n for n, message in enumerate(reversed(messages)) if message.role == "user")
    results = [block for message in messages[since:] for block in message.get_content_blocks("tool_result")]
    words = last_words(messages)
    if words.startswith("call ") and not results:
        return [ToolCallBlock("1", words.removeprefix("call "), "{}")]
    return f"{results[-1].text}, as you said: {words}" if results else f"You said: {words}"


def make_agent(*tools: Any, model: Any = None, **options: Any) -> Agent:
    model = model or ScriptedChatModel([call_or_answer] * 1000, stream=True)
    return Agent("assistant", "You pay.", model, tools=list(tools), **options)


def approved_pay() -> FunctionTool:
    async def pay() -> str:
        return "paid"

    return FunctionTool(pay, ask=True)


class Waiting:
    """The tool `wait`, each run of which says that it has begun, and waits until all are released."""

    def __init__(self) -> None:
        self.begun, self.release, self.runs = anyio.Event(), anyio.Event(), 0

    async def wait(self) -> str:
        self.runs += 1
        self.begun.set()
        await self.release.wait()
        return "waited"


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def answer_to(question: Any, *, confirmed: bool = True) -> UserConfirmResultEvent:
    results = [ConfirmResult(confirmed, call) for call in question.tool_calls]
    return UserConfirmResultEvent(question.reply_id, results)


@asynccontextmanager
async def work(runner: Runner) -> AsyncIterator[Runner]:
    async with runner, anyio.create_task_group() as group:
        group.start_soon(runner.work)
        yield runner
        await runner.drain()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for what another process did, and ask a store again that was away, five times as often as users need."""
    monkeypatch.setattr(runner_module, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(execution, "_FIRST_DELAY", 0.02)


@pytest.fixture(params=["memory", "file", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    makers: dict[str, Callable[[], Any]] = {
        "memory": InMemoryStateStore,
        "file": lambda: FileStateStore(tmp_path / "states"),
        "sqlite": lambda: SQLiteStore(tmp_path / "states.db", durability="process"),
    }
    async with makers[request.param]() as store:
        yield store


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(tmp_path / "states.db", durability="process") as store:
        yield store
