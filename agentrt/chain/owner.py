"""The owner: closes whatever one entry into a chain has opened, and names the layer that an error came from."""

import logging
from traceback import format_tb
from types import CodeType
from typing import Any

__all__ = ["Owner"]

_logger = logging.getLogger("agentrt")
_NOTE = "agentrt: raised by "


class Owner:
    """The streams that one entry into a chain has opened, outermost first.

    `core` is the last stream of the core, which may have been made elsewhere. `left` holds the streams of layers that
    have stopped without finishing them, with their places. Of streams that calls returned, `places` says how far in the
    layers stand that returned them, and `makers` which layer made one, by the stream's code; `None` is the core.
    `given` holds the values that the chain was entered with, as they were before any layer could change them.
    """

    __slots__ = ("core", "given", "is_closed", "left", "makers", "opened", "places")

    def __init__(self, given: dict[str, Any]) -> None:
        self.core: Any = None
        self.given = given
        self.is_closed = False
        self.opened: list[Any] = []
        self.left: list[tuple[int, Any]] = []
        self.makers: dict[CodeType | None, Any] = {}
        self.places: list[int] = []

    async def close_left(self) -> None:
        """Close the streams of layers that stopped early, and everything under them."""
        while self.left:  # closing them may have further layers stop early
            place, stream = self.left.pop(0)
            # A further `next_handler` call of an outer layer may have put another stream in this place by now.
            if place < len(self.opened) and self.opened[place] is stream:
                await self.close_from(place)

    async def close_from(self, place: int) -> None:
        """Close the streams from `place` on, innermost first, until none is open: a clean-up may open another one.

        Each is closed whatever the others raise. Then a cancellation is raised, if there was one, or the first error.
        """
        first: BaseException | None = None
        opened = self.opened
        while len(opened) > place:
            stream = opened.pop()
            if self.places:
                del self.places[len(opened) :]
            if getattr(stream, "ag_frame", stream) is None:  # a generator that has ended, as nearly always
                continue
            aclose = getattr(stream, "aclose", None)
            if aclose is None:
                continue
            try:
                await aclose()
            except BaseException as error:  # noqa: BLE001  # the others must be closed as well; raised again below
                if first is None or (isinstance(first, Exception) and not isinstance(error, Exception)):
                    first = error
        if first is not None:
            raise first

    async def close(self, error: BaseException | None = None) -> None:
        """Close every stream for good; a clean-up that fails is logged when `error` is already on its way."""
        try:
            await self.close_from(0)
        except Exception as failure:
            if error is None:
                raise
            # Without its words, which may quote what belongs in no log.
            frames = "".join(format_tb(failure.__traceback__)) + type(failure).__name__
            _logger.error("a layer's clean-up failed while %r was on its way:\n%s", type(error).__name__, frames)
        finally:
            self.is_closed = True
