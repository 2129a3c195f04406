"""Measure agentrt against the floors and print the ratios.

usage: python benchmarks/run.py [--only GROUP...] [--quick] [--counts] [--check] [--rounds N] [--json FILE] [--markdown]
       python benchmarks/run.py --write-limits
       python benchmarks/run.py --write-page [--rounds N]
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "middleware"))  # so that it runs as a file,
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # installed or not

from benchmarks.clock import STEP, Sample, measure
from benchmarks.counts import count_calls, peak_memory
from benchmarks.instructions import count_instructions, has_valgrind, run_sections
from benchmarks.limits import write_limits
from benchmarks.options import positive, report_file
from benchmarks.rows import as_counts, exit_code, make_rows, markdown, render, undivided, verdict
from benchmarks.suite import GROUPS, all_series, choose

__all__ = ["main"]

PEAK = "bytes in use at most"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- Made by `python3 dev.py bench --write-page`. -->\n\n", "\n\n<!-- The end of it. -->\n"


def machine() -> dict[str, str]:
    """Return what the numbers depend on."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages": ", ".join(f"{name} {version(name)}" for name in ("anyio", "trio", "pydantic")),
    }


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="Measure agentrt against two floors.")
    parser.add_argument("--only", nargs="+", default=list(GROUPS), choices=list(GROUPS), metavar="GROUP",
                        help=f"these groups: {', '.join(GROUPS)}")  # fmt: skip
    parser.add_argument("--rounds", type=positive, default=7, metavar="N",
                        help="rounds to take the median of (default: 7)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a look, not a measurement")
    parser.add_argument("--counts", action="store_true", help="count instructions, calls and memory; read no clock")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed by over a quarter")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all rounds to FILE as well")
    parser.add_argument("--markdown", action="store_true", help="print the tables as pages of the documentation do")
    parser.add_argument("--write-limits", action="store_true", help="make today's calls the limits that a test checks")
    parser.add_argument("--write-page", action="store_true", help="measure for the documentation, and write its table")
    parser.add_argument("--sections", nargs="+", metavar="KEY", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.counts and options.check:
        parser.error("--check is for times: counts have no targets, and tests/test_call_limits.py guards them")
    if options.write_limits and len(arguments) > 1:
        parser.error("--write-limits counts every group, so it takes no other option")
    if options.write_page:
        if options.quick or options.counts or options.only != list(GROUPS):
            parser.error("--write-page writes a whole table of times: it goes with --rounds alone")
        options.only, options.markdown = [group for group in GROUPS if group != "stores"], True  # they have a page
    return options


def take_measures(options: argparse.Namespace) -> dict[str, list[Sample]]:
    """Return the rounds of each measure, by what the measure is called."""
    chosen = choose(options.only)
    if not options.counts:
        rounds, batches = (min(2, options.rounds), 2) if options.quick else (options.rounds, 11)
        return {"microseconds": measure(chosen.series, chosen.probes, rounds=rounds, batches=batches)}
    measures = {"calls": [count_calls(chosen.series)], PEAK: [peak_memory(chosen.series)]}
    if has_valgrind() and not options.quick:
        measures = {"instructions": [count_instructions(chosen.series)], **measures}
    return measures


def write_page(text: str) -> None:
    """Put what was measured in the place of the last numbers on the page about performance."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    options = parse_arguments(arguments)
    if options.sections:
        series = {one.key: one for one in all_series()}
        run_sections([series[key] for key in options.sections])
        return 0
    if options.write_limits:
        write_limits()
        return 0
    measures = take_measures(options)
    lines = as_counts(choose(options.only).lines) if options.counts else choose(options.only).lines
    tables = {
        name: make_rows(undivided(lines) if name == PEAK else lines, samples) for name, samples in measures.items()
    }
    text = "; ".join(machine().values())
    for name, rows in tables.items():
        samples = measures[name]
        step = median(sample.get(STEP, 0) for sample in samples)
        head = (f"{name}; medians of {len(samples)} rounds, a bare step of `async for` takes {step * 1000:.0f} ns"
                if step else f"{name} per iteration")  # fmt: skip
        text += f"\n\n{head}\n\n"
        text += markdown(rows) if options.markdown else render(rows)
    print(text)
    if options.write_page:
        write_page(text)
    print(*choose(options.only).notes, sep="\n")
    if options.json:
        report = {
            **machine(),
            "rows": {name: [{**asdict(row), "verdict": verdict(row)} for row in rows] for name, rows in tables.items()},
            "samples": measures,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return exit_code([row for rows in tables.values() for row in rows]) if options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
