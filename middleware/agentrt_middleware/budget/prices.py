"""The cost of a call, for budgets: it must be known before the call."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from agentrt.errors import ConfigError, MiddlewareConfigError
from agentrt.model import ChatModelBase, ChatUsage
from agentrt.model.catalog.rates import CostOfCall, check_price_table, cost_at
from agentrt_middleware.budget.limits import MAX_AMOUNT
from agentrt_middleware.usage.genai_prices import genai_prices

Prices = str | Mapping[str, Sequence[float]] | CostOfCall
"""Prices: "genai", a table as `UsageMiddleware` takes it, or a function of a model and a `ChatUsage`."""

_OPTION = "BudgetMiddleware(prices=...)"
_ANY_USAGE = ChatUsage(1_000, 1_000)


class CallPrices:
    """The cost of calls, by prices that may not cover every model."""

    def __init__(self, prices: object) -> None:
        self._table = check_price_table(_OPTION, prices) if isinstance(prices, Mapping) else None
        self._cost_of: Any = None
        self._known: set[Hashable] = set()
        if prices == "genai":
            try:
                self._cost_of = genai_prices()
            except ConfigError as error:  # the package is missing
                raise MiddlewareConfigError(f'BudgetMiddleware(prices="genai"): {error}') from error
        elif callable(prices) and not isinstance(prices, type):
            self._cost_of = prices
        elif self._table is None:
            raise MiddlewareConfigError(
                f'{_OPTION} must be "genai", a dict of prices for a million tokens, or a function of a model and a '
                f"ChatUsage, not {prices!r:.200}"
            )

    def covers(self, model: ChatModelBase) -> bool:
        """Say whether the model has a price; checked once for each that has one, since finding prices may be slow."""
        key = (type(model), model.account, model.model)
        if key not in self._known and self.cost(model, _ANY_USAGE) is not None:
            self._known.add(key)
        return key in self._known

    def cost(self, model: ChatModelBase, usage: ChatUsage) -> float | None:
        """Return the cost of a call, `None` if it has no price."""
        if self._table is not None:
            rates = self._table.get(model.model)
            cost = None if rates is None else cost_at(rates, usage)
        else:
            try:
                known: Any = self._cost_of(model, usage)  # may be a Decimal
                cost = None if known is None or isinstance(known, (bool, str)) else float(known)
            except Exception:  # noqa: BLE001  # a function of the user's own, which may raise anything
                return None
        # More than any limit is a mistake, and its sum could not be stored.
        return cost if cost is not None and 0 <= cost <= MAX_AMOUNT else None
