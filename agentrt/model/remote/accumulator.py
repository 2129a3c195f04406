"""Assembles a streamed answer: fragments in, pieces with stable ids out, and the whole at the end."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    new_id,
)
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import Malformed

_JSON_TOKEN = lazy_pattern(r'\\.|["{}\[\]]|\\\Z', re.DOTALL)


@dataclass(slots=True)
class _TextPieces:
    kind: type[TextBlock | ThinkingBlock]
    id: str = field(default_factory=new_id)
    parts: list[str] = field(default_factory=list)
    length: int = 0
    signature: str | None = None
    half_character: str = ""

    def block(self) -> ContentBlock:
        text = "".join(self.parts)
        return TextBlock(text, self.id) if self.kind is TextBlock else ThinkingBlock(text, self.id, self.signature)


@dataclass(slots=True)
class _BracketCount:
    """Tracks the brackets of JSON text in pieces, to find the end of an object.

    Each piece is read once, and only when the end is asked for, which few servers require.
    """

    unread: list[str] = field(default_factory=list)
    depth: int = 0
    in_string: bool = False
    has_begun: bool = False
    ends_escaping: bool = False

    def is_complete(self) -> bool:
        """Say whether every bracket that was opened is closed; without any, this is false."""
        text, self.unread = "".join(self.unread), []
        # A backslash at the end of the last piece belongs to the first character of this one.
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
class _CallPieces:
    id: str = ""
    """The id of its pieces: set with the first of them, and never changed afterwards."""
    given_id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Arguments that came before the name was known."""
    half_character: str = ""
    brackets: _BracketCount = field(default_factory=_BracketCount)

    def block(self) -> ContentBlock:
        return ToolCallBlock(self.id, self.name, "".join(self.parts))


@dataclass(slots=True)
class _DataPieces:
    media_type: str
    id: str = field(default_factory=new_id)
    parts: list[str] = field(default_factory=list)

    def block(self) -> ContentBlock:
        data = join_base64(self.parts, f"data of type {self.media_type!r}")
        return DataBlock(Base64Source(data, self.media_type), id=self.id)


@dataclass(slots=True)
class _WholeBlock:
    whole: DataBlock | ProviderBlock

    def block(self) -> ContentBlock:
        return self.whole


class StreamAccumulator:
    """Builds blocks from the fragments of one answer.

    The `add_...` methods take the fragments in order of arrival; `take_pieces` returns the pieces that they make, and
    `content` the complete blocks, in the order of their first fragments and with the ids of their pieces. A tool call
    first becomes a piece with the first fragment of its arguments, when its id and full name are known.
    """

    def __init__(self) -> None:
        self._blocks: list[_TextPieces | _CallPieces | _DataPieces | _WholeBlock] = []
        self._data: _DataPieces | None = None
        self._open: _TextPieces | None = None
        self._calls: dict[int | tuple[str, str], _CallPieces] = {}  # by index, and by ("id", id)
        self._last_call: _CallPieces | None = None
        self._ids: set[str] = set()
        self._pieces: list[ContentBlock] = []

    def add_text(self, text: str) -> None:
        block = self._open_block(TextBlock) if text else None
        if block and (text := _complete_characters(block, text)):
            block.parts.append(text)
            block.length += len(text)
            self._pieces.append(TextBlock(text, block.id))

    def add_thinking(self, text: str, signature: str | None = None) -> None:
        """Add thinking; its signature ends it."""
        if not text and not signature:
            return
        block = self._open_block(ThinkingBlock)
        text = _complete_characters(block, text)
        block.parts.append(text)
        block.signature = signature or block.signature
        self._pieces.append(ThinkingBlock(text, block.id, signature))
        if signature:
            self._open = None

    def end_block(self) -> None:
        """Start a new block with the next text or thinking."""
        self._open = None

    def add_block(self, block: DataBlock | ProviderBlock) -> None:
        """Add a complete block."""
        self._blocks.append(_WholeBlock(block))
        self._open = None
        self._pieces.append(block)

    def add_data(self, data: str, media_type: str) -> None:
        """Add a piece of the answer's one sound or picture, in base64 of its own; text may come in between."""
        if not data:
            return
        if self._data is None:
            self._data = _DataPieces(media_type)
            self._blocks.append(self._data)
        self._data.parts.append(data)
        self._pieces.append(DataBlock(Base64Source(data, media_type), id=self._data.id))

    def add_call(self, index: int | None, id: str, name: str, arguments: str | dict[str, object]) -> None:
        """Add a fragment of a tool call; any part of it may be empty.

        It continues the call with this `index`, else with this `id`, else the last one. It starts a call if there is
        none to continue, or if it cannot belong to that one: its id differs, or that one is complete and the
        fragment has another name or starts a second object. Without an index, a name starts a call too, unless it
        repeats that of an incomplete call.
        """
        call = self._call_to_continue(index, id, name, arguments)
        if call is None:
            call = _CallPieces()
            self._blocks.append(call)
            self._open = None  # text after a call starts a new block
            if index is not None:
                self._calls[index] = call
        self._last_call = call
        if id:
            self._calls["id", id] = call
            call.given_id = id
        # A name may come in fragments, or complete with each fragment of the arguments; the first piece settles it.
        if name and not call.parts and name != call.name:
            call.name += name
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if arguments := _complete_characters(call, arguments):
            call.waiting.append(arguments)
            call.brackets.unread.append(arguments)
        if call.waiting and call.name:
            self._settle_id(call)
            text = "".join(call.waiting)
            call.waiting.clear()
            call.parts.append(text)
            self._pieces.append(ToolCallBlock(call.id, call.name, text))

    def take_pieces(self) -> list[ContentBlock]:
        """Return the pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self) -> list[ContentBlock]:
        """Return the complete blocks; raises `Malformed` for a tool call without a name."""
        for call in self._blocks:
            if isinstance(call, _CallPieces):
                if not call.name:
                    raise Malformed("it called a tool without saying which")
                self._settle_id(call)
        return [block.block() for block in self._blocks]

    @property
    def open_text_length(self) -> int:
        """The length of the text that the next text continues; 0 if that starts a block."""
        return self._open.length if self._open is not None and self._open.kind is TextBlock else 0

    @property
    def open_text(self) -> str:
        return "".join(self._open.parts) if self._open is not None and self._open.kind is TextBlock else ""

    @property
    def has_calls(self) -> bool:
        """Whether there is a tool call."""
        return self._last_call is not None

    @property
    def ends_in_half_a_call(self) -> bool:
        """Whether the last tool call has no complete arguments."""
        call = self._last_call
        return call is not None and not is_whole_object("".join(call.parts or call.waiting))

    @property
    def has_begun(self) -> bool:
        """Whether there is a block."""
        return bool(self._blocks)

    def _open_block(self, kind: type[TextBlock | ThinkingBlock]) -> _TextPieces:
        if self._open is None or self._open.kind is not kind:
            self._open = _TextPieces(kind)
            self._blocks.append(self._open)
        return self._open

    def _call_to_continue(
        self, index: int | None, id: str, name: str, arguments: str | dict[str, object]
    ) -> _CallPieces | None:
        key = index if index is not None else ("id", id)
        call = self._last_call if key == ("id", "") else self._calls.get(key)
        if call is None or (id and call.given_id and id != call.given_id):
            return None
        # Some servers give every call the index 0. In JSON, no object begins right where another ends, and
        # only a fragment with a name starts a call.
        begins_object = isinstance(arguments, dict) or arguments.lstrip().startswith("{")
        if name and (begins_object or call.name not in ("", name)) and call.brackets.is_complete():
            return None
        if index is None and not id and name and (name != call.name or call.brackets.is_complete()):
            return None
        return call

    def _settle_id(self, call: _CallPieces) -> None:
        # Some servers send no id, or the same one for every call of an answer.
        if not call.id:
            call.id = call.given_id if call.given_id and call.given_id not in self._ids else f"call_{new_id()}"
            self._ids.add(call.id)


def join_base64(pieces: Sequence[str], what: str) -> str:
    """Return the pieces as one; raises `Malformed`, which names `what`, if a piece is not base64."""
    # Each piece is base64 by itself, with padding that is invalid in the middle: joined as bytes, not as text.
    try:
        data = [b64decode(piece, validate=True) for piece in pieces]
    except ValueError as error:
        raise Malformed(f"it sent {what} that is not base64 ({error})") from None
    return b64encode(b"".join(data)).decode()


def is_whole_object(text: str) -> bool:
    """Say whether the text is a complete JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _complete_characters(block: _TextPieces | _CallPieces, text: str) -> str:
    # Servers that count in UTF-16, such as those in JavaScript, may split a character: the first half waits.
    if block.half_character and text:
        text = (block.half_character + text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if text:
        block.half_character = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    return text.removesuffix(block.half_character)
