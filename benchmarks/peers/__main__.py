"""Measure the floor, agentrt and its peers in rounds that take turns, and print the ratios to the floor.

usage: python -m benchmarks.peers [--rounds N] [--only NAME ...] [--quick] [--json FILE] [--environments FOLDER]
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.options import positive, report_file
from benchmarks.peers.environments import (
    PEERS,
    ROOT,
    NotInstalledError,
    adapter_of,
    child_environment,
    prepare,
    shorten,
)
from benchmarks.peers.measure import Cell
from benchmarks.peers.table import COLUMNS, PROCESS, Figure, Round, format_table, make_figures

__all__ = ["main", "measure_peer"]

ALWAYS = ("floor", "rich-floor", "agentrt")
ROUNDS = 5
SECONDS = 0.15  # for each of fifteen workloads
QUICK_SECONDS = 0.01
TIME_LIMIT = 900.0  # of one peer's round; the slowest takes a minute on a slow machine


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    interpreters, notes = prepare_all(options.only, options.environments)
    if "floor" not in interpreters:
        print(*notes, sep="\n", file=sys.stderr)
        return 1
    seconds = QUICK_SECONDS if options.quick else SECONDS
    rounds = [measure_round(interpreters, number, seconds) for number in range(1 if options.quick else options.rounds)]
    figures = make_figures(rounds, list(interpreters))
    labels = {name: label_of(name) for name in interpreters}
    print(format_table(figures, labels, notes))
    if options.json:
        write_report(options.json, rounds, figures, labels, notes)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench --peers", description="Compare agentrt with other agent runtimes.")
    names = [name for name in PEERS if name not in ALWAYS]
    parser.add_argument("--rounds", type=positive, default=ROUNDS, metavar="N", help="how often each peer is measured")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one short round, for a rough result")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write every figure of every round there")
    parser.add_argument(
        "--environments",
        type=Path,
        default=ROOT / ".venv" / "peers",
        metavar="FOLDER",
        help="where the environments of the peers are kept",
    )
    return parser.parse_args(arguments)


def prepare_all(only: Sequence[str], folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the interpreter of each peer that can be installed, and notes on the others."""
    interpreters: dict[str, Path] = {}
    notes: list[str] = []
    for name in [*ALWAYS, *(name for name in PEERS if name in only)]:
        show_progress(f"preparing {name}")
        try:
            interpreters[name], misfit = prepare(name, PEERS[name], folder.resolve())
        except NotInstalledError as error:
            notes.append(f"{name} is skipped: {error}")
        else:
            notes += [f"{name}: {misfit}"] if misfit else []
    show_progress("")
    return interpreters, notes


def measure_round(interpreters: Mapping[str, Path], number: int, seconds: float) -> Round:
    """Measure each peer once; who is first changes from round to round."""
    names = list(interpreters)
    start = number % len(names)
    cells: dict[str, dict[str, Cell]] = {}
    for name in names[start:] + names[:start]:
        show_progress(f"round {number + 1}: {name}")
        cells[name] = measure_peer(interpreters[name], name, seconds)
    show_progress("")
    return cells


def measure_peer(python: Path, name: str, seconds: float) -> dict[str, Cell]:
    """Measure a peer in a fresh process; what it prints last is its figures."""
    command = [str(python), "-m", "benchmarks.peers.child", adapter_of(name), str(seconds)]
    try:
        result = subprocess.run(
            command,
            cwd=ROOT,
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=TIME_LIMIT,
        )
        cells: dict[str, Cell] = json.loads(result.stdout.rstrip().rpartition("\n")[2])
    except subprocess.CalledProcessError as error:
        return {PROCESS: {"error": shorten(error.stderr) or f"exit code {error.returncode}"}}
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return {PROCESS: {"error": str(error)}}
    return cells


def label_of(name: str) -> str:
    """Return a peer's name with the version that is measured."""
    packages = PEERS[name].packages
    version = packages[0].partition("==")[2] if packages else ""
    return f"{name} {version}".rstrip()


def write_report(
    path: Path,
    rounds: Sequence[Round],
    figures: Mapping[str, Sequence[Figure]],
    labels: Mapping[str, str],
    notes: Sequence[str],
) -> None:
    rows = [
        {"peer": labels[peer], "figure": column.name, "unit": column.unit, **asdict(figure)}
        for peer, row in figures.items()
        for column, figure in zip(COLUMNS, row, strict=True)
    ]
    report = {"python": platform.python_version(), "rows": rows, "notes": list(notes), "rounds": list(rounds)}
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
