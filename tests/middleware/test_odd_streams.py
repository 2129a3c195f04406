"""A model whose stream has no last response, and one with malformed answers, within every middleware of model calls."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.errors import ChainContractError, CircuitOpen, Transient
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import (
    CircuitBreakerMiddleware,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    Timing,
    TimingMiddleware,
    TracingMiddleware,
    UsageMiddleware,
)
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.testing import lint
from tests.loop.helpers import add, saved_state
from tests.middleware.fake_time import Clock
from tests.pairwise import pairwise


class Pieces(ChatModelBase):
    """Answers each call with the next list of pieces, and repeats the last list."""

    def __init__(self, *answers: list[Any], stream: bool = True) -> None:
        super().__init__(model="pieces", stream=stream)
        self.answers = list(answers)

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return self._pieces(answer) if self.stream else answer[0]

    async def _pieces(self, answer: list[Any]) -> AsyncGenerator[Any, None]:
        for piece in answer:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def piece(*content: Any, **fields: Any) -> ChatResponse:
    return ChatResponse([TextBlock(block) if isinstance(block, str) else block for block in content], False, **fields)


HELLO = [piece("Hel"), piece("lo", finished_reason="stop"), piece(usage=ChatUsage(10, 5))]
CUT = [piece("Hel"), Transient("cut")]


def tracing() -> tuple[TracingMiddleware, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return TracingMiddleware(tracer_provider=provider, capture_content=True), exporter


LAYERS = {
    "none": list,
    "tracing": lambda: [tracing()[0]],
    "usage": lambda: [UsageMiddleware({"pieces": (1, 2)})],
    "retry": lambda: [RetryMiddleware(max_retries=1, initial_delay=0.001)],
    "fallback": lambda: [ModelFallbackMiddleware(ScriptedChatModel(["other"]))],
    "rate limit": lambda: [RateLimitMiddleware(tokens_per_minute=1e9)],
    "timing": lambda: [TimingMiddleware(lambda timing: None)],
    "circuit breaker": lambda: [CircuitBreakerMiddleware()],
    "timeout": lambda: [TimeoutMiddleware(total=10)],
    "lint": lambda: lint([UsageMiddleware()]),
}


@pytest.mark.parametrize("layers", LAYERS)
async def test_pieces_without_a_last_response_are_the_answer(layers: str) -> None:
    agent = Agent("a", model=Pieces(HELLO), middlewares=LAYERS[layers]())
    message = await agent.reply("go")
    assert (message.get_text_content(), message.finished_reason) == ("Hello", "completed")
    assert message.usage == ChatUsage(10, 5)


async def test_a_stream_of_pieces_that_ended_closes_the_circuit() -> None:
    clock = Clock()
    layer = CircuitBreakerMiddleware(2, 30, clock=clock)
    agent = Agent("a", model=Pieces(CUT, HELLO, CUT, CUT, HELLO, HELLO), middlewares=[layer])
    for error in (Transient, None, Transient, Transient, CircuitOpen):
        with pytest.raises(error) if error else pytest.MonkeyPatch.context():
            await agent.with_state(AgentState()).reply("go")
    clock.now += 31
    for _ in range(2):  # the probe closed the circuit
        assert (await agent.with_state(AgentState()).reply("go")).get_text_content() == "Hello"


async def test_an_empty_stream_does_not_close_the_circuit() -> None:
    clock = Clock()
    layer = CircuitBreakerMiddleware(1, 30, clock=clock)
    agent = Agent("a", model=Pieces(CUT, [], CUT), middlewares=[layer])
    with pytest.raises(Transient):
        await agent.with_state(AgentState()).reply("go")
    clock.now += 31
    with pytest.raises(ChainContractError, match="without any response"):
        await agent.with_state(AgentState()).reply("go")
    with pytest.raises(Transient):
        await agent.with_state(AgentState()).reply("go")
    with pytest.raises(CircuitOpen):
        await agent.with_state(AgentState()).reply("go")


async def test_a_stream_of_pieces_that_ended_is_timed_as_an_answer() -> None:
    timings = list[Timing]()
    agent = Agent("a", model=Pieces(HELLO), middlewares=[TimingMiddleware(timings.append)])
    await agent.reply("go")
    assert [(timing.ended, timing.first is not None) for timing in timings] == [("ok", True)]


async def test_a_stream_of_pieces_that_ended_is_traced_as_an_answer() -> None:
    layer, exporter = tracing()
    thought = [piece(ThinkingBlock("Ad")), piece(ThinkingBlock("d.")), piece("I ", id="r1"), piece("add.")]
    calls = [
        piece(ToolCallBlock("1", "add", '{"a": 1,')),
        piece(ToolCallBlock("2", "add", '{"a": 3, "b": 4}')),
        piece(ToolCallBlock("1", "", ' "b": 2}'), finished_reason="tool_calls", usage=ChatUsage(7, 3)),
    ]
    agent = Agent("a", model=Pieces([*thought, *calls], HELLO), toolkit=None, middlewares=[layer])
    agent.toolkit.register_tool_function(add)
    await agent.reply("go")
    first, second = [span for span in exporter.get_finished_spans() if span.name.startswith("chat")]
    attributes = dict(first.attributes or {})
    assert attributes["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 3)
    assert attributes["gen_ai.response.id"] == "r1"
    (message,) = json.loads(str(attributes["gen_ai.output.messages"]))
    assert [part.get("content", part.get("arguments")) for part in message["parts"]] == [
        "Add.",
        "I add.",
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ]
    assert dict(second.attributes or {})["gen_ai.response.finish_reasons"] == ("stop",)


async def test_a_conversation_stays_with_a_model_that_streamed_pieces() -> None:
    layer, exporter = tracing()
    fallback = ModelFallbackMiddleware(Pieces(HELLO), sticky=True)
    fallback.models[0].model = "other"
    model = ScriptedChatModel([Transient("503"), "back"])
    agent = Agent("a", model=model, middlewares=[layer, fallback])
    assert [(await agent.reply("go")).get_text_content() for _ in range(2)] == ["Hello", "Hello"]
    chats = [span for span in exporter.get_finished_spans() if span.name.startswith("chat")]
    assert [dict(span.attributes or {})["gen_ai.response.model"] for span in chats] == ["other", "other"]


async def test_pieces_without_usage_count_with_at_least_the_estimate() -> None:
    layer = RateLimitMiddleware(tokens_per_minute=60_000)
    agent = Agent("a", model=Pieces([piece("Hi")]), middlewares=[layer])
    await agent.reply("go")
    (limiter,) = layer._own.values()
    assert limiter.usage._tokens.level > 250


@pytest.mark.parametrize("is_swallowed", [False, True])
async def test_lint_reports_only_a_last_response_that_is_swallowed(is_swallowed: bool) -> None:
    class Outside(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return self.pieces(await next_handler())

        async def pieces(self, stream: Any) -> AsyncGenerator[ChatResponse, None]:
            async for response in stream:
                if not response.is_last:
                    yield response

    class Inside(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return self.pieces()

        async def pieces(self) -> AsyncGenerator[ChatResponse, None]:
            for response in HELLO:
                yield response

    layers = lint([Outside(), UsageMiddleware(), *([] if is_swallowed else [Inside()])])
    agent = Agent("a", model=ScriptedChatModel(["Hello"], stream=True), middlewares=layers)
    if is_swallowed:
        with pytest.raises(ChainContractError, match=r"^Outside\.on_model_call returned a stream .* is_last=True"):
            await agent.reply("go")
    else:
        assert (await agent.reply("go")).get_text_content() == "Hello"


ODD: dict[str, Any] = {
    "no response": "hi",
    "nothing": None,
    "content of nothing": ChatResponse(None),  # type: ignore[arg-type]
    "content of a number": ChatResponse(5),  # type: ignore[arg-type]
    "text": ChatResponse([TextBlock(5)]),  # type: ignore[arg-type]
    "content of many digits": ChatResponse(10**5_000),  # type: ignore[arg-type]
    "usage of another type": ChatResponse([TextBlock("x")], usage={"input_tokens": 1}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("layers", "odd", "stream"), pairwise(sorted(LAYERS.keys() - {"lint"}), ODD, [True, False]))
async def test_a_malformed_answer_is_refused_by_name_within_each_layer(layers: str, odd: str, stream: bool) -> None:
    agent = Agent("a", model=Pieces([ODD[odd]], stream=stream), middlewares=LAYERS[layers]())
    with pytest.raises(ChainContractError, match=r"on_model_call|model 'pieces'"):
        await agent.reply("go")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("layers", LAYERS)
async def test_a_repairable_answer_is_repaired_within_each_layer(layers: str, stream: bool) -> None:
    odd = ChatResponse([TextBlock(None), TextBlock("Hello")], usage=ChatUsage("3", 10**5_000))  # type: ignore[arg-type]
    agent = Agent("a", model=Pieces([odd], stream=stream), middlewares=LAYERS[layers]())
    assert (await agent.reply("go")).get_text_content() == "Hello"
    assert saved_state(agent).context == agent.state.context
