"""The phases of a reply, and the short ways that events take past its notes."""

from typing import get_args

import pytest

from agentrt._runtime.concurrency.reaper import Reaper
from agentrt._runtime.conversation.progress import PLAIN_INSIDE, PLAIN_OUTSIDE, Origin, Phase, ReplyProgress
from agentrt._runtime.conversation.turns import Claim
from agentrt.event import AnyEvent, ReplyEndEvent, TextBlockStartEvent, ToolCallStartEvent, ToolResultStartEvent
from agentrt.message import Msg, ToolCallBlock
from agentrt.state import ReplyContext
from agentrt.tool import Toolkit

EVENTS = frozenset(get_args(get_args(AnyEvent)[0]))


@pytest.fixture
async def progress() -> ReplyProgress:
    claim = Claim("r")
    claim.reaper = Reaper()
    progress = ReplyProgress(claim, 0, Toolkit())
    progress.message = Msg("agent", [], "assistant", id="r")
    return progress


def context(progress: ReplyProgress) -> ReplyContext:
    assert progress.message is not None
    return ReplyContext("r", progress.message, 5)


async def test_a_question_is_saved_again_when_layers_changed_it(progress):
    waiting = context(progress)
    progress.phase = Phase.OPEN
    progress.park(waiting)
    assert (progress.phase, progress.is_parked, progress.is_saved, waiting.parked) == (Phase.PARKED, True, False, True)
    progress.mark_saved()
    assert (progress.phase, progress.is_parked, progress.is_saved) == (Phase.WAITING, True, True)
    progress.mark_changed()
    assert progress.phase is Phase.PARKED


async def test_an_end_is_saved_again_when_layers_changed_it(progress):
    progress.is_flowing = True
    progress.end(ReplyEndEvent("r", "s", "completed"))
    assert (progress.phase, progress.is_saved, progress.is_flowing) == (Phase.ENDED, False, False)
    progress.mark_saved()
    assert (progress.phase, progress.is_saved, progress.is_parked) == (Phase.SAVED, True, False)
    progress.mark_changed()
    assert progress.phase is Phase.ENDED


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.OPEN])
async def test_what_was_never_saved_cannot_be_out_of_date(phase, progress):
    progress.phase = phase
    progress.mark_changed()
    assert progress.phase is phase


async def test_a_parked_reply_that_is_stopped_is_open_again(progress):
    waiting = context(progress)
    progress.park(waiting)
    progress.mark_saved()
    progress.reopen(waiting)
    assert (progress.phase, waiting.parked) == (Phase.OPEN, False)


@pytest.mark.parametrize(("parked", "origin"), [(True, Origin.PARKED), (False, Origin.LEFT)])
async def test_a_restored_reply_knows_where_it_comes_from(parked, origin, progress):
    left = context(progress)
    left.parked, left.ids = parked, 7
    progress.restore(left)
    assert (progress.origin, progress.ids, progress.phase) == (origin, 7, Phase.NEW)


async def test_the_highest_number_counts_what_is_on_its_way(progress):
    for _ in range(3):
        progress.record_event(TextBlockStartEvent("r", "b"))
    assert progress.highest_seq == 3
    progress.assign_seq(TextBlockStartEvent("r", "c"))
    progress.expect(4)
    assert progress.highest_seq == 5


async def test_an_event_with_a_number_leaves_as_a_copy(progress):
    event = progress.assign_seq(TextBlockStartEvent("other", "b"))
    again = progress.assign_seq(event)
    assert again is not event
    assert (event.seq, again.seq) == (1, 2)


async def test_results_of_calls_that_were_not_sent_are_not_sent_either(progress):
    assert progress.message is not None
    progress.message.content = [ToolCallBlock("1", "a", "{}"), ToolCallBlock("2", "b", "{}")]
    progress.assign_seq(ToolCallStartEvent("r", "2", "b"))
    start = ToolResultStartEvent("r", "1", "a")
    assert list(progress.fill_missing_starts([start])) == []
    start = ToolResultStartEvent("r", "2", "b")
    assert list(progress.fill_missing_starts([start])) == [start]


def test_only_ends_are_more_than_plain_content() -> None:
    assert {cls.__name__ for cls in EVENTS - PLAIN_INSIDE} == {"ReplyEndEvent", "ToolResultEndEvent"}


def test_only_starts_and_the_end_are_noted_as_they_leave() -> None:
    names = {cls.__name__ for cls in EVENTS - PLAIN_OUTSIDE}
    assert names == {
        "ReplyStartEvent",
        "ReplyResumedEvent",
        "ReplyEndEvent",
        "ToolCallStartEvent",
        "ToolResultStartEvent",
    }
