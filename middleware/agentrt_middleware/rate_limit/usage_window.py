"""The arithmetic of the limits and their usage.

Numbers only: nothing here waits, and the caller provides the time.

Requests and tokens are two leaky buckets. Usage drains evenly, a minute's worth per minute, and a call may start
if it still fits into a minute's worth. So the calls that start within `w` seconds use no more than one minute's worth
and `w / 60` of another. A call that is larger than its bucket fits when the bucket is empty, and later calls wait until
it has drained.

A call counts with an estimate of its tokens until it ends, and then with its used tokens, as if they had
been known at its start. So the promise holds for the real usage. If an estimate was too low, the difference is
a debt, which later calls wait for.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

_MINUTE = 60.0
_NEGLIGIBLE = 1e-6  # seconds not worth a wait: the precision of clocks and floats


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits; `None` means no limit. `min_interval` is in seconds, from one start to the next."""

    min_interval: float = 0.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int | None = None


class Refusal(NamedTuple):
    """The reason for refusing a call: it has to wait at least `seconds`, and may ask again in `again` seconds.

    `again` is infinite if only the end of another call helps.
    """

    seconds: float
    reason: str
    again: float


_FULL = Refusal(0.0, "max_concurrency", inf)


class Usage:
    """The usage; the limits are an argument, since they may change from call to call."""

    __slots__ = ("_at", "_requests", "_tokens", "active", "blocked_until", "next_start")

    def __init__(self) -> None:
        self._requests = 0.0
        self._tokens = _Bucket()
        self._at = self.next_start = self.blocked_until = -inf
        self.active = 0

    def take(self, limits: RateLimits, now: float, tokens: float, call: Hashable) -> Refusal | None:
        """Count a call that starts now with about this many tokens, or return the reason for refusing it."""
        refusal = self.wait(limits, now, tokens)
        if refusal is None:
            self._count(limits, now, tokens, call)
        return refusal

    def charge(self, limits: RateLimits, now: float, tokens: float, call: Hashable) -> None:
        """Count a call that starts now, allowed or not."""
        self._drain(limits, now)
        self._count(limits, now, tokens, call)

    def end(self, call: Hashable, difference: float) -> None:
        """Count the end of a call that used `difference` tokens more than counted."""
        if self.active:
            self.active -= 1
        self._tokens.correct(call, difference)

    def block(self, now: float, seconds: float) -> None:
        """Block all calls for that many seconds."""
        self.blocked_until = max(self.blocked_until, now + seconds)

    def wait(
        self, limits: RateLimits, now: float, tokens: float, ahead: int = 0, tokens_ahead: float = 0.0
    ) -> Refusal | None:
        """Return the reason why a call of this many tokens, with `ahead` others before it, must not start now."""
        self._drain(limits, now)
        seconds, reason = self.blocked_until - now, "retry_after"
        if limits.min_interval:
            interval = self.next_start - now + ahead * limits.min_interval
            if interval > seconds:
                seconds, reason = interval, "min_interval"
        # The time until the excess has drained. A call that is larger than its bucket waits until that is
        # empty. Comparisons instead of `max`: every call passes here, and each waiter more than once.
        rate = limits.requests_per_minute
        if rate is not None:
            draining = (self._requests + ahead + 1 - (rate if rate > 1 else 1.0)) * _MINUTE / rate
            if draining > seconds:
                seconds, reason = draining, "requests_per_minute"
        rate = limits.tokens_per_minute
        if rate is not None:
            draining = (self._tokens.level + tokens_ahead - (rate - tokens if rate > tokens else 0.0)) * _MINUTE / rate
            if draining > seconds:
                seconds, reason = draining, "tokens_per_minute"
        if seconds > _NEGLIGIBLE:
            return Refusal(seconds, reason, seconds)
        if limits.max_concurrency is not None and self.active + ahead >= limits.max_concurrency:
            return _FULL
        return None

    def is_idle(self, limits: RateLimits, now: float) -> bool:
        """Say whether nothing is in use."""
        self._drain(limits, now)
        used = self.active or self._requests or self._tokens.level
        return not used and max(self.next_start, self.blocked_until) <= now

    def _count(self, limits: RateLimits, now: float, tokens: float, call: Hashable) -> None:
        self._requests += 1
        if limits.tokens_per_minute is not None:
            self._tokens.pour(tokens, call)
        self.next_start = now + limits.min_interval
        self.active += 1

    def _drain(self, limits: RateLimits, now: float) -> None:
        minutes = (now - self._at) / _MINUTE
        if minutes > 0:
            self._at = now
            requests = self._requests - minutes * (limits.requests_per_minute or inf)
            self._requests = requests if requests > 0 else 0.0
            if limits.tokens_per_minute is not None:
                self._tokens.drain(minutes * limits.tokens_per_minute)
            elif self._tokens.level:  # they are no longer limited
                self._tokens = _Bucket()


class _Bucket:
    """The level of a leaky bucket whose inflow may be corrected later.

    The surplus of a stretch of time that ends now is its inflow less its outflow; the
    level is the largest surplus of all stretches that begin with a call. Correcting the inflow of a call changes
    only the stretches that contain its start: outflow is never returned.

    A binary tree over the calls in progress, and those that started after the first of them, holds for each run of
    calls its inflow less its outflow (`_sums`), and the largest surplus at its end (`_surpluses`). So pouring and
    correcting take logarithmic time in the number of calls. Node `n` has the children `2n` and `2n + 1`; the level
    before the first leaf is one number (`_before`).
    """

    __slots__ = ("_before", "_drained", "_next", "_places", "_size", "_sums", "_surpluses")

    def __init__(self) -> None:
        self._before = 0.0
        self._drained = 0.0  # since the last call started
        self._places: dict[Hashable, int] = {}  # of the calls that may be corrected, among the leaves
        self._build_tree([])

    @property
    def level(self) -> float:
        before, since = self._before + self._sums[1], self._surpluses[1]
        surplus = (before if before > since else since) - self._drained
        return surplus if surplus > 0 else 0.0

    def drain(self, amount: float) -> None:
        """Let that amount drain."""
        self._drained += amount

    def pour(self, amount: float, call: Hashable) -> None:
        """Pour in the expected usage of a call that starts now."""
        if not self._places:
            # No call can be corrected any more, so the level is all that matters.
            self._before, self._drained, self._next = self.level, 0.0, 0
            if self._size > 1:
                self._build_tree([])
        elif self._next == self._size:
            self._build_tree(self._merged_runs())
        self._places[call] = self._next
        self._set(self._next, amount - self._drained, amount)
        self._next += 1
        self._drained = 0.0

    def correct(self, call: Hashable, difference: float) -> None:
        """Correct a call, for the last time, as if it had poured in that much more at its start."""
        place = self._places.pop(call, None)
        if place is not None and difference:  # a call without a place started when tokens were not limited
            node = self._size + place
            self._set(place, self._sums[node] + difference, self._surpluses[node] + difference)

    def _set(self, place: int, total: float, surplus: float) -> None:
        sums, surpluses = self._sums, self._surpluses
        node = self._size + place
        sums[node], surpluses[node] = total, surplus
        # Up to the root. The largest surplus of two runs is that of the later one, or that of the earlier one plus all
        # that was poured in since.
        while node > 1:
            node >>= 1
            right = 2 * node + 1
            later, before, after = sums[right], surpluses[right - 1] + sums[right], surpluses[right]
            sums[node] = sums[right - 1] + later
            surpluses[node] = before if before > after else after

    def _merged_runs(self) -> list[tuple[float, float]]:
        """Return the leaves; neighbours that can no longer be corrected are merged into one run."""
        calls = {place: call for call, place in self._places.items()}
        runs: list[tuple[float, float]] = []
        is_correctable = True
        for place in range(self._next):
            total, surplus = self._sums[self._size + place], self._surpluses[self._size + place]
            if place in calls:
                self._places[calls[place]] = len(runs)
            elif not is_correctable:
                total_before, surplus_before = runs.pop()
                total, surplus = total_before + total, max(surplus_before + total, surplus)
            is_correctable = place in calls
            runs.append((total, surplus))
        return runs

    def _build_tree(self, runs: list[tuple[float, float]]) -> None:
        self._next = 0
        # At least twice the needed room, so that the cost of building is spread over later calls.
        self._size = 2 << len(runs).bit_length() if runs else 1
        self._sums = [0.0] * (2 * self._size)
        self._surpluses = [-inf] * (2 * self._size)
        for self._next, run in enumerate(runs, 1):
            self._set(self._next - 1, *run)
