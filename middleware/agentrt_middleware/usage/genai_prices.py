"""The published prices of models, from the package genai-prices."""

import logging
from urllib.parse import urlsplit

from agentrt.errors import ConfigError
from agentrt.model import ChatModelBase, ChatUsage, PublishedPrices
from agentrt.model.catalog.prices import load_prices
from agentrt.model.catalog.rates import CostOfCall

_logger = logging.getLogger("agentrt")


def genai_prices() -> CostOfCall:
    """Return a function for `UsageMiddleware(cost_of=...)`: the cost of a call in US dollars, by genai-prices.

    The prices come from the installed package: nothing is fetched. They are found by the address of the model's
    server, or else by `model.provider`; prices in the model's `capabilities` win. An unknown price
    gives `None`, and is logged once for each model. Raises `ConfigError` if the package is missing.
    """
    try:
        load_prices()  # loaded now: it takes most of a second, which should not delay a reply
    except ImportError as error:
        raise ConfigError('genai_prices() needs the package genai-prices: pip install "agentrt[prices]"') from error
    unknown: set[str] = set()

    def cost_of(model: ChatModelBase, usage: ChatUsage) -> float | None:
        url = getattr(model, "base_url", None)
        prices = model.capabilities.prices or PublishedPrices(model.model, url, model.provider)
        cost = prices.cost(usage)
        if cost is None and model.model not in unknown:
            unknown.add(model.model)
            place = urlsplit(url).hostname if url else model.provider
            _logger.warning(
                "genai-prices has no price for %r of %s: its cost is None; give UsageMiddleware prices={%r: ...}",
                model.model,
                place or f"an unknown provider (set {type(model).__name__}.provider)",
                model.model,
            )
        return cost

    return cost_of
