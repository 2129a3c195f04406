"""Guards of a window judge an answer while it comes, and a judge never waits for the request that it judges beside."""

from itertools import pairwise
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, Toolkit
from agentrt.errors import GuardrailTripped, Transient
from agentrt.event import BlocksWithdrawnEvent, CustomEvent, TextBlockDeltaEvent, TextBlockStartEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import GuardrailMiddleware, Judge, MiddlewareBase, RateLimitMiddleware, Replace, RetryMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.testing import InMemoryStateStore, check_middleware
from agentrt.tool import FunctionTool
from tests.loop.helpers import call, items_of
from tests.middleware.fake_time import in_jumping_time, rebuilt

SECRET = "canary-7"
WINDOW = 40


def no_secret(value: Any, agent: Any) -> str | None:
    return "no secrets" if SECRET in str(value) else None


async def passes(value: Any, agent: Any) -> None:
    await anyio.lowlevel.checkpoint()


def guarded(script: list[Any], guards: Any = no_secret, *layers: MiddlewareBase, **options: Any) -> Agent:
    guardrail = GuardrailMiddleware(output=guards, window=WINDOW, **options)
    return Agent("a", model=ScriptedChatModel(script), middlewares=[guardrail, *layers])


def pieces(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


def text_in(items: list[Any]) -> str:
    return "".join(item.delta for item in items if isinstance(item, TextBlockDeltaEvent))


def verdict(*, is_yes: bool) -> list[ToolCallBlock]:
    return [ToolCallBlock("1", "GenerateStructuredOutput", f'{{"is_yes": {str(is_yes).lower()}}}')]


cuts = st.lists(st.integers(1, 70), max_size=30)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@given(st.integers(0, 200), st.integers(0, 200), cuts, st.sampled_from(["answer", "raise", "again"]), st.booleans())
@settings(max_examples=40, deadline=None)
async def test_no_secret_leaves_whole_and_nothing_of_its_round_stays(
    before: int, after: int, sizes: list[int], on_trip: str, is_async: bool
) -> None:
    text = "x" * before + SECRET + "y" * after
    deltas, place = [], 0
    for size in [*sizes, len(text)]:
        deltas.append(text[place : place + size])
        place += size
    ran: list[str] = []

    async def note() -> str:
        ran.append("note")
        return "noted"

    async def slow(value: Any, agent: Any) -> str | None:
        await anyio.lowlevel.checkpoint()
        return no_secret(value, agent)

    answer = [*(ChatResponse([TextBlock(delta)], is_last=False) for delta in deltas if delta)]
    last = ChatResponse([TextBlock(text), call("1", "note")])
    store = InMemoryStateStore()
    layer = GuardrailMiddleware(output=slow if is_async else no_secret, window=WINDOW, on_trip=on_trip)
    model = ScriptedChatModel([[*answer, last], "fine"])
    toolkit = Toolkit(tools=[FunctionTool(note, is_read_only=True)])
    agent = Agent("a", "", model, toolkit, [layer], state_store=store)
    events: list[Any] = []
    try:
        async for event in agent.reply_stream("go"):
            events.append(event)
    except GuardrailTripped:
        assert on_trip == "raise"
    assert ran == []
    assert SECRET not in text_in(events)
    tripped = next(place for place, event in enumerate(events) if isinstance(event, CustomEvent))
    assert "x" * 9 not in text_in(events[tripped:])
    assert "y" * 9 not in text_in(events[tripped:])
    for kept in (rebuilt(events).to_json(), (await store.load(agent.state.session_id)).model_dump_json()):
        assert SECRET not in kept
        assert "x" * 9 not in kept
        assert "y" * 9 not in kept


@given(st.text("abc \n", max_size=300), cuts)
@settings(max_examples=40, deadline=None)
async def test_a_text_that_passes_leaves_unchanged(text: str, sizes: list[int]) -> None:
    deltas, place = [], 0
    for size in [*sizes, len(text)]:
        deltas.append(text[place : place + size])
        place += size
    answer: list[Any] = [ChatResponse([TextBlock(delta)], is_last=False) for delta in deltas if delta]
    items = await items_of(guarded([[*answer, ChatResponse([TextBlock(text or "x")])]], passes))
    assert text_in(items) == (text or "x")


@pytest.mark.parametrize("size", [1, 7, 40, 1_000])
async def test_a_long_answer_is_judged_in_windows_that_overlap(size: int) -> None:
    seen: list[str] = []

    def note(value: str, agent: Any) -> None:
        seen.append(value)

    text = "".join(f"{number:04}" for number in range(250))
    items = await items_of(guarded([pieces(text, size)], note))
    assert text_in(items) == text
    assert all(half in "".join(seen) for half in pieces(text, WINDOW // 2))
    assert all(later.startswith(earlier[-WINDOW // 2 :]) for earlier, later in pairwise(seen))
    # Each character is judged twice at most, however long the answer is.
    assert sum(map(len, seen)) <= 2 * len(text)


async def test_what_has_passed_leaves_before_the_answer_is_whole() -> None:
    seen: list[str] = []

    class Rest(MiddlewareBase):
        """Gives the rest of the answer when the beginning has been read."""

        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if isinstance(item, TextBlockDeltaEvent) and "end" in item.delta:
                    assert text_in(seen)  # type: ignore[arg-type]  # events
                yield item

    agent = guarded([["begin " * 10, "middle " * 10, "end"]], lambda value, agent: None, Rest())
    async for event in agent.reply_stream("go"):
        seen.append(event)  # type: ignore[arg-type]
    assert text_in(seen) == "begin " * 10 + "middle " * 10 + "end"


async def test_what_has_left_is_withdrawn() -> None:
    items = await items_of(guarded([["a" * 50, "b" * 50, SECRET, "c" * 50], "fine"], on_trip="again"))
    [withdrawn] = [item for item in items if isinstance(item, BlocksWithdrawnEvent)]
    starts = [item.block_id for item in items if isinstance(item, TextBlockStartEvent)]
    assert withdrawn.block_ids == starts[:1]


async def test_a_replacement_comes_too_late() -> None:
    message = await guarded(["fine"], lambda value, agent: Replace("other")).reply("go")
    assert message.finished_reason == "guardrail"


async def test_an_attempt_that_breaks_off_begins_anew() -> None:
    script = [["a" * 60, "canary", Transient("cut")], ["-7 is not a secret " * 5]]
    items = await items_of(guarded(script, no_secret, RetryMiddleware(initial_delay=0)))
    assert rebuilt(items).get_text_content() == "-7 is not a secret " * 5


async def test_an_error_of_the_model_leaves_unchanged() -> None:
    error = Transient("cut")
    with pytest.raises(Transient) as raised:
        await guarded([["a" * 60, "b" * 60, error]], passes).reply("go")
    assert raised.value is error


@in_jumping_time
@pytest.mark.parametrize("stage", ["input", "output"])
@pytest.mark.parametrize("is_yes", [False, True])
async def test_a_judge_gets_the_only_place_of_a_rate_limit(stage: str, is_yes: bool) -> None:
    """The request ends, also one that takes longer than a guard may, and then it is the judge's turn."""

    class Slow(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            result = await next_handler()
            return result if agent.run.is_internal else self._slowly(result)

        async def _slowly(self, stream):
            async for piece in stream:
                await anyio.sleep(4)
                yield piece

    judge = Judge(ScriptedChatModel([verdict(is_yes=is_yes)] * 20, model="judge"), "Is it rude?")
    stages: dict[str, Any] = {stage: judge}
    options = {"window": WINDOW} if stage == "output" else {}
    layers = [GuardrailMiddleware(**stages, **options), RateLimitMiddleware(max_concurrency=1), Slow()]
    model = ScriptedChatModel([["word " * 10] * 6], stream=True)
    agent = Agent("a", model=model, middlewares=layers)
    message = await agent.reply("go")
    assert message.finished_reason == ("guardrail" if is_yes else "completed")
    assert is_yes or message.get_text_content() == "word " * 60


@in_jumping_time
async def test_a_guard_that_hangs_is_given_up_after_the_request() -> None:
    async def hangs(value: Any, agent: Any) -> None:
        await anyio.sleep_forever()

    for options in ({"output": hangs, "window": WINDOW}, {"input": hangs}):
        started = anyio.current_time()
        layer = GuardrailMiddleware(**options, timeout=5)  # type: ignore[arg-type]
        agent = Agent("a", model=ScriptedChatModel([["word " * 10] * 6]), middlewares=[layer])
        assert (await agent.reply("go")).finished_reason == "guardrail"
        assert anyio.current_time() - started == pytest.approx(5, abs=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, r"window=\.\.\.\) must be a whole number of at least 20"),
        ({"window": True}, "must be a whole number of at least 20, not True"),
        ({"window": 40.0}, "must be a whole number of at least 20"),
        ({"window": float("inf")}, "must be a whole number of at least 20"),
        ({"window": "40"}, "must be a whole number of at least 20"),
    ],
)
def test_a_wrong_window_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        GuardrailMiddleware(output=no_secret, **options)
    with pytest.raises(Exception, match="is for guards of output, and there are none"):
        GuardrailMiddleware(input=no_secret, window=40)


@pytest.mark.slow
async def test_a_window_keeps_the_contract() -> None:
    await check_middleware(lambda: GuardrailMiddleware(output=passes, window=20), faults=["cancel"], every=3)
