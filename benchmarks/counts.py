"""Counts that a busy machine cannot bend: calls, memory and, where valgrind is there, instructions of an iteration."""

import gc
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable
from types import FrameType

import anyio
import trio  # noqa: F401  # a look for the running event loop takes a call more where it is loaded

from benchmarks.clock import Sample, Series, show_progress
from benchmarks.workloads import Workload

__all__ = ["count_calls", "peak_memory", "warm_up"]

WARM_UP = 16  # the interpreter adapts the code of a function after eight calls


def count_calls(series: Iterable[Series]) -> Sample:
    """Return the calls of an iteration: of Python functions, steps of generators and coroutines, and built-ins.

    Only calls in the thread of the event loop are counted.
    """
    return _measure_each(series, _calls_of)


def peak_memory(series: Iterable[Series]) -> Sample:
    """Return the bytes that an iteration has in use at most, beyond what is there before."""
    return _measure_each(series, _peak_of)


def _measure_each(series: Iterable[Series], measure: Callable[[Workload, int], Awaitable[float]]) -> Sample:
    sample = {}
    for one in series:
        if one.counted:
            show_progress(f"counting {one.key}")
            sample[one.key] = anyio.run(_measure_one, one, measure, backend=one.backend)
    show_progress("")
    return sample


async def _measure_one(series: Series, measure: Callable[[Workload, int], Awaitable[float]]) -> float:
    workload = series.make()
    await warm_up(workload, series.counted)
    gc.collect()
    gc.disable()  # when it runs depends on everything that the process did before
    try:
        number = await measure(workload, series.counted)
    finally:
        gc.enable()
    workload.check()
    return number


async def warm_up(workload: Workload, counted: int) -> None:
    """Run the workload until nothing happens for the first time, and then prepare it."""
    await workload.prepare()
    for _ in range(min(WARM_UP, 2 * counted)):
        await workload()
    await workload.prepare()


async def _calls_of(workload: Workload, iterations: int) -> float:
    count = 0

    def see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(see)
    try:
        for _ in range(iterations):
            await workload()
    finally:
        sys.setprofile(None)
    return (count - 1) / iterations  # without the call that ends it


async def _peak_of(workload: Workload, iterations: int) -> float:
    tracemalloc.start()
    try:
        await workload()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await workload()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return float(peak - before)
