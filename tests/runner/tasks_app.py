"""The agent of the kill test of background calls, and its runner over the database that the environment names."""

import os
from typing import Any

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import DBOSRunner, Runner
from agentrt.runner.base import RunnerBase
from agentrt.state import PostgresStore, SQLiteStore
from tests.runner.kill_app import TOOLS, make_tool


def make_background_tool(name: str) -> Any:
    tool = make_tool(name)
    tool.is_background = True
    return tool


def let_go_or_note(messages: Any, _: Any) -> Any:
    """Let all tools go at once, and then say a word to each message."""
    if messages[-1].name == "user":
        return [ToolCallBlock(str(number), name, "{}") for number, name in enumerate(TOOLS)]
    return "Noted."


def make_runner(url: str) -> RunnerBase:
    if url.startswith("postgresql:"):
        return DBOSRunner(agent, PostgresStore(url), url, max_attempts=1_000, lease_seconds=2.0, max_concurrency=6)
    # Few at a time, so that there is something to kill for long.
    return Runner(agent, SQLiteStore(url), max_attempts=1_000, max_concurrency=6)


agent = Agent(
    "assistant",
    "You work.",
    ScriptedChatModel([let_go_or_note] * 100_000, stream=True),
    tools=[make_background_tool(name) for name in TOOLS],
)
if "KILL_TEST_DATABASE" in os.environ:
    runner = make_runner(os.environ["KILL_TEST_DATABASE"])
