"""Contents by hash: messages, blocks, lists of tools and states, each stored once per session."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

import pydantic
from pydantic_core import ValidationError, from_json, to_json

from agentrt._runtime.text import whole_characters
from agentrt.errors import RunCorrupt, UsageError
from agentrt.message import ContentBlock, Msg, message_adapter, message_serializer
from agentrt.runs.changes import same_start
from agentrt.runs.parts import Change
from agentrt.state.records.rows import content_text, pack_content
from agentrt.types import ChatResponse, JSONObject

Redact = Callable[[str], str]

MAX_LIST_DEPTH = 200  # of lists that a reader must follow
_MAX_KNOWN = 20_000  # remembered hashes and objects of a session; forgotten ones are encoded again
# Fields with names, which are recorded even without content; and fields whose values contain no such names.
_NAMES = frozenset(
    (
        "type", "id", "name", "role", "state", "reply_id", "block_id", "tool_call_id", "tool_call_name", "model_name",
        "finished_reason", "child_reply_id", "child_session_id", "session_id", "task_id", "media_type", "behavior",
        "mode",
    )
)  # fmt: skip
_FREE = frozenset(("value", "metadata", "output", "input", "arguments", "middleware_data", "function"))


def dump_json(value: Any) -> bytes:
    """Return the value as JSON; values without a JSON form become their repr."""
    try:
        return to_json(value, inf_nan_mode="constants", fallback=repr)
    except (ValueError, RecursionError):  # a lone surrogate, or a value that contains itself
        # An escaped half of a character could not be read again.
        return json.dumps(value, default=repr, skipkeys=True, ensure_ascii=False).encode(errors="replace")


class Scrubber:
    """Removes text from contents and lines: what `redact` finds, or without content, all text except names."""

    def __init__(self, redact: Sequence[Redact], content: bool) -> None:
        self.redact = redact
        self.content = content
        self.is_idle = content and not redact

    def text(self, text: str) -> str:
        """Return the text redacted, or empty without content."""
        for redact in self.redact:
            text = redact(text)
        return text if self.content else ""

    def json(self, text: bytes) -> bytes:
        """Return the JSON text with its values scrubbed."""
        return text if self.is_idle else dump_json(self.value(from_json(text)))

    def value(self, value: Any, has_names: bool = True) -> Any:
        """Return the value scrubbed, with its keys unchanged; without content, the length stands for a str."""
        if isinstance(value, str):
            return self.text(value) if self.content else {"size": len(value)}
        if isinstance(value, (list, tuple)):
            return [self.value(part, has_names) for part in value]
        if not isinstance(value, dict):
            return value
        return {
            key: part
            if not self.content and has_names and key in _NAMES and isinstance(part, str)
            else self.value(part, has_names and key not in _FREE)
            for key, part in value.items()
        }


class _KnownList(NamedTuple):
    """The last list with a name, and how many lists a reader has to follow before it."""

    messages: list[Msg]
    reference: str
    depth: int


class SessionContents:
    """The known contents of one session, and the new ones since the last batch."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}
        # With the object itself, since the id of a deleted object can be reused.
        self._by_object: dict[tuple[int, object], tuple[object, str]] = {}
        self._lists: dict[str, _KnownList] = {}
        self.new: dict[str, bytes] = {}

    def forget(self) -> None:
        """Forget what is known, which may be deleted by now; new contents are still to be written."""
        self._kept, self._by_object, self._lists = {}, {}, {}

    def take_new(self) -> dict[str, bytes]:
        """Return the contents that are new since the last call."""
        new, self.new = self.new, {}
        if len(self._kept) > _MAX_KNOWN:
            # Forgotten hashes are written again, which changes nothing.
            self._kept = {}
        if len(self._by_object) > _MAX_KNOWN:
            self._by_object = {}
        return new

    def add(self, text: bytes, scrubber: Scrubber, *, is_clean: bool = False) -> str:
        """Add text, and return the reference to it."""
        if scrubber.redact and not is_clean:  # before hashing: a hash would reveal redacted text
            text = scrubber.json(text)
        # Half of the hash: 128 bits are enough to tell the contents of a session apart.
        digest = sha256(text).hexdigest()[:32]
        if digest not in self._kept:
            self._kept[digest] = None
            if scrubber.content:
                self.new[digest] = pack_content(text)
        return f"#{digest}"

    def of_value(self, value: Any, scrubber: Scrubber) -> str:
        """Return the reference to a value that never changes."""
        return self._encode_once(value, None, lambda: self.add(dump_json(value), scrubber))

    def of_block(self, block: ContentBlock, state: object, scrubber: Scrubber) -> str:
        """Return the reference to a block with the given state; the runtime changes nothing else in a block."""

        def encode() -> str:
            # Only the state of a call changes later, so its value at the step is written.
            text = block_adapter().serializer.to_json(block, warnings="none")
            if state is not None and getattr(block, "state", None) is not state:
                text = dump_json(from_json(text) | {"state": state})
            return self.add(text, scrubber)

        return self._encode_once(block, state, encode)

    def of_message(self, message: Msg, scrubber: Scrubber) -> str:
        """Return the reference to a message; if it has several blocks, each one is stored by itself."""

        def encode() -> str:
            # A message in progress is a new object in each round, but starts with the same blocks.
            blocks = message.content
            if isinstance(blocks, str) or len(blocks) < 2:
                return self.add(message_serializer().to_json(message, warnings="none"), scrubber)
            head = from_json(message_serializer().to_json(message, exclude={"content"}, warnings="none"))
            parts = [self.of_block(block, getattr(block, "state", None), scrubber) for block in blocks]
            if scrubber.redact:
                head = scrubber.value(head)
            return self.add(dump_json(head | {"blocks": parts}), scrubber, is_clean=True)

        return self._encode_once(message, None, encode)

    def of_list(self, name: str, messages: list[Msg], scrubber: Scrubber) -> str:
        """Return the reference to a list, stored as the previous list with that name and the new messages."""
        last = self._lists.get(name)
        # By identity: comparing thousands of messages takes microseconds.
        keep = 0 if last is None else same_start(last.messages, messages)
        if last is not None and keep == len(messages) == len(last.messages):
            return last.reference
        # The whole list at times, so that no reader has to follow thousands of lists.
        before, depth = (None, 0) if last is None or last.depth == MAX_LIST_DEPTH else (last.reference, last.depth + 1)
        if before is None:
            keep = 0
        new = [self.of_message(message, scrubber) for message in messages[keep:]]
        reference = self.add(dump_json({"before": before, "keep": keep, "add": new}), scrubber, is_clean=True)
        self._lists[name] = _KnownList(messages, reference, depth)
        return reference

    def _encode_once(self, value: object, state: object, encode: Callable[[], str]) -> str:
        key = id(value), state
        known = self._by_object.get(key)
        if known is None or known[0] is not value:
            try:
                reference = encode()
            except Exception:  # noqa: BLE001  # a message may contain values without a JSON form
                reference = self.add(dump_json(whole_characters(repr(value))), scrubber_of_errors)
            known = self._by_object[key] = value, reference
        return known[1]


scrubber_of_errors = Scrubber((), content=False)
"""For values that could not be encoded: their text was not redacted, so it is not recorded."""


@cache
def block_adapter() -> "pydantic.TypeAdapter[ContentBlock]":
    """Return the adapter for blocks; built on first use, since that takes milliseconds."""
    return pydantic.TypeAdapter(ContentBlock)


def dump_response(response: ChatResponse) -> bytes:
    """Return the answer of a model as JSON."""
    blocks = [block_adapter().dump_python(block, mode="json", warnings="none") for block in response.content]
    about = {"is_last": response.is_last, "finished_reason": response.finished_reason, "id": response.id}
    return dump_json({"content": blocks, **about})


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
