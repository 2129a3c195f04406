"""What the tests of delegation share: supervisors and sub-agents, a tool that counts, answers to questions."""

import json
from typing import Any

from agentrt import Agent, Toolkit
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase


def call(call_id: str, tool: str, **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, tool, json.dumps(arguments))


class Counting:
    """Functions that count how often they ran, by what they ran for."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def tool(self, name: str = "publish", **options: Any) -> ToolBase:
        async def publish(what: str) -> str:
            self.runs.append(what)
            return f"published {what}"

        return FunctionTool(publish, name=name, **options)


def agent_of(name: str, responses: list[Any], *tools: Any, **options: Any) -> Agent:
    return Agent(name, f"You are {name}.", ScriptedChatModel(responses), Toolkit(tools=list(tools)), **options)


def asking_child(counting: Counting, name: str = "writer", what: str = "a") -> Agent:
    """An agent that publishes once, which is asked about, and says so."""
    responses = [[call("k1", "publish", what=what)], f"{name} has published {what}."] * 10
    return agent_of(name, responses, counting.tool(ask=True))


def boss_of(*children: Agent, ending: str = "All done.", **options: Any) -> Agent:
    """An agent that asks each of its children once, side by side."""
    calls = [call(str(number), child.name, query=f"task {number}") for number, child in enumerate(children, 1)]
    tools = [child.as_tool(f"Does what {child.name} does.") for child in children]
    return agent_of("boss", [calls, ending], *tools, **options)


def results_of(agent: Agent) -> dict[str, Any]:
    """The results of the last reply's calls, by the id of the call."""
    return {block.id: block for block in agent.state.context[-1].get_content_blocks("tool_result")}
