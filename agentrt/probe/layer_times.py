"""The times of layers, added up for each reply."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter_ns
from typing import Any

from agentrt.chain import LayerCall, LayerOutcome
from agentrt.errors import ConfigError
from agentrt.representation import repr_by_settings

__all__ = ["LayerTime", "LayerTimes"]


@dataclass(slots=True)
class LayerTime:
    """The calls of one layer in one reply, with their times in nanoseconds.

    `layer` is the key of the middleware, and `None` for the core; `place` is 0 for the outermost. `total_ns` is how
    long the layer was in control, with all that it called. `own_ns` is without the layers further in and the core,
    while it waited for them. Neither has the time that readers of a stream took. Calls that run at the same time, as
    those of several tools, are added up.

    `active` calls are not over yet, and `outcome` is that of the last one that is.
    """

    hook: str
    layer: str | None
    place: int
    calls: int = 0
    active: int = 0
    total_ns: int = 0
    own_ns: int = 0
    outcome: LayerOutcome | None = None


class LayerTimes:
    """A probe that adds up the times of each layer, for each of the newest `max_replies` replies.

    One may be the probe of several agents. It may be read at any time, also while a reply runs.
    """

    def __init__(self, *, max_replies: int = 100, clock: Callable[[], int] = perf_counter_ns) -> None:
        unchecked: object = max_replies
        if type(unchecked) is not int or unchecked < 1:
            raise ConfigError(f"LayerTimes(max_replies=...) must be an int, 1 or more, not {max_replies!r:.100}")
        self.max_replies = max_replies
        self._clock = clock
        self._replies: dict[tuple[str, str], _ReplyTimes] = {}
        # Agents may run in several threads, and be read from another one.
        self._lock = Lock()

    __repr__ = repr_by_settings

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the settings: times belong to replies of this process.
        return {"max_replies": self.max_replies, "clock": self._clock}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__init__(**settings)  # type: ignore[misc]  # as if it was made anew

    # No lock in these two: all calls of a reply are made in one thread.
    def enter(self, call: LayerCall, /) -> None:
        timer: _Timer = call.data or self._begin(call)
        now = self._clock()
        caller = timer.caller
        if caller is not None:
            if caller.is_in_control and not caller.inner_calls:
                caller.sum.own_ns += now - caller.own_since
            caller.inner_calls += 1
        timer.entered_at = timer.own_since = now
        timer.is_in_control = True

    def leave(self, call: LayerCall, outcome: LayerOutcome, /) -> None:
        timer: _Timer | None = call.data
        if timer is None:  # its first entry failed
            return
        now = self._clock()
        timer.is_in_control = False
        timer.sum.total_ns += now - timer.entered_at
        if not timer.inner_calls:
            timer.sum.own_ns += now - timer.own_since
        caller = timer.caller
        if caller is not None:
            caller.inner_calls -= 1
            caller.own_since = now
        if outcome != "paused":
            timer.reply.active.pop(timer, None)
            timer.sum.active -= 1
            timer.sum.outcome = outcome

    def of(self, reply_id: str, session_id: str | None = None) -> list[LayerTime]:
        """Return the times of a reply, hook by hook and from the outermost layer to the core; empty if not known.

        Ids that clients choose are unique within a session; without `session_id` the newest reply of that id counts.
        """
        with self._lock:
            replies = reversed(self._replies.items())
            found = (
                times for (session, reply), times in replies if reply == reply_id and session_id in (None, session)
            )
            times = next(found, None)
        return [] if times is None else times.read(self._clock())

    def replies(self) -> list[str]:
        """Return the ids of the replies whose times are known, oldest first."""
        with self._lock:
            return [reply_id for _, reply_id in self._replies]

    def _begin(self, call: LayerCall) -> "_Timer":
        agent: Any = call.agent
        key = agent.state.session_id, agent.reply_id or ""
        with self._lock:
            times = self._replies.get(key)
            if times is None:
                times = self._replies[key] = _ReplyTimes()
                if len(self._replies) > self.max_replies:
                    del self._replies[next(iter(self._replies))]
        caller = None if call.caller is None else call.caller.data
        timer = call.data = _Timer(times.sum_of(call), times, caller)
        times.active[timer] = None
        return timer


class _ReplyTimes:
    """The sums of a reply by hook and place, and its calls that are not over."""

    __slots__ = ("active", "sums")

    def __init__(self) -> None:
        self.sums: dict[tuple[str, int], LayerTime] = {}
        self.active: dict[_Timer, None] = {}

    def sum_of(self, call: LayerCall) -> LayerTime:
        """Return the sum that a new call counts to."""
        found = self.sums.get((call.hook, call.place))
        if found is None:
            found = self.sums[call.hook, call.place] = LayerTime(call.hook, call.layer, call.place)
        found.calls += 1
        found.active += 1
        return found

    def read(self, now: int) -> list[LayerTime]:
        """Return copies of the sums, in their order, with what the calls in progress have taken so far."""
        # Copied first: the reply may continue in another thread meanwhile.
        copies = {key: replace(layer) for key, layer in list(self.sums.items())}
        for timer in list(self.active):
            copy = copies.get((timer.sum.hook, timer.sum.place))
            if copy is not None and timer.is_in_control:
                copy.total_ns += now - timer.entered_at
                copy.own_ns += 0 if timer.inner_calls else now - timer.own_since
        hooks = list(dict.fromkeys(layer.hook for layer in copies.values()))
        return sorted(copies.values(), key=lambda layer: (hooks.index(layer.hook), layer.place))


class _Timer:
    """What is known of one call: who called it, and since when its time is not yet in the sum."""

    __slots__ = ("caller", "entered_at", "inner_calls", "is_in_control", "own_since", "reply", "sum")

    def __init__(self, sum_of_layer: LayerTime, reply: _ReplyTimes, caller: "_Timer | None") -> None:
        self.sum = sum_of_layer
        self.reply = reply
        self.caller = caller
        self.inner_calls = 0  # of further layers in control: their time is not this one's own
        self.is_in_control = False
        self.entered_at = self.own_since = 0
