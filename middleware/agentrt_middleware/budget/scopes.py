"""The scopes of a call: its reply, its conversation and owner, and those above."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentrt.agent import Run
from agentrt.errors import BudgetExceeded
from agentrt.hooks import MiddlewareBase
from agentrt_middleware.budget.account import Ledger
from agentrt_middleware.budget.admission import AdmittedCall
from agentrt_middleware.budget.limits import Amounts, Budget, Excess, find_near, limits_for, raised, without
from agentrt_middleware.budget.owners import OwnerAccounts, StoreFailure
from agentrt_middleware.budget.report import BudgetRefusal

OwnerId = str | Callable[[Any], str]
"""The owner of the budget: a str, or a function of the agent that returns one."""

_KEPT_NAMES = 16  # announced accounts of owners that a conversation remembers


class _InvalidOwner(TypeError):
    """The function of owners returned something other than a str, or an empty one."""


class Scopes:
    """All scopes of the replies with the layer, and the spending of calls from them."""

    def __init__(
        self,
        layer: MiddlewareBase,
        ledger: Ledger,
        owner: Budget | None,
        owner_id: OwnerId | None,
        owners: OwnerAccounts | None,
    ) -> None:
        self._layer = layer
        self.ledger = ledger
        self._owner_limits: Amounts = {} if owner is None else owner.limits
        self._owner_id = owner_id
        self.owners = owners

    async def admit(self, run: Run, kind: str, amounts: Amounts) -> AdmittedCall | BudgetRefusal:
        """Reserve the amounts in all scopes for a call of that kind, or return the refusing scope."""
        runs = self.ledger.runs(run)
        granted: dict[str, Amounts] = {}
        call = AdmittedCall(self._layer, amounts, self.ledger, self.owners, granted)
        try:
            refusal = await self._reserve_of_owners(runs, kind, amounts, granted)
            if refusal is None:
                # Last, since there must be no await between this and the call.
                accounts = self.ledger.accounts(runs)  # another reply may have started by now, with a new account
                excess = self.ledger.reserve(accounts, kind, amounts)
                if excess is None:
                    call.accounts = accounts
                    return call
                refusal = BudgetRefusal(excess[0].scope, excess[0].run, excess[1])
        except BaseException:
            await call.close()  # returns the reserves of some owners
            raise
        await call.close()
        return refusal

    async def _reserve_of_owners(
        self, runs: Sequence[Run], kind: str, amounts: Amounts, granted: dict[str, Amounts]
    ) -> BudgetRefusal | None:
        if self.owners is None:
            return None
        limits = limits_for(self._owner_limits, kind)
        for account, run in self._owner_accounts(runs).items():
            try:
                excess, spent = await self.owners.reserve(account, limits, amounts)
            except StoreFailure as failure:
                raise BudgetExceeded(
                    f"no call begins, since it is not known what its owner has spent: {failure}; "
                    f'on_store_error="open" would let it begin',
                    scope="owner",
                    reply_id=run.id,
                ) from None
            if excess is not None:
                return BudgetRefusal("owner", run, excess)
            granted[account] = spent
        return None

    def count(self, run: Run, amounts: Amounts) -> None:
        """Count the spending of the reply."""
        runs = self.ledger.runs(run)
        self.ledger.add(self.ledger.accounts(runs), amounts)
        if self.owners is not None:
            for account in self._owner_accounts(runs):
                self.owners.add(account, amounts)

    def end_work(self, run: Run) -> None:
        """Count the seconds of an ended call, without overlaps with other calls."""
        counted: set[str] = set()
        for one in self.ledger.runs(run):
            seconds = {"seconds": self.ledger.work_time(one).end()}
            self.ledger.add(self.ledger.accounts([one]), seconds)
            if self.owners is not None:
                # The seconds of a sub-agent are part of those of the reply above.
                for account in self._owner_accounts([one]).keys() - counted:
                    self.owners.add(account, seconds)
                    counted.add(account)

    async def tell_stores(self) -> None:
        """Report the spending to the store of the owners."""
        if self.owners is not None:
            await self.owners.tell()

    async def raise_limit(self, refusal: BudgetRefusal, amount: float) -> None:
        """Raise the limit that has refused a call."""
        run, counter = refusal.run, refusal.excess.counter
        if refusal.scope != "owner":
            for account in self.ledger.accounts([run]):
                if account.scope == refusal.scope:
                    account.raise_limit(counter, amount)
        elif self.owners is not None:
            self.owners.add(self.owners.account_of(self._owner_of(run)), {raised(counter): amount})
            await self.owners.tell()

    def near_limits(self, run: Run, call: AdmittedCall, share: float) -> Iterator[tuple[str, Excess]]:
        """Yield each of the reply's own scopes whose share is spent, not counting this call; only once."""
        for account in call.accounts:
            if account.run == run and not account.record.get("warned"):
                near = find_near(account.limits, without(account.spent(), call.amounts), share)
                if near is not None:
                    account.record["warned"] = True
                    yield account.scope, near
        if self.owners is None:
            return
        announced = self.ledger.names(run, "announced")
        for name, owned in self._owner_accounts(self.ledger.runs(run)).items():
            # A reply above announces its own.
            if owned == run and name not in announced:
                near = find_near(self._owner_limits, call.owner_accounts.get(name, {}), share)
                if near is not None:
                    announced[:] = [*announced[-_KEPT_NAMES:], name]
                    yield "owner", near

    def _owner_accounts(self, runs: Sequence[Run]) -> dict[str, Run]:
        """Return the accounts of the owners of these replies, each with the owner's outermost reply.

        A replay has none, since it spends nothing.
        """
        accounts: dict[str, Run] = {}
        if self.owners is not None:
            for run in runs:
                if run.is_replay:
                    continue
                accounts.setdefault(self.owners.account_of(self._owner_of(run)), run)
        return accounts

    def identify(self, agent: Any) -> dict[str, str]:
        """Return the owner who pays for a new reply; raises `TypeError` for an invalid one."""
        if self.owners is None or self._owner_id is None:
            return {}
        owner: object = self._owner_id if isinstance(self._owner_id, str) else self._owner_id(agent)
        if not isinstance(owner, str) or not owner:
            raise _InvalidOwner
        return {"owner": owner}

    def _owner_of(self, run: Run) -> str:
        if isinstance(self._owner_id, str):
            return self._owner_id
        try:
            return run.identity(self._layer)["owner"]
        except _InvalidOwner:
            problem = "returned something other than a str, or an empty one"
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            problem = f"raised {type(error).__name__}"
        raise BudgetExceeded(
            f"no call begins, since BudgetMiddleware(owner_id=...) {problem}, so that its owner is not known",
            scope="owner",
            reply_id=run.id,
        )
