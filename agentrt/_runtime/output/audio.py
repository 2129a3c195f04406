"""The sound of a message, played as it arrives."""

import logging
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from agentrt.message import Base64Source, DataBlock

_logger = logging.getLogger("agentrt")
_CHECKED_DIGITS = 32  # of base64: if they are unchanged, a sound counts as grown


class AudioPlayer(Protocol):
    """Plays the sounds of one message, one after the other.

    The methods are called in the event loop and must return at once: a player uses a thread or process of its
    own. One that raises is not called again.
    """

    def play(self, data: bytes, media_type: str) -> None:
        """Play the next part of a sound; the parts of one sound, joined, are the whole of it."""

    def play_url(self, url: str, media_type: str) -> None:
        """Play the sound at this address."""

    def close(self) -> None:
        """End the input; sound already given may be played to its end."""


PlayerFactory = Callable[[], AudioPlayer]


def sounds_in(speech: DataBlock | list[DataBlock]) -> list[DataBlock]:
    blocks = [speech] if isinstance(speech, DataBlock) else speech
    return [block for block in blocks if block.source.media_type.lower().startswith("audio/")]


class SpeechPlayback:
    """The sounds of one message, and the played part of each; the player is made for the first of them.

    A sound is identified by its position among the sounds. An error of the player ends only the sound.
    """

    __slots__ = ("_factory", "_is_over", "_player", "_sounds", "_urls")

    def __init__(self, factory: PlayerFactory) -> None:
        self._factory = factory
        self._player: AudioPlayer | None = None
        self._sounds: dict[int, _Sound] = {}
        self._urls: set[str] = set()
        self._is_over = False

    def take(self, speech: DataBlock | list[DataBlock]) -> None:
        """Play new sound: each address once, and the new part of each sound."""
        if self._is_over:
            return
        try:
            for position, block in enumerate(sounds_in(speech)):
                source = block.source
                if isinstance(source, Base64Source):
                    sound = self._sounds.setdefault(position, _Sound())
                    self._play(sound.grow(source), source.media_type)
                elif source.url not in self._urls:
                    self._urls.add(source.url)  # an address is complete, and is played once
                    self._open_player().play_url(source.url, source.media_type)
        except Exception as error:  # noqa: BLE001  # a sound that cannot be played is no reason to lose a reply
            self._give_up(error)

    def finish(self) -> None:
        """Play the held-back rest, and close the player."""
        if self._is_over:
            return
        try:
            for sound in self._sounds.values():
                self._play(sound.end(), sound.media_type)
            self._close()
        except Exception as error:  # noqa: BLE001  # as above
            self._give_up(error)

    def _play(self, data: bytes, media_type: str) -> None:
        if data:
            self._open_player().play(data, media_type)

    def _open_player(self) -> AudioPlayer:
        if self._player is None:
            self._player = self._factory()
        return self._player

    def _close(self) -> None:
        self._is_over = True  # first: a player whose `close` raises is not called again
        player, self._player = self._player, None
        if player is not None:
            player.close()

    def _give_up(self, error: Exception) -> None:
        # Only the type: the text of a player's error may quote its input.
        _logger.warning("the sound of a message is not played: %s", type(error).__name__)
        with suppress(Exception):
            self._close()


class _Sound:
    """Growing base64, decoded in complete groups of four digits.

    The last group may still change while it is padded: more bytes change its encoding.
    """

    __slots__ = ("_decoded", "_rest", "_tail", "media_type")

    def __init__(self) -> None:
        self.media_type = ""
        self._decoded, self._tail, self._rest = 0, "", ""

    def grow(self, source: Base64Source) -> bytes:
        data, tail_start = source.data, self._decoded - len(self._tail)
        has_grown = len(data) >= self._decoded and data.startswith(self._tail, tail_start)
        before = b"" if has_grown else self.end()
        self.media_type = source.media_type
        new = data[self._decoded :]
        whole = len(new.rstrip("=")) // 4 * 4
        self._rest = new[whole:]
        self._decoded += whole
        self._tail = (self._tail + new[max(0, whole - _CHECKED_DIGITS) : whole])[-_CHECKED_DIGITS:]
        return before + b64decode(new[:whole], validate=True)

    def end(self) -> bytes:
        digits = self._rest.rstrip("=")
        self._decoded, self._tail, self._rest = 0, "", ""
        return b64decode(digits + "=" * (-len(digits) % 4), validate=True) if len(digits) > 1 else b""
