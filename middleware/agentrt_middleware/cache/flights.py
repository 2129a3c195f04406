"""Single flight: of equal calls in progress one asks, and the others wait for its answer."""

from anyio import Event, move_on_after
from anyio.lowlevel import RunVar

__all__ = ["Flights", "Lead"]

_Waiting = dict["_Waiter", None]  # in the order in which they came


class _Waiter:
    """A call that waits: for the answer, or to take the lead; with neither it asks alone."""

    __slots__ = ("event", "outcome")

    def __init__(self) -> None:
        self.event = Event()
        self.outcome: Lead | str | None = None

    def wake(self, outcome: "Lead | str | None") -> None:
        self.outcome = outcome
        self.event.set()


class Lead:
    """The duty to ask for all equal calls; it ends in one of three ways, and only the first counts."""

    __slots__ = ("_flights", "_is_over", "_key", "_waiting")

    def __init__(self, flights: dict[str, _Waiting], key: str, waiting: _Waiting) -> None:
        self._flights = flights
        self._key = key
        self._waiting = waiting
        self._is_over = False

    def share(self, answer: str) -> None:
        """Give the answer to all that wait."""
        self._end(answer)

    def dissolve(self) -> None:
        """Let each that waits ask for itself: there is an answer, but not one for others."""
        self._end(None)

    def leave(self) -> None:
        """Let the first that waits take the lead, as no answer came."""
        if self._is_over:
            return
        if not self._waiting:
            self._end(None)
            return
        self._is_over = True
        successor = next(iter(self._waiting))
        del self._waiting[successor]
        successor.wake(Lead(self._flights, self._key, self._waiting))

    def _end(self, answer: str | None) -> None:
        if not self._is_over:
            self._is_over = True
            del self._flights[self._key]
            for waiter in self._waiting:
                waiter.wake(answer)


class Flights:
    """The calls in progress, by their keys; those of each event loop apart, since no event wakes another loop."""

    def __init__(self) -> None:
        self._of_loop: RunVar[dict[str, _Waiting]] = RunVar("agentrt_cache_flights")

    async def join(self, key: str, patience: float) -> Lead | str | None:
        """Return the lead of a new flight, or wait for the answer of an equal call, at most `patience` seconds.

        The wait may also end with the lead, or with `None`: then the caller asks for itself alone.
        """
        # From here to the new lead nothing waits, so two equal calls cannot both find no flight.
        flights = self._of_loop.get({})
        self._of_loop.set(flights)
        waiting = flights.get(key)
        if waiting is None:
            waiting = flights[key] = {}
            return Lead(flights, key, waiting)
        waiter = _Waiter()
        waiting[waiter] = None
        try:
            with move_on_after(patience):
                await waiter.event.wait()
        except BaseException:
            if isinstance(waiter.outcome, Lead):  # it came together with the cancellation
                waiter.outcome.leave()
            raise
        finally:
            waiting.pop(waiter, None)
        return waiter.outcome
