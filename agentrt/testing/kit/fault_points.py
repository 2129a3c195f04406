"""What goes wrong at one point of what the kit does: somebody is cancelled there, or something raises."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from agentrt.testing.kit.kit_agents import OnPoint
from agentrt.testing.kit.probe_layers import Outcomes
from agentrt.testing.kit.session import GivenUp, Rehearsal

__all__ = ["Hang", "cancel_at", "raising"]

_STEPS_TO_STOP = 30


class Hang:
    """Holds up whoever comes to a point first, until the cancellation, or else until it is let go."""

    def __init__(self, point: str) -> None:
        self.reached = anyio.Event()
        self.is_over = anyio.Event()
        self._point = point

    async def on_point(self, point: str) -> None:
        """Wait, if this is the point."""
        if point == self._point and not self.reached.is_set():
            self.reached.set()
            await self.is_over.wait()


async def cancel_at(rehearsal: Rehearsal, hang: Hang, outcomes: Outcomes, work: Callable[[], Awaitable[Any]]) -> None:
    """Do the work, cancel it where it hangs, and tell of the hook that did not let the cancellation through."""
    scope = anyio.CancelScope()

    async def do() -> None:
        try:
            with scope:
                await work()
        except GivenUp as error:
            rehearsal.tell(str(error))
        finally:
            hang.reached.set()

    async with anyio.create_task_group() as group:
        group.start_soon(do)
        await hang.reached.wait()
        outcomes.strike()
        scope.cancel()
        for _ in range(_STEPS_TO_STOP):  # a layer may shield what lies inside of it, and then that comes to its end
            await anyio.lowlevel.checkpoint()
        hang.is_over.set()
    _tell_who_swallowed_it(rehearsal, outcomes)


def _tell_who_swallowed_it(rehearsal: Rehearsal, outcomes: Outcomes) -> None:
    allowed = (anyio.get_cancelled_exc_class(), GeneratorExit)
    for hook, error in outcomes.seen:
        if not isinstance(error, allowed):
            became = "went on" if error is None else f"raised {type(error).__name__} in its place"
            rehearsal.tell(f"its {hook} swallowed the cancellation and {became}: let it through, with a bare `raise`")
            return


def raising(point: str, error: Exception) -> OnPoint:
    """Return what raises the error at that point, once."""
    left = [error]

    async def on_point(at: str) -> None:
        await anyio.lowlevel.checkpoint()
        if at == point and left:
            raise left.pop()

    return on_point
