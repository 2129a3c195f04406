"""The owner: closes whatever one entry into a chain has opened."""

import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from traceback import format_tb
from types import CodeType
from typing import Any, TypeGuard

from agentrt._runtime.chain.attribution import Origins, code_that_reads
from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.spec import Values

_logger = logging.getLogger("agentrt")

# What an owner has before its core is called, and before a call returns a stream to it; shared, and never changed.
_NO_DEPTHS: list[int] = []
_NO_ORIGINS: Origins = {}


class Owner:
    """The streams that one entry into a chain has opened, outermost first.

    `agent` is the argument of the entry, and `given` holds the values that the chain was entered with, as they were
    before any layer could change them. `stream` is that of the outermost layer, once it is open, and `reader` the
    code of the function that reads it in a frame of its own. `core` is the last stream of the core, which may have been
    made elsewhere. `abandoned` holds the streams of layers that stopped without finishing them, each with its place
    among the opened ones. For streams that calls returned, `depths` says how far in the layers stand that returned
    them, and `origin_by_code` which layer returned one, by the code that reads the stream; `None` stands for the core.
    Where layers are observed, `layer_calls` has the last call of each, by its place.
    """

    # Defaults of the class, since most of these are never set where a hook has a layer or two.
    stream: AsyncIterator[object] | None = None
    core: object = None
    reader: CodeType | None = None
    layer_calls: dict[int, Any] | None = None
    depths = _NO_DEPTHS
    origin_by_code = _NO_ORIGINS

    def __init__(self, agent: object, given: Values) -> None:
        self.agent = agent
        self.given = given
        self.is_closed = False
        self.opened: list[object] = []
        self.abandoned: list[tuple[int, object]] = []

    def is_running_from(self, place: int) -> bool:
        """Say whether one of the streams from `place` on is running at this moment, so that it cannot be closed."""
        return any(getattr(stream, "ag_running", False) for stream in self.opened[place:])

    def place_below(self, depth: int) -> int:
        """Return the place of the first stream that was returned further in than by the layer at `depth`."""
        return bisect_right(self.depths, depth)

    def keep_returned(self, stream: object, depth: int, layer: Layer | None) -> None:
        """Take over a stream that the call of the layer at `depth` returned; `None` stands for the core.

        There is one at most for each depth: a further call first closes all that are further in.
        """
        if any(opened is stream for opened in self.opened):  # a layer passed on what came from further in
            return
        if self.depths is _NO_DEPTHS:
            self.depths, self.origin_by_code = [], {}
        # In order of depth: the stream of an outer layer is already there if its reader makes a further call.
        place = self.place_below(depth)
        self.depths.insert(place, depth)
        self.opened.insert(place, stream)
        code = code_that_reads(stream)
        # Objects of one class that two layers return have the same code, so it does not tell whose an object is. The
        # frame of a generator does.
        is_shared = self.origin_by_code.get(code, layer) is not layer and not hasattr(stream, "ag_code")
        self.origin_by_code[code] = None if is_shared else layer

    async def close_abandoned(self) -> None:
        """Close the streams of layers that stopped early, and everything under them."""
        while self.abandoned:  # closing them may have further layers stop early
            place, stream = self.abandoned.pop(0)
            # A further `next_handler` call of an outer layer may have put another stream in this place by now.
            if place < len(self.opened) and self.opened[place] is stream:
                await self.close_from(place)

    async def close_from(self, place: int) -> None:
        """Close the streams from `place` on, innermost first, until none is open: a clean-up may open another one.

        Each is closed whatever the others raise. Then a cancellation is raised, if there was one, or the first error.
        """
        failure: BaseException | None = None
        opened = self.opened
        while len(opened) > place:
            stream = opened.pop()
            if self.depths:
                del self.depths[len(opened) :]
            if getattr(stream, "ag_frame", stream) is None:  # a generator that has ended, as nearly always
                continue
            aclose = getattr(stream, "aclose", None)
            if aclose is None:
                continue
            try:
                await aclose()
            except BaseException as error:  # noqa: BLE001  # the others must be closed as well; raised again below
                if failure is None or (isinstance(failure, Exception) and not isinstance(error, Exception)):
                    failure = error
        if failure is not None:
            raise failure

    async def close(self, error: BaseException | None = None) -> None:
        """Close every stream for good; a clean-up that fails is logged when `error` is already being raised."""
        try:
            await self.close_from(0)
        except Exception as failure:
            if error is None:
                raise
            # Only the error's type: its text may quote what does not belong in a log.
            frames = "".join(format_tb(failure.__traceback__)) + type(failure).__name__
            _logger.error("a layer's clean-up failed while %r was being raised:\n%s", type(error).__name__, frames)
        finally:
            self.is_closed = True


StreamStep = Callable[[Values, Owner], AsyncIterator[object]]
"""Opens the stream of a layer, or of the core, for an entry into the chain."""


def is_stream(result: object) -> TypeGuard[AsyncIterator[object]]:
    return hasattr(result, "__aiter__") and hasattr(result, "__anext__")
