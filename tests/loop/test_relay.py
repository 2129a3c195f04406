"""Events of another reply in a reply's own stream."""

from typing import Any

import anyio
import pytest

from agentrt import Agent, MiddlewareBase, Msg
from agentrt.event import CustomEvent, ModelCallEndEvent, TextBlockDeltaEvent
from agentrt.message import ToolCallBlock
from agentrt.tool import OpenQuestion, ToolBase, ToolContext, ToolResponse
from tests.loop.helpers import agent_of, call, confirmation_of, items_of, rebuilt

pytestmark = pytest.mark.anyio


class Nothing(MiddlewareBase):
    """Passes everything on, in each hook that a stream goes through."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler(**input_kwargs):
            yield item

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler(**input_kwargs):
            yield item


def child() -> Agent:
    return agent_of([[call("1", "add", a=1, b=2)], "Three, says the child."], _add)


async def _add(a: int, b: int) -> int:
    return a + b


_add.__name__ = "add"


async def delegate(context: ToolContext) -> str:
    final = None
    async with child().reply_stream("go", yield_final_msg=True) as stream:
        async for item in stream:
            if isinstance(item, Msg):
                final = item
            else:
                await context.relay(item)
    return final.get_text_content()


@pytest.mark.parametrize("middlewares", [[], [Nothing()]], ids=["bare", "layers"])
async def test_the_events_of_a_child_are_seen_and_change_nothing_here(middlewares: Any) -> None:
    agent = agent_of([[call("1", "delegate")], "Done."], delegate, middlewares=middlewares)
    items = await items_of(agent)
    events = items[:-1]
    own = [event for event in events if event.reply_id == items[-1].id]
    foreign = [event for event in events if event.reply_id != items[-1].id]
    assert [event.type for event in foreign][:1] + [event.type for event in foreign][-1:] == [
        "REPLY_START",
        "REPLY_END",
    ]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    heard = rebuilt(events)
    assert heard.content == agent.state.context[-1].content
    assert (await agent_of([[call("1", "delegate")], "Done."], delegate).reply("go")).usage == heard.usage
    assert [event.type for event in own][-1] == "REPLY_END"


async def test_an_unseen_reply_counts_what_is_relayed() -> None:
    seen = agent_of([[call("1", "delegate")], "Done."], delegate)
    await items_of(seen)
    unseen = agent_of([[call("1", "delegate")], "Done."], delegate)
    await unseen.reply("go")
    assert unseen.state.sequence == seen.state.sequence


async def test_ten_thousand_deltas_wait_for_a_slow_reader() -> None:
    """The child is never more than a mailbox ahead of the reader."""
    count = 10_000
    relayed = 0
    ahead: list[int] = []

    async def stream(context: ToolContext) -> str:
        nonlocal relayed
        for number in range(count):
            await context.relay(TextBlockDeltaEvent("child", "b", str(number)))
            relayed += 1
        return "all"

    agent = agent_of([[call("1", "stream")], "Done."], stream)
    seen: list[str] = []
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.reply_id == "child":
                seen.append(event.delta)
                ahead.append(relayed - len(seen))
                if len(seen) % 1_000 == 0:
                    await anyio.lowlevel.checkpoint()
    assert seen == [str(number) for number in range(count)]
    assert max(ahead) <= 65


async def test_two_children_side_by_side_share_the_room() -> None:
    async def stream(child_name: str, context: ToolContext) -> str:
        for number in range(300):
            await context.relay(TextBlockDeltaEvent(f"child {child_name}", "b", str(number)))
        return child_name

    calls = [call("1", "stream", child_name="a"), call("2", "stream", child_name="b")]
    items = await items_of(agent_of([calls, "Done."], stream))
    for name in "ab":
        deltas = [item.delta for item in items if not isinstance(item, Msg) and item.reply_id == f"child {name}"]
        assert deltas == [str(number) for number in range(300)]


async def test_a_reader_that_leaves_stops_a_child_that_waits_for_room() -> None:
    stopped = anyio.Event()

    async def stream(context: ToolContext) -> str:
        try:
            while True:
                await context.relay(TextBlockDeltaEvent("child", "b", "x"))
        finally:
            stopped.set()

    agent = agent_of([[call("1", "stream")], "Done."], stream)
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.reply_id == "child":
                break
    assert stopped.is_set()


@pytest.mark.parametrize("reply_id", ["", "own"])
async def test_only_events_of_other_replies_are_relayed(reply_id: str) -> None:
    async def send(context: ToolContext) -> str:
        await context.relay(CustomEvent("a", reply_id=context.reply_id if reply_id else ""))
        return "sent"

    agent = agent_of([[call("1", "send")], "Done."], send)
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert (result.state, "use emit()" in result.text) == ("error", True)


async def test_the_tokens_of_a_child_do_not_count_as_the_parents() -> None:
    class Parking(ToolBase):
        """Relay the end of a model call, which is the last that is seen before the reply parks."""

        name = "park"
        is_resumable = True

        async def call(self, context: ToolContext) -> Any:
            await context.relay(ModelCallEndEvent("child", 1_000_000, 5))
            return "resumed" if context.answers else ToolResponse(waits=[OpenQuestion(ToolCallBlock("a", "publish"))])

    agent = agent_of([[call("1", "park")], "Done."], Parking())
    agent.model.context_size = 10_000
    await items_of(agent)
    await agent.reply(confirmation_of(agent))
    message = agent.state.context[-1]
    assert (agent.state.summary, message.usage is None or message.usage.input_tokens < 1_000_000) == ("", True)


async def test_without_a_reply_what_is_relayed_is_kept_for_the_caller() -> None:
    context = ToolContext(call("1", "send"))
    await context.relay(CustomEvent("a", reply_id="child"))
    assert [event.name for event in context.emitted] == ["a"]
