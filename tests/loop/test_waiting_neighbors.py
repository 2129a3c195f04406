"""Calls beside one that waits: later ones wait as well, and a tool's own answer ends the reply after all of them."""

from typing import Any

import pytest

from agentrt.agent import ReActConfig
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import Msg, TextBlock, ToolResultBlock
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolResponse
from tests.loop.helpers import agent_of, call, confirmation_of, items_of
from tests.loop.test_running_calls import Ask

pytestmark = pytest.mark.anyio

INSIDE, OUTSIDE, APPROVED = "ask", "scan", "read"  # tools of which a call waits, each in its own way


class Scan(ToolBase):
    name = OUTSIDE
    is_external_tool = True

    def __init__(self) -> None:
        self.input_schema = {"type": "object", "properties": {}}


async def read() -> str:
    return "read"


async def answer() -> ToolResponse:
    return ToolResponse([TextBlock("told")], metadata={"response_msg": Msg("tester", "As the tool says.", "assistant")})


@pytest.mark.parametrize("is_parallel", [True, False])
async def test_a_later_call_waits_for_one_that_has_begun(is_parallel: bool) -> None:
    runs: list[str] = []

    def write() -> str:
        runs.append("write")
        return "written"

    async def post(context: ToolContext) -> str:
        runs.append("post")
        return "posted"

    calls = [call("1", "ask", names=["a"]), call("2", "write"), call("3", "post")]
    config = ReActConfig(parallel_tool_calls=is_parallel)
    agent = agent_of([calls, "Done."], Ask(), write, post, react_config=config)
    await agent.reply("go")
    assert runs == []
    await agent.reply(confirmation_of(agent))
    assert runs == ["write", "post"]
    results = agent.state.context[-1].get_content_blocks("tool_result")
    assert [(result.id, result.state) for result in results] == [(block.id, "success") for block in calls]


def next_answer(agent: Any) -> Any:
    """Answer the first call that is asked about."""
    event = agent.waiting()
    block = event.tool_calls[0]
    if event.type == "REQUIRE_USER_CONFIRM":
        return UserConfirmResultEvent(event.reply_id, [ConfirmResult(True, block)])
    return ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock(block.id, block.name, "scanned")])


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize(
    "waiting",
    [
        [INSIDE],
        [OUTSIDE],
        [APPROVED],
        [INSIDE, INSIDE],
        [OUTSIDE, OUTSIDE],
        [APPROVED, APPROVED],
        [INSIDE, APPROVED],
        [INSIDE, OUTSIDE],
        [OUTSIDE, APPROVED],
        [INSIDE, APPROVED, OUTSIDE],
    ],
    ids="-".join,
)
async def test_an_answer_of_a_tool_ends_the_reply_after_all_calls(waiting: list[str], is_seen: bool) -> None:
    arguments = {INSIDE: {"names": ["a"]}}
    calls = [call(str(number), name, **arguments.get(name, {})) for number, name in enumerate(waiting)]
    agent = agent_of([[*calls, call("last", "answer")]], Ask(), Scan(), FunctionTool(read, ask=True), answer)

    async def take(inputs: Any) -> Any:
        return (await items_of(agent, inputs))[-1] if is_seen else await agent.reply(inputs)

    final = await take("go")
    for _ in waiting:
        assert agent.state.last_reply is None
        final = await take(next_answer(agent))
    assert final.get_text_content() == "As the tool says."
    message = agent.state.context[-1]
    assert {result.state for result in message.get_content_blocks("tool_result")} == {"success"}
    assert {block.state for block in message.get_content_blocks("tool_call")} == {"finished"}
    assert (len(agent.model.calls), agent.state.last_reply.finished_reason) == (1, "completed")
