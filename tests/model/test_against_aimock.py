"""All adapters against a mock server that others wrote: whole conversations, over real sockets."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field

from agentrt import Agent, Msg, Toolkit, UserMsg
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.decoding.partial_answer import PartialAnswer
from agentrt.errors import ModelError, RateLimited, Rejected, Timeout, Transient
from agentrt.event import ModelCallEndEvent, TextBlockDeltaEvent, ThinkingBlockDeltaEvent, ToolCallDeltaEvent
from agentrt.formatter import (
    format_anthropic,
    format_bedrock,
    format_gemini,
    format_openai,
    format_openai_responses,
    multi_agent,
)
from agentrt.message import AssistantMsg
from agentrt.model import (
    AnthropicChatModel,
    BedrockChatModel,
    ChatModelBase,
    GeminiChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RemoteChatModel,
    Timeouts,
)
from agentrt.types import STRUCTURED_OUTPUT, ChatUsage
from tests.loop.helpers import add, items_of
from tests.servers.aimock import Aimock, free_port

FORMATTERS: dict[str, Any] = {
    "openai": format_openai,
    "openai-responses": format_openai_responses,
    "anthropic": format_anthropic,
    "gemini": format_gemini,
    "bedrock": format_bedrock,
}
STORY = "Once upon a time — 从前 — there was a chain of seven layers. 🚀"
_numbers = count()


async def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


class Setting:
    """One provider's model, with a name of its own to find its requests by."""

    def __init__(self, aimock: Aimock, provider: str) -> None:
        self.aimock = aimock
        self.provider = provider
        self.name = f"{provider}-{next(_numbers)}"
        self.models: list[RemoteChatModel] = []

    def model(self, **options: Any) -> RemoteChatModel:
        options = {"api_key": "test", "extra_headers": {"x-test-id": self.name}, **options}
        model: RemoteChatModel
        if self.provider == "openai":
            model = OpenAIChatModel("gpt-5-mini", **{"base_url": f"{self.aimock.url}/v1", **options})
        elif self.provider == "openai-responses":
            name = options.pop("model", "gpt-4.1-mini")  # which does not reason
            model = OpenAIResponsesModel(name, **{"base_url": f"{self.aimock.url}/v1", **options})
        elif self.provider == "gemini":
            model = GeminiChatModel("gemini-2.5-flash", **{"base_url": f"{self.aimock.url}/v1beta", **options})
        elif self.provider == "bedrock":  # aimock knows no cache points among the tools, and Nova has none there
            model = BedrockChatModel("us.amazon.nova-pro-v1:0", **{"base_url": self.aimock.url, **options})
        else:
            model = AnthropicChatModel("claude-sonnet-4-5", **{"base_url": self.aimock.url, **options})
        self.models.append(model)
        return model

    def agent(self, model: ChatModelBase | None = None, **options: Any) -> Agent:
        toolkit = Toolkit(tools=[get_weather, add])
        return Agent("tester", "You are tested.", model or self.model(**options), toolkit)

    def sent(self) -> list[dict[str, Any]]:
        """Return the bodies that arrived, in OpenAI's shape."""
        return [entry["body"] for entry in self.aimock.requests(self.name)]

    def outputs(self) -> list[dict[str, str]]:
        """Return by call id the results that each request carried, each result being told by one message."""
        return [
            {each["tool_call_id"]: output_in(words(each)) for each in body["messages"] if each["role"] == "tool"}
            for body in self.sent()
        ]


@pytest.fixture(params=[*FORMATTERS])
async def setting(request: pytest.FixtureRequest, aimock: Aimock, anyio_backend: str) -> AsyncIterator[Setting]:
    setting = Setting(aimock, request.param)
    yield setting
    aimock.forget_requests()
    for model in setting.models:
        await model.aclose()


def words(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def output_in(text: str) -> str:
    """Return the output of a tool, which Gemini's API wraps into an object."""
    output: str = json.loads(text)["output"] if text.startswith('{"output"') else text
    return output


async def reply_kept_by(agent: Agent, inputs: str) -> Msg:
    """Return the message that the conversation keeps of a reply, with all its rounds."""
    await agent.reply(inputs)
    kept: Msg = agent.state.context[-1]
    return kept


def kinds(msg: Msg) -> list[str]:
    return [block.type for block in msg.get_content_blocks()]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_plain_question_is_answered_and_counted(setting: Setting, stream: bool) -> None:
    reply = await setting.agent(stream=stream).reply("plain")

    assert (reply.get_text_content(), reply.usage) == ("Hello from the mock.", ChatUsage(11, 7))
    (body,) = setting.sent()
    assert [(each["role"], words(each)) for each in body["messages"]] == [
        ("system", "You are tested."),
        ("user", "plain"),
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather", "add"]
    assert body["stream"] is stream


async def test_an_answer_streams_in_pieces_that_are_the_whole(setting: Setting) -> None:
    *events, reply = await items_of(setting.agent(), "long story")
    pieces = [event.delta for event in events if isinstance(event, TextBlockDeltaEvent)]

    assert len(pieces) > 5
    assert "".join(pieces) == STORY == reply.get_text_content()


async def test_usage_that_the_server_leaves_out_is_never_nothing(setting: Setting) -> None:
    reply = await setting.agent().reply("no usage")

    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0
    if setting.provider == "anthropic":  # the server counts zero there, and by itself in OpenAI's API
        assert reply.usage.estimated


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_is_called_and_its_result_sent_back(setting: Setting, stream: bool) -> None:
    kept = await reply_kept_by(setting.agent(stream=stream), "weather in Rome")

    assert kinds(kept) == ["text", "tool_call", "tool_result", "text"]
    assert kept.get_text_content() == "Let me look.\nIt is sunny in Rome."
    assert kept.usage == ChatUsage(50, 11)
    assert setting.outputs() == [{}, {"call_rome": "sunny in Rome"}]
    asked = [each for each in setting.sent()[1]["messages"] if each["role"] == "assistant"]
    (call,) = asked[-1]["tool_calls"]
    assert "".join(map(words, asked)) == "Let me look."
    assert (call["id"], call["function"]["name"]) == ("call_rome", "get_weather")


async def test_tools_are_called_in_rounds_of_one_conversation(setting: Setting) -> None:
    agent = setting.agent()
    kept = await reply_kept_by(agent, "plan a trip")
    again = await agent.reply("plain")

    rounds = [{}, {"call_1": "sunny in Rome"}, {"call_1": "sunny in Rome", "call_2": "5"}]
    assert kept.get_text_content() == "Five days in sunny Rome."
    assert again.get_text_content() == "Hello from the mock."
    assert setting.outputs() == [*rounds, rounds[-1]]
    assert [each["role"] for each in setting.sent()[-1]["messages"]] == [
        "system",
        "user",
        *["assistant", "tool"] * 2,
        "assistant",
        "user",
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_parallel_calls_get_each_its_own_result(setting: Setting, stream: bool) -> None:
    reply = await setting.agent(stream=stream).reply("compare")

    assert reply.get_text_content() == "Both are sunny, and it is 42."
    assert setting.outputs()[1] == {"call_rome": "sunny in Rome", "call_oslo": "sunny in Oslo", "call_sum": "42"}


async def test_thinking_is_shown_and_goes_back_as_the_api_wants_it(setting: Setting) -> None:
    # The server is strict: it answers 400 when a round of tools goes on without the thinking that began it.
    options: dict[str, Any] = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}
    if setting.provider == "openai-responses":
        options = {setting.provider: {"model": "gpt-5-mini"}}
    agent = setting.agent(setting.model(**options.get(setting.provider, {})))
    events = await items_of(agent, "think about Rome")
    shown = "".join(event.delta for event in events if isinstance(event, ThinkingBlockDeltaEvent))
    kept = agent.state.context[-1]

    assert shown == "The user wants weather, so I ask the tool.The tool says sunny."
    assert kinds(kept) == ["thinking", "tool_call", "tool_result", "thinking", "text"]
    assert all(not block.signature for block in kept.get_content_blocks("thinking")) is (
        setting.provider in ("openai", "gemini", "bedrock")  # where aimock signs nothing
    )


async def test_an_answer_cut_by_its_limit_says_so(setting: Setting) -> None:
    events = await items_of(setting.agent(), "too long")

    (end,) = [event for event in events if isinstance(event, ModelCallEndEvent)]
    assert end.finished_reason == "length"


async def test_a_429_says_when_to_retry_and_nothing_retries_by_itself(setting: Setting) -> None:
    agent = setting.agent()
    with pytest.raises(RateLimited) as caught:
        await agent.reply("too many")

    assert caught.value.retry_after == 3
    assert len(setting.sent()) == 1
    assert (await agent.reply("too many")).get_text_content() == "Now it works."


@pytest.mark.parametrize(
    ("status", "error"), [(401, Rejected), (404, Rejected), (500, Transient), (503, Transient), (529, Transient)]
)
async def test_a_status_is_an_error_of_the_tree(setting: Setting, status: int, error: type[ModelError]) -> None:
    with pytest.raises(error) as caught:
        await setting.agent().reply(f"status {status}")

    assert caught.value.status_code == status
    assert len(setting.sent()) == 1


async def test_a_server_that_is_not_there_is_transient(setting: Setting) -> None:
    address = f"127.0.0.1:{free_port()}"
    model = setting.model(base_url=f"http://{address}")
    with pytest.raises(Transient, match=f"{address}.*is the server running"):
        await setting.agent(model).reply("plain")


async def test_a_cut_stream_is_transient_and_the_next_reply_is_whole(setting: Setting) -> None:
    agent = setting.agent()
    with pytest.raises(Transient, match=r"cut after [1-9]"):
        await agent.reply("cut")

    assert (await agent.reply("cut")).get_text_content() == "Whole this time."


async def test_a_server_that_says_nothing_times_out(setting: Setting) -> None:
    with pytest.raises(Timeout, match="idle"):
        await setting.agent(timeouts=Timeouts(idle=0.1)).reply("silent")


async def test_a_slow_stream_can_be_left_and_the_next_reply_works(setting: Setting) -> None:
    agent = setting.agent()
    with anyio.CancelScope() as scope:
        async with agent.reply_stream("slow") as events:
            async for event in events:
                if isinstance(event, TextBlockDeltaEvent):
                    scope.cancel()

    assert scope.cancelled_caught
    assert (await agent.reply("slow")).get_text_content() == "Fast this time."


async def test_fifty_conversations_share_a_model_and_stay_apart(setting: Setting) -> None:
    names = [f"conversation-{setting.name}-{number:02}." for number in range(50)]
    setting.aimock.add_fixtures(
        [
            fixture
            for number, name in enumerate(names)
            for fixture in (
                {
                    "match": {"userMessage": name, "hasToolResult": False},
                    "response": {"toolCalls": [{"id": "same", "name": "add", "arguments": {"a": number, "b": 1000}}]},
                },
                {
                    "match": {"userMessage": name, "toolResultContains": str(1000 + number)},
                    "response": {"content": f"{name} {number}"},
                },
            )
        ]
    )
    model = setting.model()
    answers: dict[str, str | None] = {}

    async def converse(name: str) -> None:
        answers[name] = (await setting.agent(model).reply(name)).get_text_content()

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(converse, name)

    assert answers == {name: f"{name} {number}" for number, name in enumerate(names)}
    assert len(setting.sent()) == 100


async def test_speakers_are_kept_apart_on_the_wire(setting: Setting) -> None:
    agent = setting.agent(formatter=multi_agent(FORMATTERS[setting.provider]))
    await agent.observe([UserMsg("Alice", "I say red."), AssistantMsg("Bob", "I say blue.\nAlice:\n  I say green.")])
    await agent.reply(UserMsg("Carol", "plain"))

    (body,) = setting.sent()
    _, *rest = body["messages"]
    lines = "".join(map(words, rest)).splitlines()
    said: defaultdict[str, list[str]] = defaultdict(list)
    speaker = ""
    for line in lines:
        if line.startswith("  "):
            said[speaker].append(line.strip())
        else:
            speaker = line.removesuffix(":")
    assert [each["role"] for each in rest] == ["user"]
    assert (said["Alice"], said["Carol"]) == (["I say red."], ["plain"])
    assert "I say green." in said["Bob"]


class Trip(BaseModel):
    """A journey that the user wants to make."""

    city: str = Field(description="Where it leads.")
    days: int = Field(gt=0)
    stops: list[str] = []


TRIP = {"city": "Rome", "days": 3, "stops": ["Pisa"]}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("mode", ["native", "tool"])
async def test_structured_output_takes_one_request_either_way(setting: Setting, mode: Any, stream: bool) -> None:
    hint = "answer by calling the tool" if mode == "tool" else "answer as JSON"  # the last that the model is told
    call = {"id": "call_1", "name": STRUCTURED_OUTPUT, "arguments": TRIP}
    answer = {"toolCalls": [call]} if mode == "tool" else {"content": json.dumps(TRIP)}
    setting.aimock.add_fixtures([{"match": {"userMessage": hint}, "chunkSize": 4, "response": answer}])
    agent = setting.agent(stream=stream, structured_output=mode)
    events = []
    partial, partials = PartialAnswer(AnswerForm(Trip)), []
    async with agent.reply_stream("plan a journey", Trip) as reply:
        async for event in reply:
            events.append(event)
            partials += [partial.value] if partial.read(event) else []

    assert partials[-1] == Trip(city="Rome", days=3, stops=["Pisa"])
    assert reply.message.structured_output == Trip(city="Rome", days=3, stops=["Pisa"])
    deltas = [event.delta for event in events if isinstance(event, ToolCallDeltaEvent)]
    assert json.loads("".join(deltas)) == TRIP
    assert len(deltas) > 3 or not stream or setting.provider == "gemini"  # whose calls come whole
    (body,) = setting.sent()
    offered = [tool["function"]["name"] for tool in body["tools"]]
    assert offered == ["get_weather", "add", *([STRUCTURED_OUTPUT] if mode == "tool" else [])]


# It has no batches of the others: for these, tests/model/batch asks their own clients.
@pytest.mark.parametrize(
    ("setting", "outcome"),
    [("openai", "completed"), ("openai", "failed"), ("openai", "expired"), ("openai-responses", "completed")],
    indirect=["setting"],
)
async def test_a_batch_is_submitted_awaited_and_read(setting: Setting, outcome: str) -> None:
    model = setting.model(extra_headers={"x-aimock-batch-outcome": outcome})
    name = f"{setting.name}-{outcome}"
    batch = await model.batch([[UserMsg("user", f"question {n}")] for n in range(3)], name=name, poll_seconds=0.001)
    again = await setting.model().batch([[UserMsg("user", "question")]], name=name)
    results = await batch.wait()

    assert again.id == batch.id
    if outcome == "completed":
        texts = [UserMsg("m", result.response.content).get_text_content() for result in results if result.response]
        assert texts == ["Mock batch completion"] * 3
    else:
        assert [type(result.error) for result in results] == [Transient if outcome == "failed" else Timeout] * 3
