"""Single flight: of equal calls in progress one asks, and the others wait for its answer."""

from anyio import Event, move_on_after
from anyio.lowlevel import RunVar

from agentrt.agent import Run

__all__ = ["Flights", "Lead"]


class _Waiter:
    """A call that waits: for the answer, or to take the lead; with neither it asks alone."""

    __slots__ = ("event", "outcome", "reply_id")

    def __init__(self, reply_id: str) -> None:
        self.reply_id = reply_id
        self.event = Event()
        self.outcome: Lead | str | None = None

    def wake(self, outcome: "Lead | str | None") -> None:
        self.outcome = outcome
        self.event.set()


class _Flight:
    """Equal calls in progress: the reply of the one that asks, and those that wait, in the order in which they came."""

    __slots__ = ("leader", "waiting")

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.waiting: dict[_Waiter, None] = {}


class Lead:
    """The duty to ask for all equal calls; it ends in one of three ways, and only the first counts."""

    __slots__ = ("_flight", "_flights", "_is_over", "_key")

    def __init__(self, flights: dict[str, _Flight], key: str, flight: _Flight) -> None:
        self._flights = flights
        self._key = key
        self._flight = flight
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
        waiting = self._flight.waiting
        if not waiting:
            self._end(None)
            return
        self._is_over = True
        successor = next(iter(waiting))
        del waiting[successor]
        self._flight.leader = successor.reply_id
        successor.wake(Lead(self._flights, self._key, self._flight))

    def _end(self, answer: str | None) -> None:
        if not self._is_over:
            self._is_over = True
            del self._flights[self._key]
            for waiter in self._flight.waiting:
                waiter.wake(answer)


class Flights:
    """The calls in progress, by their keys; those of each event loop apart, since no event wakes another loop."""

    def __init__(self) -> None:
        self._of_loop: RunVar[dict[str, _Flight]] = RunVar("agentrt_cache_flights")

    async def join(self, key: str, patience: float, run: Run) -> Lead | str | None:
        """Return the lead of a new flight, or wait for the answer of an equal call, at most `patience` seconds.

        The wait may also end with the lead, or with `None`: then the caller asks for itself alone. So does one that is
        part of the call that it would wait for, as where a sub-agent calls the tool that it works for.
        """
        # From here to the new lead nothing waits, so two equal calls cannot both find no flight.
        flights = self._of_loop.get({})
        self._of_loop.set(flights)
        flight = flights.get(key)
        if flight is None:
            flight = flights[key] = _Flight(run.id)
            return Lead(flights, key, flight)
        if _is_inside_of(run, flight.leader):
            return None
        waiter = _Waiter(run.id)
        flight.waiting[waiter] = None
        try:
            with move_on_after(patience):
                await waiter.event.wait()
        except BaseException:
            if isinstance(waiter.outcome, Lead):  # it came together with the cancellation
                waiter.outcome.leave()
            raise
        finally:
            flight.waiting.pop(waiter, None)
        return waiter.outcome


def _is_inside_of(run: Run, reply_id: str) -> bool:
    """Say whether a reply was asked for, directly or not, by a tool call of the other one."""
    parent = run.parent
    while parent is not None and parent.id != reply_id:
        parent = parent.parent
    return parent is not None
