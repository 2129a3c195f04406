"""What a client sees when a request fails: a code and a sentence of ours, never an exception's words."""

import logging
from collections.abc import Mapping
from typing import Any

from agentrt.errors import AgentRTError, UsageError

__all__ = ["ApiError", "as_api_error", "failure_body"]

_logger = logging.getLogger("agentrt")


class ApiError(Exception):
    """A request that is refused, with the status and the body that say so."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = failure_body(code, message, details)
        self.headers = dict(headers or {})


def failure_body(code: str, message: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON of a failure; `details` are further fields beside its code and message."""
    return {"error": {"code": code, "message": message, **(details or {})}}


def as_api_error(error: AgentRTError | ApiError, what: str) -> ApiError:
    """Return what a client sees where a reply cannot be followed to its end; `what` is for the log."""
    if isinstance(error, ApiError):
        return error
    # The runner raises this when it was closed, and every other error is the store's.
    if isinstance(error, UsageError):
        return ApiError(503, "closed", "this server stops: the reply continues in the next one")
    _logger.warning("%s failed: %s", what, type(error).__name__)
    return ApiError(503, "store", "the store of the sessions does not answer")
