"""The methods of agents about values that their conversations hold back."""

from collections.abc import Sequence
from typing import Any

from agentrt._runtime.flow.handles import ANYWHERE, HandlePlace, hold, holds, label_of
from agentrt._runtime.flow.release import (
    Replacement,
    describe_held,
    replace_in_message,
    replace_in_value,
    show_value,
    value_anywhere,
    value_in_output,
    value_in_tools,
)
from agentrt.message import Msg
from agentrt.state import AgentState
from agentrt.types import FlowLabel

_VALUES_FOR: dict[HandlePlace | None, Replacement] = {
    None: value_anywhere,
    "tools": value_in_tools,
    "output": value_in_output,
}


class HeldValueMethods:
    """An agent's methods for handles and the values that they stand for."""

    state: AgentState

    def hold(
        self, value: Any, label: FlowLabel, name: str | None = None, release: Sequence[HandlePlace] = ANYWHERE
    ) -> str:
        """Hold a value of this conversation back; returns the handle that stands for it, `<untrusted_3_a1b2c3d4>`.

        The value must have a JSON form. It is saved with the state and never changes, and the same value with the same
        label and name has the same handle. What the model writes has the value in the place of the handle where
        `release` says so, in the arguments of "tools" and in the "output" that the caller reads, and nowhere else: the
        runtime does that for agents with a loop. `name` is the first part of the handle: "untrusted", or "private" for
        a trusted value, if it is not given. Raises `UsageError` for what cannot be held.
        """
        return hold(self.state, value, label, name, release)

    def label_of(self, value: Any) -> FlowLabel:
        """Return the join of the labels of all handles in a JSON value, and of what `show_held` has shown to the model.

        It is `FlowLabel()`, trusted and for anyone, where there are none.
        """
        return label_of(self.state, value)

    def released(self, value: Any, to: HandlePlace | None = None) -> Any:
        """Return a JSON value with the values in the place of those handles that are released there, else everywhere.

        Text that is a handle becomes the value, with its type; in longer text its words stand: a `str` as it is, and
        JSON for anything else. A handle of another conversation stays as it is. A saved message is returned as the
        caller of its reply reads it, in which calls stay as the model wrote them.
        """
        if not holds(self.state):
            return value  # as nearly all conversations
        if isinstance(value, Msg):
            return replace_in_message(self.state, value, _VALUES_FOR[to])
        return replace_in_value(self.state, value, _VALUES_FOR[to])

    def described(self, value: Any) -> Any:
        """Return a JSON value for other conversations: "[untrusted text from read_file]" stands for a handle."""
        return replace_in_value(self.state, value, describe_held)

    def show_held(self, handle: str) -> Any:
        """Return the value of a handle for the model to read.

        From then on `label_of` has its label for whatever this conversation writes. Raises `UsageError` for what is not
        a handle of this conversation.
        """
        return show_value(self.state, handle)
