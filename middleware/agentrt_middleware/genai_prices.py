"""The published prices of models, from the package genai-prices."""

import logging
from urllib.parse import urlsplit

from agentrt.errors import ConfigError
from agentrt.model import ChatModelBase, ChatUsage
from agentrt_middleware.usage import CostOfCall

__all__ = ["genai_prices"]

_logger = logging.getLogger("agentrt")


def genai_prices() -> CostOfCall:
    """Return a function for `UsageMiddleware(cost_of=...)`: what a call costs in US dollars, as genai-prices has it.

    The prices are those in the installed package: nothing is fetched. They are found by the address of the model's
    server, or else by `model.provider`. What is not known costs `None`, and is logged once for each model. Raises
    `ConfigError` where the package is missing.
    """
    try:
        # Here, and now: it takes most of a second, which should not pass inside of a reply.
        from genai_prices import Usage, calc_price
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as error:
        raise ConfigError('genai_prices() needs the package genai-prices: pip install "agentrt[prices]"') from error
    get_snapshot()
    unknown: set[str] = set()

    def cost_of(model: ChatModelBase, usage: ChatUsage) -> float | None:
        url = getattr(model, "base_url", None)
        source = {"provider_api_url": url} if url else {"provider_id": model.provider or "unknown"}
        # The input includes the cached tokens; a server that reports more of these must not fail the sum.
        read = min(usage.cache_input_tokens, usage.input_tokens)
        written = min(usage.cache_creation_input_tokens, usage.input_tokens - read)
        counts = Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=read,
            cache_write_tokens=written,
        )
        try:
            return float(calc_price(counts, model.model, **source).total_price)
        except LookupError:
            place = urlsplit(url).hostname if url else model.provider
            if model.model not in unknown:
                unknown.add(model.model)
                _logger.warning(
                    "genai-prices has no price for %r of %s: its cost is None; give UsageMiddleware prices={%r: ...}",
                    model.model,
                    place or f"an unknown provider (set {type(model).__name__}.provider)",
                    model.model,
                )
            return None

    return cost_of
