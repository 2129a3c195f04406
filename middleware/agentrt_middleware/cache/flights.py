"""Single flight: one of several equal calls calls the model, and the others wait for its answer."""

from anyio import Event, move_on_after
from anyio.lowlevel import RunVar

from agentrt.agent import Run


class _Waiter:
    """A waiting call: it gets the answer, becomes the leader, or calls the model itself."""

    __slots__ = ("event", "outcome", "reply_id")

    def __init__(self, reply_id: str) -> None:
        self.reply_id = reply_id
        self.event = Event()
        self.outcome: Lead | str | None = None

    def wake(self, outcome: "Lead | str | None") -> None:
        self.outcome = outcome
        self.event.set()


class _Flight:
    """Equal calls in progress: the leader's reply, and the waiting calls in order of arrival."""

    __slots__ = ("leader", "waiting")

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.waiting: dict[_Waiter, None] = {}


class Lead:
    """The leader's duty to call for all equal calls; it ends in one of three ways, and only the first counts."""

    __slots__ = ("_flight", "_flights", "_is_over", "_key")

    def __init__(self, flights: dict[str, _Flight], key: str, flight: _Flight) -> None:
        self._flights = flights
        self._key = key
        self._flight = flight
        self._is_over = False

    def share(self, answer: str) -> None:
        """Give the answer to all waiting calls."""
        self._end(answer)

    def dissolve(self) -> None:
        """Let each waiting call proceed alone: the answer cannot be shared."""
        self._end(None)

    def leave(self) -> None:
        """Make the first waiting call the leader, since no answer came."""
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
    """The calls in progress, by their keys; separate for each event loop, since no event wakes another loop."""

    def __init__(self) -> None:
        self._of_loop: RunVar[dict[str, _Flight]] = RunVar("agentrt_cache_flights")

    async def join(self, key: str, patience: float, run: Run) -> Lead | str | None:
        """Return the lead of a new flight, or wait for the answer of an equal call, at most `patience` seconds.

        The wait may also end with the lead, or with `None`: then the caller proceeds alone. So does a call that is
        part of the call that it would wait for, such as a sub-agent that calls its own tool.
        """
        # Nothing is awaited from here to the new lead, so two equal calls cannot both find no flight.
        flights = self._of_loop.get({})
        self._of_loop.set(flights)
        flight = flights.get(key)
        if flight is None:
            flight = flights[key] = _Flight(run.id)
            return Lead(flights, key, flight)
        parent = run.parent
        while parent is not None and parent.id != flight.leader:
            parent = parent.parent
        if parent is not None:
            return None
        waiter = _Waiter(run.id)
        flight.waiting[waiter] = None
        try:
            with move_on_after(patience):
                await waiter.event.wait()
        except BaseException:
            if isinstance(waiter.outcome, Lead):  # granted at the same moment as the cancellation
                waiter.outcome.leave()
            raise
        finally:
            flight.waiting.pop(waiter, None)
        return waiter.outcome
