"""The response to a failed request: a code and a sentence of ours, never an exception's text."""

import logging
from collections.abc import Mapping
from typing import Any

from agentrt.errors import RunCorrupt, SessionCorrupt, SessionVersion, UsageError

_logger = logging.getLogger("agentrt")
_SOON = {"Retry-After": "1"}


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


def as_api_error(error: Exception, action: str) -> ApiError:
    """Return what a client sees of a failed store or runner; `action` is for the log."""
    if isinstance(error, ApiError):
        return error
    # The runner raises this when it was closed.
    if isinstance(error, UsageError):
        return ApiError(503, "closed", "this server is stopping: the next one continues the reply", headers=_SOON)
    if isinstance(error, (RunCorrupt, SessionCorrupt, SessionVersion)):
        _logger.error("%s failed: %s", action, error)
        message = "what is stored is damaged, or of a newer version: the log of this server says more"
        return ApiError(500, "unreadable", message)
    _logger.warning("%s failed: %s", action, type(error).__name__)
    return ApiError(503, "store", "the store of the sessions is unavailable: try again", headers=_SOON)
