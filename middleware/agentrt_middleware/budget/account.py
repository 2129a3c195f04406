"""Accounts of the spending of replies and conversations, in the saved data of conversations."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentrt.agent import Run
from agentrt.errors import SessionCorrupt
from agentrt_middleware.budget.limits import (
    ESTIMATED,
    Amounts,
    Budget,
    Excess,
    add_amounts,
    find_excess,
    is_amounts,
    limits_for,
    raised,
)
from agentrt_middleware.stores.lock import HasLock


class Account:
    """The spending and the budget of one reply or conversation; `record` is part of the conversation's saved data.

    `estimates` are those of calls in progress, and are not saved: nobody would return them if the process were killed.
    """

    __slots__ = ("estimates", "limits", "record", "run", "scope", "seconds_at_work")

    def __init__(
        self,
        scope: str,
        run: Run,
        limits: Amounts,
        data: dict[str, Any],
        estimates: dict[str, float],
        seconds_at_work: Callable[[], float],
    ) -> None:
        record = data.setdefault(scope, {})
        # Saved data may be damaged, or written by anyone.
        if not is_amounts(record):
            raise SessionCorrupt(
                f"the saved conversation says that its {scope} has spent {record!r:.200}, which cannot be: its budget "
                f"is not known"
            )
        self.scope = scope
        self.run = run
        self.limits = limits
        self.record: dict[str, Any] = record
        self.estimates = estimates
        self.seconds_at_work = seconds_at_work

    def spent(self) -> Amounts:
        """Return the spending, including the estimates of calls in progress and the seconds of running work."""
        if "seconds" not in self.limits and not self.estimates:
            return self.record
        spent = {**self.record, "seconds": self.record.get("seconds", 0.0) + self.seconds_at_work()}
        for counter, amount in self.estimates.items():
            spent[counter] = spent.get(counter, 0.0) + amount
        return spent

    def excess(self, limits: Amounts, amounts: Amounts) -> Excess | None:
        """Return the limit that does not allow the amounts."""
        return find_excess(limits, self.spent(), amounts)

    def add(self, amounts: Amounts) -> None:
        """Count spending."""
        add_amounts(self.record, amounts)

    def reserve(self, amounts: Amounts) -> None:
        """Reserve the amounts of a call that is about to start; negative amounts return a reserve."""
        add_amounts(self.record, {counter: amount for counter, amount in amounts.items() if counter not in ESTIMATED})
        add_amounts(self.estimates, {counter: amount for counter, amount in amounts.items() if counter in ESTIMATED})

    def raise_limit(self, counter: str, amount: float) -> None:
        """Raise a limit, which may then cause a warning again."""
        self.add({raised(counter): amount})
        self.record.pop("warned", None)


class WorkTime:
    """The working time of models and tools for a reply: parallel work counts once, waiting does not count.

    It is kept in the data of one reply, `scratch`, and so starts at 0 when a reply is resumed.
    """

    __slots__ = ("_clock", "_data")

    def __init__(self, scratch: dict[str, Any], clock: Callable[[], float]) -> None:
        self._data = scratch
        self._clock = clock

    def begin(self) -> None:
        """Record the start of a call."""
        at_work = self._data.get("at_work", 0)
        if not at_work:  # otherwise the clock is already running
            self._data["since"] = self._clock()
        self._data["at_work"] = at_work + 1

    def end(self) -> float:
        """Record the end of a call; if it was the last, returns the uncounted seconds of work."""
        at_work = self._data.get("at_work", 0)
        if not at_work:  # it started in a reply that is over
            return 0.0
        seconds = self.elapsed() if at_work == 1 else 0.0
        self._data["at_work"] = at_work - 1
        return seconds

    def elapsed(self) -> float:
        """Return the seconds of the work in progress."""
        return max(0.0, self._clock() - self._data["since"]) if self._data.get("at_work") else 0.0


class Ledger(HasLock):
    """The accounts of replies and conversations with the layer, including the spending of their sub-agents."""

    def __init__(
        self, layer: object, reply: Budget | None, conversation: Budget | None, clock: Callable[[], float]
    ) -> None:
        super().__init__()
        self._layer = layer
        self._limits = {
            scope: budget.limits
            for scope, budget in (("conversation", conversation), ("reply", reply))
            if budget is not None
        }
        self._clock = clock

    def runs(self, run: Run) -> Sequence[Run]:
        """Return this reply and the replies that it works for, outermost first, as far as they have the layer."""
        runs: list[Run] = []
        current: Run | None = run
        while current is not None:
            if any(layer is self._layer for layer in current.agent.middlewares):
                runs.append(current)
            current = current.parent
        runs.reverse()
        return runs

    def data(self, run: Run) -> dict[str, Any]:
        """Return the layer's saved data of the conversation, with the data of this reply in it."""
        data: dict[str, Any] = run.agent.state_of(self._layer)
        # By its id: a parked reply that is resumed, maybe in another process, keeps its spending.
        if data.get("reply_id") != run.id and not (run.ended and "reply_id" in data):
            data.update(reply_id=run.id, reply={}, entered=[])
            data.pop("stopped", None)
        return data

    def names(self, run: Run, key: str) -> list[str]:
        """Return a list of names in the saved data."""
        data = self.data(run)
        if not isinstance(data.get(key), list):  # damaged: then a call counts again, or a warning is repeated
            data[key] = []
        names: list[str] = data[key]
        return names

    def accounts(self, runs: Sequence[Run]) -> list[Account]:
        """Return the accounts of these replies and of their conversations, outermost first."""
        accounts: list[Account] = []
        for run in runs:
            data = self.data(run)
            for scope, limits in self._limits.items():
                # An ended reply left a task behind, and another reply may be counted by now.
                if scope == "conversation" or data["reply_id"] == run.id:
                    estimates = run.scratch(self._layer).setdefault("estimates", {}).setdefault(scope, {})
                    accounts.append(Account(scope, run, limits, data, estimates, self.work_time(run).elapsed))
        return accounts

    def begin_work(self, run: Run) -> None:
        """Record that a model or a tool starts to work for the reply, and so for those above it."""
        for one in self.runs(run):
            self.work_time(one).begin()

    def work_time(self, run: Run) -> WorkTime:
        """Return the working time of the reply."""
        return WorkTime(run.scratch(self._layer), self._clock)

    def reserve(self, accounts: Sequence[Account], call: str, amounts: Amounts) -> tuple[Account, Excess] | None:
        """Count the amounts in all of the accounts, or return the first one that does not allow them."""
        with self.lock:
            for account in accounts:
                excess = account.excess(limits_for(account.limits, call), amounts)
                if excess is not None:
                    return account, excess
            for account in accounts:
                account.reserve(amounts)
        return None

    def give_back(self, accounts: Iterable[Account], amounts: Amounts) -> None:
        """Return a reserve, as negative amounts."""
        with self.lock:
            for account in accounts:
                account.reserve(amounts)

    def add(self, accounts: Iterable[Account], amounts: Amounts) -> None:
        """Count spending."""
        with self.lock:
            for account in accounts:
                account.add(amounts)
