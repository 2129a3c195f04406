"""Replaces handles in the events of a reply, also handles that are split over several deltas.

Text that may be the start of a handle waits: it leaves with the block's next delta, or at the block's end. Later events
wait too, so that numbers rise.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentrt._runtime.flow.handles import LONGEST_HANDLE, HoldingState, holds
from agentrt._runtime.flow.release import (
    Replacement,
    replace_in_blocks,
    replace_in_inputs,
    replace_in_value,
    replace_words,
)
from agentrt._runtime.text import lazy_pattern
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ToolResultEndEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import Msg

_DELTAS = (TextBlockDeltaEvent, ThinkingBlockDeltaEvent, ToolResultTextDeltaEvent)
_ENDS_OF_BLOCKS = (TextBlockEndEvent, ThinkingBlockEndEvent)
# After these, no open block of the reply gets another delta.
_ENDS_OF_ROUNDS = (
    BlocksWithdrawnEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
)
_MAY_GROW = lazy_pattern(r"<(?:[A-Za-z][A-Za-z0-9_]*)?\Z")


class ToldEvents:
    """The events of a reply on their way to its reader."""

    def __init__(self, state: HoldingState, replacement: Replacement) -> None:
        self._state = state
        self._replacement = replacement
        self._waiting: deque[Any] = deque()

    def take(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Add items; returns those that may leave now."""
        if not self._waiting and not holds(self._state):
            return tuple(items)
        # A conversation may hold its first value during a reply.
        self._waiting.extend(items)
        return tuple(self._leaving(is_last=False))

    def end(self) -> tuple[Any, ...]:
        """Return the items that still wait, when no more come."""
        return tuple(self._leaving(is_last=True))

    def _leaving(self, is_last: bool) -> Iterator[Any]:
        waiting = self._waiting
        while waiting:
            item = waiting[0]
            cut = (
                _MAY_GROW.search(item.delta, max(0, len(item.delta) - LONGEST_HANDLE))
                if isinstance(item, _DELTAS)
                else None
            )
            index = None
            if cut is not None:
                index = next((number for number, other in enumerate(waiting) if number and _follows(item, other)), None)
                if index is None and not is_last:
                    return
            waiting.popleft()
            if cut is None or index is None or not _is_same_block(item, waiting[index - 1]):
                yield replace_in_event(self._state, item, self._replacement)
                continue
            # The possible start of a handle moves to the next delta, which shows whether it is one.
            following = waiting[index - 1]
            waiting[index - 1] = replace(following, delta=cut[0] + following.delta)
            if cut.start() > 0:  # without an empty delta
                piece = replace(item, delta=item.delta[: cut.start()])
                yield replace_in_event(self._state, piece, self._replacement)


def _is_same_block(delta: Any, other: object) -> bool:
    if other.__class__ is not delta.__class__ or other.reply_id != delta.reply_id or other.block_id != delta.block_id:  # type: ignore[attr-defined]  # both are deltas
        return False
    return getattr(other, "tool_call_id", None) == getattr(delta, "tool_call_id", None)


def _follows(delta: Any, other: object) -> bool:
    """Say whether an item decides about the end of a delta: it is the block's next delta, or ends the block."""
    if isinstance(other, Msg):
        return True
    if not isinstance(other, AgentEvent) or other.reply_id != delta.reply_id:
        return False
    if isinstance(other, _ENDS_OF_ROUNDS) or _is_same_block(delta, other):
        return True
    # The blocks of a result have no end events of their own.
    if isinstance(delta, ToolResultTextDeltaEvent):
        return isinstance(other, ToolResultEndEvent) and other.tool_call_id == delta.tool_call_id
    return isinstance(other, _ENDS_OF_BLOCKS) and other.block_id == delta.block_id


_Change = Callable[[HoldingState, Any, Replacement], Any]
# Other events have no text, or keep it: a question to the user has the calls as the model wrote them, since the answer
# repeats them.
_CHANGES: dict[type, dict[str, _Change]] = {
    CustomEvent: {"value": replace_in_value},
    HintBlockEvent: {"hint": replace_words},
    ReplyEndEvent: {"error": replace_words, "structured_output": replace_in_value},
    ReplyResumedEvent: {"blocks": replace_in_blocks},
    RequireExternalExecutionEvent: {"tool_calls": replace_in_inputs},
    TextBlockDeltaEvent: {"delta": replace_words},
    TextBlockEndEvent: {"text": replace_words},
    ThinkingBlockDeltaEvent: {"delta": replace_words},
    ToolResultEndEvent: {"output": replace_in_blocks},
    ToolResultTextDeltaEvent: {"delta": replace_words},
}


def replace_in_event(state: HoldingState, item: Any, replacement: Replacement) -> Any:
    """Return the event with its handles replaced, or the same event if it has none; messages are returned unchanged."""
    changed: dict[str, Any] = {}
    for name, change in _CHANGES.get(item.__class__, {}).items():
        value = getattr(item, name)
        new = value if value is None else change(state, value, replacement)
        # By `is` first, which is true for nearly all.
        if new is not value and new != value:
            changed[name] = new
    return replace(item, **changed) if changed else item
