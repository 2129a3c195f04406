"""What leaves a delegation: spans, and errors that are not the sub-agent's own."""

from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.errors import AgentRTError, SessionIOError
from agentrt.middleware import ToolRetryMiddleware
from agentrt.state import AgentState, InMemoryStateStore
from tests.agent.delegation.helpers import Counting, agent_of, asking_child, boss_of, call, results_of
from tests.loop.helpers import confirmation_of, items_of

pytestmark = pytest.mark.anyio
CANARY = "canary 4711"


def spans_of(exporter: Any) -> list[tuple[str, str | None]]:
    """Each span that has ended, with the name of the one that it is in."""
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    exporter.clear()
    return [(span.name, None if span.parent is None else names.get(span.parent.span_id)) for span in spans]


@pytest.fixture
def exporter() -> Any:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


def tracing_to(exporter: Any) -> MiddlewareBase:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from agentrt.middleware import TracingMiddleware

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return TracingMiddleware(tracer_provider=provider)


async def test_the_span_of_a_child_is_in_that_of_its_call(exporter: Any) -> None:
    boss = boss_of(asking_child(Counting()), middlewares=[tracing_to(exporter)])
    await boss.reply("go")
    expected = {("invoke_agent writer", "execute_tool writer"), ("execute_tool writer", "invoke_agent boss")}
    assert expected <= set(spans_of(exporter))
    await boss.reply(confirmation_of(boss))
    resumed = spans_of(exporter)
    assert expected | {("execute_tool publish", "invoke_agent writer")} <= set(resumed)
    assert resumed.count(("invoke_agent boss", None)) == 1


async def test_no_span_has_the_words_of_an_error_of_a_child(exporter: Any) -> None:
    child = agent_of("child", [RuntimeError(CANARY)])
    await boss_of(child, middlewares=[tracing_to(exporter)]).reply("go")
    assert all(CANARY not in span.to_json() for span in exporter.get_finished_spans())


@pytest.mark.parametrize("with_store", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
async def test_a_repeated_call_asks_the_child_anew(with_store: bool, is_seen: bool) -> None:
    """The first child asks, is answered, and fails; the second one asks the same, which that answer is not for."""
    counting = Counting()
    ask = [call("k1", "publish", what="a")]
    child = agent_of("child", [ask, RuntimeError("broken"), ask, "Published."], counting.tool(ask=True))
    retry = ToolRetryMiddleware(["child"], max_retries=1, initial_delay=0)
    store = InMemoryStateStore() if with_store else None
    boss = boss_of(child, middlewares=[retry], state_store=store)
    await boss.reply("go")
    assert counting.runs == []
    for runs in (["a"], ["a", "a"]):
        response = confirmation_of(boss)
        await (items_of(boss, response) if is_seen else boss.reply(response))
        assert counting.runs == runs
    assert boss.waiting() is None
    assert [result.text for result in results_of(boss).values()] == ["Published."]


async def test_a_failure_stands_where_no_layer_repeats_the_call() -> None:
    child = agent_of("child", [RuntimeError("broken"), "Never asked."])
    boss = boss_of(child, state_store=InMemoryStateStore())
    await boss.reply("go")
    assert [result.state for result in results_of(boss).values()] == ["error"]


class UsedUp(AgentRTError):
    """A limit of a reply is used up."""

    def __init__(self, reply_id: str) -> None:
        super().__init__("used up")
        self.reply_id = reply_id


class Limit(MiddlewareBase):
    """Lets nobody ask a model inside of the reply of its own agent."""

    inherited = True

    def __init__(self, levels_up: int) -> None:
        self.levels_up = levels_up

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        run = agent.run
        if run.depth < 2:
            return await next_handler()
        for _ in range(self.levels_up):
            run = run.parent
        raise UsedUp(run.id)


def three_levels(layer: MiddlewareBase) -> Agent:
    writer = agent_of("writer", ["Written."])
    editor = agent_of("editor", [[call("e1", "writer", query="go")], "Edited."], writer.as_tool("Writes."))
    return boss_of(editor, middlewares=[layer])


async def test_an_error_of_an_ancestors_reply_ends_that_reply() -> None:
    boss = three_levels(Limit(levels_up=2))
    with pytest.raises(UsedUp):
        await boss.reply("go")
    assert boss.state.last_reply.finished_reason == "error"


async def test_an_error_of_a_reply_in_between_ends_that_one() -> None:
    boss = three_levels(Limit(levels_up=1))
    await boss.reply("go")
    assert results_of(boss)["1"].text == "[subagent_error] editor: UsedUp"


async def test_an_error_of_its_own_reply_is_a_result_at_once() -> None:
    boss = three_levels(Limit(levels_up=0))
    await boss.reply("go")
    assert results_of(boss)["1"].text == "Edited."


async def test_a_save_that_fails_is_the_supervisors_own_failure() -> None:
    class Full(InMemoryStateStore):
        saves = 0

        async def save(self, state: AgentState) -> None:
            self.saves += 1
            if self.saves == 4:  # inside of the child
                raise SessionIOError("the disk is full")
            await super().save(state)

    boss = boss_of(agent_of("child", ["Yes."]), state_store=Full())
    with pytest.raises(SessionIOError):
        await boss.reply("go")
    assert results_of(boss)["1"].state in ("interrupted", "error")
    assert boss.state.reply_context is None
