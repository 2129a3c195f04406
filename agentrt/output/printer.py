"""Messages on a terminal, as they grow."""

import json
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, TextIO

from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)
from agentrt.output.audio import AudioPlayer, PlayerFactory, Speech, sounds_in
from agentrt.text import escape_controls, one_line

__all__ = ["AudioPlayer", "Printer"]

_logger = logging.getLogger("agentrt")
_MOST_MESSAGES = 256  # that have not seen their last piece
_TAIL = 32  # characters that must still stand where they stood, for a text to count as grown
_LONGEST_NAME = 100
_LONGEST_LINE = 2_000  # of a block that is no text


class Printer:
    """Shows messages while they grow: of each call, only what is new.

    Text and thinking appear as they come, any other block as one line once it is complete, all in the order of the
    message. What a terminal would obey is spelt out. A text is known by its length and its last characters: one that
    was cut or replaced is shown anew, a change further back is not noticed. What is written goes to `stream`, or to
    whatever `sys.stdout` is at the time; a stream that is closed or broken is written to no more. `player` makes the
    player for the sound of one message; without one, the kinds of sound are named at its end. Printers to standard
    output, in whatever thread, know of each other's open lines.
    """

    def __init__(self, stream: TextIO | None = None, player: PlayerFactory | None = None) -> None:
        self._stream = stream
        self._player = player
        self._screen = _standard if stream is None else _Screen()
        self._messages: OrderedDict[str, _Shown] = OrderedDict()

    def show(self, msg: Msg, last: bool, speech: DataBlock | list[DataBlock] | None = None) -> None:
        """Show what is new in the message, and with `last` the rest of it; `speech` holds all of its sound so far.

        Never raises for what becomes of the output or the sound, and waits for neither.
        """
        with self._screen.lock:
            self._screen.turn_to(sys.stdout if self._stream is None else self._stream)
            shown = self._recall(msg.id)
            self._show_content(msg, shown, last)
            if speech is not None:
                self._hear(shown, speech)
            if last:
                self._finish(msg, shown)
            self._screen.flush()

    def close(self) -> None:
        """Forget the messages that never saw their last piece, and close their players."""
        while self._messages:
            self._forget(next(iter(self._messages)))

    def _recall(self, message_id: str) -> "_Shown":
        shown = self._messages.get(message_id)
        if shown is None:
            shown = self._messages[message_id] = _Shown()
            if len(self._messages) > _MOST_MESSAGES:
                self._forget(next(iter(self._messages)))
        self._messages.move_to_end(message_id)
        return shown

    def _forget(self, message_id: str) -> None:
        speech = self._messages.pop(message_id).speech
        if speech is not None:
            speech.finish()

    def _show_content(self, msg: Msg, shown: "_Shown", last: bool) -> None:
        blocks: list[ContentBlock] = [TextBlock(msg.content, "")] if isinstance(msg.content, str) else msg.content
        if shown.align(blocks, last):
            self._screen.leave(msg.id)
        for mark, head, text in shown.news(blocks, last):
            self._screen.put((msg.id, mark), f"{_named(msg.name)}{head}: ", text)

    def _hear(self, shown: "_Shown", speech: DataBlock | list[DataBlock]) -> None:
        if self._player is None:
            shown.sounds |= dict.fromkeys(block.source.media_type for block in sounds_in(speech))
            return
        if shown.speech is None:
            shown.speech = Speech(self._player)
        shown.speech.take(speech)

    def _finish(self, msg: Msg, shown: "_Shown") -> None:
        for media_type in shown.sounds:
            self._screen.leave(msg.id)
            self._screen.put((msg.id, media_type), f"{_named(msg.name)}: ", f"[{_named(media_type)}]")
        self._screen.leave(msg.id)
        self._forget(msg.id)


class _Screen:
    """A stream of text, and whose line is open on it; what is put there is written by the next flush."""

    __slots__ = ("_broken", "_in_line", "_owner", "_pieces", "_stream", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._stream: TextIO | None = None
        self._broken = False
        self._owner: tuple[str, object] | None = None
        self._in_line = False
        self._pieces: list[str] = []

    def turn_to(self, stream: TextIO | None) -> None:
        if stream is not self._stream:
            self._stream, self._broken = stream, False
            self._owner, self._in_line = None, False

    def put(self, owner: tuple[str, object], head: str, text: str) -> None:
        """Put more of the owner's text: right behind what is there of it, or else on a new line with a head."""
        if owner != self._owner:
            self._end_line()
            self._pieces.append(head)
            self._owner = owner
        self._pieces.append(text)
        self._in_line = not text.endswith("\n")

    def leave(self, message_id: str) -> None:
        """End the line, if it is this message's."""
        if self._owner is not None and self._owner[0] == message_id:
            self._end_line()
            self._owner = None

    def flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        if text and self._stream is not None and not self._broken:
            try:
                _write(self._stream, text)
                self._stream.flush()
            except (OSError, ValueError) as error:  # nobody reads it any more, or it is closed
                _logger.info("messages are no longer shown: %s", type(error).__name__)
                self._broken = True

    def _end_line(self) -> None:
        if self._in_line:
            self._pieces.append("\n")
            self._in_line = False


_standard = _Screen()


class _Mark:
    """How much of one block was shown: characters of a text, 1 for a line."""

    __slots__ = ("_kind", "_tail", "shown")

    def __init__(self, block: ContentBlock) -> None:
        self._kind = _kind(block)
        self._tail = ""
        self.shown = 0

    def fits(self, block: ContentBlock) -> bool:
        """Say whether the block is what was shown, or has grown from it."""
        if _kind(block) != self._kind:
            return False
        text = _text_of(block)
        if text is None:
            return True
        return len(text) >= self.shown and text.startswith(self._tail, self.shown - len(self._tail))

    def advance(self, text: str, complete: bool) -> str:
        """Return what is new, ready to be shown."""
        new = text[self.shown :]
        if new.endswith("\r") and not complete:  # it may be half a line end
            new = new[:-1]
        self.shown += len(new)
        self._tail = (self._tail + new[-_TAIL:])[-_TAIL:]
        return escape_controls(new)


class _Shown:
    """What of one message was shown: a mark for each block up to the one that is still open."""

    __slots__ = ("_marks", "sounds", "speech")

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self.sounds: dict[str, None] = {}
        self.speech: Speech | None = None

    def align(self, blocks: list[ContentBlock], thoroughly: bool) -> bool:
        """Drop the marks of what is gone; say whether something that was shown is to be shown anew.

        Looks at the newest two unless they do not fit or it is to be thorough.
        """
        newest = range(max(0, len(self._marks) - 2), len(self._marks))
        if not thoroughly and len(self._marks) <= len(blocks) and all(self._marks[i].fits(blocks[i]) for i in newest):
            return False
        kept: list[_Mark] = []
        for mark in self._marks:
            if len(kept) < len(blocks) and mark.fits(blocks[len(kept)]):
                kept.append(mark)
            elif mark.shown:  # an empty block is taken out of a message without a trace
                self._marks = kept
                return True
        self._marks = kept
        return False

    def news(self, blocks: list[ContentBlock], last: bool) -> Iterator[tuple[_Mark, str, str]]:
        """Yield the mark, the head and the text of everything new that can be shown, in order."""
        for place in range(0 if last else max(0, len(self._marks) - 1), len(blocks)):
            block, is_new = blocks[place], place == len(self._marks)
            text = _text_of(block)
            if text is None and is_new and not (last or _is_complete(blocks, place)):
                return  # what follows has to wait: the order is the message's
            if is_new:
                self._marks.append(_Mark(block))
            mark = self._marks[place]
            if text is not None:
                new = mark.advance(text, last or place + 1 < len(blocks))
                if new:
                    yield mark, "(thinking)" if isinstance(block, ThinkingBlock) else "", new
            elif is_new:
                mark.shown = 1
                yield mark, "", _as_line(block)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _kind(block: ContentBlock) -> tuple[str, str]:
    return block.type, block.id if isinstance(block, (ToolCallBlock, ToolResultBlock)) else ""


def _text_of(block: ContentBlock) -> str | None:
    if isinstance(block, TextBlock):
        return block.text
    return block.thinking if isinstance(block, ThinkingBlock) else None


def _is_complete(blocks: list[ContentBlock], place: int) -> bool:
    # Several calls, or several results, may grow side by side; another type behind them says that they are done.
    block = blocks[place]
    if isinstance(block, ToolResultBlock) and block.state is ToolResultState.RUNNING:
        return False
    return any(other.type != block.type for other in blocks[place + 1 :])


def _named(name: str) -> str:
    return one_line(escape_controls(name), _LONGEST_NAME)


def _as_line(block: ContentBlock) -> str:
    line = json.dumps({"type": block.type, **_fields(block)}, ensure_ascii=False)
    if isinstance(block, ToolCallBlock):  # as the model wrote it, be it JSON or not
        line = f'{line[:-1]}, "input": {block.input or "{}"}}}'
    return one_line(escape_controls(line), _LONGEST_LINE)


def _fields(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, ToolCallBlock):
        return {"id": block.id, "name": block.name}
    if isinstance(block, ToolResultBlock):
        return {"id": block.id, "name": block.name, "state": block.state, "output": _output(block)}
    if isinstance(block, HintBlock):
        return {"hint": block.hint} | ({"source": block.source} if block.source else {})
    if isinstance(block, ProviderBlock):
        return {"provider": block.provider, "content": block.content}
    return _data(block) if isinstance(block, DataBlock) else {}


def _output(block: ToolResultBlock) -> Any:
    if isinstance(block.output, str):
        return block.output
    return [part.text if isinstance(part, TextBlock) else _data(part) for part in block.output]


def _data(block: DataBlock) -> dict[str, Any]:
    source = block.source
    described: dict[str, Any] = {"name": block.name} if block.name else {}
    described["media_type"] = source.media_type
    if isinstance(source, Base64Source):
        described["bytes"] = len(source.data) * 3 // 4 - source.data.count("=", -2)
    else:
        described["url"] = _without_data(source.url)
    return described


def _without_data(url: str) -> str:
    return url.partition(",")[0] + ",..." if url[:5].lower() == "data:" else url
