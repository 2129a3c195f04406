"""Restarts of a failed worker, after growing delays."""

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from traceback import walk_tb

import anyio

from agentrt._runtime.text import first_error
from agentrt.errors import AgentRTError, ConfigError, UsageError

_logger = logging.getLogger("agentrt")
_RESTART_SECONDS = 1.0
_MAX_RESTART_SECONDS = 60.0


class Supervisor:
    """Runs a worker until it returns, and restarts it when it fails.

    `failure` is the reason that it is down, or `None`. It names the class of the error alone, as the message may quote
    a secret.
    """

    def __init__(self) -> None:
        self.failure: str | None = None

    async def run(self, name: str, work: Callable[[], Awaitable[None]], stopping: anyio.Event) -> None:
        """Call `work` until it returns or `stopping` is set; after a failure again in 1, 2, 4, ... 60 seconds.

        Raises `ConfigError` and `UsageError`, which a restart cannot fix, and errors that occur while it stops.
        """
        self.failure, delay = None, _RESTART_SECONDS
        while True:
            started_at = monotonic()
            try:
                await work()
                return
            except Exception as error:
                cause = first_error(error)
                self.failure = f"the worker failed: {type(cause).__name__}"
                if stopping.is_set() or isinstance(cause, (ConfigError, UsageError)):
                    raise
                # It worked for a while, so this is a new failure.
                if monotonic() - started_at > _MAX_RESTART_SECONDS:
                    delay = _RESTART_SECONDS
                _logger.error("%s failed and restarts in %g s: %s", name, delay, _log_text(cause))
            await _wait(delay, stopping)
            if stopping.is_set():
                return
            delay = min(2 * delay, _MAX_RESTART_SECONDS)

    def note_work(self) -> None:
        """Note that the worker works, or one in another process does."""
        self.failure = None


async def _wait(seconds: float, stopping: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await stopping.wait()


def _log_text(error: BaseException) -> str:
    """Return the class of the error and its place in the code; the message only of our own errors."""
    if isinstance(error, AgentRTError):
        return f"{type(error).__name__}: {error}"
    frames = list(walk_tb(error.__traceback__))
    if not frames:
        return type(error).__name__
    frame, line = frames[-1]
    return f"{type(error).__name__} at {frame.f_globals.get('__name__')}:{line}"
