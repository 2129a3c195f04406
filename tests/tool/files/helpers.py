"""A workspace, and calls of its tools as a model makes them."""

import json
from pathlib import Path
from typing import Any

from agentrt import Agent, AgentState
from agentrt.event import RequireUserConfirmEvent
from agentrt.message import Msg, ToolCallBlock, ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext, PermissionMode, PermissionRule
from agentrt.tool import workspace_tools
from agentrt.types import ChatResponse
from agentrt.workspace import LocalWorkspace, SandboxBase


def results_of(agent: Agent) -> list[ToolResultBlock]:
    """Return the results of all calls in the conversation."""
    return [block for message in agent.state.context for block in message.get_content_blocks("tool_result")]


async def ask(agent: Agent) -> RequireUserConfirmEvent:
    """Return the question that the reply ends with."""
    async with agent.reply_stream("go") as events:
        [question] = [event async for event in events if isinstance(event, RequireUserConfirmEvent)]
    return question


class Desk:
    """An agent with all tools of its workspace, in the mode BYPASS unless there are rules."""

    def __init__(self, root: Path, *rules: PermissionRule, sandbox: SandboxBase | None = None) -> None:
        self.files = LocalWorkspace(root, sandbox=sandbox)
        self.mode = PermissionMode.DEFAULT if rules else PermissionMode.BYPASS
        self.rules = list(rules)

    async def reply(self, name: str, **arguments: Any) -> Msg:
        """Return the message of a reply that makes this call."""
        made = ChatResponse([ToolCallBlock("c1", name, json.dumps(arguments))])
        state = AgentState(permission_context=PermissionContext(mode=self.mode, rules=self.rules))
        tools = workspace_tools(write=True, run=True)
        model = ScriptedChatModel([made, "done"])
        self.agent = Agent("a", model=model, tools=tools, workspace=self.files, state=state)
        return await self.agent.reply("go")

    async def call(self, name: str, **arguments: Any) -> ToolResultBlock:
        """Return the result of the call."""
        await self.reply(name, **arguments)
        [result] = results_of(self.agent)
        return result

    async def text(self, name: str, **arguments: Any) -> str:
        """Return the text of the result, which must be a success."""
        result = await self.call(name, **arguments)
        assert result.state == "success", result
        return result.text
