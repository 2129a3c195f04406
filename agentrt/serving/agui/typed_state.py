"""Structured output as the state of a client has it: whole at first, then as patches (RFC 6902)."""

from json import dumps
from typing import Any

from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.decoding.partial_answer import PartialAnswer
from agentrt.event import AnyEvent

_FIELD = "structured_output"
_PatchOperation = dict[str, Any]


class TypedState:
    """The answer of one reply in `own`, the part of the client's state that is ours, as the model writes it.

    It is looked at whenever its text has grown by a sixteenth, and no patch is longer than the whole, so all patches
    together have at most about 17 times its size.
    """

    def __init__(self, client_state: dict[str, Any], own: dict[str, Any]) -> None:
        self._client_state = client_state
        self._own = own
        # As plain JSON: the final answer alone is checked, and has its defaults.
        self._partial = PartialAnswer(AnswerForm({}))
        self._has_begun = False

    def read(self, event: AnyEvent) -> dict[str, Any] | None:
        """Take in an event of the reply, and return the event of the run that tells what it adds to the answer."""
        before = self._partial.value
        if not self._partial.read(event):
            return None
        value = self._partial.value
        if not self._has_begun:
            # No patch: the client need not have a state yet, and ours is of an earlier run.
            self._has_begun = True
            return self.snapshot("running", value)
        operations = list(_patch(f"/agentrt/{_FIELD}", before, value))
        if len(dumps(operations)) > len(dumps(value)):
            operations = [{"op": "replace", "path": f"/agentrt/{_FIELD}", "value": value}]
        return {"type": "STATE_DELTA", "delta": operations}

    def snapshot(self, status: str, answer: Any) -> dict[str, Any]:
        """Return the event with the whole state, in which the client's own stays; without an answer for `None`."""
        own = {**self._own, "status": status, **({} if answer is None else {_FIELD: answer})}
        return {"type": "STATE_SNAPSHOT", "snapshot": {**self._client_state, "agentrt": own}}


def _patch(path: str, before: Any, after: Any) -> list[_PatchOperation]:
    """Return the operations that make one value of the other: few, where text was added at its end."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = {name: f"{path}/{name.replace('~', '~0').replace('/', '~1')}" for name in {**before, **after}}
        gone = [name for name in before if name not in after]
        kept = [name for name in before if name in after]
        new = [name for name in after if name not in before]
    elif isinstance(before, list) and isinstance(after, list):
        pairs = {number: f"{path}/{number}" for number in range(max(len(before), len(after)))}
        # From the end, since each removal renumbers what follows it.
        gone = [*reversed(range(len(after), len(before)))]
        kept, new = [*range(min(len(before), len(after)))], [*range(len(before), len(after))]
    else:
        same = type(before) is type(after) and before == after
        return [] if same else [{"op": "replace", "path": path, "value": after}]
    return [
        *({"op": "remove", "path": pairs[key]} for key in gone),
        *(operation for key in kept for operation in _patch(pairs[key], before[key], after[key])),
        *({"op": "add", "path": pairs[key], "value": after[key]} for key in new),
    ]
