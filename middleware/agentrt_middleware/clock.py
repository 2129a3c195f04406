"""The clock of calls: that of the event loop, which tests may set."""

from asyncio import _get_running_loop
from time import monotonic

import anyio
from anyio.lowlevel import RunVar

_clock_offset: RunVar[float] = RunVar("agentrt_clock_offset")


def loop_time() -> float:
    """Return the time of the event loop, on the scale of `time.monotonic`, so that those of several are comparable.

    Without an event loop this is `time.monotonic`.
    """
    # The private function, since the public one raises outside asyncio, which is slow: on trio this is
    # called several times per call of the model. A Python without it cannot import the middlewares that wait.
    loop = _get_running_loop()
    if loop is not None:
        return loop.time()
    try:
        now = anyio.current_time()
    except RuntimeError:  # no loop runs here
        return monotonic()
    # The clock of trio starts at a random number.
    try:
        return now + _clock_offset.get()
    except LookupError:
        # In this order, so that a pause in between has the loop lag behind other clocks, and never run ahead of them.
        _clock_offset.set(monotonic() - anyio.current_time())
        return now + _clock_offset.get()
