"""A fault at one point of a conversation of the kit: a cancellation or an exception."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import anyio.lowlevel

from agentrt.hooks import MiddlewareBase
from agentrt.testing.kit.kit_agents import OnPoint
from agentrt.testing.kit.probe_layers import OutcomeProbe
from agentrt.testing.kit.session import KitConversation, KitRun, TimedOut

_STEPS_TO_UNWIND = 30  # of the event loop: enough for every layer to see the cancellation


class StartKitConversation(Protocol):
    """Starts a conversation with these layers; it awaits `on_point` at each of its points."""

    def __call__(self, layers: list[MiddlewareBase], *, on_point: OnPoint) -> KitConversation: ...


class PauseAt:
    """Pauses the first task that reaches a point, until it is cancelled or `is_over` is set."""

    def __init__(self, point: str) -> None:
        self.reached = anyio.Event()
        self.is_over = anyio.Event()
        self._point = point

    async def on_point(self, point: str) -> None:
        """Wait if this is the point."""
        if point == self._point and not self.reached.is_set():
            self.reached.set()
            await self.is_over.wait()


async def cancel_at(
    run: KitRun,
    point: str,
    start: StartKitConversation,
    work: Callable[[KitConversation], Awaitable[object]],
    make_probe: Callable[[OutcomeProbe | None], OutcomeProbe] = OutcomeProbe,
) -> KitConversation:
    """Start a conversation, cancel its work at the point, and report the hook that swallowed the cancellation.

    The middleware stands between two probes: a cancellation that came out of the inner one must come out of the
    outer one too.
    """
    inner, pause, scope = make_probe(None), PauseAt(point), anyio.CancelScope()
    outer = make_probe(inner)
    conversation = start(run.layers([outer], [inner]), on_point=pause.on_point)

    async def do_work() -> None:
        try:
            with scope:
                await work(conversation)
        except TimedOut as error:
            run.report(str(error))
        finally:
            pause.reached.set()  # also if the work never reaches the point

    async with anyio.create_task_group() as group:
        group.start_soon(do_work)
        await pause.reached.wait()
        outer.arm()  # only now: earlier outcomes say nothing about the cancellation
        scope.cancel()
        for _ in range(_STEPS_TO_UNWIND):  # a layer may shield its inner work, which then finishes
            await anyio.lowlevel.checkpoint()
        pause.is_over.set()
    allowed = (anyio.get_cancelled_exc_class(), GeneratorExit)
    for hook, error in outer.outcomes:
        if not isinstance(error, allowed):
            what = "continued" if error is None else f"raised {type(error).__name__} in its place"
            run.report(f"its {hook} swallowed the cancellation and {what}: let it through, with a bare `raise`")
            break  # the outer hooks follow from this one
    return conversation


def raise_once_at(point: str, error: Exception) -> OnPoint:
    """Return an `on_point` that raises the error when that point is first reached."""
    errors = [error]

    async def on_point(reached: str) -> None:
        await anyio.lowlevel.checkpoint()
        if reached == point and errors:
            raise errors.pop()

    return on_point
