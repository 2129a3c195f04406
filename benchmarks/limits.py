"""The most calls that each line may take: what was counted last, and a margin.

Calls, not ratios: many lines compare agentrt with itself, and one that gets cheaper must not be an excess of another.
The floors never change, so the calls of a line rise and fall with its ratio.

`limits.json` has a table for each minor version of Python, since each counts in its own way. `--write-limits` writes
the table of the Python that runs it.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.counts import count_calls
from benchmarks.rows import Line, Row, as_counts, make_rows
from benchmarks.suite import GROUPS, choose

__all__ = ["GUARDED", "count_rows", "excesses", "name_of", "read_limits", "write_limits"]

FILE = Path(__file__).with_name("limits.json")
VERSION = "{}.{}".format(*sys.version_info)
MARGIN = 1.02  # versions of the dependencies differ by less
LEAST = 0.005  # what a number near zero may grow by

# How often a thread wakes the event loop differs from run to run, so saves are not guarded here.
GUARDED = tuple(name for name in GROUPS if name not in ("W5", "save", "stores"))


def name_of(row: Row | Line) -> str:
    """Return the name of a line, with what it is compared to."""
    return row.name.strip() if row.to == "F" else f"{row.name.strip()}, to {row.to}"


def count_rows(groups: Iterable[str]) -> list[Row]:
    """Count the calls of these groups, and return the lines."""
    chosen = choose(groups)
    return make_rows(as_counts(chosen.lines), [count_calls(chosen.series)])


def read_limits() -> Mapping[str, float]:
    """Return the limits for this version of Python, none for one that has no table."""
    limits: Mapping[str, float] = json.loads(FILE.read_text(encoding="utf-8")).get(VERSION, {})
    return limits


def excesses(rows: Iterable[Row], limits: Mapping[str, float]) -> list[str]:
    """Return what is above its limit, or has none."""
    problems = []
    for row in rows:
        limit = limits.get(name_of(row))
        if limit is None:
            problems.append(f"{name_of(row)} has no limit")
        elif row.agentrt > limit * MARGIN + LEAST:
            problems.append(f"{name_of(row)}: {row.agentrt:.2f} calls, and the limit is {limit:.2f}")
    return problems


def write_limits() -> None:
    """Count everything, and make that the limits for this version of Python."""
    tables = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    rows = count_rows(GUARDED)
    tables[VERSION] = {name_of(row): round(row.agentrt, 3) for row in rows}
    FILE.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
