"""What the tests of plans and todos share."""

import json
from typing import Any

from agentrt import Agent, AgentState, Msg
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel


def call(name: str, /, **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock("", name, json.dumps(arguments))


def drafts(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "description": f"do {name}", "expected_outcome": f"{name} is there"} for name in names]


def create(*names: str, plan: str = "trip") -> ToolCallBlock:
    steps = drafts(*names)
    return call("create_plan", name=plan, description="a trip", expected_outcome="be there", subtasks=steps)


def start(index: int, state: str = "in_progress") -> ToolCallBlock:
    return call("update_subtask_state", subtask_idx=index, state=state)


def finish(index: int, outcome: str = "ok") -> ToolCallBlock:
    return call("finish_subtask", subtask_idx=index, subtask_outcome=outcome)


def agent_with(layer: MiddlewareBase, *rounds: Any, state: AgentState | None = None, **options: Any) -> Agent:
    """Return an agent whose model makes these calls, one a round."""
    script = [[item] if isinstance(item, ToolCallBlock) else item for item in rounds]
    return Agent("planner", "You plan.", ScriptedChatModel(script), middlewares=[layer], state=state, **options)


def deps_of(agent: Agent) -> Any:
    return agent.run.deps


def results_of(message: Msg) -> list[ToolResultBlock]:
    return message.get_content_blocks("tool_result")


async def play(
    layer: MiddlewareBase, *calls: ToolCallBlock, state: AgentState | None = None
) -> tuple[Agent, list[str]]:
    """Make the calls in one reply; returns the agent and what each call came to, as "state: text"."""
    agent = agent_with(layer, *calls, "Done.", state=state)
    await agent.reply("Go.")
    return agent, [f"{block.state}: {block.text}" for block in results_of(agent.state.context[-1])]


def hint_of(messages: list[Msg]) -> str | None:
    blocks = messages[-1].get_content_blocks("hint")
    return blocks[0].hint if blocks and blocks[0].source == "plan" else None


def reloaded(state: AgentState) -> AgentState:
    return AgentState.model_validate_json(state.model_dump_json())
