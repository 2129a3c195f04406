"""The shipped middlewares in agents that write their own reply."""

import logging
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrt import AgentBase, Msg, UserMsg
from agentrt.agent import ReActAgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.message import ToolCallBlock
from agentrt.middleware import (
    AgentHooksMiddleware,
    Budget,
    BudgetMiddleware,
    GuardrailMiddleware,
    HookMiddleware,
    LayerTimes,
    LoggingMiddleware,
    LongTermMemoryMiddleware,
    MiddlewareBase,
    RAGMiddleware,
    RedactionMiddleware,
    TimingMiddleware,
    ToolRetryMiddleware,
    TracingMiddleware,
)
from tests.middleware.shipped import SHIPPED


class Echo(AgentBase):
    async def reply(self, msg: Msg) -> Msg:
        if msg.content == "fail":
            raise LookupError("canary-7")
        return msg


# The others run around steps, of which such agents have none.
AROUND_REPLIES = (
    AgentHooksMiddleware,
    HookMiddleware,
    LayerTimes,
    LoggingMiddleware,
    LongTermMemoryMiddleware,
    RAGMiddleware,
    RedactionMiddleware,
    TracingMiddleware,
)
AROUND_STEPS = [make() for cls, make in SHIPPED.items() if cls not in AROUND_REPLIES]


@pytest.mark.parametrize("layer", AROUND_STEPS, ids=lambda layer: type(layer).__name__)
def test_a_middleware_that_would_never_run_is_refused(layer: MiddlewareBase):
    with pytest.raises(MiddlewareConfigError, match=f"{type(layer).__name__} would never run in agents like Echo"):
        Echo(middlewares=[layer])


@pytest.mark.parametrize("cls", [AgentHooksMiddleware, LongTermMemoryMiddleware, RAGMiddleware])
def test_a_middleware_that_would_do_half_of_its_work_is_refused(cls: type[MiddlewareBase]):
    # With on_reasoning of its own, which is one of the hooks that these have.
    with pytest.raises(
        MiddlewareConfigError, match=r"cannot do its work in agents like Own, .* it needs on_model_call"
    ):
        Own(ToolCallBlock("1", "pay"), 0, SHIPPED[cls]())


class Own(ReActAgentBase):
    """Calls a tool itself, and has no toolkit."""

    def __init__(self, tool_call: object, failures: int, *layers: MiddlewareBase) -> None:
        super().__init__(name="own", middlewares=layers)
        self.tool_call, self.failures = tool_call, failures

    async def reply(self, msg: Msg) -> Msg:
        return UserMsg("own", str(await self._acting(self.tool_call)))

    async def _reasoning(self) -> None: ...

    async def _acting(self, order: object) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise LookupError("not yet")
        return f"ran {order['name'] if isinstance(order, dict) else order}"


CALLS = {"block": ToolCallBlock("1", "search", "{}"), "dict": {"name": "search", "input": {"a": 1}}, "other": 5}


@pytest.mark.parametrize("tool_call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "layer",
    [
        TimingMiddleware,
        ToolRetryMiddleware,
        TracingMiddleware,
        LoggingMiddleware,
        lambda: GuardrailMiddleware(tool_result=lambda value, agent: None),
        lambda: BudgetMiddleware(reply=Budget(tool_calls=5)),
    ],
)
async def test_tool_calls_of_an_agent_without_a_toolkit_run(layer: Callable[[], MiddlewareBase], tool_call: object):
    assert (await Own(tool_call, 0, layer())(UserMsg("user", "hi"))).get_text_content().startswith("ran ")


async def test_a_named_tool_is_retried_for_an_agent_without_a_toolkit():
    with pytest.raises(LookupError):
        await Own(CALLS["dict"], 1, ToolRetryMiddleware(initial_delay=0.001))(UserMsg("user", "hi"))
    for tools in (["sea*"], lambda call: call.name == "search"):
        for tool_call in (CALLS["block"], CALLS["dict"]):
            agent = Own(tool_call, 2, ToolRetryMiddleware(tools, initial_delay=0.001))
            assert (await agent(UserMsg("user", "hi"))).get_text_content().startswith("ran ")


@pytest.mark.parametrize(("text", "status"), [("hi", "UNSET"), ("fail", "ERROR")])
async def test_a_reply_is_a_span_with_its_own_status(text: str, status: str):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    agent = Echo(name="echo", middlewares=[TracingMiddleware(tracer_provider=provider)])
    try:
        await agent(UserMsg("user", text))
    except LookupError:
        assert text == "fail"
    [span] = exporter.get_finished_spans()
    assert (span.name, span.status.status_code.name) == ("invoke_agent echo", status)
    assert dict(span.attributes or {})["agentrt.agent.reply_id"] == agent.reply_id
    assert "canary-7" not in span.to_json()


async def test_a_reply_is_logged_from_start_to_end(caplog: pytest.LogCaptureFixture):
    agent = Echo(name="echo", middlewares=[LoggingMiddleware()])
    with caplog.at_level(logging.INFO):
        await agent(UserMsg("user", "hi"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["REPLY_START", "REPLY_END"]
    assert all(f"reply_id={agent.reply_id}" in line for line in lines)
