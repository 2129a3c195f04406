"""The budgets of owners: one account per owner and period, in a store that may be shared, and may fail."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

import anyio

from agentrt_middleware.budget.limits import Amounts, Budget, Excess, find_excess, is_amounts, without
from agentrt_middleware.budget.period import period_at
from agentrt_middleware.budget.stores import BudgetStore, MemoryBudgetStore
from agentrt_middleware.stores.guard import StoreGuard
from agentrt_middleware.stores.lock import HasLock

_logger = logging.getLogger("agentrt")
_TOLERATED_SETBACK = 60.0  # seconds: adjusted clocks may go back this far
_KEPT_LONGER = 86_400.0  # seconds: an account outlives its period, since a call may end late
_POLICIES = {"closed": "what owners may spend counts as used up", "open": "owners may spend what they like"}


class StoreFailure(Exception):
    """The spending of an owner is unknown."""


class OwnerAccounts(HasLock):
    """The spending of owners, in `store`; copies of a middleware share it.

    Reports that the store does not accept are kept, and repeated later.
    """

    def __init__(self, budget: Budget, store: BudgetStore, on_store_error: str, clock: Callable[[], float]) -> None:
        super().__init__()
        assert budget.per is not None
        self._per = budget.per
        self._store = store
        self._answers_at_once = type(store) is MemoryBudgetStore
        self._fails_open = on_store_error == "open"
        self._clock = clock
        self._latest = 0.0
        self._guard = StoreGuard(f"the {type(store).__name__} of a budget", _POLICIES[on_store_error])
        self._untold: dict[str, dict[str, float]] = {}
        self._warned: set[str] = set()

    def account_of(self, owner: str) -> str:
        """Return the name of the owner's account in this period."""
        name, _ = period_at(self._per, self._now())
        # Hashed, since a store's keys are visible where a customer's address does not belong.
        return f"{name}:{sha256(owner.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}"

    async def reserve(self, account: str, limits: Amounts, amounts: Amounts) -> tuple[Excess | None, Amounts]:
        """Count the amounts if the limits allow them; returns the refusing limit, and the spending before.

        Raises `StoreFailure` if the spending is unknown, unless owners are not limited meanwhile.
        """
        try:
            if self._clock() < self._latest - _TOLERATED_SETBACK:
                self._warn("clock", "the clock of a budget was set back, so that a period would be spent twice")
                raise StoreFailure("the clock was set back")
            await self.tell()
            answer = await self._reserve(account, limits, amounts)
            if answer is None:
                raise StoreFailure("the store failed")
            return self._check_answer(answer[0], limits, amounts)
        except StoreFailure:
            if not self._fails_open:
                raise
            self.add(account, amounts)  # this call is reported when it is back
            return None, {}

    def add(self, account: str, amounts: Amounts) -> None:
        """Count spending, or return a reserve; `tell` reports it to the store."""
        with self.lock:
            untold = self._untold.setdefault(account, {})
            for counter, amount in amounts.items():
                untold[counter] = untold.get(counter, 0.0) + amount

    async def tell(self) -> None:
        """Report spending to the store."""
        with self.lock:
            # Removed before any await, so that nothing is reported twice.
            untold, self._untold = self._untold, {}
        try:
            while untold and not self._guard.is_resting:  # without a request, nothing is counted
                account, amounts = untold.popitem()
                await self._settle(account, amounts)
        finally:
            for account, amounts in untold.items():
                self.add(account, amounts)

    async def _reserve(self, account: str, limits: Amounts, amounts: Amounts) -> tuple[Any] | None:
        """Return the store's answer to these amounts, in a tuple, or `None` if it fails."""
        answers: list[tuple[Any] | None] = []

        async def ask() -> None:
            answers.append(await self._guard.ask(partial(self._store.reserve, account, limits, amounts, self._ttl())))

        try:
            await self._to_the_end(ask)
        except BaseException:
            # The caller does not know the granted amounts, and so cannot return them.
            with suppress(Exception):  # an answer may be of any class, or missing
                if answers[0] is not None and answers[0][0][0] is True:
                    self.add(account, {counter: -amount for counter, amount in amounts.items()})
            raise
        return answers[0] if answers else None

    async def _settle(self, account: str, amounts: Amounts) -> None:
        """Report the spending of an account to the store; a failed report is kept."""

        async def ask() -> None:
            answer = None
            try:
                answer = await self._guard.ask(partial(self._store.settle, account, amounts, self._ttl()))
            finally:
                if answer is None:
                    # It may have been counted anyway. Spending rather twice than not at all; returns at most once.
                    self.add(account, {counter: amount for counter, amount in amounts.items() if amount > 0})

        await self._to_the_end(ask)

    async def _to_the_end(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Run a request to the store to its end, even for a cancelled caller, so that its outcome is known.

        The guard bounds the time.
        """

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                await ask()

        with anyio.CancelScope(shield=True):
            if self._answers_at_once:
                await ask()
                return
            # In a separate task, since asyncio's `task.cancel()` goes through shields.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)

    def _check_answer(self, answer: Any, limits: Amounts, amounts: Amounts) -> tuple[Excess | None, Amounts]:
        """Return the store's answer; raises `StoreFailure` for an invalid one."""
        with suppress(Exception):  # it may be an object of any class
            may_add, spent = answer
            if isinstance(may_add, bool) and is_amounts(spent):
                before = spent
                if may_add:
                    before = without(spent, amounts)
                    # After adding and subtracting, a float may be slightly larger than before.
                    limits = {name: limit * (1 + 1e-9 * (name in amounts)) for name, limit in limits.items()}
                excess = find_excess(limits, before, amounts)
                # Its answer and its counters must agree.
                if is_amounts(before) and may_add == (excess is None):
                    return excess, before
        self._warn("answer", f"{type(self._store).__name__} holds something that no budget has written")
        raise StoreFailure("the store is damaged")

    def _now(self) -> float:
        self._latest = max(self._latest, self._clock())  # never back into an earlier period
        return self._latest

    def _ttl(self) -> float:
        return period_at(self._per, self._now())[1] + _KEPT_LONGER

    def _warn(self, subject: str, problem: str) -> None:
        """Log a problem when it first occurs."""
        if subject not in self._warned:
            self._warned.add(subject)
            consequence = _POLICIES["open" if self._fails_open else "closed"]
            _logger.warning("%s: %s", problem, consequence)
