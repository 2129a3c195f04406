"""The clock of a layer's own time, which stands while inner layers and the core work."""

import math
from collections.abc import Awaitable, Generator
from types import coroutine
from typing import Any, TypeVar

from anyio import CancelScope, current_time

_StepResult = TypeVar("_StepResult")


class OwnTime:
    """The seconds that one step of a layer has left, and the scope that ends the step when they are over.

    The scope gets its deadline only where the layer's own code suspends, as few layers do: a timer costs more than the
    scope. While inner layers work it has none, in whichever task the layer has called them.
    """

    __slots__ = ("_calls_inside", "_is_suspended", "_left", "_scope", "_since", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._scope: CancelScope | None = None
        self._left = seconds
        self._since = 0.0
        self._calls_inside = 0
        self._is_suspended = False

    def begin(self, scope: CancelScope) -> None:
        """Begin a step, which has all of the time, in its scope."""
        self._scope, self._left, self._since, self._is_suspended = scope, self.seconds, current_time(), False

    def end(self) -> None:
        """End the step: what the layer does from here on is not its own time."""
        self._scope = None

    def stop(self) -> None:
        """Stop the clock, since inner layers work."""
        self._calls_inside += 1
        if self._calls_inside == 1 and self._scope is not None:
            self._left -= current_time() - self._since
            if self._scope.deadline != math.inf:
                self._scope.deadline = math.inf

    def resume(self) -> None:
        """Start the clock again."""
        self._calls_inside -= 1
        if self._calls_inside == 0 and self._scope is not None:
            self._since = current_time()
            if self._is_suspended:  # the layer has called them in another task, and waits for that
                self._set_deadline()

    def suspend(self) -> None:
        """Note that the step waits for something."""
        self._is_suspended = True
        if not self._calls_inside and self._scope is not None and self._scope.deadline == math.inf:
            self._set_deadline()

    def wake(self) -> None:
        """Note that the step continues."""
        self._is_suspended = False

    def _set_deadline(self) -> None:
        assert self._scope is not None
        self._scope.deadline = self._since + self._left


@coroutine
def count_own_time(step: Awaitable[_StepResult], clock: OwnTime) -> Generator[Any, Any, _StepResult]:
    """Await a step of a layer, and count its time."""
    running: Any = step.__await__()
    try:
        waits_for = running.send(None)
        while True:
            clock.suspend()
            try:
                value = yield waits_for
            except GeneratorExit:  # its event loop is gone
                running.close()
                raise
            except BaseException as error:  # noqa: BLE001  # the step's, as if it were awaited here
                clock.wake()
                waits_for = running.throw(error)
            else:
                clock.wake()
                waits_for = running.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what the step returns
