"""Measure agentrt against the floor and print the ratios.

usage: python benchmarks/run.py [--check] [--rounds N] [--quick] [--json FILE]
"""

import argparse
import gc
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import linear_regression, median
from time import perf_counter

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "middleware"))  # so that it runs as a file,
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # installed or not

from agentrt.middleware import TracingMiddleware
from benchmarks.import_time import import_agentrt, import_dependencies, modules_of_dependencies
from benchmarks.workloads import (
    CALLS,
    DELTAS,
    ROUNDS,
    AgentChat,
    AgentNew,
    AgentQueue,
    AgentStream,
    FloorChat,
    FloorNew,
    FloorQueue,
    FloorStream,
    PassOnAll,
    Workload,
    bare_steps,
)

__all__ = ["Pair", "Row", "exit_code", "main", "make_rows", "verdict"]

SLACK = 1.25  # a missed target is an error from here on: shared machines are not steadier than that
CALL_LAYERS = (0, 1, 5, 10, 20)
STREAM_LAYERS = (0, 1, 5, 10)
INTERCEPTED = ROUNDS + 1 + ROUNDS  # the model calls and the tool calls of one W3 run
STEPS = 20_000
BATCH_SECONDS = 0.004
STEP = "step"

Sample = Mapping[str, float]
"""Microseconds per iteration in one round, as "key/side"."""


@dataclass(slots=True)
class Side:
    """One side of a workload, and how often a batch repeats it."""

    workload: Workload
    iterations: int = 1


@dataclass(slots=True)
class Pair:
    """One workload on both sides."""

    key: str
    floor: Side
    agentrt: Side

    @classmethod
    def of(cls, key: str, floor: Workload, agentrt: Workload) -> "Pair":
        return cls(key, Side(floor), Side(agentrt))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio` is the median of each round's own ratio, `target` the most it may be."""

    name: str
    unit: str
    floor: float
    agentrt: float
    ratio: float
    target: float | None = None


def verdict(row: Row) -> str:
    """Say in a word how the row stands to its target; "near" is worse than the target, but within the slack."""
    if row.target is None:
        return ""
    if row.ratio <= row.target:
        return "met"
    return "near" if row.ratio <= row.target * SLACK else "MISSED"


def exit_code(rows: Sequence[Row]) -> int:
    """Return 1 when a row misses its target by more than the slack."""
    return int(any(verdict(row) == "MISSED" for row in rows))


def asyncio_pairs() -> list[Pair]:
    return [
        Pair.of("W1", FloorChat(rounds=0), AgentChat(rounds=0)),
        Pair.of("new", FloorNew(), AgentNew()),
        *(Pair.of(f"W3 N={n}", FloorChat(layers=n), AgentChat(layers=n)) for n in CALL_LAYERS),
        Pair.of("idle", AgentChat(within=[PassOnAll()]), AgentChat(within=[TracingMiddleware()])),
        *(Pair.of(f"W4 N={n}", FloorStream(layers=n), AgentStream(layers=n)) for n in STREAM_LAYERS),
        Pair.of("W5", FloorQueue(), AgentQueue()),
    ]


def trio_pairs() -> list[Pair]:
    return [Pair.of("W4 trio", FloorStream(), AgentStream())]


async def measure_round(pairs: Sequence[Pair], batches: int) -> dict[str, float]:
    """Return the fastest batch of each side of each pair, and of the bare step."""
    gc.collect()
    sample = {STEP: min([await time_iterations(partial(bare_steps, STEPS), 1) / STEPS for _ in range(batches)])}
    for pair in pairs:
        # The sides take turns, so that both see the same load on a shared machine.
        times = [(await measure_batch(pair.floor), await measure_batch(pair.agentrt)) for _ in range(batches)]
        sample[f"{pair.key}/floor"] = min(floor for floor, _ in times)
        sample[f"{pair.key}/agentrt"] = min(agentrt for _, agentrt in times)
    return sample


async def measure_batch(side: Side) -> float:
    """Return microseconds per iteration, of a run that did what it should."""
    microseconds = await time_iterations(side.workload, side.iterations)
    side.workload.check()
    return microseconds


async def time_iterations(workload: Callable[[], Awaitable[None]], iterations: int) -> float:
    """Return microseconds per iteration."""
    start = perf_counter()
    for _ in range(iterations):
        await workload()
    return (perf_counter() - start) / iterations * 1e6


async def warm_up(pairs: Sequence[Pair]) -> None:
    """Run each side until it is warm, and choose its iterations per batch."""
    for pair in pairs:
        for side in (pair.floor, pair.agentrt):
            microseconds = min([await time_iterations(side.workload, 3) for _ in range(5)])
            side.iterations = max(1, round(BATCH_SECONDS * 1e6 / microseconds))


def measure_imports(modules: list[str], batches: int) -> dict[str, float]:
    """Return the fastest import of the dependencies, and of agentrt; the two take turns as well."""
    times = [(import_dependencies(modules), import_agentrt()) for _ in range(batches)]
    return {"import/floor": min(floor for floor, _ in times), "import/agentrt": min(agentrt for _, agentrt in times)}


def measure(rounds: int, batches: int) -> list[Sample]:
    """Run all rounds, each on trio, then on asyncio, then in processes that only import."""
    on_asyncio, on_trio = asyncio_pairs(), trio_pairs()
    anyio.run(warm_up, on_asyncio, backend="asyncio")
    anyio.run(warm_up, on_trio, backend="trio")
    modules = modules_of_dependencies()
    gc.collect()
    gc.freeze()
    samples: list[Sample] = []
    for number in range(rounds):
        show_progress(f"round {number + 1} of {rounds}")
        trio = anyio.run(measure_round, on_trio, batches, backend="trio")
        asyncio = anyio.run(measure_round, on_asyncio, batches, backend="asyncio")
        samples.append(trio | asyncio | measure_imports(modules, batches))
    show_progress("")
    return samples


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<20}\r", end="", file=sys.stderr, flush=True)


def make_rows(samples: Sequence[Sample]) -> list[Row]:
    """Turn the rounds into the lines of the table."""
    rows = [
        make_row(samples, "W1 one turn", "us", read_pair("W1"), target=10),
        make_row(samples, "   a new conversation", "us", read_pair("new")),
        make_row(samples, f"W2 {ROUNDS} rounds", "us", read_pair("W3 N=0"), target=6),
    ]
    for layers in CALL_LAYERS[1:]:
        rows.append(make_row(samples, f"W3 N={layers}", "us", read_pair(f"W3 N={layers}")))
    rows += [
        make_row(samples, "W3 first layer", "us/call", slope_over_depths("W3", (0, 1), INTERCEPTED)),
        make_row(
            samples, "W3 each further layer", "us/call", slope_over_depths("W3", CALL_LAYERS[1:], INTERCEPTED), target=2
        ),
        make_row(samples, "W3 idle tracing", "us/call", excess_over_no_layer("idle", INTERCEPTED), target=1),
        make_row(samples, "W4 N=0", "us/delta", read_pair("W4 N=0", DELTAS), target=8),
    ]
    for layers in STREAM_LAYERS[1:]:
        rows.append(make_row(samples, f"W4 N={layers}", "us/delta", read_pair(f"W4 N={layers}", DELTAS)))
    return [
        *rows,
        make_row(samples, "W4 first layer", "us/delta", slope_over_depths("W4", (0, 1), DELTAS)),
        make_row(
            samples, "W4 each further layer", "us/delta", slope_over_depths("W4", STREAM_LAYERS[1:], DELTAS), target=1.2
        ),
        make_row(samples, "W4 N=0, agentrt on trio", "us/delta", trio_against_asyncio, target=25),
        make_row(samples, "W4 N=0, both on trio", "us/delta", read_pair("W4 trio", DELTAS)),
        make_row(samples, "W5 rate limit, in the queue", "us/call", read_pair("W5", CALLS), target=3.1),
        make_row(samples, "import, floor: dependencies", "ms", read_pair("import", 1000), target=3),
    ]


Metric = Callable[[Sample, str], float]
"""Reads one number of one side ("floor" or "agentrt") out of one round."""


def read_pair(key: str, per: int = 1) -> Metric:
    """Return the metric that reads one pair."""
    return lambda sample, side: sample[f"{key}/{side}"] / per


def slope_over_depths(name: str, depths: Sequence[int], per: int) -> Metric:
    """Return the metric that fits a line over the depths: what one more layer costs."""

    def metric(sample: Sample, side: str) -> float:
        times = [sample[f"{name} N={depth}/{side}"] for depth in depths]
        return float(linear_regression(depths, times).slope) / per

    return metric


def excess_over_no_layer(key: str, per: int) -> Metric:
    """Return the metric of a pair that is agentrt on both sides: what it takes beyond agentrt without a layer."""
    return lambda sample, side: (sample[f"{key}/{side}"] - sample["W3 N=0/agentrt"]) / per


def trio_against_asyncio(sample: Sample, side: str) -> float:
    """Read agentrt's streamed delta on trio, and the floor's on asyncio."""
    return read_pair("W4 trio" if side == "agentrt" else "W4 N=0", DELTAS)(sample, side)


def make_row(samples: Sequence[Sample], name: str, unit: str, metric: Metric, target: float | None = None) -> Row:
    floor = [metric(sample, "floor") for sample in samples]
    agentrt = [metric(sample, "agentrt") for sample in samples]
    ratio = median(ours / theirs for ours, theirs in zip(agentrt, floor, strict=True))
    return Row(name, unit, median(floor), median(agentrt), ratio, target)


def render(rows: Sequence[Row], step: float) -> str:
    """Return the table as text; `step` is what a bare step of `async for` takes, in microseconds."""
    head = f"{'workload':<30}{'unit':>9}{'floor':>10}{'in steps':>10}{'agentrt':>10}{'ratio':>8}{'target':>8}  verdict"
    lines = [head, "-" * len(head)]
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}"
        numbers = f"{row.floor:>10.3f}{row.floor / step:>10.1f}{row.agentrt:>10.3f}{row.ratio:>8.2f}{target:>8}"
        lines.append(f"{row.name:<30}{row.unit:>9}{numbers}  {verdict(row)}".rstrip())
    return "\n".join(lines)


def machine() -> dict[str, str]:
    """Return what the numbers depend on."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages": ", ".join(f"{name} {version(name)}" for name in ("anyio", "trio", "pydantic")),
    }


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="Measure agentrt against the floor.")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds to take the median of (default: 7)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a look, not a measurement")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed by over a quarter")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of every round to FILE as well")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    options = parse_arguments(arguments)
    samples = measure(min(3, options.rounds), batches=2) if options.quick else measure(options.rounds, batches=11)
    rows = make_rows(samples)
    step = median(sample[STEP] for sample in samples)
    print("; ".join(machine().values()))
    print(f"a bare step of `async for`: {step * 1000:.0f} ns; medians of {len(samples)} rounds\n")
    print(render(rows, step))
    if options.json:
        report = {**machine(), "rows": [{**asdict(row), "verdict": verdict(row)} for row in rows], "samples": samples}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return exit_code(rows) if options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
