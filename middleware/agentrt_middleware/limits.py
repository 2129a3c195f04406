"""What is allowed, and what was used of it. Numbers only: nothing here waits, and whoever asks says what time it is.

Requests and tokens are two buckets that leak: what is used flows off evenly, a minute's worth per minute, and a call
may begin where it still fits into a minute's worth. So no window of `w` seconds sees more than one minute's worth and
`w / 60` of another. What is larger than a bucket fits when that is empty, and is worked off as a debt afterwards.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

__all__ = ["Limits", "Refusal", "Usage"]

_MINUTE = 60.0
_SOON = 1e-6  # seconds that are not worth a wait, as clocks and floats are no better than that


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used; `None` is without limit. `min_interval` is in seconds, from one start to the next."""

    min_interval: float = 0.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int | None = None


class Refusal(NamedTuple):
    """Why a call may not begin: it has to wait `seconds` at least, and may ask again in `again` seconds.

    `again` is infinite where no time will help, but the end of another call.
    """

    seconds: float
    reason: str
    again: float


_FULL = Refusal(0.0, "max_concurrency", inf)


class Usage:
    """What was used of some limits, which may be other ones at the next question."""

    __slots__ = ("_at", "_requests", "_tokens", "active", "blocked_until", "next_start")

    def __init__(self) -> None:
        self._requests = self._tokens = 0.0
        self._at = self.next_start = self.blocked_until = -inf
        self.active = 0

    def take(self, limits: Limits, now: float, tokens: float) -> Refusal | None:
        """Count a call that begins now with about this many tokens, or say why it must not."""
        refusal = self.wait(limits, now, tokens)
        if refusal is None:
            self._count(limits, now, tokens)
        return refusal

    def charge(self, limits: Limits, now: float, tokens: float) -> None:
        """Count a call that begins now, allowed or not."""
        self._flow_off(limits, now)
        self._count(limits, now, tokens)

    def end(self, limits: Limits, now: float, difference: float) -> None:
        """Count the end of a call that took that many tokens more than it was counted with."""
        if self.active:
            self.active -= 1
        if difference:
            self._flow_off(limits, now)
            left = self._tokens + difference
            self._tokens = left if left > 0 else 0.0

    def block(self, now: float, seconds: float) -> None:
        """Let nothing begin for so long."""
        self.blocked_until = max(self.blocked_until, now + seconds)

    def wait(
        self, limits: Limits, now: float, tokens: float, ahead: int = 0, tokens_ahead: float = 0.0
    ) -> Refusal | None:
        """Say why a call of this many tokens must not begin now, after `ahead` others that were to begin before it."""
        self._flow_off(limits, now)
        seconds, reason = self.blocked_until - now, "retry_after"
        if limits.min_interval:
            interval = self.next_start - now + ahead * limits.min_interval
            if interval > seconds:
                seconds, reason = interval, "min_interval"
        most = limits.requests_per_minute
        if most is not None:
            flow = (self._requests + ahead + 1 - (most if most > 1 else 1.0)) * _MINUTE / most
            if flow > seconds:
                seconds, reason = flow, "requests_per_minute"
        most = limits.tokens_per_minute
        if most is not None:
            flow = (self._tokens + tokens_ahead - (most - tokens if most > tokens else 0.0)) * _MINUTE / most
            if flow > seconds:
                seconds, reason = flow, "tokens_per_minute"
        if seconds > _SOON:
            return Refusal(seconds, reason, seconds)
        if limits.max_concurrency is not None and self.active + ahead >= limits.max_concurrency:
            return _FULL
        return None

    def is_at_rest(self, limits: Limits, now: float) -> bool:
        """Say whether this is no different from new."""
        self._flow_off(limits, now)
        used = self.active or self._requests or self._tokens
        return not used and max(self.next_start, self.blocked_until) <= now

    def _count(self, limits: Limits, now: float, tokens: float) -> None:
        self._requests += 1
        self._tokens += tokens
        self.next_start = now + limits.min_interval
        self.active += 1

    def _flow_off(self, limits: Limits, now: float) -> None:
        minutes = (now - self._at) / _MINUTE
        if minutes > 0:
            self._at = now
            left = self._requests - minutes * (limits.requests_per_minute or inf)
            self._requests = left if left > 0 else 0.0
            left = self._tokens - minutes * (limits.tokens_per_minute or inf)
            self._tokens = left if left > 0 else 0.0
