"""The published prices of models, from the package genai-prices."""

import logging
from urllib.parse import urlsplit

from agentrt.errors import ConfigError
from agentrt.model import ChatModelBase, ChatUsage, PublishedPrices
from agentrt.model.catalog.prices import load_prices
from agentrt_middleware.usage.prices import CostOfCall

__all__ = ["genai_prices"]

_logger = logging.getLogger("agentrt")


def genai_prices() -> CostOfCall:
    """Return a function for `UsageMiddleware(cost_of=...)`: what a call costs in US dollars, as genai-prices has it.

    The prices are those in the installed package: nothing is fetched. They are found by the address of the model's
    server, or else by `model.provider`; prices that a model was given in its `capabilities` win. What is not known
    costs `None`, and is logged once for each model. Raises `ConfigError` where the package is missing.
    """
    try:
        load_prices()  # here, and now: it takes most of a second, which should not pass inside of a reply
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
