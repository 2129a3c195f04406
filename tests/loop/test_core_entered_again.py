"""A layer of on_reply that leaves the core and enters it again: what happened stays told, and no tool runs twice."""

from contextlib import aclosing

import pytest

from agentrt import Agent, MiddlewareBase, Msg, Toolkit
from agentrt.event import AgentEvent, UserConfirmResultEvent
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, call, confirmation_of, rebuilt

TAKEN = ["TOOL_RESULT_START", "TOOL_RESULT_TEXT_DELTA", "TOOL_RESULT_END", "MODEL_CALL_START"]

ROUND = ["REPLY_START", "MODEL_CALL_START", "TOOL_CALL_START", "TOOL_CALL_DELTA", "TOOL_CALL_END", "MODEL_CALL_END"]
ROUND += TAKEN[:3]


class EnterAgain(MiddlewareBase):
    """Takes so many items of a reply, or of a resumed one alone, leaves the core, and enters it again."""

    def __init__(self, taken: int, resumed: bool = True) -> None:
        self.taken, self.resumed = taken, resumed

    async def on_reply(self, agent, input_kwargs, next_handler):
        if isinstance(input_kwargs["inputs"], UserConfirmResultEvent) is self.resumed:
            async with aclosing(next_handler()) as items:
                for _ in range(self.taken):
                    yield await anext(items)
        async for item in next_handler():
            yield item


async def resumed(taken: int, ran: list[int]) -> tuple[Agent, list[AgentEvent], Msg]:
    """Approve a call in such an agent; return the events from then on, and the message rebuilt from all of them."""

    async def careful(number: int) -> str:
        ran.append(number)
        return "done"

    model = ScriptedChatModel([[call("1", "careful", number=1)], *["answer"] * 2])
    toolkit = Toolkit(tools=[FunctionTool(careful, ask=True)])
    agent = Agent("tester", "", model, toolkit, middlewares=[EnterAgain(taken)])
    asked = [event async for event in agent.reply_stream("go")]
    answer = confirmation_of(agent)
    events = [event async for event in agent.reply_stream(answer)]
    return agent, events, rebuilt([*asked, answer, *events])


@pytest.mark.parametrize("taken", range(1, len(TAKEN) + 1))
async def test_an_approved_tool_runs_once_if_the_core_is_entered_again(taken):
    ran: list[int] = []
    agent, events, heard = await resumed(taken, ran)
    # A layer that left before the tool ran gets what a call in doubt gets.
    assert ran == [1] * (taken > 1)
    kept = agent.state.context[-1]
    assert [result.state for result in kept.get_content_blocks("tool_result")] == ["success" if ran else "unknown"]
    assert heard.content == kept.content
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))


async def test_events_on_record_that_no_layer_took_are_told_first():
    _, events, _ = await resumed(2, [])
    names = [event.type for event in events]
    assert names[: names.index("REPLY_RESUMED")] == TAKEN[:3]


@pytest.mark.parametrize("taken", range(1, len(ROUND) + 1))
async def test_a_new_reply_tells_first_what_no_layer_took(taken):
    model = ScriptedChatModel([[call("1", "add", a=1, b=2)], "answer", "answer"])
    agent = Agent("tester", "", model, Toolkit(tools=[add]), middlewares=[EnterAgain(taken, resumed=False)])
    events = [event async for event in agent.reply_stream("go")]
    names = [event.type for event in events]
    # The end of a result is on record with its text, and told with it; then all that was said is withdrawn.
    told = ROUND if ROUND[taken - 1] == "TOOL_RESULT_TEXT_DELTA" else ROUND[:taken]
    assert names[: names.index("MODEL_CALL_RETRY")] == told
    assert rebuilt(events).content == agent.state.context[-1].content
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
