"""The prices of model calls: a table, or a function."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from math import inf

from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt.errors import MiddlewareConfigError
from agentrt.types import ChatUsage

CostOfCall = Callable[[ChatModelBase, ChatUsage], float | Decimal | None]
"""Returns the cost of one call of the model, `None` if unknown."""
Rates = tuple[float, float, float]
"""Prices of a million tokens: input, output, cached input."""

_TOKENS_PER_PRICE = 1_000_000


def check_price_table(option: str, prices: object) -> dict[str, Rates]:
    """Return a table of prices with all three for each model; raises `MiddlewareConfigError` for anything else."""
    if not isinstance(prices, Mapping):
        raise MiddlewareConfigError(
            f"{option} must be a dict, not {prices!r:.200}: write prices={{'gpt-5-mini': (input, output)}}, for a "
            f"million tokens"
        )
    table: dict[str, Rates] = {}
    for name, price in prices.items():
        if not isinstance(price, (list, tuple)) or len(price) not in (2, 3):
            raise MiddlewareConfigError(
                f"{option} has {price!r:.200} for {name!r}: give (input, output) or (input, output, cached input), for "
                f"a million tokens"
            )
        for rate in price:
            if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < inf:
                raise MiddlewareConfigError(f"{option} for {name!r} must be a number, 0 or more, not {rate!r:.100}")
        table[name] = (price[0], price[1], price[2] if len(price) == 3 else price[0])
    return table


def cost_at(rates: Rates, tokens: ChatUsage) -> float:
    """Return the cost of the tokens at these prices."""
    # The input includes the cached tokens; a server that reports more of these must not make the rest negative.
    cached = min(tokens.cache_input_tokens, tokens.input_tokens)
    counts = (tokens.input_tokens - cached, tokens.output_tokens, cached)
    return sum(count * rate for count, rate in zip(counts, rates, strict=True)) / _TOKENS_PER_PRICE
