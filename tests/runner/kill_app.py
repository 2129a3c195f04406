"""The agent of the kill test: three tools, whose effects are lines of a file that no process loses."""

import json
import os
from typing import Any

import anyio

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext

TOOLS = ("book", "pay", "mail")
SECONDS = float(os.environ.get("KILL_TEST_TOOL_SECONDS", "0.3"))


def note(what: str, context: ToolContext) -> None:
    """Write a line, whole or not at all; it is there when this returns."""
    line = json.dumps({"what": what, "key": context.idempotency_key, "pid": os.getpid()})
    descriptor = os.open(os.environ["KILL_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def make_tool(name: str) -> FunctionTool:
    async def run(context: ToolContext) -> str:
        note("begun", context)
        await anyio.sleep(SECONDS)
        note("done", context)
        return f"done: {context.idempotency_key}"

    run.__name__ = name
    return FunctionTool(run, idempotent=os.environ.get("KILL_TEST_IDEMPOTENT") == "1")


def next_call(messages: Any, _: Any) -> Any:
    """Call one tool after the other, whatever their results are, and then say so."""
    since = max(number for number, message in enumerate(messages) if message.role == "user")
    calls = [call for message in messages[since:] for call in message.get_content_blocks("tool_call")]
    if len(calls) == len(TOOLS):
        return "All three are done."
    return ["Next. ", ToolCallBlock(str(len(calls)), TOOLS[len(calls)], "{}")]


model = ScriptedChatModel([next_call] * 100_000, stream=True)
agent = Agent("assistant", "You work.", model, tools=[make_tool(name) for name in TOOLS])
