"""Guards against a failing store: calls never wait long for it."""

import logging
from collections.abc import Awaitable, Callable
from math import inf
from time import monotonic
from typing import TypeVar

import anyio

from agentrt._runtime.text import first_error

_Reply = TypeVar("_Reply")
_logger = logging.getLogger("agentrt")
_TIMEOUT = 0.2  # seconds; a call must not wait long for a store that is down
_REST = 2.0  # seconds without requests after a failure of the store


class StoreGuard:
    """Asks a store with a limit of 0.2 s, pauses for 2 s after a failure, and logs once that it is down, or back.

    `store` names it in the log, `consequence` describes the behavior meanwhile, and `is_down` says whether the last
    question had no answer. `clock` must never go back.
    """

    def __init__(self, store: str, consequence: str, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self.consequence = consequence
        self._clock = clock
        self._down_until = -inf
        self.is_down = False

    @property
    def rest(self) -> float:
        """The seconds for which the store, which has just failed, is not asked."""
        return max(0.0, self._down_until - self._clock())

    @property
    def is_resting(self) -> bool:
        """Whether the store has just failed, and is paused."""
        return self.rest > 0

    async def ask(self, question: Callable[[], Awaitable[_Reply]]) -> tuple[_Reply] | None:
        """Return the store's answer in a tuple, or or `None`."""
        if self.is_resting:
            return None
        failure = ""
        # Outside the scope, which removes its cancellation from the errors of the store's task groups.
        try:
            with anyio.move_on_after(_TIMEOUT) as scope:
                answer = await question()
                if self.is_down:
                    self.is_down = False
                    _logger.warning("%s is back", self._store)
                return (answer,)
        except Exception as error:  # noqa: BLE001  # the boundary to the store, which may fail in any way
            failure = type(first_error(error)).__name__  # not its text, which may hold a password
        if scope.cancel_called:
            failure = "no answer in time"
        self._down_until = self._clock() + _REST
        if not self.is_down:
            self.is_down = True
            _logger.warning("%s failed (%s): until it is back, %s", self._store, failure, self.consequence)
        return None
