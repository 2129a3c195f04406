"""Several calls at once, which fail as one call would."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel

__all__ = ["together"]


async def together(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Await all calls at once and return their results in order.

    The first failure stops the others and is raised as itself once they have stopped; those that fail while they stop
    are named in a note. A cancellation from outside stops all of them and leaves as such.
    """
    results: list[Any] = [None] * len(calls)
    failures: list[BaseException] = []

    async def run(place: int, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            results[place] = await call()
        except anyio.get_cancelled_exc_class() as error:
            if not group.cancel_scope.cancel_called:  # ended by somebody who cancelled what this call waited for
                failures.append(error)
                group.cancel_scope.cancel()
            raise
        except BaseException as error:  # noqa: BLE001  # raised again below, without a group around it
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(run, place, call)
    if failures:
        await _raise(failures)
    return results


async def _raise(failures: list[BaseException]) -> None:
    first, others = failures[0], failures[1:]
    if isinstance(first, anyio.get_cancelled_exc_class()):
        await anyio.lowlevel.checkpoint()  # it may be the caller's own, which shows here
    if others:
        # Their types alone: the texts may hold what somebody said.
        first.add_note(f"failed while it was stopped: {', '.join(type(each).__name__ for each in others)}")
    raise first
