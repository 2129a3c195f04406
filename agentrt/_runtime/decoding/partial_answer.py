"""The answer of a reply while the model writes it: as much of it as fits the type so far."""

from typing import Any

from pydantic_core import ValidationError, from_json, to_json

from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt.event import (
    AnyEvent,
    BlocksWithdrawnEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    ToolCallDeltaEvent,
    ToolCallStartEvent,
)
from agentrt.state.state import WRAPPER
from agentrt.types import STRUCTURED_OUTPUT

# Growing text is parsed again and again. Each time it must have grown by this part, so that all parsing together reads
# at most 17 times the whole: short answers are parsed with each delta, and long ones are never 7 % behind.
_STEP = 16
_MAX_OPEN_LISTS = 4


class PartialAnswer:
    """Reads the answer from the events of one reply; `value` is the latest partial answer."""

    __slots__ = ("_call_id", "_form", "_is_wrapped", "_latest", "_parsed_size", "_parts", "_size", "value")

    def __init__(self, form: AnswerForm) -> None:
        self.value: Any = None
        self._form = form
        self._is_wrapped = form.is_wrapped
        self._call_id = ""
        self._parts: list[str] = []
        self._size = self._parsed_size = 0
        self._latest = b""  # as JSON

    def read(self, event: AnyEvent) -> bool:
        """Take an event of the reply; returns whether there is a new `value`."""
        if isinstance(event, ToolCallDeltaEvent):
            return event.tool_call_id == self._call_id and self._extend(event.delta)
        if isinstance(event, ModelCallStartEvent):
            # A layer may have put another form in the place of the caller's.
            self._is_wrapped = event.is_answer_wrapped
        # Another call of that name is another attempt, since the one before it did not fit.
        elif isinstance(event, ToolCallStartEvent) and event.tool_call_name == STRUCTURED_OUTPUT:
            self._begin(event.tool_call_id)
        elif isinstance(event, (ModelCallRetryEvent, BlocksWithdrawnEvent)) and self._call_id in event.block_ids:
            self._begin("")
        return False

    def _begin(self, call_id: str) -> None:
        self._call_id = call_id
        self._parts.clear()
        self._size = self._parsed_size = 0
        self._latest = b""

    def _extend(self, delta: str) -> bool:
        self._parts.append(delta)
        self._size += len(delta)
        if self._size - self._parsed_size <= self._parsed_size // _STEP:
            return False
        self._parsed_size = self._size
        whole = "".join(self._parts)
        self._parts = [whole]
        try:
            answer = from_json(whole, allow_partial="trailing-strings")
            answer = answer[WRAPPER] if self._is_wrapped else answer
            return self._load(answer)
        except (ValueError, TypeError, LookupError):  # not JSON, or not yet an object with an answer
            return False

    def _load(self, answer: Any) -> bool:
        lists = _lists_at_the_end(answer)
        while (text := to_json(answer)) != self._latest:
            try:
                self.value = self._form.load_partial(text)
            except ValidationError:
                if not lists:
                    break
                # The last item of a list is most likely not complete: of lists in lists, the innermost is cut first.
                del lists.pop()[-1]
            except Exception:  # noqa: BLE001  # a validator may fail in any way for a part of a value
                break
            else:
                self._latest = text
                return True
        return False


def _lists_at_the_end(value: Any) -> list[list[Any]]:
    """Return the lists that the text ends in, the outermost first."""
    lists: list[list[Any]] = []
    while value and isinstance(value, (dict, list)) and len(lists) < _MAX_OPEN_LISTS:
        if isinstance(value, list):
            lists.append(value)
            value = value[-1]
        else:
            value = value[next(reversed(value))]
    return lists
