"""Answers to a tree of agents: one by one, in any order and over any processes, they end as all at once."""

import json
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.errors import ResumeError
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.agent.delegation.helpers import agent_of, call
from tests.agent.delegation.test_every_suspension import script

Tree = list[Any]
"""A leaf is the number of calls that an agent asks about, a list the agents below one."""
TREES = st.recursive(st.integers(1, 2), lambda inner: st.lists(inner, min_size=1, max_size=2), max_leaves=4)


def agent_from(tree: Any, name: str, runs: list[str]) -> Agent:
    if isinstance(tree, int):

        async def publish(what: str) -> str:
            runs.append(what)
            return f"{what} is out"

        tools: list[Any] = [FunctionTool(publish, ask=True)]
        calls = [call(f"k{number}", "publish", what=f"{name}{number}") for number in range(tree)]
    else:
        children = [agent_from(below, f"{name}_{number}", runs) for number, below in enumerate(tree)]
        tools = [child.as_tool("Works.") for child in children]
        calls = [call(f"d{number}", child.name, query="go") for number, child in enumerate(children)]
    agent = agent_of(name, [], *tools)
    agent.model = ScriptedChatModel([script(calls, *[f"{name} is done."] * 4)] * 30)
    return agent


def outcome(agent: Agent) -> Any:
    """What the conversation holds, without times and random ids."""
    message = agent.state.context[-1]
    blocks = sorted((block.id, block.text, block.state) for block in message.get_content_blocks("tool_result"))
    states = [(block.id, block.state) for block in message.get_content_blocks("tool_call")]
    return agent.state.last_reply.finished_reason, message.get_text_content(), blocks, states


def confirm_every_other(agent: Agent, block: ToolCallBlock) -> ConfirmResult:
    """Yes to every other question, by its path, and the same whenever it is answered."""
    return ConfirmResult(sum(map(ord, block.id)) % 2 == 0, block)


def forged(agent: Agent, block: ToolCallBlock, data: st.DataObject) -> Any:
    reply_id = agent.state.reply_context.reply_id
    result = ConfirmResult(True, ToolCallBlock(block.id, block.name, block.input))
    kind = data.draw(st.sampled_from(["path", "tool", "input", "reply", "twice", "kind", "message"]))
    if kind == "message":
        return "something else"
    if kind == "kind":
        return ExternalExecutionResultEvent(reply_id, [ToolResultBlock(block.id, block.name, "x")])
    if kind == "path":
        result.tool_call.id = data.draw(st.sampled_from([f"{block.id}/x", block.id[:-1] + "9", "/", block.id + "/"]))
    elif kind == "tool":
        result.tool_call.name += "x"
    elif kind == "input":
        result.tool_call.input = json.dumps({"what": "other"})
    return UserConfirmResultEvent("x" if kind == "reply" else reply_id, [result] * (2 if kind == "twice" else 1))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=TREES, data=st.data())
def test_answers_one_by_one_end_as_all_at_once(tree: Any, data: st.DataObject) -> None:
    async def all_at_once() -> tuple[Any, list[str]]:
        runs: list[str] = []
        agent = agent_from(tree, "a", runs)
        await agent.reply("go")
        event = agent.waiting()
        results = [confirm_every_other(agent, block) for block in event.tool_calls]
        await agent.reply(UserConfirmResultEvent(event.reply_id, results))
        return outcome(agent), sorted(runs)

    async def one_by_one() -> tuple[Any, list[str]]:
        runs: list[str] = []
        agent = agent_from(tree, "a", runs)
        await agent.reply("go")
        while (event := agent.waiting()) is not None:
            block = data.draw(st.sampled_from(sorted(event.tool_calls, key=lambda block: block.id)))
            before = agent.state.model_dump_json()
            ran = list(runs)
            try:
                await agent.reply(forged(agent, block, data))
            except ResumeError:
                pass
            else:
                raise AssertionError("a forged answer was taken")
            assert (agent.state.model_dump_json(), runs) == (before, ran)
            if data.draw(st.booleans()):
                agent = agent_from(tree, "a", runs).with_state(AgentState.model_validate_json(before))
            left = {other.id for other in event.tool_calls} - {block.id}
            await agent.reply(UserConfirmResultEvent(event.reply_id, [confirm_every_other(agent, block)]))
            now = agent.waiting()
            assert {other.id for other in now.tool_calls} == left if now is not None else not left
        return outcome(agent), sorted(runs)

    assert anyio.run(one_by_one) == anyio.run(all_at_once)
