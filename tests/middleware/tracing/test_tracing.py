"""Tracing: the spans of a reply, their attributes, and no effect on the reply itself."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, StaticSampler
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiProviderNameValues
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from agentrt import Agent, MiddlewareBase, Msg, Toolkit
from agentrt.agent import ContextConfig
from agentrt.errors import ConfigError, MiddlewareConfigError, ModelError, RateLimited, ResumeError, Transient
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    TextBlockDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    UserConfirmResultEvent,
)
from agentrt.message import (
    DataBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
    UserMsg,
)
from agentrt.middleware import ModelFallbackMiddleware, RetryMiddleware, TracingMiddleware
from agentrt.model import (
    AnthropicChatModel,
    BedrockChatModel,
    ChatModelBase,
    ChatResponse,
    ChatUsage,
    OpenAIChatModel,
    ScriptedChatModel,
    chat_model,
)
from agentrt.testing import ToolLog, check_every_suspension
from agentrt.tool import FunctionTool, ToolBase, ToolContext
from agentrt_middleware.tracing.attributes import labels_of
from agentrt_middleware.tracing.span import GenAISpan, Isolated
from tests.loop.helpers import add, agent_of, call, items_of

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CANARY = "sk-canary-3f9a"


class Spans(SpanProcessor):
    """A tracer provider in memory, and the spans that it started and ended."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[ReadableSpan] = []
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.begun.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def middleware(self, **options: Any) -> TracingMiddleware:
        return TracingMiddleware(tracer_provider=self.provider, **options)

    def tree(self, parent: int | None = None) -> list[Any]:
        """Return the names of the ended spans, in the order in which they began: a name, or [name, children]."""
        order = [span.context.span_id for span in self.begun]
        under = [span for span in self.ended if (span.parent.span_id if span.parent else None) == parent]
        under.sort(key=lambda span: order.index(span.context.span_id))
        named = [(span.name, self.tree(span.context.span_id)) for span in under]
        return [[name, children] if children else name for name, children in named]

    def named(self, start: str) -> list[ReadableSpan]:
        order = [span.context.span_id for span in self.begun]
        found = [span for span in self.ended if span.name.startswith(start)]
        return sorted(found, key=lambda span: order.index(span.context.span_id))

    def one(self, start: str) -> ReadableSpan:
        (span,) = self.named(start)
        return span

    def text(self) -> str:
        """Return everything that was exported."""
        return "\n".join(span.to_json() for span in self.ended)

    def check_all_ended(self) -> None:
        assert len(self.begun) == len(self.ended)
        assert not trace.get_current_span().get_span_context().is_valid


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """Check that OpenTelemetry logs nothing about contexts or ended spans."""
    yield
    complaints = [
        record.getMessage() for record in caplog.get_records("call") if record.name.startswith("opentelemetry")
    ]
    assert not complaints


def attributes_of(span: ReadableSpan, *but: str) -> dict[str, Any]:
    """Return the attributes of a span, except the named ones and those that differ from run to run."""
    left_out = {"gen_ai.conversation.id", "agentrt.agent.reply_id", "gen_ai.response.time_to_first_chunk", *but}
    return {name: value for name, value in dict(span.attributes or {}).items() if name not in left_out}


def answer(text: str, input_tokens: int = 7, output_tokens: int = 2, **fields: Any) -> ChatResponse:
    usage = ChatUsage(input_tokens, output_tokens)
    return ChatResponse([TextBlock(text)], usage=usage, finished_reason="stop", **fields)


class Deploy(ToolBase):
    name = "deploy"
    description = "Deploy."
    input_schema = {"type": "object", "properties": {}}  # noqa: RUF012
    is_external_tool = True


async def test_a_plain_reply_is_one_agent_span_with_one_chat_span(spans: Spans) -> None:
    usage = ChatUsage(7, 2, 4, 3)
    response = ChatResponse([TextBlock("hello")], usage=usage, finished_reason="stop", id="resp-1")
    agent = Agent("tester", model=ScriptedChatModel([response], stream=False), middlewares=[spans.middleware()])
    msg = await agent.reply("go")

    assert spans.tree() == [["invoke_agent tester", ["chat scripted"]]]
    invoke, chat = spans.one("invoke"), spans.one("chat")
    tokens = {
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_write.input_tokens": 3,
    }
    assert attributes_of(invoke) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "tester",
        "gen_ai.request.model": "scripted",
        "agentrt.agent.finished_reason": "completed",
        **tokens,
    }
    assert attributes_of(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.agent.name": "tester",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.id": "resp-1",
        **tokens,
    }
    assert invoke.attributes["agentrt.agent.reply_id"] == msg.id
    assert {span.attributes["gen_ai.conversation.id"] for span in spans.ended} == {agent.state.session_id}
    assert (invoke.kind, chat.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    assert {span.status.status_code for span in spans.ended} == {StatusCode.UNSET}
    assert invoke.instrumentation_scope.name == "agentrt"
    spans.check_all_ended()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            OpenAIChatModel(
                "m", api_key=CANARY, temperature=0.5, max_tokens=9, stop="END", seed=7, extra_body={"a": 1}
            ),
            {"temperature": 0.5, "max_tokens": 9, "stop_sequences": ["END"], "seed": 7},
        ),
        (
            BedrockChatModel("m", api_key=CANARY, region="eu-west-1", top_p=0.1, max_tokens=9, stop=["A", "B"]),
            {"top_p": 0.1, "max_tokens": 9, "stop_sequences": ["A", "B"]},
        ),
        (
            AnthropicChatModel("m", api_key=CANARY, top_p=0.1, max_tokens=9, stop=["A", "B"]),
            {"top_p": 0.1, "max_tokens": 9, "stop_sequences": ["A", "B"]},
        ),
    ],
    ids=["openai", "bedrock", "anthropic"],
)
async def test_a_chat_span_has_the_settings_of_the_request(
    spans: Spans, model: ChatModelBase, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_call", ScriptedChatModel(["done"])._call)
    await Agent("tester", model=model, middlewares=[spans.middleware()]).reply("go")
    [chat] = [json.loads(span.to_json()) for span in spans.ended if span.name == "chat m"]
    prefix = "gen_ai.request."
    settings = {name.removeprefix(prefix): value for name, value in chat["attributes"].items() if prefix in name}
    assert {name: value for name, value in settings.items() if name not in ("model", "stream")} == expected


async def test_a_streamed_answer_says_when_its_first_piece_came(spans: Spans) -> None:
    agent = agent_of([["one ", "two", answer("one two")]], middlewares=[spans.middleware()])
    await agent.reply("go")
    chat = spans.one("chat")
    assert chat.attributes["gen_ai.request.stream"] is True
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert chat.attributes["gen_ai.usage.input_tokens"] == 7
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("stop",)


async def test_chats_and_tools_are_siblings_and_their_tokens_add_up(spans: Spans) -> None:
    asks = ChatResponse([call("1", "add", a=1, b=2)], usage=ChatUsage(5, 3), finished_reason="tool_calls")
    agent = agent_of([asks, answer("three")], add, middlewares=[spans.middleware()])
    await agent.reply("go")
    assert spans.tree() == [["invoke_agent tester", ["chat scripted", "execute_tool add", "chat scripted"]]]
    assert attributes_of(spans.one("execute_tool")) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "1",
        "gen_ai.tool.description": "Add two numbers.",
        "gen_ai.agent.name": "tester",
        "agentrt.tool.result.state": "success",
    }
    invoke = spans.one("invoke")
    assert (invoke.attributes["gen_ai.usage.input_tokens"], invoke.attributes["gen_ai.usage.output_tokens"]) == (12, 5)


async def test_what_tools_models_and_layers_do_is_under_the_right_span(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("user")
    both = anyio.Event()
    entered: list[str] = []

    async def look(place: str) -> str:
        """Look at a place, not before the other call looks as well."""
        entered.append(place)
        if len(entered) == 2:
            both.set()
        await both.wait()
        with tracer.start_as_current_span(f"look at {place}"):
            await anyio.lowlevel.checkpoint()
        return place

    def measure() -> str:
        with tracer.start_as_current_span("measure in a thread"):
            return "1"

    class Inner(MiddlewareBase):
        async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
            with tracer.start_as_current_span("layer"):
                pass
            async for item in next_handler():
                yield item

    class Http(ChatModelBase):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            async def stream() -> AsyncGenerator[ChatResponse, None]:
                with tracer.start_as_current_span("read"):
                    await anyio.lowlevel.checkpoint()
                yield next(responses)

            with tracer.start_as_current_span("POST"):
                return stream()

    calls = [call("1", "look", place="A"), call("2", "look", place="B"), call("3", "measure")]
    responses = iter([ChatResponse(list(calls)), ChatResponse([TextBlock("done")])])
    toolkit = Toolkit(tools=[look, measure])
    agent = Agent("tester", model=Http(model="http"), toolkit=toolkit, middlewares=[spans.middleware(), Inner()])
    await agent.reply("go")

    chat = ["chat http", ["POST", "read"]]
    tools = [
        ["execute_tool look", ["look at A"]],
        ["execute_tool look", ["look at B"]],
        ["execute_tool measure", ["measure in a thread"]],
    ]
    ((name, children),) = spans.tree()
    assert name == "invoke_agent tester"
    assert [children[:2], children[-2:]] == [["layer", chat], ["layer", chat]]
    assert sorted(children[2:-2]) == tools
    spans.check_all_ended()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_sub_agents_reply_is_under_the_tool_that_called_it(spans: Spans, others: int) -> None:
    tracing = spans.middleware()
    helper = Agent("helper", model=ScriptedChatModel(["I help"]), middlewares=[tracing])

    async def ask() -> str:
        return (await helper.reply("please")).get_text_content() or ""

    calls = [call("1", "ask"), *(call("2", "add", a=1, b=2) for _ in range(others))]
    await agent_of([calls, "done"], ask, add, middlewares=[tracing]).reply("go")
    below = [["execute_tool ask", [["invoke_agent helper", ["chat scripted"]]]], *["execute_tool add"] * others]
    ((_, (first, *tools, last)),) = spans.tree()
    assert [first, last] == ["chat scripted", "chat scripted"]
    assert sorted(tools, key=str, reverse=True) == sorted(below, key=str, reverse=True)  # they begin in any order
    assert len({span.context.trace_id for span in spans.ended}) == 1


async def test_calls_that_a_tool_makes_are_under_its_span(spans: Spans) -> None:
    async def run(context: ToolContext) -> str:
        """Add, and call what is not there."""
        await context.call("subtract")
        return (await context.call("add", {"a": 1, "b": 2})).text

    tool = FunctionTool(run, is_resumable=True)
    await agent_of([[call("1", "run")], "done"], tool, add, middlewares=[spans.middleware()]).reply("go")
    ((_, (_, (_, below), _)),) = spans.tree()
    assert sorted(below) == ["execute_tool _OTHER", "execute_tool add"]


async def test_a_parked_reply_and_its_answer_share_a_reply_id(spans: Spans) -> None:
    calls = [call("1", "add", a=1, b=2), call("2", "add", a=3, b=4)]
    agent = agent_of([calls, "done"], FunctionTool(add, ask=True), middlewares=[spans.middleware()])
    parked = await agent.reply("go")
    assert spans.tree() == [["invoke_agent tester", ["chat scripted"]]]
    first = spans.one("invoke")
    pending = [{"id": "1", "name": "add"}, {"id": "2", "name": "add"}]
    assert json.loads(first.attributes["agentrt.agent.hitl_pending_tools"]) == pending
    assert first.attributes["agentrt.agent.finished_reason"] == "parked"
    assert "agentrt.agent.incoming_event_type" not in first.attributes

    results = [ConfirmResult(confirmed, tool_call) for confirmed, tool_call in zip([True, False], calls, strict=True)]
    await agent.reply(UserConfirmResultEvent(parked.id, results))
    below = ["execute_tool add", "execute_tool add", "chat scripted"]
    assert spans.tree()[1] == ["invoke_agent tester", below]
    second = spans.named("invoke")[1]
    assert second.attributes["agentrt.agent.incoming_event_type"] == "USER_CONFIRM_RESULT"
    assert second.attributes["agentrt.agent.reply_id"] == first.attributes["agentrt.agent.reply_id"] == parked.id
    assert "agentrt.agent.hitl_pending_tools" not in second.attributes
    states = {span.attributes["gen_ai.tool.call.id"]: span for span in spans.named("execute_tool")}
    assert states["1"].attributes["agentrt.tool.result.state"] == "success"
    assert states["1"].end_time > states["1"].start_time
    assert states["2"].attributes["agentrt.tool.result.state"] == "denied"
    assert (states["2"].status.status_code, states["2"].status.description) == (StatusCode.ERROR, "denied")
    assert states["2"].end_time == states["2"].start_time
    spans.check_all_ended()


async def test_an_external_result_has_a_span_without_length(spans: Spans) -> None:
    calls = [call("1", "deploy"), call("2", "deploy")]
    agent = agent_of([calls, "done"], Deploy(), middlewares=[spans.middleware()])
    parked = await agent.reply("go")
    waiting = spans.one("invoke").attributes["agentrt.agent.external_execution_pending_tools"]
    assert [waiting_call["id"] for waiting_call in json.loads(waiting)] == ["1", "2"]

    states = [ToolResultState.SUCCESS, ToolResultState.ERROR]
    results = [ToolResultBlock(str(n), "deploy", "deployed", state) for n, state in enumerate(states, 1)]
    await agent.reply(ExternalExecutionResultEvent(parked.id, results))
    assert spans.tree()[1] == ["invoke_agent tester", ["execute_tool deploy", "execute_tool deploy", "chat scripted"]]
    assert spans.named("invoke")[1].attributes["agentrt.agent.incoming_event_type"] == "EXTERNAL_EXECUTION_RESULT"
    good, bad = spans.named("execute_tool")
    assert attributes_of(good) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "deploy",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "1",
        "gen_ai.tool.description": "Deploy.",
        "gen_ai.agent.name": "tester",
        "agentrt.agent.is_external_execution": True,
        "agentrt.tool.result.state": "success",
    }
    assert good.start_time == good.end_time
    assert (good.status.status_code, bad.status.description) == (StatusCode.UNSET, "tool_error")


async def test_an_interrupted_tool_does_not_fail_the_reply_span(spans: Spans) -> None:
    async def stop() -> str:
        agent.interrupt()
        await anyio.sleep_forever()
        return "never"

    calls = [call("1", "stop"), call("2", "add", a=1, b=2)]
    agent = agent_of([calls], FunctionTool(stop, is_concurrency_safe=False), add, middlewares=[spans.middleware()])
    await agent.reply("go")
    assert spans.tree() == [["invoke_agent tester", ["chat scripted", "execute_tool stop", "execute_tool add"]]]
    assert [span.status.description for span in spans.named("execute_tool")] == ["interrupted", "interrupted"]
    assert spans.one("invoke").status.status_code is StatusCode.UNSET
    assert spans.one("invoke").attributes["agentrt.agent.finished_reason"] == "interrupted"
    spans.check_all_ended()


async def test_an_interrupted_answer_is_marked_as_cut_and_not_failed(spans: Spans) -> None:
    agent = agent_of([["one ", "two ", "three"]], middlewares=[spans.middleware()])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if isinstance(event, TextBlockDeltaEvent):
                agent.interrupt()
    chat = spans.one("chat")
    assert chat.status.status_code is StatusCode.UNSET
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert spans.one("invoke").attributes["agentrt.agent.finished_reason"] == "interrupted"
    spans.check_all_ended()


@pytest.mark.parametrize("response", [RateLimited(CANARY), ["one ", RateLimited(CANARY)]])
async def test_a_model_that_fails_fails_its_chat_and_the_reply(spans: Spans, response: Any) -> None:
    agent = agent_of([response], middlewares=[spans.middleware()])
    with pytest.raises(ModelError):
        await agent.reply("go")
    assert spans.tree() == [["invoke_agent tester", ["chat scripted"]]]
    for span in spans.ended:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "RateLimited")
        assert span.attributes["error.type"] == "RateLimited"
        assert not span.events
    assert spans.one("invoke").attributes["agentrt.agent.finished_reason"] == "error"
    assert CANARY not in spans.text()


async def test_each_way_a_tool_fails_has_an_error_type_of_its_own(spans: Spans) -> None:
    async def fail() -> str:
        raise ValueError(CANARY)

    async def linger() -> str:
        await anyio.sleep_forever()
        return "never"

    calls = [call("1", "fail"), call("2", "linger"), call("3", "missing"), call("4", "add", a="x")]
    tools = [fail, FunctionTool(linger, timeout=0.01), add]
    await agent_of([calls, "done"], *tools, middlewares=[spans.middleware()]).reply("go")
    described = {span.attributes["gen_ai.tool.call.id"]: span for span in spans.named("execute_tool")}
    assert {name: span.status.description for name, span in described.items()} == {
        "1": "tool_error",
        "2": "timeout",
        "3": "tool_error",
        "4": "tool_error",
    }
    assert described["3"].name == "execute_tool _OTHER"
    assert spans.one("invoke").status.status_code is StatusCode.UNSET
    assert CANARY not in spans.text()


async def test_a_raising_tool_fails_its_span_with_the_error_type(spans: Spans) -> None:
    async def fail() -> str:
        raise KeyError(CANARY)

    agent = agent_of(
        [[call("1", "fail")]], FunctionTool(fail, raise_tool_errors=True), middlewares=[spans.middleware()]
    )
    with pytest.raises(KeyError):
        await agent.reply("go")
    assert {span.name: span.status.description for span in spans.ended} == {
        "chat scripted": None,
        "execute_tool fail": "KeyError",
        "invoke_agent tester": "KeyError",
    }
    assert CANARY not in spans.text()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("places", [1, 2, 4])
async def test_leaving_early_is_not_an_error_for_any_span(spans: Spans, elsewhere: bool, places: int) -> None:
    user = spans.provider.get_tracer("user")
    agent = agent_of([["one ", "two ", "three"]], middlewares=[spans.middleware()])
    with user.start_as_current_span("consumer") as own:
        stream = agent.reply_stream("go")
        for _ in range(places):
            await anext(stream)
            assert trace.get_current_span() is own
            with user.start_as_current_span("between"):
                pass
        if elsewhere:
            async with anyio.create_task_group() as group:
                group.start_soon(stream.aclose)
        else:
            await stream.aclose()
        assert trace.get_current_span() is own
    reply = ["invoke_agent tester", *([["chat scripted"]] if places > 2 else [])]
    expected = reply if len(reply) > 1 else reply[0]
    assert spans.tree() == [["consumer", [expected, *["between"] * places]]]
    assert {span.status.status_code for span in spans.ended} == {StatusCode.UNSET}
    assert spans.one("invoke").attributes["agentrt.agent.finished_reason"] == "closed"
    spans.check_all_ended()


def test_an_abandoned_step_detaches_only_its_own_context(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("test")
    for other in (False, True):
        span = GenAISpan(Isolated(None), tracer, "step", SpanKind.INTERNAL, {})
        here = copy_context()
        here.run(span.__enter__)
        assert here.run(trace.get_current_span).get_span_context().is_valid
        (copy_context() if other else here).run(span.__exit__, GeneratorExit)
        assert here.run(trace.get_current_span).get_span_context().is_valid is other


async def test_a_stream_read_by_several_tasks_has_the_same_span_tree(spans: Spans) -> None:
    stream = agent_of([["one ", "two"]], middlewares=[spans.middleware()]).reply_stream("go")
    seen: list[Any] = []

    async def read() -> None:
        item = await anext(stream, None)
        if item is not None:
            seen.append(item)

    for number in range(20):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
        assert len(seen) <= number + 1
    await stream.aclose()
    assert seen[-1].type == "REPLY_END"
    assert spans.tree() == [["invoke_agent tester", ["chat scripted"]]]
    spans.check_all_ended()


async def test_a_cancelled_reply_ends_all_its_spans_and_none_as_failed(spans: Spans) -> None:
    lingering: list[None] = []

    async def linger() -> str:
        lingering.append(None)
        if len(lingering) == 2:  # a call that has not begun when the cancellation comes never begins
            scope.cancel()
        await anyio.sleep_forever()
        return "never"

    calls = [call("1", "linger"), call("2", "linger")]
    agent = agent_of([calls], linger, middlewares=[spans.middleware()])
    with anyio.CancelScope() as scope:
        await agent.reply("go")
    assert scope.cancelled_caught
    spans.check_all_ended()
    assert {span.status.status_code for span in spans.ended} == {StatusCode.UNSET}
    assert spans.one("invoke").attributes["agentrt.agent.finished_reason"] == "cancelled"
    states = [span.attributes["agentrt.tool.result.state"] for span in spans.named("execute_tool")]
    assert states == ["interrupted", "interrupted"]


@pytest.mark.slow
async def test_a_fault_anywhere_ends_every_span(spans: Spans) -> None:
    def make(log: ToolLog) -> Agent:
        calls = [call("1", "add", a=1, b=2), call("2", "add", a=3, b=4)]
        script: list[Any] = [[*calls], ["do", "ne"], *["more"] * 4]
        return agent_of(script, log.watch(add), middlewares=[spans.middleware()])

    await check_every_suspension(make, at_least=5)
    spans.check_all_ended()


class Retry(MiddlewareBase):
    emits = True

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        for attempt in (1, 2):
            try:
                return await next_handler()
            except RateLimited as error:
                agent.run.emit(ModelCallRetryEvent(str(error), attempt=attempt, wait_seconds=0.5))
        return await next_handler()


class SilentRetry(Retry):
    """Announces a retry without waiting until readers see it."""

    emits = False


@pytest.mark.parametrize("retry", [Retry, SilentRetry])
@pytest.mark.parametrize("last", ["done", RateLimited("third")])
async def test_retries_are_events_on_one_chat_span(spans: Spans, retry: type[Retry], last: Any) -> None:
    agent = agent_of([RateLimited(CANARY), RateLimited(CANARY), last], middlewares=[spans.middleware(), retry()])
    if isinstance(last, str):
        await agent.reply("go")
    else:
        with pytest.raises(RateLimited):
            await agent.reply("go")
    assert spans.tree() == [["invoke_agent tester", ["chat scripted"]]]
    events = spans.one("chat").events
    assert [(event.name, dict(event.attributes)) for event in events] == [
        ("agentrt.model_call.retry", {"agentrt.model_call.attempt": n, "agentrt.model_call.wait_seconds": 0.5})
        for n in (1, 2)
    ]
    assert CANARY not in spans.text()


def test_a_retry_outside_of_tracing_is_refused_by_name() -> None:
    class RetryMiddleware(Retry):
        pass

    with pytest.raises(MiddlewareConfigError, match="put TracingMiddleware before RetryMiddleware"):
        agent_of(["done"], middlewares=[RetryMiddleware(), TracingMiddleware()])


async def test_a_summary_between_two_replies_is_a_chat_of_its_own(spans: Spans) -> None:
    config = ContextConfig(reserve_ratio=0)
    agent = agent_of(["first", "second", "a summary"], middlewares=[spans.middleware()], context_config=config)
    await agent.reply("one")
    await agent.reply("two")
    spans.begun.clear()
    spans.ended.clear()
    await agent.compress_context()
    assert spans.tree() == ["chat scripted"]
    assert spans.one("chat").attributes["agentrt.model_call.is_internal"] is True
    spans.check_all_ended()


async def test_events_of_another_reply_that_pass_through_make_no_spans(spans: Spans) -> None:
    async def forward(context: ToolContext) -> str:
        context.emit(ToolResultStartEvent("other", "9", "its own"))
        context.emit(ToolResultEndEvent("other", "9", ToolResultState.SUCCESS))
        context.emit(ModelCallRetryEvent("again", reply_id="other"))
        context.emit(ReplyEndEvent("other", "session", "error"))
        return "shown"

    await agent_of([[call("1", "forward")], "done"], forward, middlewares=[spans.middleware()]).reply("go")
    assert spans.tree() == [["invoke_agent tester", ["chat scripted", "execute_tool forward", "chat scripted"]]]
    assert not [span.events for span in spans.ended if span.events]
    assert spans.one("invoke").attributes["agentrt.agent.finished_reason"] == "completed"


SECRETS = {
    "answer": [f"I say {CANARY}"],
    "tool": [[call("1", "keep", text=CANARY)], f"it is {CANARY}"],
    "argument's name": [[call("1", "keep", **{CANARY: 1})], "done"],
    "no JSON": [[ToolCallBlock("1", "keep", CANARY)], "done"],
    "thinking": [[ThinkingBlock(CANARY), TextBlock("done")]],
    "tool error": [[call("1", "blurt", text=CANARY)], "done"],
    "tool name": [[call("1", CANARY)], "done"],
    "confirmation": [[call("1", "ask", text=CANARY)], "done"],
    "model error": [RateLimited(CANARY)],
    "cut stream": [[CANARY, " and more", ValueError(CANARY)]],
}


@pytest.mark.parametrize("script", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("captured", [False, True])
async def test_a_secret_is_in_no_span_and_in_no_log(
    spans: Spans, script: list[Any], captured: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def keep(text: str) -> str:
        return f"kept {text}"

    async def blurt(text: str) -> str:
        raise ValueError(text)

    async def ask(text: str) -> str:
        return text

    tracing = spans.middleware(**({"capture_content": True, "redact": _redact} if captured else {}))
    toolkit = Toolkit(tools=[keep, FunctionTool(blurt, error_detail="type"), FunctionTool(ask, ask=True)])
    agent = Agent("tester", f"The password is {CANARY}.", ScriptedChatModel(script), toolkit, [tracing])
    picture = DataBlock(URLSource(f"https://example.com/?key={CANARY}", "image/png"))
    with suppress(RateLimited, ValueError):
        await agent.reply(UserMsg(CANARY, [TextBlock(f'Mine is {CANARY}".'), picture]))
    assert CANARY not in spans.text()
    assert CANARY not in caplog.text  # tracebacks and all
    if captured:
        assert "[redacted]" in spans.text()
    spans.check_all_ended()


@pytest.mark.parametrize("stop", ["interrupt", "leave", "cancel"])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_reply_that_stops_short_leaks_no_secret(
    spans: Spans, stop: str, calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def keep(text: str) -> AsyncGenerator[str, None]:
        yield f"keeping {text}"
        await anyio.sleep_forever()

    script = [call(str(n), "keep", text=CANARY) for n in range(calls)]
    agent = agent_of([[TextBlock(CANARY), *script]], keep, middlewares=[spans.middleware()])
    with anyio.CancelScope() as scope:
        async with agent.reply_stream(UserMsg(CANARY, CANARY)) as stream:
            async for event in stream:
                if event.type != "TOOL_RESULT_TEXT_DELTA":
                    continue
                if stop == "leave":
                    break
                agent.interrupt() if stop == "interrupt" else scope.cancel()
    assert spans.named("execute_tool keep")
    assert CANARY not in spans.text()
    assert CANARY not in caplog.text
    spans.check_all_ended()


@pytest.mark.parametrize("captured", [False, True])
async def test_an_external_result_leaks_no_secret(
    spans: Spans, captured: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tracing = spans.middleware(**({"capture_content": True, "redact": _redact} if captured else {}))
    agent = agent_of([[call("1", "deploy")], "done"], Deploy(), middlewares=[tracing])
    parked = await agent.reply(CANARY)
    for reply_id in (CANARY, parked.id):  # one for another reply is refused
        with suppress(ResumeError):
            await agent.reply(ExternalExecutionResultEvent(reply_id, [ToolResultBlock("1", "deploy", CANARY)]))
    assert len(spans.named("execute_tool deploy")) == 1
    assert CANARY not in spans.text()
    assert CANARY not in caplog.text
    spans.check_all_ended()


def _redact(text: str) -> str:
    return text.replace(CANARY, "[redacted]")


async def test_content_is_captured_with_capture_content(spans: Spans) -> None:
    calls = [call("1", "add", a=1, b=2)]
    agent = agent_of([calls, "three"], add, middlewares=[spans.middleware(capture_content=True)])
    await agent.reply("What is 1 + 2?")

    def read(span: ReadableSpan, name: str) -> Any:
        return json.loads(span.attributes[name])

    invoke, tool, chat = spans.one("invoke"), spans.one("execute_tool"), spans.named("chat")[1]
    question = {"role": "user", "parts": [{"type": "text", "content": "What is 1 + 2?"}]}
    message = {"role": "assistant", "parts": [{"type": "text", "content": "three"}], "finish_reason": "stop"}
    assert read(invoke, "gen_ai.input.messages") == [question]
    assert read(invoke, "gen_ai.output.messages") == read(chat, "gen_ai.output.messages") == [message]
    assert (invoke.attributes["input.value"], invoke.attributes["output.value"]) == ("What is 1 + 2?", "three")
    assert read(chat, "gen_ai.system_instructions") == [{"type": "text", "content": "You are tested."}]
    tool_call = {"type": "tool_call", "id": "1", "name": "add", "arguments": {"a": 1, "b": 2}}
    assert read(chat, "gen_ai.input.messages") == [
        question,
        {"role": "assistant", "name": "tester", "parts": [tool_call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "3"}]},
    ]
    (definition,) = read(chat, "gen_ai.tool.definitions")
    assert (definition["type"], definition["name"]) == ("function", "add")
    assert read(tool, "gen_ai.tool.call.arguments") == {"a": 1, "b": 2}
    assert tool.attributes["gen_ai.tool.call.result"] == "3"


@pytest.mark.parametrize(
    ("variable", "option", "captured"),
    [
        (None, None, False),
        ("NO_CONTENT", None, False),
        ("EVENT_ONLY", None, False),
        ("span_only", None, True),
        ("SPAN_AND_EVENT", None, True),
        ("SPAN_ONLY", False, False),
        ("NO_CONTENT", True, True),
        ("true", None, False),
    ],
)
async def test_the_environment_decides_on_content_without_the_option(
    spans: Spans,
    variable: str | None,
    option: bool | None,
    captured: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if variable is not None:
        monkeypatch.setenv(CAPTURE, variable)
    await agent_of(["hello"], middlewares=[spans.middleware(capture_content=option)]).reply("go")
    assert ("hello" in spans.text()) is captured
    assert (CAPTURE in caplog.text) is (variable == "true")


async def test_a_long_text_is_cut_and_the_json_around_it_stays_whole(spans: Spans) -> None:
    await agent_of(["x" * 50_000], middlewares=[spans.middleware(capture_content=True)]).reply("go")
    (message,) = json.loads(spans.one("chat").attributes["gen_ai.output.messages"])
    assert 0 < len(message["parts"][0]["content"]) < 25_000


@pytest.mark.parametrize("captured", [False, True])
async def test_names_and_retry_reasons_are_redacted_too(spans: Spans, captured: bool) -> None:
    response = ChatResponse([TextBlock("hi")], finished_reason=CANARY, id=CANARY)
    tracing = spans.middleware(redact=_redact, capture_content=captured)
    agent = Agent(CANARY, model=ScriptedChatModel([response], model=CANARY), middlewares=[tracing])
    await agent.reply("go")
    assert spans.tree() == [["invoke_agent [redacted]", ["chat [redacted]"]]]
    assert spans.one("chat").attributes["gen_ai.response.finish_reasons"] == ("[redacted]",)
    assert CANARY not in spans.text()


async def test_a_text_that_the_redactor_failed_on_is_not_logged(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    def redact(text: str) -> str:
        raise ValueError(text)

    agent = agent_of([CANARY], middlewares=[spans.middleware(redact=redact, capture_content=True)])
    assert (await agent.reply(CANARY)).get_text_content() == CANARY
    assert spans.tree()
    assert CANARY not in spans.text() + caplog.text
    assert len([record for record in caplog.records if record.name == "agentrt"]) == 1


async def test_numbers_and_media_types_are_redacted_too(spans: Spans) -> None:
    async def pay(card: int, amount: float, now: bool) -> str:
        return "paid"

    def redact(text: str) -> str:
        return text.replace("4111111111111111", "[card]").replace("secret", "[kind]")

    script = [[call("1", "pay", card=4111111111111111, amount=2.5, now=True)], "Done."]
    agent = agent_of(script, pay, middlewares=[spans.middleware(redact=redact, capture_content=True)])
    await agent.reply(UserMsg("user", [TextBlock("go"), DataBlock(URLSource("https://a.b/c", "image/secret"))]))
    assert "4111111111111111" not in spans.text()
    assert "secret" not in spans.text()
    arguments = json.loads(spans.one("execute_tool").attributes["gen_ai.tool.call.arguments"])
    assert arguments == {"card": "[card]", "amount": 2.5, "now": True}


async def test_the_newest_messages_of_a_long_conversation_are_captured(spans: Spans) -> None:
    agent = agent_of(["fine"], middlewares=[spans.middleware(capture_content=True)])
    agent.model.context_size = 10_000_000
    agent.state.context += [UserMsg("user", f"{number} " + "x" * 15_000) for number in range(50)]
    await agent.reply("the last one")
    captured = spans.one("chat").attributes["gen_ai.input.messages"]
    assert len(captured) < 110_000
    first, *others = [message["parts"][0]["content"] for message in json.loads(captured)]
    assert first == "[earlier messages are not shown]"
    assert [message[:12] for message in others[-2:]] == ["49 xxxxxxxxx", "the last one"]


async def test_a_lone_surrogate_does_not_lose_the_span(spans: Spans) -> None:
    script = [ChatResponse([TextBlock("half \ud83d")])]
    await agent_of(script, middlewares=[spans.middleware(capture_content=True)]).reply("go")
    captured = spans.one("chat").attributes["gen_ai.output.messages"]
    assert json.loads(captured)[0]["parts"][0]["content"] == "half ?"
    assert captured.encode()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_chat_span_names_the_requested_and_responding_model(spans: Spans, stream: bool) -> None:
    reader = InMemoryMetricReader()
    second = ScriptedChatModel(["Hello.", "Hello."], model="second", stream=stream)
    layers = [spans.middleware(meter_provider=MeterProvider([reader])), ModelFallbackMiddleware(second, sticky=True)]
    agent = Agent("tester", model=ScriptedChatModel([["half ", Transient("cut")]], model="first"), middlewares=layers)
    await agent.reply("go")
    await agent.reply("go on")
    for span in spans.named("chat"):
        names = [span.attributes[f"gen_ai.{which}.model"] for which in ("request", "response")]
        assert names == ["first", "second"]
    assert '"gen_ai.response.model": "second"' in reader.get_metrics_data().to_json()


async def test_a_base_url_that_is_not_a_str_is_accepted(spans: Spans) -> None:
    class Address:
        def __str__(self) -> str:
            return "https://models.example:8443/v1"

    agent = agent_of(["Hello."], middlewares=[spans.middleware()])
    agent.model.base_url = Address()  # type: ignore[attr-defined]  # as some adapters have it
    await agent.reply("go")
    attributes = spans.one("chat scripted").attributes
    assert (attributes["server.address"], attributes["server.port"]) == ("models.example", 8443)


def test_a_redactor_that_is_not_callable_is_refused() -> None:
    with pytest.raises(ConfigError, match="redact"):
        TracingMiddleware(redact="secret")  # type: ignore[arg-type]


class Broken(SpanProcessor):
    """Fails at the start or at the end of a span."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._where == "start":
            raise RuntimeError(CANARY)

    def on_end(self, span: ReadableSpan) -> None:
        if self._where == "end":
            raise RuntimeError(CANARY)


@pytest.mark.parametrize("where", ["start", "end", "provider"])
async def test_a_tracer_that_fails_fails_no_reply_and_is_logged_once(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenProvider(TracerProvider):
        def get_tracer(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError(CANARY)

    provider = BrokenProvider(shutdown_on_exit=False) if where == "provider" else TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken(where))
    calls = [call("1", "add", a=1, b=2), call("2", "add", a=1, b=2)]
    agent = agent_of([calls, "done"], add, middlewares=[TracingMiddleware(tracer_provider=provider)])
    assert (await agent.reply("go")).get_text_content() == "done"
    (record,) = [record for record in caplog.records if record.name == "agentrt"]
    assert "RuntimeError" in record.getMessage()
    assert CANARY not in caplog.text


async def test_without_a_provider_hooks_return_the_next_layers_result() -> None:
    class Agentlike:
        class run:
            is_internal = False

            @staticmethod
            def scratch(middleware: object) -> dict[str, Any]:
                return {}

    for tracing in (TracingMiddleware(), TracingMiddleware(tracer_provider=NoOpTracerProvider())):
        for hook in (tracing.on_reply, tracing.on_model_call, tracing.on_acting):
            result = object()
            assert hook(Agentlike(), {"inputs": 1}, lambda **values: result) is result  # noqa: B023  # called at once


@pytest.mark.parametrize("places", [[0], [0, 1], [1]])
async def test_idle_layers_change_nothing(places: list[int]) -> None:
    layers = [TracingMiddleware() if place in places else Retry() for place in range(2)]
    calls = [call("1", "add", a=1, b=2), call("2", "add", a=1, b=2)]
    plain, layered = (agent_of([calls, "do ne"], add, middlewares=middlewares) for middlewares in ([Retry()], layers))
    kinds = [[type(item) for item in await items_of(agent)] for agent in (plain, layered)]
    assert kinds[0] == kinds[1]
    assert kinds[0][-1] is Msg


async def test_an_idle_layer_closes_the_stream_it_passed_on() -> None:
    closed: list[str] = []

    class Inner(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
            try:
                async for item in next_handler():
                    yield item
            finally:
                closed.append("inner")

    stream = agent_of(["one two"], middlewares=[TracingMiddleware(), Inner()]).reply_stream("go")
    for _ in range(4):
        await anext(stream)
    assert not closed
    await stream.aclose()
    assert closed == ["inner"]


async def test_metrics_are_recorded_under_the_names_of_the_conventions(spans: Spans) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    responses = [ChatResponse([call("1", "add", a=1, b=2)], usage=ChatUsage(5, 3)), answer("three"), RateLimited("no")]
    agent = agent_of(responses, add, middlewares=[spans.middleware(meter_provider=meters)])
    await agent.reply("go")
    with pytest.raises(RateLimited):
        await agent.reply("go on")

    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name: metric.data.data_points for metric in scope.metrics}
    meters.shutdown()
    usage = {
        point.attributes["gen_ai.token.type"]: (point.count, point.sum) for point in points["gen_ai.client.token.usage"]
    }
    assert usage == {"input": (2, 12), "output": (2, 5)}
    for name in ("gen_ai.client.operation.duration", "gen_ai.client.inference.duration"):
        assert {point.attributes.get("error.type"): point.count for point in points[name]} == {
            None: 2,
            "RateLimited": 1,
        }
    (tool,) = points["gen_ai.execute_tool.duration"]
    assert (tool.count, tool.attributes["gen_ai.tool.name"]) == (1, "add")
    for which, total in (("input_tokens", 12), ("output_tokens", 5), ("cache_read.input_tokens", 0)):
        (counted,) = points[f"gen_ai.client.inference.usage.{which}"]
        assert counted.value == total
    calls = {point.attributes.get("error.type"): point.sum for point in points["gen_ai.invoke_agent.inference_calls"]}
    assert calls == {None: 2, "RateLimited": 1}
    assert {metric.unit for metric in scope.metrics} == {"s", "{token}", "{call}"}


async def test_tokens_of_replayed_answers_are_in_no_span_and_no_metric(spans: Spans) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    replayed = ChatResponse([call("1", "add", a=1, b=2)], usage=ChatUsage(5, 3, replayed=True))
    agent = agent_of([replayed, answer("three")], add, middlewares=[spans.middleware(meter_provider=meters)])
    await agent.reply("go")
    data: Any = reader.get_metrics_data()
    meters.shutdown()
    points = {metric.name: metric.data.data_points for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert [(point.count, point.sum) for point in points["gen_ai.client.token.usage"]] == [(1, 7), (1, 2)]
    first, second = [span for span in spans.ended if span.name.startswith("chat")]
    assert first.attributes["agentrt.usage.replayed"] is True
    assert "gen_ai.usage.input_tokens" not in first.attributes
    assert "agentrt.usage.replayed" not in second.attributes
    assert spans.one("invoke").attributes["gen_ai.usage.input_tokens"] == 7


async def test_a_tracer_provider_other_than_the_sdks_works() -> None:
    started: list[str] = []

    class OwnSpan(trace.NonRecordingSpan):
        def is_recording(self) -> bool:
            return True

    class OwnTracer(trace.NoOpTracer):
        def start_span(self, name: str, *values: Any, **named: Any) -> trace.Span:
            started.append(name)
            return OwnSpan(trace.SpanContext(1, len(started), is_remote=False))

    class OwnProvider(trace.TracerProvider):
        def get_tracer(self, *values: Any, **named: Any) -> trace.Tracer:
            return OwnTracer()

    tracing = TracingMiddleware(tracer_provider=OwnProvider(), capture_content=True)
    await agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[tracing]).reply("go")
    assert started == ["invoke_agent tester", "chat scripted", "execute_tool add", "chat scripted"]


async def test_spans_are_sent_children_first() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = TracingMiddleware(tracer_provider=provider)
    await agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[tracing]).reply("go")
    sent = [span.name for span in exporter.get_finished_spans()]
    assert sent == ["chat scripted", "execute_tool add", "chat scripted", "invoke_agent tester"]


async def test_one_instance_serves_conversations_side_by_side(spans: Spans) -> None:
    tracing = spans.middleware()
    agents = [Agent(f"a{n}", model=ScriptedChatModel(["one two"]), middlewares=[tracing]) for n in range(5)]
    async with anyio.create_task_group() as group:
        for agent in agents:
            group.start_soon(agent.reply, "go")
    assert sorted(spans.tree()) == [[f"invoke_agent a{n}", ["chat scripted"]] for n in range(5)]


class Unsampled:
    """A provider that samples nothing, and the spans that were requested from it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.provider = TracerProvider(sampler=self._sampler(), shutdown_on_exit=False)

    def _sampler(self) -> Any:
        requested = self.asked

        class Noting(StaticSampler):
            def should_sample(self, parent: Any, trace_id: int, name: str, *values: Any, **named: Any) -> Any:
                requested.append(name)
                return super().should_sample(parent, trace_id, name, *values, **named)

        return Noting(Decision.DROP)


def contexts_of(seen: list[Any], *, stream: bool) -> Agent:
    def note(where: str) -> None:
        seen.append((where, trace.get_current_span().get_span_context()))

    async def look(messages: Any, tools: Any) -> Any:
        note("model")
        return [call("1", "peek")] if len(seen) == 1 else "done"

    async def peek() -> AsyncGenerator[str, None]:
        note("tool")
        yield "nothing "
        note("tool")
        yield "to see"

    model = ScriptedChatModel([look, look], stream=stream)
    return Agent("tester", model=model, toolkit=Toolkit(tools=[peek]))


@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_unsampled_reply_calls_is_not_sampled_either(stream: bool) -> None:
    unsampled, seen = Unsampled(), list[Any]()
    agent = contexts_of(seen, stream=stream)
    layers = [TracingMiddleware(tracer_provider=unsampled.provider, capture_content=True)]
    traced = Agent("tester", model=agent.model, toolkit=agent.toolkit, middlewares=layers)
    untraced_items = [type(item) for item in await items_of(contexts_of([], stream=stream))]
    assert [type(item) for item in await items_of(traced)] == untraced_items
    assert unsampled.asked == ["invoke_agent tester"]
    assert [where for where, _ in seen] == ["model", "tool", "tool", "model"]
    assert len({context.trace_id for _, context in seen}) == 1
    assert all(context.is_valid and not context.trace_flags.sampled for _, context in seen)
    assert not trace.get_current_span().get_span_context().is_valid


async def test_further_attempts_of_an_unsampled_reply_are_not_sampled() -> None:
    unsampled, contexts = Unsampled(), list[Any]()

    async def look(messages: Any, tools: Any) -> Any:
        contexts.append(trace.get_current_span().get_span_context())
        return ["one ", Transient("cut")] if len(contexts) == 1 else "done"

    tracing = TracingMiddleware(tracer_provider=unsampled.provider)
    retry = RetryMiddleware(initial_delay=0.001)
    agent = Agent("tester", model=ScriptedChatModel([look, look], stream=True), middlewares=[tracing, retry])
    await agent.reply("go")
    assert len(contexts) == 2
    assert len({context.trace_id for context in contexts if context.is_valid}) == 1
    assert all(context.is_valid and not context.trace_flags.sampled for context in contexts)


async def test_an_unsampled_reply_is_still_measured() -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    redacted: list[str] = []
    tracing = TracingMiddleware(
        tracer_provider=Unsampled().provider,
        meter_provider=meters,
        capture_content=True,
        redact=lambda text: redacted.append(text) or text,  # type: ignore[func-returns-value]
    )
    await agent_of([[call("1", "add", a=1, b=2)], "the answer"], add, middlewares=[tracing]).reply("the question")
    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name: metric.data.data_points for metric in scope.metrics}
    meters.shutdown()
    assert points["gen_ai.invoke_agent.inference_calls"][0].sum == 2
    assert points["gen_ai.execute_tool.duration"][0].count == 1
    assert not {"the question", "the answer"} & {*redacted}


@pytest.mark.parametrize(
    ("spec", "provider"),
    [
        ("dashscope:qwen-max", "dashscope"),
        ("ollama:qwen3", "ollama"),
        ("azure:a", GenAiProviderNameValues.AZURE_AI_OPENAI.value),
        ("bedrock:amazon.nova-pro-v1:0", GenAiProviderNameValues.AWS_BEDROCK.value),
        ("deepseek:deepseek-chat", GenAiProviderNameValues.DEEPSEEK.value),
        ("gemini:g", GenAiProviderNameValues.GCP_GEMINI.value),
        ("mistral:m", GenAiProviderNameValues.MISTRAL_AI.value),
        ("openai-responses:gpt", GenAiProviderNameValues.OPENAI.value),
        ("vertex-claude:c", GenAiProviderNameValues.GCP_VERTEX_AI.value),
        ("xai:grok", GenAiProviderNameValues.X_AI.value),
    ],
)
def test_a_preset_model_is_labelled_with_its_provider(spec: str, provider: str) -> None:
    model = chat_model(spec, api_key="none", base_url="https://api.example/v1")
    assert labels_of(model)["gen_ai.provider.name"] == provider
    assert labels_of(OpenAIChatModel("gpt", api_key="none"))["gen_ai.provider.name"] == "openai"
