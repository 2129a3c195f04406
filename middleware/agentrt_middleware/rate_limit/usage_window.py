"""What is allowed, and what was used of it. Numbers only: nothing here waits, and whoever asks says what time it is.

Requests and tokens are two buckets that leak: what is used flows off evenly, a minute's worth per minute, and a call
may begin where it still fits into a minute's worth. So the calls that begin within `w` seconds take no more than one
minute's worth and `w / 60` of another. What is larger than a bucket fits when that is empty, and is then worked off.

A call counts with an estimate of its tokens until it ends, and from then on with those that it took, as if they had
been known when it began. So the promise holds for what was really taken. If an estimate was too low, the difference is
a debt, which later calls wait for.
"""

from collections.abc import Hashable
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
        self._requests = 0.0
        self._tokens = _Bucket()
        self._at = self.next_start = self.blocked_until = -inf
        self.active = 0

    def take(self, limits: Limits, now: float, tokens: float, call: Hashable) -> Refusal | None:
        """Count a call that begins now with about this many tokens, or say why it must not."""
        refusal = self.wait(limits, now, tokens)
        if refusal is None:
            self._count(limits, now, tokens, call)
        return refusal

    def charge(self, limits: Limits, now: float, tokens: float, call: Hashable) -> None:
        """Count a call that begins now, allowed or not."""
        self._flow_off(limits, now)
        self._count(limits, now, tokens, call)

    def end(self, call: Hashable, difference: float) -> None:
        """Count the end of a call that took that many tokens more than it was counted with."""
        if self.active:
            self.active -= 1
        self._tokens.correct(call, difference)

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
            flow = (self._tokens.level + tokens_ahead - (most - tokens if most > tokens else 0.0)) * _MINUTE / most
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
        used = self.active or self._requests or self._tokens.level
        return not used and max(self.next_start, self.blocked_until) <= now

    def _count(self, limits: Limits, now: float, tokens: float, call: Hashable) -> None:
        self._requests += 1
        if limits.tokens_per_minute is not None:
            self._tokens.pour(tokens, call)
        self.next_start = now + limits.min_interval
        self.active += 1

    def _flow_off(self, limits: Limits, now: float) -> None:
        minutes = (now - self._at) / _MINUTE
        if minutes > 0:
            self._at = now
            left = self._requests - minutes * (limits.requests_per_minute or inf)
            self._requests = left if left > 0 else 0.0
            if limits.tokens_per_minute is not None:
                self._tokens.leak(minutes * limits.tokens_per_minute)
            elif self._tokens.level:  # they are no longer limited
                self._tokens = _Bucket()


class _Bucket:
    """How full a leaking bucket is, if what a call has poured in may later turn out to be more or less.

    The surplus of a stretch of time that ends now is what was poured in during it, less what flows off in that time;
    the level is the largest surplus of all stretches that begin with a call. Correcting what a call has poured in
    changes the stretches that contain its beginning, and no others: what has flowed off is never given back.

    A binary tree over the calls in progress, and those that began after the first of them, holds for each run of calls
    what was poured in less what flowed off meanwhile (`_sums`), and the largest surplus at its end (`_surpluses`). So
    pouring and correcting take a number of steps that grows with the logarithm of the calls. Node `n` has the children
    `2n` and `2n + 1`; what was there before the first leaf is one number (`_before`).
    """

    __slots__ = ("_before", "_flowed", "_next", "_places", "_size", "_sums", "_surpluses")

    def __init__(self) -> None:
        self._before = 0.0
        self._flowed = 0.0  # since the last call began
        self._places: dict[Hashable, int] = {}  # of the calls that may be corrected, among the leaves
        self._plant([])

    @property
    def level(self) -> float:
        before, since = self._before + self._sums[1], self._surpluses[1]
        surplus = (before if before > since else since) - self._flowed
        return surplus if surplus > 0 else 0.0

    def leak(self, amount: float) -> None:
        """Let that amount flow off."""
        self._flowed += amount

    def pour(self, amount: float, call: Hashable) -> None:
        """Pour in what a call that begins now is about to take."""
        if not self._places:
            self._before, self._flowed, self._next = self.level, 0.0, 0
            if self._size > 1:
                self._plant([])
        elif self._next == self._size:
            self._plant(self._runs())
        self._places[call] = self._next
        self._set(self._next, amount - self._flowed, amount)
        self._next += 1
        self._flowed = 0.0

    def correct(self, call: Hashable, difference: float) -> None:
        """Count a call, for the last time, as if it had poured in that much more when it began."""
        place = self._places.pop(call, None)
        if place is not None and difference:  # without a place, it began when tokens were not limited
            node = self._size + place
            self._set(place, self._sums[node] + difference, self._surpluses[node] + difference)

    def _set(self, place: int, total: float, surplus: float) -> None:
        sums, surpluses = self._sums, self._surpluses
        node = self._size + place
        sums[node], surpluses[node] = total, surplus
        while node > 1:
            node >>= 1
            right = 2 * node + 1
            later, before, after = sums[right], surpluses[right - 1] + sums[right], surpluses[right]
            sums[node] = sums[right - 1] + later
            surpluses[node] = before if before > after else after

    def _runs(self) -> list[tuple[float, float]]:
        """Return the leaves; neighbours that can no longer be corrected are merged into one."""
        calls = {place: call for call, place in self._places.items()}
        runs: list[tuple[float, float]] = []
        is_open = True
        for place in range(self._next):
            total, surplus = self._sums[self._size + place], self._surpluses[self._size + place]
            if place in calls:
                self._places[calls[place]] = len(runs)
            elif not is_open:
                total_before, surplus_before = runs.pop()
                total, surplus = total_before + total, max(surplus_before + total, surplus)
            is_open = place in calls
            runs.append((total, surplus))
        return runs

    def _plant(self, runs: list[tuple[float, float]]) -> None:
        self._next = 0
        self._size = 2 << len(runs).bit_length() if runs else 1
        self._sums = [0.0] * (2 * self._size)
        self._surpluses = [-inf] * (2 * self._size)
        for self._next, run in enumerate(runs, 1):
            self._set(self._next - 1, *run)
