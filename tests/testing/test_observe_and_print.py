"""The kit finds what a middleware must not do while an agent observes or prints, and leaves alone what it may."""

import re
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest

from agentrt import MiddlewareBase
from agentrt.errors import SessionIOError
from agentrt.message import Msg
from agentrt.testing import MiddlewareProblems, MiddlewareReport, check_middleware
from agentrt.testing.harness.await_faults import silence_expected_errors
from agentrt.testing.kit.observe_and_print import observe_messages, print_messages
from agentrt.testing.kit.session import KitRun, TimedOut


class RaisesWhenItHears(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        raise KeyError("always")


class HearsOnlyMessages(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        await next_handler(msg=replace(input_kwargs["msg"], name="somebody"))


class NeedsAReplyToHear(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        agent.run.scratch(self)["heard"] = True
        await next_handler()


class ChangesWhatItHears(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        if isinstance(input_kwargs["msg"], Msg):
            input_kwargs["msg"].metadata["heard"] = True
        await next_handler()


class AddsToWhatItHears(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        if isinstance(input_kwargs["msg"], list):
            input_kwargs["msg"].append(Msg("user", "Hurry.", "user"))
        await next_handler()


class ChangesWhatItCouldNotKeep(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except Exception:
            input_kwargs["msg"].metadata["lost"] = True
            raise


class IsNotCancelledWhileItHears(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        with suppress(anyio.get_cancelled_exc_class()):
            await next_handler()


class RaisesInPlaceOfACancellation(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except anyio.get_cancelled_exc_class():
            raise TimeoutError("it took too long") from None


class ForgetsWhatWasNotKept(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        with suppress(Exception):
            await next_handler()


class TurnsErrorsOfTheStore(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except Exception as error:
            raise RuntimeError("it failed") from error


class TakesInByItself(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except Exception:
            agent.state.context.append(input_kwargs["msg"])
            raise


class IsDeafForEver(MiddlewareBase):
    def __init__(self):
        self.lock = anyio.Semaphore(1)

    async def on_observe(self, agent, input_kwargs, next_handler):
        await self.lock.acquire()
        await next_handler()
        self.lock.release()


class EmptiesWhatIsPrinted(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        input_kwargs["msg"].content = []
        await next_handler()


class RewritesTheBlocks(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        await next_handler()
        for block in input_kwargs["msg"].get_content_blocks("text"):
            block.text = block.text.upper()


class AddsToTheSpeech(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        await next_handler()
        if isinstance(input_kwargs["speech"], list):
            input_kwargs["speech"].clear()


class RaisesWhenItPrints(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        if input_kwargs["last"]:
            raise KeyError("always")
        await next_handler()


class NeedsAReplyToPrint(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        agent.run.scratch(self)["printed"] = True
        await next_handler()


class IsNotCancelledWhileItPrints(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        with suppress(anyio.get_cancelled_exc_class()):
            await next_handler()


class IsNotCancelledAtTheEnd(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except anyio.get_cancelled_exc_class():
            if not input_kwargs["last"]:
                raise


class TurnsErrorsOfTheQueue(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except OSError as error:
            raise RuntimeError("it failed") from error


class IsMuteForEver(MiddlewareBase):
    def __init__(self):
        self.lock = anyio.Semaphore(1)

    async def on_print(self, agent, input_kwargs, next_handler):
        await self.lock.acquire()
        await next_handler()
        self.lock.release()


SWALLOWED = "swallowed the cancellation and continued: let it through"
PATIENCE = 10.0  # seconds
# What hangs is waited for: for a short time first, in which a busy machine may not get as far as to where it hangs.
PATIENCES_WITH_HANGING = [0.4, PATIENCE]
IN_PLACE = r"that it was given, which others share: replace what you change, as in next_handler\("
BAD = [
    (RaisesWhenItHears, r"observing, between replies and while one waits:\n.*KeyError was raised: 'always'"),
    (HearsOnlyMessages, r"observing, between .*\n.*TypeError was raised: "),
    (NeedsAReplyToHear, r"observing, between .*\n.*NoReplyError was raised: .* no reply in progress"),
    (ChangesWhatItHears, rf"ChangesWhatItHears\.on_observe changed the msg {IN_PLACE}msg=\.\.\."),
    (AddsToWhatItHears, rf"AddsToWhatItHears\.on_observe changed the msg {IN_PLACE}msg=\.\.\."),
    (ChangesWhatItCouldNotKeep, r"and the store fails:\n.*its on_observe changed the message that it was given"),
    (IsNotCancelledWhileItHears, rf"observing, and cancelled while .* is saved:\n.*its on_observe {SWALLOWED}"),
    (RaisesInPlaceOfACancellation, r"its on_observe swallowed the cancellation and raised TimeoutError in its place"),
    (ForgetsWhatWasNotKept, r"the store fails:\n.*its on_observe swallowed the SessionIOError of the store: let it"),
    (TurnsErrorsOfTheStore, r"the store fails:\n.*SessionIOError came from inside of it, and RuntimeError out of it"),
    (TakesInByItself, r"the store fails:\n.*what was observed is in the conversation though the store has failed"),
    (IsDeafForEver, r"observing a message was not over after .*: it came after one that was cancelled, so give back"),
    (EmptiesWhatIsPrinted, rf"EmptiesWhatIsPrinted\.on_print changed the msg {IN_PLACE}"),
    (RewritesTheBlocks, rf"RewritesTheBlocks\.on_print changed the msg {IN_PLACE}"),
    (AddsToTheSpeech, rf"printing into .*\n.*AddsToTheSpeech\.on_print changed the speech {IN_PLACE}speech=\.\.\."),
    (RaisesWhenItPrints, r"KeyError was raised: 'always'"),
    (NeedsAReplyToPrint, r"printing into a queue, and by hand:\n.*NoReplyError was raised: .* no reply in progress"),
    (IsNotCancelledWhileItPrints, rf"cancelled while a piece of a message is shown:\n.*its on_print {SWALLOWED}"),
    (IsNotCancelledAtTheEnd, rf"cancelled while a whole message is shown:\n.*its on_print {SWALLOWED}"),
    (TurnsErrorsOfTheQueue, r"and showing a piece .* fails:\n.*OSError came from inside of it, and RuntimeError out"),
    (IsMuteForEver, r"not over after .*: it came after printing that was cancelled, so give back in a `finally`"),
]


@pytest.mark.parametrize(("middleware", "words"), BAD, ids=[each.__name__ for each, _ in BAD])
async def test_mistakes_in_observing_and_printing_are_reported(middleware, words):
    report = ""
    for patience in PATIENCES_WITH_HANGING if middleware in (IsDeafForEver, IsMuteForEver) else [PATIENCE]:
        if re.search(words, report := await report_on(middleware, patience)):
            return
    pytest.fail(report)


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        (EmptiesWhatIsPrinted, rf"alone, with a plain question:\n.*on_print changed the msg {IN_PLACE}"),
        pytest.param(
            IsNotCancelledWhileItHears,
            rf"observing, and cancelled .*\n.*its on_observe {SWALLOWED}",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            IsNotCancelledWhileItPrints,
            rf"printing, and cancelled .*\n.*its on_print {SWALLOWED}",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_the_kit_tries_observing_and_printing_too(middleware, words):
    with pytest.raises(MiddlewareProblems, match=words):
        await check_middleware(middleware, faults=["cancel"])


async def report_on(middleware, patience=PATIENCE):
    run = KitRun(middleware, patience=patience)
    for scenario in (observe_messages, print_messages):
        try:
            with silence_expected_errors():
                await scenario(run)
        except TimedOut as error:
            run.report(str(error))
    return str(MiddlewareReport(middleware.__name__, run.conversations, run.problems))


class HearsNothing(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        pass


class HearsSomethingElse(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        await next_handler(msg=Msg("somebody", "Something was said.", "user"))


class TriesAgain(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except SessionIOError:
            await next_handler()


class IsNotDisturbed(MiddlewareBase):
    """Lets what has begun come to its end, and the cancellation through then."""

    async def on_observe(self, agent, input_kwargs, next_handler):
        with anyio.CancelScope(shield=True):
            await next_handler()

    async def on_print(self, agent, input_kwargs, next_handler):
        with anyio.CancelScope(shield=True):
            await next_handler()


class HasLimits(MiddlewareBase):
    async def on_observe(self, agent, input_kwargs, next_handler):
        with anyio.fail_after(60):
            await next_handler()

    async def on_print(self, agent, input_kwargs, next_handler):
        with anyio.move_on_after(60):
            await next_handler()


class ShowsNothing(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        pass


class NeverShowsTheEnd(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        if not input_kwargs["last"]:
            await next_handler()


class ShowsSomethingElse(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        await next_handler(msg=Msg("somebody", "***", "assistant", id=input_kwargs["msg"].id), speech=None)


class ShowsItTwice(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        await next_handler(last=False)
        await next_handler()


class GoesOnUnseen(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        with suppress(OSError):
            await next_handler()


class SaysThatItWasCancelled(MiddlewareBase):
    async def on_print(self, agent, input_kwargs, next_handler):
        try:
            await next_handler()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await next_handler(last=True)
            raise


LEGAL = [
    GoesOnUnseen,
    HasLimits,
    HearsNothing,
    HearsSomethingElse,
    IsNotDisturbed,
    NeverShowsTheEnd,
    SaysThatItWasCancelled,
    ShowsItTwice,
    ShowsNothing,
    ShowsSomethingElse,
    TriesAgain,
]


@pytest.mark.parametrize("middleware", LEGAL)
async def test_legal_observing_and_printing_is_not_reported(middleware):
    assert "nothing found in" in await report_on(middleware)


@pytest.mark.slow
@pytest.mark.parametrize("middleware", LEGAL)
async def test_legal_hooks_are_not_reported_under_any_fault(middleware):
    assert not (await check_middleware(middleware, faults=["cancel"])).problems
