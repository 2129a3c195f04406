"""What clients of a server may take of it."""

from collections import Counter
from dataclasses import dataclass

from agentrt.errors import ConfigError
from agentrt.serving.failure import ApiError

__all__ = ["Limits", "StreamSlots"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take: bytes of a body and seconds to send it, and requests and streams at a time.

    `connections` counts the requests that are being answered, and `streams_per_owner` the streams of events that one
    owner has open, where there are owners. A stream gets a comment each `ping_seconds`, and is cut when its reader
    takes nothing for `stall_seconds`.
    """

    body_bytes: int = 1_000_000
    body_seconds: float = 30.0
    connections: int = 1_000
    streams_per_owner: int = 10
    ping_seconds: float = 15.0
    stall_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("body_bytes", "connections", "streams_per_owner"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"Limits({name}=...) must be an int, 1 or more, not {value!r:.100}")
        for name in ("body_seconds", "ping_seconds", "stall_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise ConfigError(f"Limits({name}=...) must be seconds, a finite number above 0, not {value!r:.100}")


class StreamSlots:
    """Counts the streams that each owner has open."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def take(self, owner: str | None) -> None:
        """Count one more; raises `ApiError` where the owner has as many as may be."""
        if owner is None:
            return  # there are no owners, and the limit of all connections holds
        if self._open[owner] >= self._limit:
            raise ApiError(
                429,
                "too_many_streams",
                f"you have {self._limit} streams of events open, as many as you may: close one",
                headers={"Retry-After": "1"},
            )
        self._open[owner] += 1

    def release(self, owner: str | None) -> None:
        if owner is not None:
            self._open[owner] -= 1
            # Or every owner that was ever here would stay in memory.
            if not self._open[owner]:
                del self._open[owner]
