"""Describes in words how long a layer waits, and why."""

from collections.abc import Mapping

from agentrt.event import CustomEvent

_SECONDS_PER_MINUTE = 60
_LIMITS_IN_WORDS = {
    "max_concurrency": "for the end of another call (max_concurrency)",
    "min_interval": "for the limit min_interval",
    "requests_per_minute": "for the limit of requests per minute",
    "retry_after": "since the provider asked for a pause",
    "tokens_per_minute": "for the limit of tokens per minute",
    "turn": "for the calls before this one",
}


def describe_wait(event: CustomEvent) -> str | None:
    """Return the wait that `RateLimitMiddleware` or `ToolRetryMiddleware` announces, `None` for any other event."""
    value = event.value
    # Any layer may use this name, with any value.
    if not isinstance(value, Mapping) or not isinstance(seconds := value.get("wait_seconds"), (int, float)):
        return None
    reason = value.get("reason")
    if event.name == "rate_limit_wait" and isinstance(reason, str):
        ahead = value.get("ahead")
        queue = f"; {ahead} {'call is' if ahead == 1 else 'calls are'} before it" if ahead else ""
        purpose = _LIMITS_IN_WORDS.get(reason, f"for the limit {reason}")
        # 0 if the time is unknown.
        length = f"at least {_describe_seconds(seconds)} " if seconds else ""
        return f"{length}{purpose}{queue}"
    if event.name == "tool_retry":
        return f"{_describe_seconds(seconds)} before {value.get('tool_name')} is called again ({reason})"
    return None


def _describe_seconds(seconds: float) -> str:
    if seconds < _SECONDS_PER_MINUTE:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), _SECONDS_PER_MINUTE)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
