"""Each limit of a reply ends it tidily, with a finished_reason of its own, and the conversation goes on after it."""

import itertools
import re

import anyio
import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Toolkit
from agentrt.agent import ContextConfig, ReActConfig
from agentrt.errors import ConfigError
from agentrt.message import Base64Source, DataBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext
from tests.loop.helpers import add, agent_of, call, confirmation_of, elsewhere, items_of, order_of, short


async def assert_well(agent: Agent, reason: str, answer: str = "next") -> None:
    """Assert that the reply ended for that reason, whole, and that the conversation can go on."""
    assert agent.state.last_reply.finished_reason == reason
    assert agent.state.reply_context is None
    for message in agent.state.context:
        calls = [block.id for block in message.get_content_blocks("tool_call")]
        assert sorted(block.id for block in message.get_content_blocks("tool_result")) == sorted(calls)
    agent.react_config = ReActConfig()
    agent.model = ScriptedChatModel([answer])
    assert (await agent.reply("and now?")).get_text_content() == answer


def results(agent: Agent) -> list[str]:
    """Return how the calls of the last reply ended, in order of the calls."""
    message = agent.state.context[-1]
    ends = {block.id: str(block.state) for block in message.get_content_blocks("tool_result")}
    return [ends[block.id] for block in message.get_content_blocks("tool_call")]


@pytest.mark.parametrize(
    ("value", "remedy"),
    [(0, "a whole number of at least 1"), (-1, "a whole"), (1.5, "a whole"), (True, "a whole"), ("3", "a whole")],
)
@pytest.mark.parametrize("name", ["max_iters", "max_tool_calls", "max_output", "max_depth"])
def test_a_bad_count_is_refused_by_name_and_value(name, value, remedy):
    with pytest.raises(ConfigError) as caught:
        ReActConfig(**{name: value})
    assert f"ReActConfig({name}=...) must be {remedy}" in str(caught.value)
    assert str(caught.value).endswith(f"not {value!r}")


@pytest.mark.parametrize("value", [0, -0.5, "1", None, True, float("nan")])
@pytest.mark.parametrize("name", ["max_seconds", "answer_within"])
def test_bad_seconds_are_refused_by_name_and_value(name, value):
    with pytest.raises(ConfigError) as caught:
        ReActConfig(**{name: value})
    assert f"ReActConfig({name}=...) must be a number of seconds above 0, not {value!r}" in str(caught.value)


@pytest.mark.parametrize(
    "ratios", [(0.1, 0.8), (0.5, 0.5), (1.5, 0.1), (0.8, -0.1), ("0.8", 0.1), (True, 0.1), (float("nan"), 0.1)]
)
def test_bad_ratios_are_refused_with_their_values(ratios):
    with pytest.raises(ConfigError) as caught:
        ContextConfig(*ratios)
    assert f"trigger_ratio={ratios[0]!r}" in str(caught.value)
    assert f"reserve_ratio={ratios[1]!r}" in str(caught.value)


@pytest.mark.parametrize("instructions", [5, ["Be short."]])
def test_bad_instructions_are_refused(instructions):
    with pytest.raises(ConfigError, match="instructions"):
        ContextConfig(instructions=instructions)


def test_a_config_is_frozen_and_agents_share_nothing_mutable():
    with pytest.raises(AttributeError):
        ReActConfig().max_iters = 3


def endless_calls(name: str = "add", **arguments: object):
    return ([call(str(number), name, **(arguments or {"a": 1, "b": 1}))] for number in itertools.count())


async def test_after_max_iters_one_more_request_has_no_tools():
    rounds = itertools.islice(endless_calls(), 2)
    agent = agent_of([*rounds, "all I know"], add, react_config=ReActConfig(max_iters=2))
    assert (await order_of(agent)).endswith("MS TX_START TX_DELTA+ TX_END ME EXCEED RE(exceed_max_iters) Msg")
    last = agent.model.calls[-1]
    assert last.tool_choice.mode == "none"
    assert "All 2 rounds of this reply are used up" in last.messages[-1].content[0].hint
    await assert_well(agent, "exceed_max_iters")


async def test_calls_in_the_last_answer_still_run():
    agent = agent_of(endless_calls(), add, react_config=ReActConfig(max_iters=1))
    message = (await items_of(agent))[-1]
    assert (message.finished_reason, len(agent.model.calls)) == ("exceed_max_iters", 2)
    assert "used up the rounds" in message.get_text_content()
    assert results(agent) == ["success", "success"]
    await assert_well(agent, "exceed_max_iters")


async def test_of_five_calls_in_one_answer_three_are_run():
    agent = agent_of(
        [[call(str(n), "add", a=n, b=0) for n in range(5)]], add, react_config=ReActConfig(max_tool_calls=3)
    )
    message = (await items_of(agent))[-1]
    assert message.finished_reason == "exceed_max_tool_calls"
    assert "used up the tool calls" in message.get_text_content()
    assert results(agent) == ["success"] * 3 + ["denied"] * 2
    denied = agent.state.context[-1].get_content_blocks("tool_result")[-1]
    assert denied.output[0].text == "Not run: one reply may make 3 tool calls, and they are used up."
    await assert_well(agent, "exceed_max_tool_calls")


async def test_calls_are_counted_over_rounds_and_the_last_is_answered():
    agent = agent_of(endless_calls(), add, react_config=ReActConfig(max_tool_calls=3))
    assert (await agent.reply("go")).finished_reason == "exceed_max_tool_calls"
    assert results(agent) == ["success"] * 3 + ["denied"]
    agent = agent_of([*itertools.islice(endless_calls(), 3), "done"], add, react_config=ReActConfig(max_tool_calls=3))
    assert (await agent.reply("go")).get_text_content() == "done"


async def test_each_call_counts_once_however_often_it_is_parked():
    calls = [call(str(n), "add", a=n, b=0) for n in range(4)]
    agent = agent_of([calls, [call("4", "add", a=4, b=0)]], FunctionTool(add, ask=True))
    agent.react_config = ReActConfig(max_tool_calls=3)
    await agent.reply("go")
    for number in range(3):
        agent = elsewhere(agent)
        message = await agent.reply(confirmation_of(agent, str(number)))
    assert message.finished_reason == "exceed_max_tool_calls"
    assert results(agent) == ["success"] * 3 + ["denied"]
    await assert_well(agent, "exceed_max_tool_calls")


async def test_the_call_that_gives_the_final_answer_does_not_count():
    calls = [call("1", "add", a=1, b=1), call("2", "GenerateStructuredOutput", n=2)]
    agent = agent_of([calls], add, react_config=ReActConfig(max_tool_calls=1))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert (await agent.reply("go", schema)).structured_output == {"n": 2}


async def hang(messages, tools):
    await anyio.sleep_forever()


async def wait() -> str:
    await anyio.sleep_forever()
    return "never"


async def wait_in_context(context: ToolContext) -> str:
    return await wait()


async def stream():
    yield "I wait"
    await anyio.sleep_forever()


class Chatty(ChatModelBase):
    """Never stops talking; waits between its words, or does not."""

    def __init__(self, pause: float | None = None, piece: str = "blah ", kind: type = TextBlock) -> None:
        super().__init__(model="chatty", stream=True)
        self.pause = pause
        self.piece = piece
        self.kind = kind

    async def _call(self, messages, tools, tool_choice):
        return self._talk()

    async def _talk(self):
        while True:
            if self.kind is ToolCallBlock:
                yield ChatResponse([ToolCallBlock("1", "add", self.piece)], False)
            else:
                yield ChatResponse([self.kind(self.piece, id="b")], False)
            if self.pause is not None:
                await anyio.sleep(self.pause)


@pytest.mark.parametrize(
    ("said", "tool"),
    [
        (hang, wait),
        ([call("1", "wait")], wait),
        ([call("1", "wait_in_context")], wait_in_context),
        ([call("1", "stream")], stream),
        ([call("1", "wait"), call("2", "wait")], wait),
    ],
    ids=["a model", "a tool", "a tool with a context", "a streaming tool", "two tools"],
)
async def test_what_hangs_is_stopped_when_the_time_is_up(said, tool):
    agent = agent_of([said], tool, react_config=ReActConfig(max_seconds=0.05))
    message = (await items_of(agent))[-1]
    assert message.finished_reason == "exceed_max_seconds"
    assert "used up the time" in message.get_text_content()
    if said is not hang:
        assert results(agent) == ["interrupted"] * len(said)
    await assert_well(agent, "exceed_max_seconds")


@pytest.mark.parametrize("pause", [None, 0.001])
async def test_an_endless_stream_is_stopped_when_the_time_is_up(pause):
    agent = Agent("a", model=Chatty(pause), react_config=ReActConfig(max_seconds=0.05, max_output=1_000_000_000))
    order = (await order_of(agent)).replace("+", "")  # a busy machine may have time for one delta only
    assert order.endswith("TX_DELTA TX_END ME RE(exceed_max_seconds) Msg")
    await assert_well(agent, "exceed_max_seconds")


@pytest.mark.slow
async def test_a_slow_reader_finds_the_end_at_its_next_step():
    agent = agent_of(["one two three", "next"], react_config=ReActConfig(max_seconds=2))
    names = []
    async with agent.reply_stream("go") as events:
        async for event in events:
            names.append(short(event))
            if names[-1] == "TX_DELTA":
                await anyio.sleep(2.1)
    assert names == ["RS", "MS", "TX_START", "TX_DELTA", "TX_END", "ME", "RE(exceed_max_seconds)"]
    await assert_well(agent, "exceed_max_seconds")


@pytest.mark.slow
async def test_time_that_is_spent_waiting_for_somebody_does_not_count():
    agent = agent_of([[call("1", "add", a=1, b=1)], "done"], FunctionTool(add, ask=True))
    agent.react_config = ReActConfig(max_seconds=2)
    await agent.reply("go")
    await anyio.sleep(2.1)
    assert (await agent.reply(confirmation_of(agent))).get_text_content() == "done"


async def test_the_callers_own_timeout_is_no_limit_of_the_reply():
    agent = agent_of([hang, "next"], react_config=ReActConfig(max_seconds=60))
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.02):
            await agent.reply("go")
    await assert_well(agent, "interrupted")


@pytest.mark.parametrize("kind", [TextBlock, ThinkingBlock, ToolCallBlock])
async def test_an_endless_stream_is_cut(kind):
    agent = Agent(
        "a", model=Chatty(None, "12345", kind), toolkit=Toolkit(tools=[add]), react_config=ReActConfig(max_output=500)
    )
    message = (await items_of(agent))[-1]
    assert message.finished_reason == "exceed_max_output"
    assert agent.state.context[-1].to_json().count("12345") <= 600
    await assert_well(agent, "exceed_max_output")


class Noisy(MiddlewareBase):
    """Makes the model be asked in a task of its own."""

    emits = True

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler()


async def test_an_endless_stream_beside_its_reader_is_cut():
    agent = Agent("a", model=Chatty(None, "12345"), middlewares=[Noisy()], react_config=ReActConfig(max_output=500))
    await agent.reply("go")
    await assert_well(agent, "exceed_max_output")


BIG_PICTURE = DataBlock(Base64Source("AAAA" * 100_000, "image/png"))


@pytest.mark.parametrize(
    ("block", "stream"),
    [
        (ToolCallBlock("1", "add", '{"a": 1, "b": 1}' + " " * 200), False),
        (BIG_PICTURE, False),
        (BIG_PICTURE, True),
    ],
    ids=["call", "data", "streamed data"],
)
async def test_a_note_replaces_what_is_too_large_for_the_reply(block, stream):
    model = ScriptedChatModel([ChatResponse([block])], stream=stream)
    agent = Agent("a", model=model, toolkit=Toolkit(tools=[add]), react_config=ReActConfig(max_output=100))
    message = await agent.reply("go")
    assert message.finished_reason == "exceed_max_output"
    assert re.match(r"\[left out: .* characters, more than max_output allows\]", message.get_text_content())
    assert len(agent.state.model_dump_json()) < 3_000
    await assert_well(agent, "exceed_max_output")


async def test_a_whole_text_that_is_too_long_is_cut():
    agent = agent_of([ChatResponse([TextBlock("x" * 100_000)])], react_config=ReActConfig(max_output=5_000))
    message = await agent.reply("go")
    assert (message.finished_reason, len(message.get_text_content())) == ("exceed_max_output", 5_000)
    await assert_well(agent, "exceed_max_output")


async def test_a_model_that_streams_nothing_for_ever_is_stopped():
    class Silent(ChatModelBase):
        async def _call(self, messages, tools, tool_choice):
            async def stream():
                while True:
                    yield ChatResponse([], is_last=False)

            return stream()

    agent = Agent("a", model=Silent(model="silent"), react_config=ReActConfig(max_output=1_000))
    assert (await agent.reply("go")).finished_reason == "exceed_max_output"


@pytest.mark.parametrize("form", ["inline", "in context", "streaming", "concurrent"])
async def test_an_agent_that_calls_itself_is_stopped_at_its_depth(form):
    depths = []

    async def ask() -> str:
        depths.append(len(depths))
        other = agent.with_state(AgentState())
        other.model = ScriptedChatModel([calls, "asked"])
        return (await other.reply("go")).get_text_content() + str(other.state.context[-1].to_json())

    async def ask_in_context(context: ToolContext) -> str:
        return await ask()

    async def ask_streaming():
        yield await ask()

    tool = {"in context": ask_in_context, "streaming": ask_streaming}.get(form, ask)
    calls = [call("1", tool.__name__)] + [call("2", "add", a=1, b=1)] * (form == "concurrent")
    agent = agent_of([calls, "top"], tool, add, react_config=ReActConfig(max_depth=3))
    assert (await agent.reply("go")).get_text_content() == "top"
    assert len(depths) == 3
    assert "was asked inside 3 other replies" in agent.state.context[-1].to_json()
    await assert_well(agent, "completed")
