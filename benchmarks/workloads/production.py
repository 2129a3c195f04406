"""What most services have around their agents: seven layers, all at work, and a store on disk."""

import io
import logging
from collections.abc import Callable

from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    LoggingMiddleware,
    RateLimitMiddleware,
    RedactionMiddleware,
    RetryMiddleware,
    UsageMiddleware,
)
from benchmarks.workloads.script import Workload
from benchmarks.workloads.shipped import make_tracing
from benchmarks.workloads.stores import STORES

__all__ = ["in_production"]


class _Discard(io.TextIOBase):
    """Takes what is logged; an open file would be closed by nobody."""

    def write(self, text: str) -> int:
        return len(text)


_nowhere = logging.StreamHandler(_Discard())


def in_production(make: Callable[..., Workload], *, reads: bool = False, saves: bool = False) -> Workload:
    """Return the workload within layers that record, log, redact and count everything, and stop nothing."""
    logger = logging.Logger("benchmarks", logging.INFO)
    logger.addHandler(_nowhere)
    layers = [
        make_tracing(samples=True),
        LoggingMiddleware(logger),
        BudgetMiddleware(conversation=Budget(tokens=1e12)),
        RedactionMiddleware(),
        UsageMiddleware(),
        RetryMiddleware(),
        RateLimitMiddleware(requests_per_minute=1e9, tokens_per_minute=1e9),
    ]
    # A save has reached the disk when it returns.
    return make(within=layers, store=STORES["SQLiteStore"]() if saves else None, reads=reads)
