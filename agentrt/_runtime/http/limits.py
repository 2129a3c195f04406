"""The limits of one call: its time, and the bytes of its answer."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from agentrt.errors import ConfigError, Timeout

MAX_BYTES = 64 * 2**20
"""The maximum bytes of one answer: even the longest are well below it, at some 300 bytes per streamed token."""

CLOSE_SECONDS = 5.0
"""The time limit for closing a connection."""

_Awaited = TypeVar("_Awaited")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The time limits of a model, in seconds; `math.inf` for no limit.

    `connect` is for reaching the server. `idle` is for the wait for each piece of a streamed answer, the first
    included; data without content, such as a ping, does not count. `total` is for one whole call, without the time
    in which its reader is busy: a slow reader does not use it up, but a server that never stops sending
    does.
    """

    connect: float = 10
    idle: float = 60
    total: float = 600

    def __post_init__(self) -> None:
        for name in ("connect", "idle", "total"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:  # also refuses NaN
                raise ConfigError(f"Timeouts({name}=...) must be a number of seconds above 0, not {value!r}")


class CallTimer:
    """Keeps the waiting time of one call within its limits; `source` is the party that it waits for.

    The time that is left is counted down here and not by one scope around everything, since a scope may not be open
    while a stream is in its reader's hands. It runs from a wait to the next pause. Without `streams`, only the total
    counts.
    """

    def __init__(self, limits: Timeouts, source: str, *, streams: bool = True) -> None:
        self.limits = limits
        self._source = source
        self._streams = streams
        self._total_left = limits.total
        self._idle_left = limits.idle
        self._running_since: float | None = None

    @property
    def seconds_left(self) -> float:
        """The seconds that the next wait may take."""
        return min(self._idle_left, self._total_left) if self._streams else self._total_left

    def check(self) -> None:
        """Raise `Timeout` if no time is left; the time since the last wait counts, unless there was a pause."""
        self._count_down()
        if self.seconds_left <= 0:
            raise self._timeout_error(self._source)

    def pause(self) -> None:
        """Do not count the time until the next wait."""
        self._running_since = None

    def note_progress(self) -> None:
        """Restart the idle limit: a piece has arrived."""
        self._idle_left = self.limits.idle

    async def wait(self, work: Awaitable[_Awaited], source: str | None = None) -> _Awaited:
        """Return the result of the work, unless it exceeds the time left; `source` is the party waited for."""
        if self._running_since is None:
            self._running_since = anyio.current_time()
        with anyio.move_on_after(self.seconds_left):
            result = await work
            self._count_down()
            return result
        # Only the scope's own deadline leads here: any other cancellation propagates.
        raise self._timeout_error(source or self._source)

    def _count_down(self) -> None:
        now = anyio.current_time()
        if self._running_since is not None:
            self._idle_left -= now - self._running_since
            self._total_left -= now - self._running_since
        self._running_since = now

    def _timeout_error(self, source: str) -> Timeout:
        if self._streams and self._idle_left <= self._total_left:
            name, limit, what = "idle", self.limits.idle, "sent nothing new for"
        else:
            name, limit, what = "total", self.limits.total, "kept us waiting for more than"
        return Timeout(f"{source} {what} {limit:g} s ({name}): to wait longer, give timeouts=Timeouts({name}=...)")
