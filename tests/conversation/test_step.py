"""What comes next in a reply, as the table at the top of `step.py` says."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt._runtime.conversation.step import Act, Finish, Reason, Step, Wait, hint, next_step
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    URLSource,
)
from agentrt.state import CallDecision, ReplyContext, StructuredTask, Waits
from agentrt.types import PermissionBehavior, ToolChoice

TEXT = TextBlock("so")
DATA = DataBlock(URLSource("https://example.org/a.png", "image/png"))
THINKING = ThinkingBlock("hm")
HINT = HintBlock("look again")
RESULT = ToolResultBlock("1", "f", "done")
DONE = ToolCallBlock("1", "f", state=ToolCallState.FINISHED)
OPEN = ToolCallBlock("2", "f")
ALSO_OPEN = ToolCallBlock("3", "g", state=ToolCallState.ALLOWED)

BEGUN = ToolCallBlock("4", "h", state=ToolCallState.RUNNING)

ASK = Reason()
LAST_CALL = Reason(ToolChoice("none"))
TELL_ANSWER = Act([])
COMPLETED = Finish("completed")
NO_FIT = Finish("exceed_max_form_attempts")
LAST_CALL_FOR_FORM = Reason(ToolChoice("GenerateStructuredOutput"))
EXCEEDED = Finish("exceed_max_iters")


def reply_of(
    *blocks: ContentBlock, done: int = 0, most: int = 3, before: int = 0, response: str | None = None
) -> ReplyContext:
    """Return a reply with `done` of its `most` rounds behind it, whose current round begins after `before` blocks."""
    message = AssistantMsg("tester", list(blocks))
    answer = None if response is None else AssistantMsg("tool", response)
    return ReplyContext("r", message, most, done, round_start=before, response=answer)


def formed(reply: ReplyContext, attempts: int = 0, *, is_answered: bool = False) -> ReplyContext:
    """Return the reply with a form for its answer, which so many answers have not fitted."""
    reply.structured = StructuredTask({}, {} if is_answered else None, attempts=attempts, max_attempts=2)
    return reply


def decided(reply: ReplyContext, waits: dict[str, Waits | None]) -> ReplyContext:
    """Return the reply with a decision on each of these calls, and whose answer it waits for."""
    allow = PermissionBehavior.ALLOW
    reply.decisions = {call_id: CallDecision(allow, waits_for=waits_for) for call_id, waits_for in waits.items()}
    return reply


TABLE: list[tuple[str, ReplyContext, Step]] = [
    ("a reply that has just begun", reply_of(), ASK),
    ("a call", reply_of(OPEN), Act([OPEN])),
    ("calls, in order", reply_of(TEXT, OPEN, ALSO_OPEN), Act([OPEN, ALSO_OPEN])),
    ("a call beside a finished one", reply_of(DONE, OPEN, RESULT), Act([OPEN])),
    ("a call, in the last request", reply_of(OPEN, done=4), Act([OPEN])),
    ("a call beside a tool's own answer", reply_of(DONE, OPEN, RESULT, response="the end"), Act([OPEN])),
    ("a text", reply_of(TEXT), COMPLETED),
    ("a picture", reply_of(DATA), COMPLETED),
    ("thinking and a text", reply_of(THINKING, TEXT), COMPLETED),
    ("a text, in the last round", reply_of(TEXT, done=3), COMPLETED),
    ("a text, in the last request", reply_of(TEXT, done=4), EXCEEDED),
    ("only finished calls", reply_of(DONE, RESULT), ASK),
    ("a text beside finished calls", reply_of(TEXT, DONE, RESULT, done=1), ASK),
    ("thinking alone", reply_of(THINKING, done=1), ASK),
    ("a hint alone", reply_of(HINT, done=1), ASK),
    ("a text of the round before", reply_of(TEXT, before=1, done=1), ASK),
    ("a call of the round before", reply_of(OPEN, before=1, done=1), ASK),
    ("finished calls, no rounds left", reply_of(DONE, RESULT, done=3), LAST_CALL),
    ("thinking alone, no rounds left", reply_of(THINKING, done=3), LAST_CALL),
    ("nothing, no rounds left", reply_of(done=1, most=1), LAST_CALL),
    ("finished calls, after the last request", reply_of(DONE, RESULT, done=4), EXCEEDED),
    ("nothing, after the last request", reply_of(done=4), EXCEEDED),
    ("a tool's own answer that is not told yet", reply_of(DONE, RESULT, response="the end"), TELL_ANSWER),
    ("the same, in the last request", reply_of(DONE, RESULT, done=4, response="the end"), TELL_ANSWER),
    ("a tool's own answer", reply_of(DONE, RESULT, TEXT, before=2, response="the end"), COMPLETED),
    ("an empty answer of a tool", reply_of(DONE, RESULT, before=2, response=""), COMPLETED),
    ("a text, where a form is due", formed(reply_of(TEXT), 1), ASK),
    ("a text, after the last attempt", formed(reply_of(TEXT), 2), NO_FIT),
    ("finished calls, after the last attempt", formed(reply_of(DONE, RESULT), 2), NO_FIT),
    ("a call, after the last attempt", formed(reply_of(OPEN), 2), Act([OPEN])),
    ("an answer of the form, after the last attempt", formed(reply_of(DONE, RESULT), 2, is_answered=True), COMPLETED),
    ("a text where a form is due, no rounds left", formed(reply_of(TEXT, done=3), 1), LAST_CALL_FOR_FORM),
    ("the same, after the last attempt", formed(reply_of(TEXT, done=3), 2), NO_FIT),
    ("the same, after all requests", formed(reply_of(TEXT, done=8), 1), EXCEEDED),
    ("a call that has begun and waits", decided(reply_of(BEGUN), {"4": "inner"}), Wait([BEGUN])),
    ("the same, beside one that is not decided on", decided(reply_of(BEGUN, OPEN), {"4": "inner"}), Wait([BEGUN])),
    ("the same, beside one that is", decided(reply_of(BEGUN, OPEN), {"4": "inner", "2": None}), Act([OPEN])),
    ("a call that has begun and is answered", decided(reply_of(BEGUN), {"4": None}), Act([BEGUN])),
    ("the same, beside one that waits", decided(reply_of(BEGUN, OPEN), {"4": None, "2": "user"}), Act([BEGUN])),
    ("the same, beside a finished call", decided(reply_of(DONE, RESULT, BEGUN), {"4": None}), Act([BEGUN])),
]


@pytest.mark.parametrize(("reply", "step"), [pytest.param(*row, id=name) for name, *row in TABLE])
def test_a_round_that_holds_this_is_followed_by_that(reply, step):
    assert next_step(reply) == step


def test_the_calls_to_run_are_the_blocks_themselves():
    step = next_step(reply_of(OPEN))
    assert step.calls[0] is OPEN


BLOCKS = [TEXT, DATA, THINKING, HINT, RESULT, DataBlock(Base64Source("", "image/png")), TextBlock("")]
calls = st.builds(ToolCallBlock, st.sampled_from("123"), st.just("f"), state=st.sampled_from(ToolCallState))


@st.composite
def replies(draw: st.DrawFn) -> ReplyContext:
    blocks = draw(st.lists(st.sampled_from(BLOCKS) | calls, max_size=6))
    most = draw(st.integers(1, 3))
    return reply_of(
        *blocks,
        done=draw(st.integers(0, most + 1)),
        most=most,
        before=draw(st.integers(0, len(blocks))),
        response=draw(st.none() | st.just("the end")),
    )


def by_the_table(reply: ReplyContext) -> Step:
    current = reply.blocks[reply.round_start :]
    made = [block for block in current if block.type == "tool_call"]
    unfinished = [call for call in made if call.state != "finished"]
    answered = any(block.type in ("text", "data") for block in current)
    last_request_made = reply.cur_iter > reply.max_iters
    if unfinished:
        return Act(unfinished)
    if reply.response:
        return TELL_ANSWER if made else COMPLETED
    if answered and not made:
        return EXCEEDED if last_request_made else COMPLETED
    if last_request_made:
        return EXCEEDED
    return ASK if reply.cur_iter < reply.max_iters else LAST_CALL


@given(replies())
@settings(max_examples=100, deadline=None)
def test_every_reply_is_in_the_table(reply):
    assert next_step(reply) == by_the_table(reply)


@given(replies())
@settings(deadline=None)
def test_deciding_changes_nothing_and_decides_alike_each_time(reply):
    before = copy.deepcopy(reply)
    assert next_step(reply) == next_step(reply)
    assert reply == before


@given(replies())
@settings(deadline=None)
def test_only_the_last_request_has_no_tools_and_a_hint(reply):
    step = next_step(reply)
    if isinstance(step, Reason):
        assert (step.tool_choice is None) == (reply.cur_iter < reply.max_iters)
        assert (hint(reply) is None) == (step.tool_choice is None)


def test_the_last_hint_says_what_is_used_up_and_what_to_do():
    assert hint(reply_of(done=2)) is None
    assert hint(reply_of(done=3)) == (
        "All 3 rounds of this reply are used up. Do not call any more tools: say in words what you found, and give "
        "the best answer you can now."
    )
