"""Access to Redis, with the extra `redis`."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from agentrt._runtime.options import import_extra
from agentrt.errors import ConfigError, MiddlewareConfigError

_SCHEMES = ("redis://", "rediss://", "unix://")


def check_redis_url(owner: str, url: object, prefix: object = "") -> None:
    """Raise `ConfigError` for an invalid URL, or if the client package is missing.

    Likewise for a `prefix` of keys that is not a `str`.
    """
    import_extra(owner, "redis", "coredis", "retry")
    if not str(url).startswith(_SCHEMES):
        # Text before an "@" or after a "?" may be a password.
        shown_url = url.rpartition("@")[2].partition("?")[0] if isinstance(url, str) else url
        raise ConfigError(
            f"{owner}(url=...) must begin with one of {', '.join(_SCHEMES)}, not {shown_url!r:.200}: "
            f"write it in full, as in 'redis://localhost:6379'"
        )
    if not isinstance(prefix, str):
        raise MiddlewareConfigError(f"{owner}(prefix=...) must be a str, not {prefix!r:.200}")


def redis_client(owner: str, url: str) -> AbstractAsyncContextManager[Any]:
    """Return a client for one request, to be used in `async with`.

    One connection per request costs a millisecond. A pool of coredis would keep its connections in a task group, which
    belongs to the task that opened it, but a middleware serves many tasks and outlives them all.
    """
    coredis = import_extra(owner, "redis", "coredis", "retry")
    client: AbstractAsyncContextManager[Any] = coredis.Redis.from_url(
        url, decode_responses=True, verify_version=False, retry_policy=coredis.retry.NoRetryPolicy()
    )
    return client
