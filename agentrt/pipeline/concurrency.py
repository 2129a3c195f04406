"""Concurrent calls that fail like one call."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import anyio
import anyio.lowlevel

_MemberResult = TypeVar("_MemberResult")


async def gather(calls: Sequence[Callable[[], Awaitable[_MemberResult]]]) -> list[_MemberResult]:
    """Await all calls at once and return their results in order.

    The first failure stops the others and is raised unchanged once they have stopped; those that fail while they stop
    are named in a note. A cancellation from outside stops all of them and leaves as such.
    """
    results: list[_MemberResult | None] = [None] * len(calls)
    failures: list[BaseException] = []

    async def run(position: int, call: Callable[[], Awaitable[_MemberResult]]) -> None:
        try:
            results[position] = await call()
        except anyio.get_cancelled_exc_class() as error:
            if not group.cancel_scope.cancel_called:  # the awaited work was cancelled, not this call
                failures.append(error)
                group.cancel_scope.cancel()
            raise
        except BaseException as error:  # noqa: BLE001  # raised again below, without a group around it
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for position, call in enumerate(calls):
            group.start_soon(run, position, call)
    if not failures:
        return cast("list[_MemberResult]", results)
    first, *others = failures
    if isinstance(first, anyio.get_cancelled_exc_class()):
        await anyio.lowlevel.checkpoint()  # raises if the cancellation is the caller's
    if others:
        # Only their types: the texts may quote messages.
        first.add_note(f"failed while it was stopped: {', '.join(type(error).__name__ for error in others)}")
    raise first
