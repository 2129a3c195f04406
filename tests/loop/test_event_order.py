"""The exact order of a reply's events, case by case."""

import anyio
import pytest

from agentrt import Msg
from agentrt.agent import ReActConfig
from agentrt.errors import ChainContractError, Malformed
from agentrt.event import AgentEvent
from agentrt.message import DataBlock, TextBlock, ThinkingBlock, ToolCallBlock, URLSource
from agentrt.model import ChatResponse, ChatUsage
from agentrt.types import ToolChoice
from tests.loop.helpers import SHORT, add, agent_of, call, elsewhere, items_of, order_of, short
from tests.loop.parked import PathTool, done, no


async def test_a_streamed_text():
    agent = agent_of(["Hello big world"])
    assert await order_of(agent) == "RS MS TX_START TX_DELTA+ TX_END ME RE(completed) Msg"


async def test_the_last_response_of_a_stream_adds_no_delta():
    agent = agent_of(["Hello big world"])
    deltas = [item.delta for item in await items_of(agent) if short(item) == "TX_DELTA"]
    assert deltas == ["Hello ", "big ", "world"]


async def test_a_text_that_is_not_streamed_is_one_delta():
    agent = agent_of([ChatResponse([TextBlock("Hello")])])
    assert await order_of(agent) == "RS MS TX_START TX_DELTA TX_END ME RE(completed) Msg"


async def test_thinking_ends_before_text_starts():
    pieces = [ThinkingBlock("let me "), ThinkingBlock("see"), TextBlock("It is "), TextBlock("so")]
    agent = agent_of([[*(ChatResponse([piece], is_last=False) for piece in pieces)]])
    assert await order_of(agent) == "RS MS TH_START TH_DELTA+ TH_END TX_START TX_DELTA+ TX_END ME RE(completed) Msg"


async def test_thinking_comes_first_when_one_piece_holds_both():
    agent = agent_of([[ChatResponse([TextBlock("so"), ThinkingBlock("hm")], is_last=False)]])
    assert await order_of(agent) == "RS MS TH_START TH_DELTA TH_END TX_START TX_DELTA TX_END ME RE(completed) Msg"


async def test_data_closes_no_open_text():
    picture = DataBlock(URLSource("https://example.org/a.png", "image/png"), id="p")
    agent = agent_of([[*(ChatResponse([piece], is_last=False) for piece in (TextBlock("a"), picture, TextBlock("b")))]])
    assert (
        await order_of(agent) == "RS MS TX_START TX_DELTA DATA_BLOCK_START DATA_BLOCK_DELTA TX_DELTA TX_END "
        "DATA_BLOCK_END ME RE(completed) Msg"
    )


async def test_sequential_tools_run_one_after_the_other():
    def first() -> str:
        return "one"

    def second() -> str:
        return "two"

    agent = agent_of([[call("1", "first"), call("2", "second")], "done"], first, second)
    assert (
        await order_of(agent) == "RS MS CALL_START:1 CALL_DELTA:1 CALL_START:2 CALL_DELTA:2 CALL_END:1 CALL_END:2 ME "
        "RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(success) RESULT_START:2 RESULT_DELTA:2 RESULT_END:2(success) "
        "MS TX_START TX_DELTA TX_END ME RE(completed) Msg"
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_concurrent_tools_share_a_task_until_one_waits(anyio_backend):
    tasks, second = {}, anyio.Event()

    async def run(n: int) -> str:
        """Note the task; the first call waits for the second, and the third one waits for nothing."""
        tasks[n] = anyio.get_current_task().id
        await second.wait() if n == 1 else second.set()
        return str(n)

    agent = agent_of([[call(str(n), "run", n=n) for n in (1, 2, 3)], "done"], run)
    await agent.reply("go")
    assert tasks[1] != tasks[2] == tasks[3]
    assert anyio.get_current_task().id not in tasks.values()


async def test_concurrent_tools_start_together_and_end_as_they_finish():
    second_is_done = anyio.Event()

    async def first() -> str:
        await second_is_done.wait()
        return "one"

    async def second() -> str:
        second_is_done.set()
        return "two"

    agent = agent_of([[call("1", "first"), call("2", "second")], "done"], first, second)
    assert (
        await order_of(agent) == "RS MS CALL_START:1 CALL_DELTA:1 CALL_START:2 CALL_DELTA:2 CALL_END:1 CALL_END:2 ME "
        "RESULT_START:1 RESULT_START:2 RESULT_DELTA:2 RESULT_END:2(success) RESULT_DELTA:1 RESULT_END:1(success) "
        "MS TX_START TX_DELTA TX_END ME RE(completed) Msg"
    )


async def test_the_last_round_asks_for_a_text_without_tools():
    agent = agent_of([[call("1", "add", a=1, b=2)], "the text"], add, react_config=ReActConfig(max_iters=1))
    items = await items_of(agent)
    order = " ".join(short(item) for item in items)
    assert order.endswith(
        "RESULT_END:1(success) MS TX_START TX_DELTA TX_DELTA TX_END ME EXCEED RE(exceed_max_iters) Msg"
    )
    assert isinstance(items[-1], Msg)
    assert (items[-1].get_text_content(), items[-1].finished_reason) == ("the text", "exceed_max_iters")
    assert [made.tool_choice for made in agent.model.calls] == [None, ToolChoice("none")]
    hint = agent.model.calls[-1].messages[-1].get_content_blocks("hint")[0].hint
    assert hint.startswith("All 1 rounds of this reply are used up.")
    assert all(not message.has_content_blocks("hint") for message in agent.state.context)


async def test_calls_of_the_last_round_run_and_the_message_is_canned():
    agent = agent_of(
        [[call("1", "add", a=1, b=2)], [call("2", "add", a=1, b=2)]], add, react_config=ReActConfig(max_iters=1)
    )
    items = await items_of(agent)
    order = " ".join(short(item) for item in items)
    assert order.endswith("RESULT_START:2 RESULT_DELTA:2 RESULT_END:2(success) EXCEED RE(exceed_max_iters) Msg")
    assert items[-1].get_text_content() == "I used up the rounds that I have for one reply and could not finish."


async def test_a_tool_round_counts_once_however_many_calls_it_has():
    rounds = [[call(f"{n}a", "add", a=n, b=1), call(f"{n}b", "add", a=n, b=2)] for n in range(3)]
    agent = agent_of([*rounds, "done"], add, react_config=ReActConfig(max_iters=4))
    assert (await agent.reply("go")).finished_reason == "completed"
    assert all(made.tool_choice is None for made in agent.model.calls)


async def test_a_response_of_thinking_alone_goes_on_to_the_next_round():
    agent = agent_of([[ThinkingBlock("hm")], "done"])
    assert await order_of(agent) == (
        "RS MS TH_START TH_DELTA+ TH_END ME MS TX_START TX_DELTA TX_END ME RE(completed) Msg"
    ).replace("TH_DELTA+", "TH_DELTA")


async def test_thinking_alone_is_asked_for_once_more_and_then_refused():
    agent = agent_of([[ThinkingBlock("hm")], [ThinkingBlock("hm")], "never said"])
    with pytest.raises(Malformed, match="gave 2 empty answers in a row"):
        await agent.reply("go")


async def test_an_empty_answer_is_asked_for_once_more_and_then_refused():
    empty = ChatResponse([], usage=ChatUsage(1, 0))
    agent = agent_of([empty, "now"])
    assert (await agent.reply("go")).get_text_content() == "now"
    agent = agent_of([empty, empty])
    with pytest.raises(Malformed, match="model 'scripted' gave 2 empty answers in a row"):
        await agent.reply("go")
    assert [message.role for message in agent.state.context] == ["user"]


@pytest.mark.parametrize("pieces", [[], [ChatResponse([TextBlock("a")], is_last=False)]], ids=len)
async def test_only_a_stream_without_any_response_is_the_models_fault(pieces):

    class Endless(type(agent_of([]).model)):
        async def _call(self, messages, tools, tool_choice):
            async def stream():
                for each in pieces:
                    yield each

            return stream()

    agent = agent_of([])
    agent.model = Endless([])
    if pieces:
        assert (await agent.reply("go")).get_text_content() == "a"
        return
    with pytest.raises(ChainContractError, match=r"model 'scripted' gave a stream that ended without .*is_last=True"):
        await agent.reply("go")


async def test_events_are_numbered_without_gaps_over_the_conversation():
    agent = agent_of([[call("1", "add", a=1, b=2), call("2", "add", a=1, b=2)], "done", "again"], add)
    numbers = [item.seq for reply in range(2) for item in await items_of(agent) if not isinstance(item, Msg)]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_usage_adds_up_over_the_rounds():
    first = ChatResponse([call("1", "add", a=1, b=2)], usage=ChatUsage(10, 2, 4, None))
    agent = agent_of([first, ChatResponse([TextBlock("3")], usage=ChatUsage(20, 1))], add)
    assert (await agent.reply("go")).usage == ChatUsage(30, 3, 4, 0)


def names_in(items):
    """Return the names in the events of each tool call, by its id."""
    names: dict[str, set[str]] = {}
    for item in items:
        if isinstance(item, AgentEvent) and hasattr(item, "tool_call_id"):
            names.setdefault(item.tool_call_id, set()).add(item.tool_call_name)
    return names


async def test_every_event_of_a_tool_call_carries_its_name():
    def draw() -> list[TextBlock | DataBlock]:
        return [TextBlock("here"), DataBlock(URLSource("https://example.org/a.png", "image/png"))]

    def count():
        yield from ("one", "two")

    pieces = [ChatResponse([ToolCallBlock("4", "add", text)], is_last=False) for text in ('{"a": 1,', '"b": 2}')]
    script = [[call("1", "draw"), call("2", "count"), call("3", "nothing")], [*pieces], "done"]
    items = await items_of(agent_of(script, draw, count, add))
    kinds = {item.type for item in items if isinstance(item, AgentEvent) and "TOOL" in item.type}
    assert kinds == {kind for kind in SHORT if "TOOL" in kind} | {"TOOL_RESULT_DATA_DELTA"}
    assert names_in(items) == {"1": {"draw"}, "2": {"count"}, "3": {"nothing"}, "4": {"add"}}


async def test_results_of_answered_calls_carry_the_name_of_their_tool():
    tools = [PathTool("read", [], ask=True), PathTool("send", [], is_external_tool=True)]
    agent = agent_of([[call("1", "read", path="a"), call("2", "send", path="b")], "done"], *tools)
    await items_of(agent)
    agent = elsewhere(agent)
    items = [*await items_of(agent, no(agent)), *await items_of(agent, done(agent))]
    assert names_in(items) == {"1": {"read"}, "2": {"send"}}


@pytest.mark.parametrize("stop_at", ["TOOL_CALL_DELTA", "TOOL_RESULT_START"])
async def test_events_that_close_an_interrupted_call_carry_its_name(stop_at):
    async def wait() -> str:
        await anyio.sleep_forever()
        return "never"

    agent, items = agent_of([[call("1", "wait"), call("2", "wait")]], wait), []
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            items.append(event)
            if event.type == stop_at:
                agent.interrupt()
    assert items[-1].finished_reason == "interrupted"
    assert set.union(*names_in(items).values()) == {"wait"}
    assert {"TOOL_CALL_END", "TOOL_RESULT_END"} <= {event.type for event in items}
