"""What to do next, decided from the reply's state alone.

A reply is a sequence of rounds. A round asks the model once, and then runs the tool calls of its answer, if it has any.

    what the current round holds          what comes next
    tool calls without a result           run them
    an answer and no tool calls           finish; the reply is complete (after the last call: used up)
    neither, or only finished calls       ask the model again, while there are rounds left
    the same, with no rounds left         ask once more, for a text answer without tools
    the same, after that                  finish; the rounds are used up

A tool's own final answer finishes the reply at once.
"""

from dataclasses import dataclass

from agentrt.message import DataBlock, TextBlock, ToolCallBlock, ToolCallState
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason, ToolChoice

__all__ = ["Act", "Finish", "Reason", "Step", "last_call_hint", "next_step"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Ask the model."""

    tool_choice: ToolChoice | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """Run these tool calls."""

    calls: list[ToolCallBlock]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the reply."""

    reason: FinishedReason


Step = Reason | Act | Finish

_REASON = Reason()
_LAST_CALL = Reason(ToolChoice("none"))
_COMPLETED = Finish("completed")
_EXCEEDED = Finish("exceed_max_iters")


def next_step(reply: ReplyContext) -> Step:
    """Return the next step of the reply; changes nothing."""
    answered = called = False
    calls: list[ToolCallBlock] = []
    for block in reply.blocks[reply.round_start :]:
        if isinstance(block, ToolCallBlock):
            called = True
            if block.state is not ToolCallState.FINISHED:
                calls.append(block)
        elif isinstance(block, (TextBlock, DataBlock)):
            answered = True
    if calls:
        return Act(calls)
    if reply.response is not None:
        return _COMPLETED
    if answered and not called:
        return _COMPLETED if reply.cur_iter <= reply.max_iters else _EXCEEDED
    if reply.cur_iter < reply.max_iters:
        return _REASON
    return _LAST_CALL if reply.cur_iter == reply.max_iters else _EXCEEDED


def last_call_hint(reply: ReplyContext) -> str | None:
    """Return what the model is told in the one request after its last round, `None` in any other."""
    if reply.cur_iter < reply.max_iters:
        return None
    return (
        f"All {reply.max_iters} rounds of this reply are used up. Do not call any more tools: "
        f"say in words what you found, and give the best answer you can now."
    )
