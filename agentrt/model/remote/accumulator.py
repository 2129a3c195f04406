"""Putting a streamed answer together: fragments in, pieces with stable ids out, and the whole at the end."""

import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any

from agentrt.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    new_id,
)
from agentrt.errors import Malformed

__all__ = ["StreamAccumulator"]

_JSON_TOKEN = re.compile(r'\\.|["{}\[\]]|\\\Z', re.DOTALL)


@dataclass(slots=True)
class _Text:
    kind: type[TextBlock | ThinkingBlock]
    id: str = field(default_factory=new_id)
    parts: list[str] = field(default_factory=list)
    signature: str | None = None
    half: str = ""

    def block(self) -> ContentBlock:
        text = "".join(self.parts)
        return TextBlock(text, self.id) if self.kind is TextBlock else ThinkingBlock(text, self.id, self.signature)


@dataclass(slots=True)
class _Extent:
    """Follows the brackets of JSON text that comes in pieces; each piece is read once, and not before it is needed."""

    unread: list[str] = field(default_factory=list)
    depth: int = 0
    in_string: bool = False
    has_begun: bool = False
    ends_escaping: bool = False

    def is_complete(self) -> bool:
        """Say whether there were brackets, and all of them are closed."""
        text, self.unread = "".join(self.unread), []
        self._read(f"\\{text}" if self.ends_escaping and text else text)
        return self.has_begun and not self.in_string and self.depth <= 0

    def _read(self, text: str) -> None:
        token = ""
        for match in _JSON_TOKEN.finditer(text):
            token = match[0]
            if token == '"':
                self.in_string = not self.in_string
            elif not self.in_string and token in "{[":
                self.depth += 1
                self.has_begun = True
            elif not self.in_string and token in "}]":
                self.depth -= 1
        self.ends_escaping = (token == "\\") if text else self.ends_escaping


@dataclass(slots=True)
class _Call:
    id: str = ""
    given_id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    half: str = ""
    extent: _Extent = field(default_factory=_Extent)

    def block(self) -> ContentBlock:
        return ToolCallBlock(self.id, self.name, "".join(self.parts))


@dataclass(slots=True)
class _Data:
    media_type: str
    id: str = field(default_factory=new_id)
    parts: list[str] = field(default_factory=list)

    def block(self) -> ContentBlock:
        try:
            data = [b64decode(part, validate=True) for part in self.parts]
        except ValueError as error:
            raise Malformed(f"it sent data of type {self.media_type!r} that is not base64 ({error})") from None
        return DataBlock(Base64Source(b64encode(b"".join(data)).decode(), self.media_type), id=self.id)


@dataclass(slots=True)
class _Whole:
    given: DataBlock | ProviderBlock

    def block(self) -> ContentBlock:
        return self.given


class StreamAccumulator:
    """Makes blocks of the fragments of one answer.

    `text`, `thinking`, `call` and `data` take the fragments in the order in which they came, and `add` what comes as a
    whole; `take` gives the pieces that they make, and `content` the whole blocks, in the order of their first fragments
    and with the ids of their pieces. A tool call is first handed on with the first fragment of its arguments, when its
    id and its whole name are known.
    """

    def __init__(self) -> None:
        self._blocks: list[_Text | _Call | _Data | _Whole] = []
        self._data: _Data | None = None
        self._open: _Text | None = None
        self._calls: dict[Any, _Call] = {}
        self._last_call: _Call | None = None
        self._ids: set[str] = set()
        self._pieces: list[ContentBlock] = []

    def text(self, text: str) -> None:
        """Take more of the answer's text."""
        block = self._opened(TextBlock) if text else None
        if block and (text := _with_whole_characters(block, text)):
            block.parts.append(text)
            self._pieces.append(TextBlock(text, block.id))

    def thinking(self, text: str, signature: str | None = None) -> None:
        """Take more of the thinking; its signature ends it."""
        if not text and not signature:
            return
        block = self._opened(ThinkingBlock)
        text = _with_whole_characters(block, text)
        block.parts.append(text)
        block.signature = signature or block.signature
        self._pieces.append(ThinkingBlock(text, block.id, signature))
        if signature:
            self._open = None

    def end_block(self) -> None:
        """Begin a new block with the next text or thinking, even if it is of the same kind."""
        self._open = None

    def add(self, block: DataBlock | ProviderBlock) -> None:
        """Take a block that comes as a whole."""
        self._blocks.append(_Whole(block))
        self._open = None
        self._pieces.append(block)

    def data(self, data: str, media_type: str) -> None:
        """Take a piece of the answer's one sound or picture, which is base64 by itself; text may come in between."""
        if not data:
            return
        if self._data is None:
            self._data = _Data(media_type)
            self._blocks.append(self._data)
        self._data.parts.append(data)
        self._pieces.append(DataBlock(Base64Source(data, media_type), id=self._data.id))

    def call(self, index: int | None, id: str, name: str, arguments: str | dict[str, Any]) -> None:
        """Take a fragment of a tool call, of which any part may be empty.

        It continues the call with this `index`, else with this `id`, else the last one. It begins a call when there is
        none to continue, or when it cannot belong to that one: its id is another, or that one is complete and the
        fragment has another name or begins a second object. Without an index, a name begins a call too, unless it
        repeats that of a call that is not complete.
        """
        call = self._continued(index, id, name, arguments) or self._begun(index)
        self._last_call = call
        if id:
            self._calls["id", id] = call
            call.given_id = id
        if name and not call.parts and name != call.name:
            call.name += name
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if arguments := _with_whole_characters(call, arguments):
            call.waiting.append(arguments)
            call.extent.unread.append(arguments)
        if call.waiting and call.name:
            self._hand_on(call)

    def take(self) -> list[ContentBlock]:
        """Return the pieces since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self) -> list[ContentBlock]:
        """Return the whole blocks; raises `Malformed` for a tool call without a name."""
        for call in self._blocks:
            if isinstance(call, _Call):
                if not call.name:
                    raise Malformed("it called a tool without saying which")
                self._settle_id(call)
        return [block.block() for block in self._blocks]

    @property
    def has_calls(self) -> bool:
        """Whether a tool call has begun."""
        return self._last_call is not None

    @property
    def ends_in_half_a_call(self) -> bool:
        """Whether the last tool call has no arguments, or no whole ones."""
        call = self._last_call
        return call is not None and not _is_object("".join(call.parts or call.waiting))

    @property
    def has_begun(self) -> bool:
        """Whether there is a block already."""
        return bool(self._blocks)

    def _opened(self, kind: type[TextBlock | ThinkingBlock]) -> _Text:
        if self._open is None or self._open.kind is not kind:
            self._open = _Text(kind)
            self._blocks.append(self._open)
        return self._open

    def _continued(self, index: int | None, id: str, name: str, arguments: str | dict[str, Any]) -> _Call | None:
        key = index if index is not None else ("id", id)
        call = self._last_call if key == ("id", "") else self._calls.get(key)
        if call is None or _is_second(call, id, name, arguments):
            return None
        if index is None and not id and name and (name != call.name or call.extent.is_complete()):
            return None
        return call

    def _begun(self, index: int | None) -> _Call:
        call = _Call()
        self._blocks.append(call)
        self._open = None
        if index is not None:
            self._calls[index] = call
        return call

    def _hand_on(self, call: _Call) -> None:
        self._settle_id(call)
        text = "".join(call.waiting)
        call.waiting.clear()
        call.parts.append(text)
        self._pieces.append(ToolCallBlock(call.id, call.name, text))

    def _settle_id(self, call: _Call) -> None:
        # Some servers give no id, or the same to every call of an answer.
        if not call.id:
            call.id = call.given_id if call.given_id and call.given_id not in self._ids else f"call_{new_id()}"
            self._ids.add(call.id)


def _with_whole_characters(block: _Text | _Call, text: str) -> str:
    # Servers that count in UTF-16, as those in JavaScript do, may cut a character in two: the first half waits.
    if block.half and text:
        text = (block.half + text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if text:
        block.half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    return text.removesuffix(block.half)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_second(call: _Call, id: str, name: str, arguments: str | dict[str, Any]) -> bool:
    if id and call.given_id and id != call.given_id:
        return True
    # Nowhere in JSON does an object begin right where another ends, and only a fragment with a name begins a call.
    begins = isinstance(arguments, dict) or arguments.lstrip().startswith("{")
    return bool(name) and (begins or call.name not in ("", name)) and call.extent.is_complete()
