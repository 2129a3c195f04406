"""The values that the lines of a run name by their hashes."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import ValidationError, from_json

from agentrt.errors import RunCorrupt, UsageError
from agentrt.message import Msg, message_adapter
from agentrt.runs.contents import MAX_LIST_DEPTH, block_adapter
from agentrt.runs.parts import Change
from agentrt.state.records.rows import content_text
from agentrt.types import ChatResponse, JSONObject

__all__ = ["RecordedValues", "no_content"]


class RecordedValues:
    """Reads messages, answers, tools and states by the references to them; `place` names the run in errors."""

    def __init__(self, contents: Mapping[str, bytes], place: str) -> None:
        # Compressed, and decoded on demand: most readers of a run do not read every message.
        self._contents = contents
        self._values: dict[str, Any] = {}
        self._place = place

    def has(self, reference: str) -> bool:
        """Say whether the value was recorded, and not only its hash."""
        return reference[1:] in self._contents

    def text(self, reference: str) -> bytes:
        """Return the value as JSON."""
        content = self._contents.get(reference[1:])
        if content is None:
            raise no_content(self._place, "messages")
        return content_text(content)

    def value(self, reference: str) -> Any:
        value = self._values.get(reference)
        if value is None:
            value = self._values[reference] = from_json(self.text(reference))
        return value

    def list_of(self, reference: str) -> list[str]:
        """Return the references to the messages of a list."""
        # Each list has the previous list and the new messages, so that a long conversation is not written in each run.
        nodes = [self.value(reference)]
        while nodes[-1]["before"] is not None:
            if len(nodes) > MAX_LIST_DEPTH:  # only in a record that was changed
                raise RunCorrupt(f"{self._place} has a list of messages that never ends")
            nodes.append(self.value(nodes[-1]["before"]))
        listed: list[str] = []
        for node in reversed(nodes):
            # Cut off the removed messages, for example after a compression.
            listed[node["keep"] :] = node["add"]
        return listed

    def raw_message(self, reference: str) -> JSONObject:
        value: JSONObject = self.value(reference)
        # A message of several blocks shares them with the states in which it was unfinished.
        if "blocks" not in value:
            return value
        head = {name: part for name, part in value.items() if name != "blocks"}
        return {**head, "content": [self.value(block) for block in value["blocks"]]}

    def message(self, reference: str) -> Msg:
        return message_adapter().validate_python(self.raw_message(reference))

    def messages(self, reference: str) -> list[Msg]:
        return [self.message(part) for part in self.list_of(reference)]

    def response(self, reference: str | None) -> ChatResponse | None:
        if reference is None:
            return None
        value = self.value(reference)
        blocks = [block_adapter().validate_python(block) for block in value["content"]]
        return ChatResponse(blocks, value["is_last"], None, value["finished_reason"], value["id"])

    def change(self, change: JSONObject) -> Change:
        def read(reference: str | None) -> Any:
            if reference is None or not self.has(reference):
                return None
            try:
                if change["kind"] == "message":
                    return self.message(reference)
                return self.response(reference) if change["kind"] == "ChatResponse" else self.value(reference)
            except (ValidationError, LookupError):
                # A layer may have passed on a value that is not a message.
                return self.value(reference)

        return Change(change["layer"], change["where"], read(change["before"]), read(change["after"]))


def no_content(place: str, what: str) -> UsageError:
    """Return the error for a run that was recorded without content."""
    return UsageError(f"{place} was recorded without content, so it has no {what}: record with content=True")
