"""The owner: closes whatever one entry into a chain has opened, and names the layer that an error came from."""

import logging
from collections.abc import AsyncIterator, Sequence
from types import CodeType, TracebackType
from typing import Any

__all__ = ["Owner", "close", "name_the_layer"]

_logger = logging.getLogger("agentrt")
_NOTE = "agentrt: raised by "


class Owner:
    """The streams that one entry into a chain has opened, outermost first.

    `left` holds the places of streams whose layer has stopped without finishing them.
    """

    __slots__ = ("left", "opened")

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.left: list[tuple[int, Any]] = []

    async def close_left(self) -> None:
        """Close the streams of layers that stopped early, and everything under them."""
        left = self.left[:]
        self.left.clear()
        for place, stream in left:
            # A further `next_handler` call may have put another stream in this place by now.
            if place < len(self.opened) and self.opened[place] is stream:
                await self.close_from(place)

    async def close_from(self, place: int) -> None:
        """Close every stream from `place` on, innermost first."""
        streams = self.opened[place:]
        del self.opened[place:]
        streams.reverse()
        await close(streams)

    async def close(self, error: BaseException | None = None) -> None:
        """Close every stream, innermost first; a clean-up that fails is logged when `error` is already on its way."""
        streams, self.opened = self.opened, []
        streams.reverse()
        try:
            await close(streams)
        except Exception:
            if error is None:
                raise
            _logger.exception("a layer's clean-up failed while %r was on its way", type(error).__name__)


async def close(streams: Sequence[AsyncIterator[Any]]) -> None:
    """Close each stream in order, whatever the others raise; then raise the first error, if any."""
    first: BaseException | None = None
    for stream in streams:
        aclose = getattr(stream, "aclose", None)
        if aclose is None:
            continue
        try:
            await aclose()
        except BaseException as error:  # noqa: BLE001  # the others must be closed as well; raised again below
            first = first or error
    if first is not None:
        raise first


def name_the_layer(error: Exception, hook: str, codes: dict[CodeType, Any], layers: Sequence[Any]) -> None:
    """Add a note to `error` that names the layer it was raised in, once; none when it came from below the layers.

    `codes` holds the code objects of the layers' hooks and of the core. The deepest frame with one of them is where the
    error comes from, so nothing has to be watched while all goes well.
    """
    if any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        return
    layer = _deepest(error.__traceback__, codes, layers)
    if layer is not None:
        error.add_note(f"{_NOTE}{layer.name} in {hook} ({layer.where})")


def _deepest(traceback: TracebackType | None, codes: dict[CodeType, Any], layers: Sequence[Any]) -> Any:
    found = None
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in codes:
            found = codes[frame.f_code] and _of_instance(frame.f_locals, codes[frame.f_code], layers)
        traceback = traceback.tb_next
    return found


def _of_instance(variables: dict[str, Any], layer: Any, layers: Sequence[Any]) -> Any:
    # Two instances of one class share their code; the frame's own variables say which of them it is.
    values = variables.values()
    return next((each for each in layers if any(each.middleware is value for value in values)), layer)
