"""The next step of a reply, decided from its state alone.

A reply is a sequence of rounds. A round asks the model once, and then runs the tool calls of its answer, if it has any.

    what the current round holds              what comes next
    calls that may go ahead                   act on them
    only calls that wait for an answer        wait; the reply is parked
    an answer that its provider paused        ask the model again, while there are rounds left
    an answer and no tool calls               finish; the reply is complete (after the last call: used up)
    neither, or only finished calls           ask the model again, while there are rounds left
    the same, with no rounds left             ask once more, for an answer in text without tools
    the same, after that                      finish; the rounds are used up
    finished calls and a tool's own answer    act on nothing more, which tells that answer, and then finish
    the finished call of a task               the same: its result is the answer

A call may go ahead when it was decided on, and otherwise when no call waits. A started one that waits for answers
to its own questions (`waits_for="inner"`) waits like any other, and goes ahead when one of them is there. A tool's own
final answer finishes the reply as soon as all calls of its round have results. A reply whose answer must have a form is
complete when that is there, and never by text; it ends when too many answers did not fit, and it gets a few more
requests at the end, which ask for that and nothing else.
"""

from dataclasses import dataclass

from agentrt._runtime.block import Record
from agentrt.message import ContentBlock, DataBlock, TextBlock, ToolCallBlock, ToolCallState
from agentrt.state import ReplyContext
from agentrt.types import STRUCTURED_OUTPUT, STRUCTURED_OUTPUT_HINT, FinishedReason, ToolChoice

_FINISHED = ToolCallState.FINISHED
# A model may answer in words several times before it calls the tool, and its rounds may be used up by then.
_GRACE_ROUNDS = 5


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Reason(Record):
    """Ask the model."""

    tool_choice: ToolChoice | None = None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Act(Record):
    """Decide on these tool calls, and run those that may run; then tell the answer that a tool ends the reply with."""

    calls: list[ToolCallBlock]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Wait(Record):
    """Park the reply until these tool calls are answered."""

    calls: list[ToolCallBlock]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Finish(Record):
    """End the reply."""

    reason: FinishedReason


Step = Reason | Act | Wait | Finish

_REASON = Reason()
_LAST_CALL = Reason(ToolChoice("none"))
_LAST_CALL_FOR_OUTPUT = Reason(ToolChoice(STRUCTURED_OUTPUT))
_TELL_ANSWER = Act([])
_COMPLETED = Finish("completed")
_EXCEEDED = Finish("exceed_max_iters")
_NO_FIT = Finish("exceed_max_form_attempts")


def next_step(reply: ReplyContext) -> Step:
    """Return the next step of the reply; changes nothing."""
    if not reply.blocks:  # a reply that begins has neither calls nor an answer
        return step_between_rounds(reply, [])
    blocks = reply.blocks[reply.round_start :]
    return step_of_calls(reply, blocks) or step_between_rounds(reply, blocks)


def step_of_calls(reply: ReplyContext, blocks: list[ContentBlock]) -> Act | Wait | None:
    """Return the next step of a round that has calls without results among its blocks, `None` when it has none."""
    calls: list[ToolCallBlock] = []
    for block in blocks:
        if type(block) is ToolCallBlock and block.state is not _FINISHED:
            calls.append(block)
    if not calls:
        return None
    decisions = reply.decisions
    for call in calls:
        if call.id in decisions:
            break
    else:
        return Act(calls)
    decided = {call.id: decisions.get(call.id) for call in calls}
    waiting = [call for call in calls if (decision := decided[call.id]) is not None and decision.waits_for]
    if not waiting:
        return Act(calls)
    ready = [call for call in calls if (decision := decided[call.id]) is not None and not decision.waits_for]
    return Act(ready) if ready else Wait(waiting)


def step_between_rounds(reply: ReplyContext, blocks: list[ContentBlock]) -> Act | Reason | Finish:
    """Return what comes after a round with these blocks, where its calls, if it has any, all have results."""
    if reply.response is not None or reply.is_task:  # a tool of this program has answered in the model's place
        # In the round of its call, that answer is not told yet: another call has waited, and its result came later.
        return _TELL_ANSWER if any(isinstance(block, ToolCallBlock) for block in blocks) else _COMPLETED
    if reply.structured is not None:
        if reply.structured.output is not None:
            return _COMPLETED
        if reply.structured.attempts >= reply.structured.max_attempts:
            return _NO_FIT
        if reply.cur_iter < reply.max_iters:
            return _REASON
        return _LAST_CALL_FOR_OUTPUT if reply.cur_iter < reply.max_iters + _GRACE_ROUNDS else _EXCEEDED
    has_answer = has_calls = False
    for block in blocks:
        kind = type(block)
        if kind is ToolCallBlock:
            has_calls = True
        elif kind is TextBlock or kind is DataBlock:
            has_answer = True
    if has_answer and not has_calls and not reply.paused:
        return _COMPLETED if reply.cur_iter <= reply.max_iters else _EXCEEDED
    if reply.cur_iter < reply.max_iters:
        return _REASON
    return _LAST_CALL if reply.cur_iter == reply.max_iters else _EXCEEDED


def hint(reply: ReplyContext) -> str | None:
    """Return what this request says to the model and no other does, `None` when there is nothing."""
    if reply.structured is not None:
        return STRUCTURED_OUTPUT_HINT
    if reply.cur_iter < reply.max_iters:
        return None
    return (
        f"All {reply.max_iters} rounds of this reply are used up. Do not call any more tools: "
        f"say in words what you found, and give the best answer you can now."
    )
