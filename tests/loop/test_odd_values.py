"""Whatever a model, a tool, a layer or a caller gives: a named error, or a state that saves and loads."""

import math
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.errors import AgentRTError, ChainContractError, InvalidInputError, Malformed, UsageError
from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase, ToolChunk, ToolResponse
from tests.loop.helpers import agent_of, call

odd = st.sampled_from(
    [None, 5, -1, True, math.nan, math.inf, "", "a", "\ud800", "\udc00b", "é", b"a", ["a"], {"a": 1}, object()]
)
sources = st.builds(Base64Source, odd, odd) | st.builds(URLSource, odd, odd) | odd
blocks = (
    st.builds(TextBlock, odd, odd)
    | st.builds(ThinkingBlock, odd, odd, odd)
    | st.builds(ToolCallBlock, odd, st.just("echo") | odd, st.just("{}") | odd)
    | st.builds(DataBlock, sources, odd, odd)
    | odd
)
contents = st.lists(blocks, max_size=3) | odd
usages = st.none() | st.builds(ChatUsage, odd, odd, odd, odd) | odd
responses = st.builds(ChatResponse, contents, st.booleans(), usages, odd)
metadata = st.dictionaries(st.sampled_from(["a", "response_msg"]), odd | st.builds(UserMsg, odd, st.text()))
outputs = (
    odd
    | st.lists(blocks, max_size=3)
    | st.builds(ToolResponse, contents, odd, metadata | odd)
    | st.builds(ToolChunk, contents, odd, st.booleans(), metadata | odd)
)


class Plays(ChatModelBase):
    """Gives one odd answer, streamed or not, and then a plain one."""

    def __init__(self, answer: Any) -> None:
        super().__init__(model="odd")
        self.answers = [answer]

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        if not self.answers:
            return ChatResponse([TextBlock("plain")])
        answer = self.answers.pop()
        if not isinstance(answer, list):
            return answer

        async def stream() -> Any:
            for each in answer:
                yield each

        return stream()


async def assert_sound(agent: Agent, store: InMemoryStateStore, inputs: Any = "go") -> None:
    """Assert that a reply has a named error or none, and that the conversation is saved, loads and goes on."""
    with suppress(ChainContractError, InvalidInputError, Malformed):
        await agent.reply(inputs)
    text = agent.state.model_dump_json()
    assert AgentState.model_validate_json(text).model_dump_json() == text
    agent.model = ScriptedChatModel(["and on"])
    assert (await agent.reply("go on")).get_text_content() == "and on"
    saved = await store.load(agent.state.session_id)
    assert saved.context[-1].get_text_content() == "and on"


def echo() -> str:
    return "said"


@given(answer=responses | st.lists(responses, max_size=4))
@settings(max_examples=50, deadline=None)
async def test_whatever_a_model_answers_the_conversation_can_be_saved(answer):
    store = InMemoryStateStore()
    agent = Agent("a", model=Plays(answer), toolkit=Toolkit(tools=[echo]), state_store=store)
    await assert_sound(agent, store)


@given(output=outputs, is_streamed=st.booleans(), is_a_layers=st.booleans())
@settings(max_examples=50, deadline=None)
async def test_whatever_a_tool_gives_the_conversation_can_be_saved(output, is_streamed, is_a_layers):
    async def stream() -> Any:
        yield output

    async def give() -> Any:
        return output

    class Layer(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            if is_a_layers and isinstance(output, (ToolResponse, ToolChunk)):
                yield output
            if not is_a_layers or not isinstance(output, ToolResponse):
                async for item in next_handler():
                    yield item

    store = InMemoryStateStore()
    tool: Any = FunctionTool(stream if is_streamed else give, name="odd")
    agent = agent_of([[call("1", "odd")], "done"], tool, state_store=store, middlewares=[Layer()])
    await assert_sound(agent, store)


messages = st.builds(
    lambda name, content, **more: UserMsg(name, content if isinstance(content, str) else "x", **more),
    odd,
    odd,
    id=odd,
    metadata=st.dictionaries(st.text(), odd) | odd,
    usage=usages,
    structured_output=odd,
    finished_reason=odd,
    error=odd,
    created_at=odd,
)


@given(message=messages, is_observed=st.booleans(), content=contents)
@example(message=Msg("", "x", "user", error="\ud800"), is_observed=False, content=None)
@settings(max_examples=50, deadline=None)
async def test_whatever_a_caller_gives_the_conversation_can_be_saved(message, is_observed, content):
    message.content = content if isinstance(content, (str, list)) else message.content

    store = InMemoryStateStore()
    agent = agent_of(["done"], state_store=store)
    if is_observed:
        try:
            await agent.observe(message)
        except InvalidInputError:
            assert agent.state.context == []
    await assert_sound(agent, store, "go" if is_observed else message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (UserMsg(None, "a"), "the message from None could not be saved: its name is None: it must be a str"),
        (UserMsg("u", "a", id=None), "the message from 'u' could not be saved: its id is None: it must be a str"),
        (UserMsg("u", [TextBlock(None)]), "it holds a TextBlock whose text is None: it must be a str"),
        (UserMsg("u", [DataBlock(Base64Source("no!", "a/b"))]), "it holds data that is not base64 ('no!'): encode it"),
        (UserMsg("u", "a", metadata={"a": math.nan}), "its metadata cannot be saved: it holds a number that is not"),
        (UserMsg("u", "a", usage=5), "its usage is 5: it must be a ChatUsage"),
    ],
)
async def test_a_message_that_could_not_be_saved_is_refused(message, problem):
    agent = agent_of(["done"])
    for give in (agent.reply, agent.observe):
        with pytest.raises(InvalidInputError) as caught:
            await give(message)
        assert problem in str(caught.value)
    assert agent.state.context == []


@pytest.mark.parametrize("inputs", ["caf\ud800", UserMsg("u", "caf\ud800"), [UserMsg("u", [TextBlock("caf\ud800")])]])
async def test_half_a_character_of_a_caller_is_replaced(inputs):
    agent = agent_of(["done"])
    await agent.reply(inputs)
    assert agent.state.context[0].get_text_content() == "caf\ufffd"


async def test_half_a_character_in_a_summary_is_replaced():
    agent = agent_of(["one", "two", "sum\ud800"])
    await agent.reply("go" * 1_000)
    await agent.reply("go" * 1_000)
    agent.model.context_size = 500
    await agent.compress_context()
    assert agent.state.summary == "sum\ufffd"


async def test_a_hint_that_is_not_text_is_refused():
    class Hints(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            agent.run.continue_with(None)
            async for item in next_handler():
                yield item

    with pytest.raises(UsageError, match=r"continue_with\(\) takes a str for the model, not None"):
        await agent_of(["done"], middlewares=[Hints()]).reply("go")


async def test_a_message_of_a_layer_is_refused_by_its_hook():
    class Speaks(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            message = AssistantMsg("layer", [TextBlock("a")])
            message.content = [TextBlock(5)]
            yield message

    with pytest.raises(
        ChainContractError, match="on_reasoning: model 'layer' answered with a TextBlock whose text is 5"
    ):
        await agent_of(["done"], middlewares=[Speaks()]).reply("go")


@pytest.mark.parametrize("text", ['{"a": 1e400}', '{"a": [{"b": -1e999}]}'])
async def test_an_argument_without_end_is_refused(text):
    ran = []

    class Takes(ToolBase):
        name = "takes"
        input_schema: ClassVar[dict[str, Any]] = {"type": "object"}

        async def call(self, **arguments: Any) -> str:
            ran.append(arguments)
            return "ran"

    agent = agent_of([[ToolCallBlock("1", "takes", text)], "done"], Takes())
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert "should be a finite number" in result.output[0].text
    assert not ran


async def test_an_external_result_whose_data_is_not_base64_is_refused():
    class Scan(ToolBase):
        name = "scan"
        input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}
        is_external_tool = True

    agent = agent_of([[call("1", "scan")], "done"], Scan())
    waiting = await agent.reply("go")
    output = [DataBlock(Base64Source("no!", "image/png"))]
    answer = ExternalExecutionResultEvent(waiting.id, [ToolResultBlock("1", "scan", output)])
    with pytest.raises(AgentRTError, match="the result of 'scan' holds data that is not base64: encode it") as caught:
        await agent.reply(answer)
    assert caught.value.code == "invalid"
    assert agent.state.reply_context.parked


def test_a_message_made_of_odd_parts_is_a_message():
    assert Msg("a", "b", "user", usage=ChatUsage(None, 3)).usage == ChatUsage(0, 3, estimated=True)
