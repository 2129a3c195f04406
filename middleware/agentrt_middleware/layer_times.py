"""The times of layers, added up for each reply."""

from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from agentrt.hooks import LayerOutcome, LayerRecord, MiddlewareBase
from agentrt_middleware.validation import check_number


@dataclass(slots=True)
class LayerTime:
    """The calls of one layer in one reply, with their times in nanoseconds.

    `layer` is the key of the middleware, and `None` for the core; `place` is 0 for the outermost. `total_ns` is how
    long the layer was in control, with all that it called. `own_ns` is without the layers further in and the core,
    while it waited for them. Neither includes the time of a stream's readers. Calls that run at the same time, as
    those of several tools, are added up.

    `active` calls are not over yet, and their times not in the sums; `outcome` is that of the last one that is.
    """

    hook: str
    layer: str | None
    place: int
    calls: int = 0
    active: int = 0
    total_ns: int = 0
    own_ns: int = 0
    outcome: LayerOutcome | None = None


class LayerTimes(MiddlewareBase):
    """An observer that adds up the times of each layer, for each of the newest `max_replies` replies.

    One may serve several agents, and is inherited by sub-agents. It may be read at any time, also while a reply runs.
    """

    inherited = True

    def __init__(self, *, max_replies: int = 100) -> None:
        check_number("LayerTimes(max_replies=...)", max_replies, least=1, whole=True)
        self.max_replies = max_replies
        self._replies: dict[tuple[str, str], dict[tuple[str, int], LayerTime]] = {}
        self._active: dict[int, LayerTime] = {}
        # Agents may run in several threads, and be read from another one.
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the settings: times belong to replies of this process.
        return {"max_replies": self.max_replies}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__init__(**settings)  # type: ignore[misc]  # as if it were new

    def on_layer(self, agent: Any, record: LayerRecord) -> None:
        with self._lock:
            if record.kind == "begin":
                time = self._active[record.call_id] = self._time_of(agent, record)
                time.calls += 1
                time.active += 1
                return
            # Of the call, not of its agent: when a call ends, another reply may be the last one.
            time = self._active.pop(record.call_id)
            time.active -= 1
            time.total_ns += record.total_ns
            time.own_ns += record.own_ns
            time.outcome = record.outcome

    def of(self, reply_id: str, session_id: str | None = None) -> list[LayerTime]:
        """Return the times of a reply, hook by hook and from the outermost layer to the core; empty if not known.

        Ids that clients choose are unique within a session; without `session_id` the newest reply of that id counts.
        """
        with self._lock:
            replies = reversed(self._replies.items())
            found = (
                times for (session, reply), times in replies if reply == reply_id and session_id in (None, session)
            )
            copies = [replace(time) for time in next(found, {}).values()]
        hooks = list(dict.fromkeys(time.hook for time in copies))
        return sorted(copies, key=lambda time: (hooks.index(time.hook), time.place))

    def replies(self) -> list[str]:
        """Return the ids of the replies whose times are known, oldest first."""
        with self._lock:
            return [reply_id for _, reply_id in self._replies]

    def _time_of(self, agent: Any, record: LayerRecord) -> LayerTime:
        key = agent.state.session_id, agent.reply_id or ""
        times = self._replies.get(key)
        if times is None:
            times = self._replies[key] = {}
            if len(self._replies) > self.max_replies:
                del self._replies[next(iter(self._replies))]
        place = record.hook, record.place
        time = times.get(place)
        if time is None:
            time = times[place] = LayerTime(record.hook, record.layer, record.place)
        return time
