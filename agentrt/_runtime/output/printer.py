"""Messages on a terminal, as they grow."""

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import TextIO

from agentrt._runtime.output.audio import AudioPlayer, PlayerFactory, SpeechPlayback, sounds_in
from agentrt._runtime.output.screen import Screen, standard_output
from agentrt._runtime.text import escape_controls, one_line
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

__all__ = ["AudioPlayer", "Printer"]

_MAX_MESSAGES = 256  # without their last piece
_CHECKED_CHARACTERS = 32  # the last ones shown: if they are unchanged, text counts as grown
_MAX_NAME = 100
_MAX_LINE = 2_000  # of a non-text block


class Printer:
    """Shows messages while they grow: each call shows only the new part.

    Text and thinking appear as they arrive, any other block as one line once it is complete, all in the order of the
    message. Control characters are escaped. Text is identified by its length and its last characters: text that was cut
    or replaced is shown again, an earlier change is not noticed. The output goes to `stream`, or to the current
    `sys.stdout`; nothing more is written to a closed or broken stream. `player` makes the player for the sound of one
    message; without one, the media types are named at its end. Printers to standard output, in any thread, know of each
    other's open lines.
    """

    def __init__(self, stream: TextIO | None = None, player: PlayerFactory | None = None) -> None:
        self._stream = stream
        self._player = player
        self._screen = standard_output if stream is None else Screen()
        self._messages: OrderedDict[str, _MessageProgress] = OrderedDict()

    def show(self, msg: Msg, last: bool, speech: DataBlock | list[DataBlock] | None = None) -> None:
        """Show the new part of the message, and with `last` all the rest; `speech` holds its sound so far.

        Never raises an error of the output or of the player, and waits for neither.
        """
        with self._screen.lock:
            # Read at each call: tests and notebooks replace `sys.stdout`.
            self._screen.use(sys.stdout if self._stream is None else self._stream)
            progress = self._messages.get(msg.id)
            if progress is None:
                progress = self._messages[msg.id] = _MessageProgress()
                # The oldest will most likely never end: its reply was abandoned.
                if len(self._messages) > _MAX_MESSAGES:
                    self._forget(next(iter(self._messages)))
            self._messages.move_to_end(msg.id)
            blocks: list[ContentBlock] = [TextBlock(msg.content, "")] if isinstance(msg.content, str) else msg.content
            if progress.align(blocks, last):
                self._screen.end_line_of(msg.id)
            for block, head, text in progress.news(blocks, last):
                self._screen.put((msg.id, block), f"{_shorten_name(msg.name)}{head}: ", text)
            if speech is not None:
                self._play(progress, speech)
            if last:
                self._finish(msg, progress)
            self._screen.flush_quietly()

    def close(self) -> None:
        """Drop the messages that never had their last piece, and close their players."""
        while self._messages:
            self._forget(next(iter(self._messages)))

    def _forget(self, message_id: str) -> None:
        speech = self._messages.pop(message_id).speech
        if speech is not None:
            speech.finish()

    def _play(self, progress: "_MessageProgress", speech: DataBlock | list[DataBlock]) -> None:
        if self._player is None:
            progress.sounds |= dict.fromkeys(block.source.media_type for block in sounds_in(speech))
            return
        if progress.speech is None:
            progress.speech = SpeechPlayback(self._player)
        progress.speech.take(speech)

    def _finish(self, msg: Msg, progress: "_MessageProgress") -> None:
        for media_type in progress.sounds:
            self._screen.end_line_of(msg.id)
            self._screen.put((msg.id, media_type), f"{_shorten_name(msg.name)}: ", f"[{_shorten_name(media_type)}]")
        self._screen.end_line_of(msg.id)
        self._forget(msg.id)


class _BlockProgress:
    """The shown part of one block: characters of text, 1 for a line."""

    __slots__ = ("_kind", "_tail", "shown")

    def __init__(self, block: ContentBlock) -> None:
        self._kind = _kind(block)
        self._tail = ""
        self.shown = 0

    def fits(self, block: ContentBlock) -> bool:
        """Say whether the block equals the shown one, or has grown from it."""
        if _kind(block) != self._kind:
            return False
        text = _text_of(block)
        if text is None:
            return True
        return len(text) >= self.shown and text.startswith(self._tail, self.shown - len(self._tail))

    def advance(self, text: str, complete: bool) -> str:
        """Return the new part, ready to be shown."""
        new = text[self.shown :]
        if new.endswith("\r") and not complete:  # it may be half a line break
            new = new[:-1]
        self.shown += len(new)
        self._tail = (self._tail + new[-_CHECKED_CHARACTERS:])[-_CHECKED_CHARACTERS:]
        return escape_controls(new)


class _MessageProgress:
    """The shown part of one message, block by block, up to the open one."""

    __slots__ = ("_blocks", "sounds", "speech")

    def __init__(self) -> None:
        self._blocks: list[_BlockProgress] = []
        self.sounds: dict[str, None] = {}
        self.speech: SpeechPlayback | None = None

    def align(self, blocks: list[ContentBlock], check_all: bool) -> bool:
        """Drop removed blocks; return whether printed output must be shown again.

        Only the newest two are checked, unless they differ or `check_all` is set.
        """
        newest = range(max(0, len(self._blocks) - 2), len(self._blocks))
        if not check_all and len(self._blocks) <= len(blocks) and all(self._blocks[i].fits(blocks[i]) for i in newest):
            return False
        fitting: list[_BlockProgress] = []
        for block in self._blocks:
            if len(fitting) < len(blocks) and block.fits(blocks[len(fitting)]):
                fitting.append(block)
            elif block.shown:  # an empty block may be removed: it was not shown
                self._blocks = fitting
                return True
        self._blocks = fitting
        return False

    def news(self, blocks: list[ContentBlock], last: bool) -> Iterator[tuple[_BlockProgress, str, str]]:
        """Yield everything new that can be shown: the block, the head of its line and the text."""
        for position in range(0 if last else max(0, len(self._blocks) - 1), len(blocks)):
            block, is_new = blocks[position], position == len(self._blocks)
            text = _text_of(block)
            if text is None and is_new and not last:
                # Several calls, or several results, may grow side by side; a block of another type shows that they are
                # done. Until then the rest has to wait, to keep the order of the message.
                is_running = isinstance(block, ToolResultBlock) and block.state is ToolResultState.RUNNING
                if is_running or all(following.type == block.type for following in blocks[position + 1 :]):
                    return
            if is_new:
                self._blocks.append(_BlockProgress(block))
            progress = self._blocks[position]
            if text is not None:
                new = progress.advance(text, last or position + 1 < len(blocks))
                if new:
                    yield progress, "(thinking)" if isinstance(block, ThinkingBlock) else "", new
            elif is_new:
                progress.shown = 1
                yield progress, "", _line_of(block)


def _kind(block: ContentBlock) -> tuple[str, str]:
    return block.type, block.id if isinstance(block, (ToolCallBlock, ToolResultBlock)) else ""


def _text_of(block: ContentBlock) -> str | None:
    if isinstance(block, TextBlock):
        return block.text
    return block.thinking if isinstance(block, ThinkingBlock) else None


def _shorten_name(name: str) -> str:
    return one_line(escape_controls(name), _MAX_NAME)


def _line_of(block: ContentBlock) -> str:
    fields: dict[str, object] = {}  # the data is left out: readers need only its size and type
    if isinstance(block, ToolCallBlock):
        fields = {"id": block.id, "name": block.name}
    elif isinstance(block, ToolResultBlock):
        output: object = block.output
        if not isinstance(block.output, str):
            output = [part.text if isinstance(part, TextBlock) else _fields_of_data(part) for part in block.output]
        fields = {"id": block.id, "name": block.name, "state": block.state, "output": output}
    elif isinstance(block, HintBlock):
        fields = {"hint": block.hint, "source": block.source} if block.source else {"hint": block.hint}
    elif isinstance(block, ProviderBlock):
        fields = {"provider": block.provider, "content": block.content}
    elif isinstance(block, DataBlock):
        fields = _fields_of_data(block)
    line = json.dumps({"type": block.type, **fields}, ensure_ascii=False)
    if isinstance(block, ToolCallBlock):  # as the model wrote it, JSON or not
        line = f'{line[:-1]}, "input": {block.input or "{}"}}}'
    return one_line(escape_controls(line), _MAX_LINE)


def _fields_of_data(block: DataBlock) -> dict[str, object]:
    source = block.source
    fields: dict[str, object] = {"name": block.name} if block.name else {}
    fields["media_type"] = source.media_type
    if isinstance(source, Base64Source):
        fields["bytes"] = len(source.data) * 3 // 4 - source.data.count("=", -2)
    else:  # of a data URL, without its data
        is_data = source.url[:5].lower() == "data:"
        fields["url"] = source.url.partition(",")[0] + ",..." if is_data else source.url
    return fields
