"""The owner: closes whatever one entry into a chain has opened, and names the layer that an error came from."""

import logging
from collections.abc import Mapping, Sequence
from traceback import format_tb
from types import CodeType, FrameType, TracebackType
from typing import Any

from agentrt.chain.contract import misuse
from agentrt.chain.spec import HookSpec
from agentrt.errors import ChainContractError

__all__ = ["Owner", "name_the_layer"]

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


def name_the_layer(error: Exception, spec: HookSpec, codes: Mapping[Any, Any], layers: Sequence[Any]) -> None:
    """Add a note to `error` that names the layer it was raised in, once; none when it came from below the layers.

    `codes` maps the code of each layer's hook to the layer, and that of the core to `None`. The deepest frame with one
    of them is where the error comes from, so nothing has to be watched while all goes well. A `ChainContractError`
    says by itself whose fault it is. What lies below another chain of the same shape, that chain has judged: a function
    that serves two hooks would stand there for the other one.
    """
    if isinstance(error, ChainContractError):
        return
    if any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        return
    layer, is_own = _deepest(error.__traceback__, codes, layers)
    if layer is not None:
        remedy = misuse(spec, error) if is_own and isinstance(error, TypeError) else ""
        error.add_note(f"{_NOTE}{layer.name} in {spec.name} ({layer.where}){remedy}")


def _deepest(traceback: TracebackType | None, codes: Mapping[Any, Any], layers: Sequence[Any]) -> tuple[Any, bool]:
    """Return the layer that the error comes from, and whether the code of its hook itself raised it."""
    found, is_own = None, False
    entry = traceback and traceback.tb_frame
    while traceback is not None:
        frame = traceback.tb_frame
        if entry is not None and frame is not entry and frame.f_code is entry.f_code:
            break
        if frame.f_code in codes:
            layer = codes[frame.f_code]
            found = layer and _of_instance(frame, layer, layers)
            is_own = traceback.tb_next is None
        traceback = traceback.tb_next
    return found, is_own


def _of_instance(frame: FrameType, layer: Any, layers: Sequence[Any]) -> Any:
    # Instances of one class share their code: the frame's own `self`, or the one that it was made in, says which of
    # them it is, if any of these.
    code = frame.f_code
    own = [frame.f_locals.get(name) for name in (*code.co_varnames[:1], *code.co_freevars)]
    selves = [value for value in own if isinstance(value, type(layer.middleware))]
    if not selves:
        return layer
    return next((each for each in layers if each.middleware is selves[0]), None)
