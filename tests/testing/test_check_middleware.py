"""The kit finds what a middleware must not do, says so in words, and leaves alone what a middleware may do."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import repeat
from typing import Any

import anyio
import pytest
import trio

from agentrt import MiddlewareBase
from agentrt.event import CustomEvent
from agentrt.message import Msg, TextBlock
from agentrt.middleware import UsageMiddleware
from agentrt.model import ChatResponse
from agentrt.testing import MiddlewareProblems, ScriptedChatModel, check_middleware, check_middleware_on_both_loops
from agentrt.testing.kit import growth
from agentrt.testing.kit.isolation import put_two_in_one_agent
from agentrt.testing.kit.session import KitRun
from agentrt.tool import FunctionTool, ToolResponse

WHO: ContextVar[str] = ContextVar("who")
WHO.set("nobody")


class NeverCallsNext(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        for event in ():
            yield event


class AddsToolThatAsks(MiddlewareBase):
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        if agent.run.is_internal:
            return await next_handler()
        return await next_handler(tools=[*input_kwargs["tools"], FunctionTool(look_up, ask=True)])


class AddsToolForTheRound(MiddlewareBase):
    async def on_tools(self, agent, current_tools):
        others = [tool for tool in current_tools if tool.name != "look_up"]  # of another instance, say
        return [*others, FunctionTool(look_up, ask=True)]


class ShoutsAtContent(MiddlewareBase):
    inherited = False

    async def on_content(self, agent, content):
        return content.with_text(content.text + "!")


async def look_up(word: str) -> str:
    return word


class CallsWithoutIterating(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        next_handler()
        for event in ():
            yield event


class HasNoEvents(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if isinstance(item, str):
                yield item


class PassesTwoStreamsOn(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        for _ in range(2):
            async for item in next_handler():
                yield item


class RepliesTwice(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        for _ in range(2):
            async for item in next_handler():
                yield item


class CallsConcurrently(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        results: list[Any] = []

        async def call() -> None:
            results.append(await next_handler())

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                group.start_soon(call)
        except BaseExceptionGroup as raised:
            raise raised.exceptions[0] from None
        return results[0]


class YieldsAText(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
        yield "done"


class ReturnsAText(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        await next_handler()
        return "done"


class IsACoroutine(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        return next_handler()


class IsASyncGenerator(MiddlewareBase):
    def on_acting(self, agent, input_kwargs, next_handler):
        yield from ()


class AddsToTheMessages(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        input_kwargs["messages"].append(Msg("user", "Hurry.", "user"))
        return await next_handler()


class ChangesTheInput(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        inputs = input_kwargs["inputs"]
        for message in inputs if isinstance(inputs, list) else [inputs]:
            if isinstance(message, Msg):
                message.content = "Hurry."
        async for item in next_handler():
            yield item


class GivesBackAfterItsLoop(MiddlewareBase):
    def __init__(self):
        self.lock = anyio.Semaphore(1)

    async def on_reply(self, agent, input_kwargs, next_handler):
        await self.lock.acquire()
        async for item in next_handler():
            yield item
        self.lock.release()


class CountsAfterItsLoop(MiddlewareBase):
    def __init__(self):
        self.active = 0

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.active += 1
        async for item in next_handler():
            yield item
        self.active -= 1


class YieldsInAScope(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        with anyio.move_on_after(30):
            async for item in next_handler():
                yield item


class YieldsPiecesInAScope(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return result if isinstance(result, ChatResponse) else self.pieces(result)

    async def pieces(self, stream):
        with anyio.fail_after(30):
            async for piece in stream:
                yield piece


class YieldsInATaskGroup(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        async with anyio.create_task_group():
            async for item in next_handler():
                yield item


class YieldsWhenLeft(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except GeneratorExit:
            yield CustomEvent("left", None)


class LeavesItsSpanCurrent(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        from opentelemetry.sdk.trace import TracerProvider

        with TracerProvider().get_tracer("tests").start_as_current_span("reply"):
            async for item in next_handler():
                yield item


class ResetsAToken(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        token = WHO.set("somebody")
        try:
            async for item in next_handler():
                yield item
        finally:
            with suppress(ValueError):
                WHO.reset(token)


class SwallowsACancellation(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except anyio.get_cancelled_exc_class():
            return ChatResponse([TextBlock("I was cancelled.")])


class SwallowsItInAStream(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except anyio.get_cancelled_exc_class():
            yield CustomEvent("cancelled", None)


class TurnsErrors(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Exception as error:
            raise RuntimeError("it failed") from error


class KeepsTextInItself(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.asked = input_kwargs["messages"]
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        return await next_handler(messages=self.asked)


class KeepsDataUnderItsOwnName(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        agent.state.middleware_data.setdefault("mine", {})["calls"] = 1
        async for item in next_handler():
            yield item


class ForgetsWhenSaved(MiddlewareBase):
    def __init__(self):
        self.replies = 0

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.replies += 1
        return ChatResponse([TextBlock(f"This is answer {self.replies}.")])


class CannotBeSaved(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        agent.state_of(self)["model"] = input_kwargs["current_model"]
        return await next_handler()


class AnswersOnlyStreams(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return ChatResponse([TextBlock("No.")]) if isinstance(result, ChatResponse) else result


class LeavesATask(MiddlewareBase):
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        start_a_task(anyio.Event().wait)
        return await next_handler()


class SplicesTwoAttempts(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return result if isinstance(result, ChatResponse) else self.pieces(result, next_handler)

    async def pieces(self, stream, next_handler):
        is_whole = False
        try:
            async for piece in stream:
                is_whole = piece.is_last
                yield piece
        except Exception:
            if is_whole:
                raise
            async for piece in await next_handler():
                yield piece


class MixesCallsUp(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        self.call = input_kwargs["tool_call"]
        async for item in next_handler():
            if isinstance(item, ToolResponse):
                yield ToolResponse([TextBlock(f"{self.call.name} is done.")])


class SwallowsItWhereItDecides(MiddlewareBase):
    inherited = False

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        with suppress(BaseException):
            await anyio.lowlevel.checkpoint()
        return await next_handler()


class SwallowsItInThePrompt(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        with suppress(BaseException):
            await anyio.lowlevel.checkpoint()
        return current_prompt


def start_a_task(main: Callable[[], Any]) -> None:
    try:
        asyncio.get_running_loop().create_task(main())
    except RuntimeError:
        trio.lowlevel.spawn_system_task(main)


SCOPE = "yields inside an open cancel scope or task group, whose deadline and failures then hit its reader"
BAD = [
    (
        AddsToolThatAsks,
        r"the tool 'look_up', which it added in on_model_call, may have to wait for an answer.*: add it in on_tools",
    ),
    (
        NeverCallsNext,
        r"left alone, with a plain question:\n.*NeverCallsNext\.on_reply ended with nothing, but its last item must be",
    ),
    (CallsWithoutIterating, r"CallsWithoutIterating\.on_acting ended with nothing, .* must be a ToolResponse"),
    (HasNoEvents, r"HasNoEvents\.on_reply ended with nothing, but its last item must be a Msg"),
    (PassesTwoStreamsOn, r"PassesTwoStreamsOn\.on_acting yielded .* after its ToolResponse, which must come last"),
    (RepliesTwice, r"on_reply called next_handler\(\) again after the reply had ended: to have another round, call"),
    (CallsConcurrently, r"CallsConcurrently\.on_model_call called next_handler\(\) while its last call is running"),
    (YieldsAText, r"YieldsAText\.on_reasoning yielded 'done', but it must yield AgentEvent or Msg"),
    (ReturnsAText, r"on_model_call must return ChatResponse or .*, but ReturnsAText returned 'done'"),
    (IsACoroutine, r"it is refused, before anything runs: IsACoroutine\.on_reply must be an async generator"),
    (IsASyncGenerator, r"it is refused, .*: IsASyncGenerator\.on_acting must be .* but it is a sync generator"),
    (AddsToTheMessages, r"AddsToTheMessages\.on_model_call changed the messages that it was given, which others"),
    (ChangesTheInput, r"ChangesTheInput\.on_reply changed the inputs that it was given, which others share"),
    (
        GivesBackAfterItsLoop,
        r"left by its reader:\n.*not over after .*: it came after one whose reader had left, so give back in a `fin",
    ),
    (CountsAfterItsLoop, r"its `active` is 1 after a reply that its reader left, and 0 after one .* in a `finally`"),
    (YieldsInAScope, rf"YieldsInAScope\.on_reply {SCOPE}"),
    (YieldsPiecesInAScope, rf"YieldsPiecesInAScope\.on_model_call {SCOPE}"),
    (YieldsInATaskGroup, rf"YieldsInATaskGroup\.on_acting {SCOPE}"),
    (YieldsWhenLeft, r"left by its reader:\n.*it yields after its reader has left, in a `finally` or an `except`"),
    (LeavesItsSpanCurrent, r"LeavesItsSpanCurrent\.on_reply leaves the ContextVar 'current_context' changed while"),
    (ResetsAToken, r"ResetsAToken\.on_reply leaves the ContextVar 'who' changed while its reader runs"),
    (
        SwallowsACancellation,
        r"cancelled .*\n.*its on_model_call swallowed the cancellation and continued: let it through",
    ),
    (SwallowsItInAStream, r"cancelled .*\n.*its on_reply swallowed the cancellation and continued"),
    (
        TurnsErrors,
        r"the model raises before its answer:\n.*InjectedError came from inside of it, and RuntimeError out of",
    ),
    (KeepsTextInItself, r"one instance in two [\s\S]*while another one is given, .*: keep what belongs to a reply in"),
    (KeepsDataUnderItsOwnName, r"two instances share the data 'mine' of the conversation: keep it in agent\.state_of"),
    (ForgetsWhenSaved, r"saved and loaded between two replies, the last answer is 'This is answer 1\.', and 'This is "),
    (CannotBeSaved, r"the state cannot be saved: "),
    (AnswersOnlyStreams, r"the answer is \"You asked .*\" when it streams, and 'No\.' when it does not"),
    (
        LeavesATask,
        r"a fault at every suspension of .*\n.*left alone: the task Event\.wait was not over when the reply was",
    ),
    (
        MixesCallsUp,
        r"tools side by side:\n.*the result of '(add|count)' is that of the call beside it, .*keep what belongs to one",
    ),
    (SplicesTwoAttempts, r"stream breaks off, .*\n.*'You ', stands before the whole answer: announce that an attempt"),
]


PATIENCE = 10.0  # seconds
# What hangs is waited for: for a short time first, in which a busy machine may not get as far as to where it hangs.
PATIENCES_WITH_HANGING = [0.3, PATIENCE]

FOUND_LATE = {  # in a scene with many faults, or after many replies: seconds each
    CountsAfterItsLoop,
    ForgetsWhenSaved,
    KeepsDataUnderItsOwnName,
    KeepsTextInItself,
    LeavesATask,
    MixesCallsUp,
    SplicesTwoAttempts,
    SwallowsACancellation,
    SwallowsItInAStream,
    TurnsErrors,
    YieldsWhenLeft,
}


@pytest.mark.parametrize(
    ("middleware", "words"),
    [pytest.param(*bad, marks=pytest.mark.slow if bad[0] in FOUND_LATE else (), id=bad[0].__name__) for bad in BAD],
)
@pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")  # theirs, on trio
@pytest.mark.parametrize("loop", ["asyncio", "trio"])  # a loop of its own, since some leave things behind in it
def test_a_bad_middleware_is_reported_in_words(loop, middleware, words):
    for patience in PATIENCES_WITH_HANGING if middleware is GivesBackAfterItsLoop else [PATIENCE]:
        with pytest.raises(MiddlewareProblems) as caught:
            anyio.run(check, middleware, patience, backend=loop)
        if re.search(words, str(caught.value)):
            break
    assert re.search(words, str(caught.value)), str(caught.value)
    assert str(caught.value).startswith(f"{middleware.__name__} breaks the contract of a middleware:\n- ")
    assert caught.value.report.problems


# On trio, and with anyio's scopes, a cancellation that was swallowed comes again by itself.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("middleware", "what"), [(SwallowsItInThePrompt, "the model"), (SwallowsItWhereItDecides, "a tool")]
)
def test_a_swallowed_task_cancellation_is_found_by_later_calls(middleware, what):
    words = rf"cancel_task at .*: the cancellation was swallowed, and it continued with {what}"

    async def check():
        await check_middleware(middleware, faults=["cancel_task"])

    with pytest.raises(MiddlewareProblems, match=words):
        anyio.run(check, backend="asyncio")


async def check(middleware, patience):
    await check_middleware(middleware, faults=["cancel"], patience=patience)


class AnswersItself(MiddlewareBase):
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return ChatResponse([TextBlock("I know that without a model.")])


class Remembers(MiddlewareBase):
    """Gives the answers that were given before."""

    inherited = False

    def __init__(self):
        self.known = {}

    async def on_model_call(self, agent, input_kwargs, next_handler):
        asked = re.sub("id='.*?'", "", repr([(each.role, each.content) for each in input_kwargs["messages"]]))
        if asked not in self.known:
            result = await next_handler()
            if not isinstance(result, ChatResponse):
                result = [piece async for piece in result][-1]
            self.known[asked] = result
        return self.known[asked]


class AsksTwice(MiddlewareBase):
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        with suppress(ValueError):
            await next_handler()
        return await next_handler()


class SaysNo(MiddlewareBase):
    inherited = False

    async def on_acting(self, agent, input_kwargs, next_handler):
        yield ToolResponse([TextBlock("No tools today.")])


class EndsTheReply(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        yield Msg(agent.name, "We are closed.", "assistant")


class RewritesTheAnswer(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg) and agent.state.reply_context is None:
                item.content = "***"
            yield item


class RewritesARound(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield Msg(item.name, "***", "assistant") if isinstance(item, Msg) else item


class OneAtATime(MiddlewareBase):
    def __init__(self):
        self.lock = anyio.Semaphore(1)

    async def on_reply(self, agent, input_kwargs, next_handler):
        await self.lock.acquire()
        try:
            async for item in next_handler():
                yield item
        finally:
            self.lock.release()


class CountsThoseWhoLeave(MiddlewareBase):
    def __init__(self):
        self.left = 0

    async def on_reply(self, agent, input_kwargs, next_handler):
        is_over = False
        try:
            async for item in next_handler():
                yield item
            is_over = True
        finally:
            self.left += not is_over


class Calculates(MiddlewareBase):
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        assert Decimal(1) / Decimal(4) < 1
        return await next_handler()


@dataclass(frozen=True)
class Frozen(MiddlewareBase):
    words: str = "Answer in capitals."

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} {self.words}"


class BringsATool(MiddlewareBase):
    def list_tools(self):
        return [self.look]

    async def look(self) -> str:
        return "It rains."


@pytest.mark.slow
@pytest.mark.parametrize(
    "middleware",
    [
        AnswersItself,
        AsksTwice,
        BringsATool,
        CountsThoseWhoLeave,
        EndsTheReply,
        Frozen,
        OneAtATime,
        Remembers,
        RewritesARound,
        RewritesTheAnswer,
        SaysNo,
    ],
)
async def test_what_a_middleware_may_do_is_not_reported(middleware):
    report = await check_middleware(middleware, faults=["cancel", "drop"])
    assert not report.problems
    assert str(report).startswith(f"{middleware.__name__}: nothing found in ")


@pytest.mark.slow
def test_a_context_variable_of_a_library_is_not_reported():
    # In a fresh context, since whoever calculates first has one for all that comes after.
    reports = Context().run(check_middleware_on_both_loops, Calculates, faults=[])
    assert not any(report.problems for report in reports.values())


@pytest.mark.slow
async def test_compression_calls_the_model_in_the_kit():
    asked = []

    class Listens(MiddlewareBase):
        inherited = False

        async def on_model_call(self, agent, input_kwargs, next_handler):
            asked.append(agent.run.is_internal)
            return await next_handler()

    await check_middleware(Listens, faults=[])
    assert any(asked)


@pytest.mark.slow
def test_both_loops_are_tried_from_a_plain_function():
    reports = check_middleware_on_both_loops(MiddlewareBase, faults=[])
    assert set(reports) == {"asyncio", "trio"}
    assert all(report.conversations > 100 for report in reports.values())


KEPT = AnswersItself()


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda: "text", "the factory must return a middleware, such as MyMiddleware"),
        (KEPT, r"was given an instance of AnswersItself: write check_middleware\(AnswersItself\)"),
        (lambda settings: settings, "cannot be called without arguments"),
        (lambda: KEPT, "the factory returned one AnswersItself twice: make a new one each time"),
    ],
)
async def test_a_factory_without_new_middlewares_is_refused(factory, words):
    with pytest.raises(MiddlewareProblems, match=words):
        await check_middleware(factory)


class KeepsEachReply(MiddlewareBase):
    def __init__(self):
        self.seen = {}

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.seen[agent.run.id] = "begun"
        async for item in next_handler():
            yield item


class KeepsThemOnItsClass(MiddlewareBase):
    seen = []  # noqa: RUF012  # which all instances share

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.seen.append(input_kwargs["tool_call"].id)
        async for item in next_handler():
            yield item


class Log:
    def __init__(self):
        self.text = ""


class KeepsThemFurtherIn(MiddlewareBase):
    def __init__(self):
        self.log = Log()

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.log.text += "asked "
        return await next_handler()


class LosesTheUsage(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        response = await next_handler()
        if not isinstance(response, ChatResponse):
            async for piece in response:
                response = piece
        return ChatResponse(response.content, finished_reason=response.finished_reason)


class PromptsByWhatItKeeps(MiddlewareBase):
    """Tells the model what it must not: what is in the instance, and lost when another one goes on."""

    rewrites = ("system",)

    def __init__(self):
        self.replies = 0

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.replies += 1
        async for item in next_handler():
            yield item

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} You have answered {self.replies} times."


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        pytest.param(
            KeepsEachReply,
            r"many replies:\n.*its `seen` grows with each reply, by \d+ on average: keep what belongs",
            marks=pytest.mark.slow,
        ),
        pytest.param(KeepsThemOnItsClass, r"its `seen` grows with each reply", marks=pytest.mark.slow),
        pytest.param(KeepsThemFurtherIn, r"its `log` grows with each reply", marks=pytest.mark.slow),
        (LosesTheUsage, r"with usage:\n.*the model reported its usage, and MODEL_CALL_END has none of it: pass on the"),
        pytest.param(
            PromptsByWhatItKeeps,
            r"loaded between two replies, the model is asked .*times\..*: keep what belongs to the",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_growth_lost_usage_and_prompts_of_kept_data_are_reported(middleware, words, monkeypatch):
    monkeypatch.setattr(growth, "_LONG_RUN", 150)
    with pytest.raises(MiddlewareProblems, match=words):
        await check_middleware(middleware, faults=[])


class KeepsTheLastOnes(MiddlewareBase):
    """Forgets the oldest."""

    def __init__(self):
        self.seen = {}
        self.text = ""

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.text = agent.run.id
        self.seen[agent.run.id] = "begun"
        if len(self.seen) > 100:
            del self.seen[next(iter(self.seen))]
        async for item in next_handler():
            yield item


@pytest.mark.slow
async def test_what_has_a_limit_does_not_grow(monkeypatch):
    monkeypatch.setattr(growth, "_LONG_RUN", 150)
    assert not (await check_middleware(KeepsTheLastOnes, faults=[])).problems


async def test_data_of_a_companion_is_not_shared():
    class ReadsUsage(MiddlewareBase):
        requires = ("UsageMiddleware",)

    run = KitRun(ReadsUsage, 10.0, (UsageMiddleware,), (), None)
    await put_two_in_one_agent(run)
    assert not run.problems


class Inside(MiddlewareBase):
    pass


class NeedsOthers(MiddlewareBase):
    requires = ("Frozen", "Inside")
    wraps = ("Inside",)


@pytest.mark.slow
async def test_a_middleware_that_needs_others_is_tried_beside_them():
    with pytest.raises(MiddlewareProblems, match="NeedsOthers requires Frozen, which is not in middlewares"):
        await check_middleware(NeedsOthers, faults=[])
    for beside in ([Frozen, Inside], [Inside, Frozen]):
        assert not (await check_middleware(NeedsOthers, faults=["cancel"], beside=beside)).problems


class GuardsBadly(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        if "the word" in repr(input_kwargs["inputs"]):
            raise ValueError("no such word")
        async for item in next_handler():
            yield item


class GuardsAnswers(MiddlewareBase):
    """Says something else where the model says a word, but not if it streams."""

    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        response = await next_handler()
        if isinstance(response, ChatResponse) and "secret" in repr(response.content):
            response = replace(response, content=[TextBlock("I must not say.")])
        return response


@pytest.mark.slow
async def test_a_guard_is_triggered_by_given_inputs_or_models():
    assert not (await check_middleware(GuardsBadly, faults=[])).problems
    with pytest.raises(MiddlewareProblems, match=r"conversation that was given:\n.*ValueError was raised: no such"):
        await check_middleware(GuardsBadly, faults=[], inputs=["hello", "the word"])
    assert not (await check_middleware(GuardsAnswers, faults=[])).problems
    with pytest.raises(MiddlewareProblems, match=r"'It is secret\.'.* when they stream, and \['I must not say\.'"):
        await check_middleware(
            GuardsAnswers, faults=[], inputs="Tell me.", model=lambda: ScriptedChatModel(repeat("It is secret."))
        )


@pytest.mark.slow
async def test_the_authors_conversation_is_disturbed_as_well():
    report = await check_middleware(
        OneAtATime, faults=["cancel"], inputs=["Tell me."], model=lambda: ScriptedChatModel(repeat("It is so."))
    )
    assert not report.problems


class CountsAllEvents(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            data = agent.state_of(self)
            data["events"] = data.get("events", 0) + 1
            yield item


class CountsItsOwnEvents(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            is_own = getattr(item, "reply_id", None) == agent.run.id
            if is_own and item.type != "REPLY_END":  # with which the state was saved
                data = agent.state_of(self)
                data["events"] = data.get("events", 0) + 1
            yield item


class CountsOnItself(CountsItsOwnEvents):
    def __init__(self):
        self.tokens = {"input": 0}

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            self.tokens["input"] += getattr(item, "input_tokens", None) or 0
            yield item


class SwallowsForeignEvents(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if getattr(item, "reply_id", agent.run.id) == agent.run.id:
                yield item


class ChangesForeignEvents(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if getattr(item, "type", None) == "TEXT_BLOCK_DELTA" and item.reply_id != agent.run.id:
                item = replace(item, delta=item.delta.upper())
            yield item


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        pytest.param(
            CountsAllEvents,
            r"its data \['CountsAllEvents'\]\['events'\] of the conversation is \d+ where events of",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            CountsOnItself,
            r"its data \['tokens'\]\['input'\] of self is \d+ where events of another reply",
            marks=pytest.mark.slow,
        ),
        pytest.param(SwallowsForeignEvents, "of the 16 events of another reply, 0 leave it", marks=pytest.mark.slow),
        pytest.param(
            ChangesForeignEvents,
            "of the 16 events of another reply, 16 leave it, or leave it in another order or changed",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_what_is_done_to_events_of_another_reply_is_reported(middleware, words):
    with pytest.raises(MiddlewareProblems, match=words) as caught:
        await check_middleware(middleware, faults=[])
    assert list(caught.value.report.problems) == ["events of another reply pass through"]


@pytest.mark.slow
async def test_counting_the_events_of_its_own_reply_is_not_reported():
    assert not (await check_middleware(CountsItsOwnEvents, faults=[])).problems


@pytest.mark.parametrize(("layer", "faults"), [(AddsToolForTheRound, ["cancel"]), (ShoutsAtContent, [])])
async def test_layers_of_tools_and_content_pass(layer: type[MiddlewareBase], faults: list[Any]) -> None:
    await check_middleware(layer, faults=faults, every=25)
