"""The agent of the kill test, with a tool that kills its worker."""

import os
import signal
from typing import Any

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.runner.kill_app import make_tool

__all__ = ["agent"]


async def poison() -> str:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def call(messages: Any, _: Any) -> Any:
    """Call the tool that the user names, if there is no result, and then say so."""
    user = max(number for number, message in enumerate(messages) if message.role == "user")
    if any(message.get_content_blocks("tool_result") for message in messages[user:]):
        return "Done."
    return [ToolCallBlock("1", messages[user].get_text_content(), "{}")]


model = ScriptedChatModel([call] * 1_000, stream=True)
agent = Agent("assistant", "You work.", model, tools=[make_tool("book"), FunctionTool(poison, idempotent=True)])
