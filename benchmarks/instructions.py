"""Instructions of an iteration, counted by callgrind, which is exact to a third of a percent on any machine.

Callgrind writes what it has counted so far, and begins anew, before each call of a C function that it is given. Here
that is `getloadavg`, which nothing else calls: it is called before and after each section, in a process of its own.
Counting starts when all is imported there, which would take longer than all else.
"""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from benchmarks.clock import Sample, Series, show_progress
from benchmarks.counts import warm_up

__all__ = ["count_instructions", "has_valgrind", "run_sections"]

ROOT = Path(__file__).resolve().parents[1]


def has_valgrind() -> bool:
    """Say whether instructions can be counted here."""
    return shutil.which("valgrind") is not None


def count_instructions(series: Iterable[Series]) -> Sample:
    """Return the instructions of an iteration; a process for each event loop."""
    sample: dict[str, float] = {}
    chosen = [one for one in series if one.counted]
    for backend in sorted({one.backend for one in chosen}):
        keys = [one.key for one in chosen if one.backend == backend]
        show_progress(f"counting the instructions of {len(keys)} workloads")
        sample |= _count_in_process(keys)
    show_progress("")
    return sample


def _count_in_process(keys: Sequence[str]) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--dump-before=getloadavg"]
        command = [
            *valgrind,
            f"--callgrind-out-file={out}",
            sys.executable,
            str(ROOT / "benchmarks" / "run.py"),
            "--sections",
            *keys,
        ]
        # Hashes of text decide the order in sets, and with it the collisions in dicts.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise RuntimeError(f"valgrind failed: {finished.stderr[-2000:]}")
        lines = [line.split("\t") for line in finished.stdout.splitlines() if "\t" in line]
        # Files are numbered from 1, and the first one is what came before the first section.
        return {
            key: _total(out.with_name(f"callgrind.{2 * number + 2}")) / int(iterations)
            for number, (key, iterations) in enumerate(lines)
        }


def _total(file: Path) -> int:
    line = next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("totals:"))
    return int(line.split()[1])


def run_sections(series: Sequence[Series]) -> None:
    """Run each series, of one event loop, between two marks; called inside of valgrind."""
    anyio.run(_run_sections, series, backend=series[0].backend)


async def _run_sections(series: Sequence[Series]) -> None:
    _start_counting()
    for one in series:
        workload = one.make()
        await warm_up(workload, one.counted)
        gc.collect()
        gc.freeze()
        os.getloadavg()
        for _ in range(one.counted):
            await workload()
        os.getloadavg()
        workload.check()
        print(one.key, one.counted, sep="\t", flush=True)


def _start_counting() -> None:
    control = subprocess.Popen(["callgrind_control", "--instr=on", str(os.getpid())], stdout=subprocess.DEVNULL)
    while control.poll() is None:  # valgrind takes commands while it runs instructions, not while it waits
        pass
    if control.returncode:
        raise RuntimeError(f"callgrind_control failed with the exit code {control.returncode}")
