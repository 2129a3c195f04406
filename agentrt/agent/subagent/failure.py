"""Sub-agents that cannot be used, and delegations that fail.

Who registers one learns the error. A supervisor, and the log, learn its type and none of its words.
"""

import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable

import anyio

from agentrt.agent.delegation.outcome import failure_result
from agentrt.agent.subagent.spec import PermissionBundle
from agentrt.block import JSONObject
from agentrt.errors import ConfigError, SubAgentUnavailable
from agentrt.text import repr_of
from agentrt.types import FinishedReason, ToolResponse

__all__ = [
    "UnfinishedReply",
    "attribution",
    "failed_delegation",
    "require_health",
    "unavailable_if_failing",
]

_HEALTHCHECK_SECONDS = 30.0


class UnfinishedReply(Exception):
    """The reply of a sub-agent ended before it was complete."""

    def __init__(self, reason: FinishedReason) -> None:
        super().__init__(reason)
        self.reason = reason


def attribution(name: str, permissions: PermissionBundle) -> JSONObject:
    """Return the metadata of every result of a sub-agent: whose it is, and who asked."""
    return {"subagent": name, "supervisor": permissions.supervisor_name}


def failed_delegation(name: str, permissions: PermissionBundle, error: Exception | SystemExit) -> ToolResponse:
    """Return the result of a delegation that failed, and log one warning."""
    return failure_result(
        name,
        _kind_of(error),
        type(error).__name__,
        attribution(name, permissions),
        logger=permissions.logger,
        # Not the lines themselves, which a traceback has: they may hold what must not be logged.
        location="".join(
            f", raised at {frame.filename}:{frame.lineno} in {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)[-1:]
        ),
    )


def _kind_of(error: BaseException) -> str:
    # Of whatever limit it was: the supervisor may ask again, or ask for less.
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, SubAgentUnavailable):
        return "unavailable"
    if isinstance(error, UnfinishedReply):
        return error.reason.removeprefix("exceed_")
    return "error"


@contextmanager
def unavailable_if_failing(name: str, what: str) -> Iterator[None]:
    """Raise `SubAgentUnavailable` for an error, with that as its cause; a `ConfigError` says better what to do."""
    try:
        yield
    except (ConfigError, SubAgentUnavailable):
        raise
    except Exception as error:
        raise SubAgentUnavailable(f"the sub-agent {name!r} {what}: {type(error).__name__}: {error}") from error


async def require_health(name: str, check: Callable[[], Awaitable[bool]]) -> None:
    """Raise `SubAgentUnavailable` unless the check says yes, in time."""
    healthy: object = None
    with unavailable_if_failing(name, "could not be checked"), anyio.move_on_after(_HEALTHCHECK_SECONDS) as scope:
        healthy = check()
        if isawaitable(healthy):
            healthy = await healthy
    if scope.cancelled_caught:
        raise SubAgentUnavailable(f"the healthcheck of {name!r} gave no answer for {_HEALTHCHECK_SECONDS:g} seconds")
    if healthy is not True:
        raise SubAgentUnavailable(
            f"the sub-agent {name!r} is not healthy: its healthcheck returned {repr_of(healthy)} and not True"
        )
