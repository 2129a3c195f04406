"""A sub-agent that fails is a result for its supervisor, which says the type and none of the words."""

import logging
from dataclasses import replace
from typing import Any

import anyio
import pytest

from agentrt import Agent, Msg, Toolkit
from agentrt.agent import PermissionBundle, ReActConfig, SubAgentBase
from agentrt.errors import SubAgentUnavailable
from agentrt.event import SubagentEndEvent
from agentrt.message import TextBlock
from agentrt.model import ScriptedChatModel
from tests.agent.subagents import Echo, register, results_of, run_tool, search_web, supervisor
from tests.loop.helpers import call
from tests.middleware.tracing.test_tracing import Spans

CANARY = "canary" + "-7f3a"


class Failing(SubAgentBase):
    async def reply(self, msg: Msg) -> Msg:
        kind = msg.get_text_content()
        if kind == "error":
            raise ValueError(f"the key is {CANARY}")
        if kind == "chained":
            try:
                raise KeyError(CANARY)
            except KeyError as error:
                raise RuntimeError(CANARY) from error
        if kind == "hang":
            await anyio.sleep_forever()
        if kind == "late":
            raise TimeoutError(CANARY)
        if kind == "exit":
            raise SystemExit(CANARY)
        if kind == "nothing":
            return 5  # type: ignore[return-value]
        model = ScriptedChatModel([[call("1", "search_web", query="x")]] * 5)
        config = ReActConfig(max_iters=1)
        inner = Agent("inner", model=model, tools=[search_web], react_config=config)
        answer = await inner.reply("x")
        return Msg("inner", CANARY, "assistant", finished_reason=answer.finished_reason)


FAILURES = {
    "error": ("error", "ValueError", "ValueError"),
    "chained": ("error", "RuntimeError", "RuntimeError"),
    "late": ("timeout", "timeout", "TimeoutError"),
    "exit": ("error", "SystemExit", "SystemExit"),
    "nothing": ("error", "ChainContractError", "ChainContractError"),
    "iterations": ("max_iters", "max_iters", "UnfinishedReply"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_subagent_error_propagation(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """One error result, one warning, no word of the error, and the supervisor answers."""
    caplog.set_level(logging.DEBUG)
    boss = await supervisor(Failing, kind)
    async with boss.reply_stream("go", yield_final_msg=True) as items:
        seen = [item async for item in items]
    assert seen[-1].get_text_content() == "done"
    [result] = results_of(boss)
    named, error, type_name = FAILURES[kind]
    assert result.state == ("timeout" if named == "timeout" else "error")
    assert result.text == f"[subagent_{named}] echo: {type_name}"
    assert result.metadata == {"unavailable": True, "error": error, "subagent": "echo", "supervisor": "boss"}
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(word in record.getMessage() for word in ("'echo'", "'boss'", type_name))
    everything = boss.state.model_dump_json() + caplog.text + "".join(item.to_json() for item in seen)
    assert CANARY not in everything


async def test_delegation_that_takes_too_long_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.compat.subagent.base._DELEGATION_SECONDS", 0.01)
    boss = await supervisor(Failing, "hang")
    [end] = [event async for event in boss.reply_stream("go") if isinstance(event, SubagentEndEvent)]
    [result] = results_of(boss)
    assert result.text == "[subagent_timeout] echo: TimeoutError"
    assert result.metadata["error"] == "timeout"
    assert result.state == end.state == "timeout"


async def test_timeout_among_the_safety_limits_counts() -> None:
    agent = Failing(permissions=PermissionBundle(safety_limits={"timeout": 0.01}))
    result = await agent.delegate("hang")
    assert result.metadata["error"] == "timeout"


async def test_cancellation_of_the_supervisor_leaves() -> None:
    boss = await supervisor(Failing, "hang")
    with anyio.move_on_after(0.05) as scope:
        await boss.reply("go")
    assert scope.cancelled_caught
    assert boss.state.last_reply is None or boss.state.last_reply.finished_reason != "completed"


async def test_interrupt_of_the_supervisor_ends_the_sub_agent() -> None:
    ended: list[str] = []

    class Waiting(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            try:
                boss.interrupt()
                await anyio.sleep_forever()
            finally:
                ended.append(self.name)
            return msg

    boss = await supervisor(Waiting, "x")
    answer = await boss.reply("go")
    assert answer.finished_reason == "interrupted"
    assert ended == ["echo"]
    assert results_of(boss)[0].state == "interrupted"


async def test_sub_agent_that_cannot_be_made_any_more_is_a_result(caplog: pytest.LogCaptureFixture) -> None:
    class Once(Echo):
        count = 0

        def __init__(self, **injected: Any) -> None:
            super().__init__(**injected)
            type(self).count += 1
            if self.count > 1:
                raise OSError(CANARY)

    toolkit = Toolkit()
    name = await register(toolkit, Once)
    result = await run_tool(toolkit, name, query="x")
    assert result.text == f"[subagent_unavailable] echo: {SubAgentUnavailable.__name__}"
    assert result.metadata["error"] == "unavailable"
    assert len(caplog.records) == 1
    assert CANARY not in caplog.text


async def test_missing_tool_is_no_stack_in_the_result() -> None:
    class Toolless(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            result = await run_tool(self.toolkit, "nope")
            return Msg(self.name, [TextBlock(result.text)], "assistant")

    boss = await supervisor(Toolless, "x")
    await boss.reply("go")
    assert results_of(boss)[0].text == "The tool 'nope' does not exist. The tools are: none."


class FakeSpan:
    def __init__(self, spans: list[tuple[str, dict[str, Any]]], name: str, attributes: dict[str, Any]) -> None:
        self.attributes = dict(attributes)
        spans.append((name, self.attributes))

    def __enter__(self) -> "FakeSpan":
        return self

    def __exit__(self, *_: object) -> None:
        self.attributes["ended"] = True

    def set_attribute(self, name: str, value: Any) -> None:
        self.attributes[name] = value

    def set_status(self, code: Any, description: str) -> None:
        self.attributes["status"] = (code.name, description)


@pytest.mark.parametrize(
    ("kind", "error"), [("error", "ValueError"), ("hang", "timeout"), ("iterations", "max_iters"), ("fine", None)]
)
async def test_span_of_a_delegation_says_how_it_ended(kind: str, error: str | None) -> None:
    spans: list[tuple[str, dict[str, Any]]] = []

    class Tracer:
        def start_as_current_span(self, name: str, attributes: dict[str, Any], **_: object) -> FakeSpan:
            return FakeSpan(spans, name, attributes)

    cls = Echo if kind == "fine" else Failing
    limits = {"timeout": 0.01} if kind == "hang" else {}
    permissions = PermissionBundle(trace_provider=Tracer(), safety_limits=limits)
    result = await cls(name="ann", permissions=permissions).delegate(kind)
    [(name, attributes)] = spans
    assert name == "invoke_agent ann"
    assert attributes["ended"]
    assert attributes.get("error.type") == result.metadata.get("error") == error
    assert attributes.get("status") == (None if error is None else ("ERROR", error))


async def test_span_of_a_delegation_is_under_that_of_its_call() -> None:
    spans = Spans()

    class Traced(Echo):
        @classmethod
        def permissions_of(cls, host: Any) -> PermissionBundle:
            tracer = spans.provider.get_tracer("test")
            return replace(super().permissions_of(host), trace_provider=tracer)

    boss = await supervisor(Traced, "x", middlewares=[spans.middleware()])
    await boss.reply("go")
    [[_, [_, [call_name, children], _]]] = spans.tree()
    assert (call_name, children) == ("execute_tool agent_echo", ["invoke_agent echo"])
    spans.check_all_ended()


async def test_tracer_of_the_supervisor_is_shared() -> None:
    spans = Spans()
    boss = await supervisor(Echo, "x", middlewares=[spans.middleware()])
    boss.trace_provider = spans.provider.get_tracer("test")  # type: ignore[attr-defined]
    await boss.reply("go")
    [[_, [_, [call_name, children], _]]] = spans.tree()
    assert (call_name, children) == ("execute_tool agent_echo", ["invoke_agent echo"])
    spans.check_all_ended()


async def test_logger_of_the_bundle_is_used(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("a logger of ours")
    await Failing(permissions=PermissionBundle(logger=logger)).delegate("error")
    assert [record.name for record in caplog.records] == ["a logger of ours"]
