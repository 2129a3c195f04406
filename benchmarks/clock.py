"""Rounds of short batches in which all sides of a workload take turns, and the fastest batch counts."""

import gc
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal

import anyio

from benchmarks.workloads import Workload, bare_steps

__all__ = ["STEP", "Backend", "Probe", "Sample", "Series", "measure"]

Backend = Literal["asyncio", "trio"]

BATCH_SECONDS = 0.004
SLOW_SECONDS = 0.05  # of a batch: from here on there are fewer of them
VERY_SLOW_SECONDS = 1.0  # of a batch: such a workload is left out of most rounds
ROUNDS_OF_SLOW = 3
STEPS = 20_000
STEP = "step"

Sample = Mapping[str, float]
"""Microseconds per iteration in one round, or another measure, as "workload/side"."""


@dataclass(frozen=True, slots=True)
class Series:
    """One side of a workload: all its batches, or a count of what one iteration does."""

    key: str
    make: Callable[[], Workload]
    backend: Backend = "asyncio"
    counted: int = 8
    """The iterations of a counted section, 0 for what has no count. Every eighth model call has a checkpoint."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What is measured in processes of its own: the keys, and the function that measures them all."""

    keys: frozenset[str]
    measure: Callable[[], Mapping[str, float]]
    rounds: int = ROUNDS_OF_SLOW


@dataclass(slots=True)
class Run:
    """A series in progress: its workload, and how often a batch repeats it."""

    key: str
    workload: Workload
    iterations: int = 1
    batch_seconds: float = 0.0

    def batches(self, wanted: int) -> int:
        """Return how many batches a round has, fewer of slow ones."""
        return max(1, min(wanted, round(wanted * SLOW_SECONDS / max(self.batch_seconds, SLOW_SECONDS))))


def measure(series: Iterable[Series], probes: Iterable[Probe], *, rounds: int, batches: int) -> list[Sample]:
    """Run all rounds, each on trio, then on asyncio, then in processes of their own."""
    runs: dict[Backend, list[Run]] = {"trio": [], "asyncio": []}
    for one in series:
        runs[one.backend].append(Run(one.key, one.make()))
    for backend, of_backend in runs.items():
        anyio.run(warm_up, of_backend, backend=backend)
    gc.collect()
    gc.freeze()
    samples: list[Sample] = []
    for number in range(rounds):
        sample: dict[str, float] = {}
        for backend, of_backend in runs.items():
            show_progress(f"round {number + 1} of {rounds}, {backend}")
            chosen = [run for run in of_backend if number < ROUNDS_OF_SLOW or run.batch_seconds < VERY_SLOW_SECONDS]
            sample |= anyio.run(measure_round, chosen, batches, backend=backend)
        for probe in probes:
            show_progress(f"round {number + 1} of {rounds}, {min(probe.keys)}")
            if number < probe.rounds:
                sample |= probe.measure()
        samples.append(sample)
    show_progress("")
    return samples


async def warm_up(runs: Sequence[Run]) -> None:
    """Run each workload until it is warm, and choose its iterations per batch."""
    for run in runs:
        show_progress(f"warming up {run.key}")
        await run.workload.prepare()
        microseconds = await time_iterations(run.workload, 1)
        if microseconds < SLOW_SECONDS * 1e6:
            times = [await time_iterations(run.workload, 3) for _ in range(5)]
            microseconds = min(microseconds, *times)
        run.iterations = max(1, min(run.workload.max_iterations, round(BATCH_SECONDS * 1e6 / microseconds)))
        run.batch_seconds = microseconds * run.iterations / 1e6


async def measure_round(runs: Sequence[Run], batches: int) -> dict[str, float]:
    """Return the fastest batch of each workload, and of the bare step."""
    gc.collect()
    sample = {STEP: min([await time_iterations(partial(bare_steps, STEPS), 1) / STEPS for _ in range(batches)])}
    # The sides of a workload take turns, so that all see the same load on a shared machine.
    for name in dict.fromkeys(name_of(run) for run in runs):
        sides = [run for run in runs if name_of(run) == name]
        for number in range(batches):
            for run in sides:
                if number < run.batches(batches):
                    sample[run.key] = min(sample.get(run.key, float("inf")), await measure_batch(run))
    return sample


def name_of(run: Run) -> str:
    """Return the name of a workload, which all of its sides and variants share."""
    return run.key.split(" ")[0].split("/")[0]


async def measure_batch(run: Run) -> float:
    """Return microseconds per iteration, of a batch that did what it should."""
    await run.workload.prepare()
    microseconds = await time_iterations(run.workload, run.iterations)
    run.workload.check()
    return microseconds


async def time_iterations(workload: Callable[[], Awaitable[None]], iterations: int) -> float:
    """Return microseconds per iteration."""
    start = perf_counter()
    for _ in range(iterations):
        await workload()
    return (perf_counter() - start) / iterations * 1e6


def show_progress(text: str) -> None:
    """Show what is measured now, in the terminal."""
    if sys.stderr.isatty():
        print(f"\r{text:<50}\r", end="", file=sys.stderr, flush=True)
