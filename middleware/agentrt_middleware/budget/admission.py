"""One admitted call, and its reserve."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace

from agentrt.model import ChatResponse
from agentrt_middleware.attempts import close, is_readable
from agentrt_middleware.budget.account import Account, Ledger
from agentrt_middleware.budget.limits import ESTIMATED, Amounts
from agentrt_middleware.budget.owners import OwnerAccounts

current_calls: ContextVar[tuple["AdmittedCall", ...]] = ContextVar("agentrt_budget_calls", default=())
"""The model calls of the current task without an answer yet."""


class AdmittedCall:
    """An admitted call, with its reserve in the accounts of its reply and those above."""

    __slots__ = ("_is_closed", "_is_sent", "_ledger", "_owners", "accounts", "amounts", "layer", "owner_accounts")

    def __init__(
        self,
        layer: object,
        amounts: Amounts,
        ledger: Ledger,
        owners: OwnerAccounts | None,
        owner_accounts: Mapping[str, Amounts],
    ) -> None:
        self.layer = layer
        self.amounts = amounts
        self.accounts: Sequence[Account] = ()
        self.owner_accounts = owner_accounts  # with the spending of each before, from the store
        self._ledger = ledger
        self._owners = owners
        self._is_sent = self._is_closed = False

    @property
    def must_be_closed(self) -> bool:
        """Whether a reserve is still to be returned, or a store to be informed."""
        return not self._is_sent or bool(self.owner_accounts) or len(self.amounts) > 1

    def send(self) -> bool:
        """Record a request to the model; returns whether it is the first, which the call has already counted."""
        is_first, self._is_sent = not self._is_sent, True
        return is_first

    async def close(self) -> None:
        """Return the unused reserve, and report the spending to the store; only the first call has an effect."""
        if self._is_closed:
            return
        self._is_closed = True
        # The usage is counted by now, so the estimate is no longer needed.
        unused = {
            counter: -amount for counter, amount in self.amounts.items() if counter in ESTIMATED or not self._is_sent
        }
        self._ledger.give_back(self.accounts, unused)
        if self._owners is not None:
            for account in self.owner_accounts:
                self._owners.add(account, unused)
            await self._owners.tell()


class AdmittedStream:
    """The stream of an admitted call.

    A class, since a generator that is closed before its first item runs none of its code.
    """

    __slots__ = ("_call", "_is_hinted", "_stream")

    def __init__(self, stream: AsyncIterator[ChatResponse], call: AdmittedCall, *, is_hinted: bool) -> None:
        self._stream = stream
        self._call = call
        self._is_hinted = is_hinted

    def __aiter__(self) -> "AdmittedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        try:
            piece = await anext(self._stream)
        except BaseException:
            await self._call.close()
            raise
        return without_store(piece) if self._is_hinted and is_readable(piece) else piece

    async def aclose(self) -> None:
        try:
            await close(self._stream)
        finally:
            await self._call.close()


def without_store(response: ChatResponse) -> ChatResponse:
    """Return the response marked as not cacheable, since it answers more than the request."""
    return replace(response, metadata={**(response.metadata or {}), "no_store": True})
