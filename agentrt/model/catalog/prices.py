"""The published prices of models, from the package genai-prices, which is the extra `prices`."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentrt._runtime.model_interface.capabilities import TokenPrices
from agentrt.types import ChatUsage


def load_prices() -> Any:
    """Return the package; raises `ImportError` where it is missing. It takes most of a second the first time."""
    # Imported here, since it is an extra, and slow.
    import genai_prices
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()
    return genai_prices


@dataclass(frozen=True, slots=True)
class PublishedPrices:
    """The cost of a model's calls, by the data of genai-prices, which is loaded when needed and never fetched.

    Prices are found by the URL of the model's server, or else by the provider's name. Without the extra `prices`, and
    for a model that it does not list, nothing is known.
    """

    model: str
    url: str | None = None
    provider: str | None = None

    def cost(self, usage: ChatUsage) -> float | None:
        """Return the cost of a call with this usage in US dollars, `None` if unknown."""
        return self._cost_in(usage, {})

    def batch_cost(self, usage: ChatUsage) -> float | None:
        """Return the cost of a request in a batch, `None` if unknown: half, where no price of its own is published."""
        cost, batch_cost = self.cost(usage), self._cost_in(usage, {"processing": "batch"})
        return cost / 2 if cost is not None and batch_cost == cost else batch_cost

    def _cost_in(self, usage: ChatUsage, context: dict[str, str]) -> float | None:
        try:
            prices = load_prices()
        except ImportError:
            return None
        # The input includes the cached tokens; a server that reports more of these must not fail the sum.
        read = min(usage.cache_input_tokens, usage.input_tokens)
        counts = prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=read,
            cache_write_tokens=min(usage.cache_creation_input_tokens, usage.input_tokens - read),
        )
        source = {"provider_api_url": self.url} if self.url else {"provider_id": self.provider or "unknown"}
        name = self.model.rpartition("/")[2] if self.model.startswith("arn:") else self.model
        try:
            return float(prices.calc_price(counts, name, **source, price_context=context).total_price)
        except LookupError:
            return None

    @property
    def rates(self) -> TokenPrices | None:
        """The price of a million tokens in a short request, `None` if unknown."""
        # For short requests, since some models cost more above a certain length.
        costs = [self.cost(usage) for usage in (ChatUsage(1_000), ChatUsage(0, 1_000), ChatUsage(1_000, 0, 1_000))]
        known = [float(Decimal(str(cost)) * 1_000) for cost in costs if cost is not None]
        return TokenPrices(*known) if len(known) == len(costs) else None
