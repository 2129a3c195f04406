"""Run AgentDojo's tasks without and with attacks, under each defence, and print the figures.

usage: python -m benchmarks.agentdojo [--every N] [--only DEFENCE ...] [--json FILE] [--write-page]
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import anyio

from benchmarks.agentdojo.defences import DEFENCES
from benchmarks.agentdojo.runs import Defence, Outcome, run_case
from benchmarks.agentdojo.suites import attacked_cases, benign_cases
from benchmarks.agentdojo.table import Figures, format_table
from benchmarks.options import positive, report_file

__all__ = ["main", "measure"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "middlewares" / "agentdojo.md"
BEGIN, END = "<!-- Made by `python3 dev.py bench --agentdojo --write-page`. -->\n\n", "\n\n<!-- The end of it. -->\n"


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    # A misled planner makes many calls that fail.
    logging.getLogger("agentrt").setLevel(logging.CRITICAL)
    figures = anyio.run(measure_all, options.only, options.every)
    table = format_table(figures)
    print(table)
    if options.json:
        report = {name: [as_json(outcome) for outcome in outcomes_of(one)] for name, one in figures.items()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.write_page:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench --agentdojo", description="Attack an agent with AgentDojo's suites.")
    parser.add_argument("--every", type=positive, default=1, metavar="N", help="run each Nth task only")
    parser.add_argument("--only", nargs="+", choices=list(DEFENCES), default=list(DEFENCES), metavar="DEFENCE",
                        help=", ".join(DEFENCES))  # fmt: skip
    parser.add_argument(
        "--json", type=report_file, metavar="FILE", help="write the outcome of each run to FILE as well"
    )
    parser.add_argument("--write-page", action="store_true", help="write the table of the documentation")
    options = parser.parse_args(arguments)
    if options.write_page and (options.every > 1 or options.only != list(DEFENCES)):
        parser.error("--write-page writes the whole table: leave out --every and --only")
    return options


async def measure_all(names: Iterable[str], every: int) -> dict[str, Figures]:
    return {name: await measure(DEFENCES[name], every) for name in names}


async def measure(defence: Defence, every: int = 1) -> Figures:
    """Run each Nth user task, and each Nth attack."""
    kinds = (benign_cases(), attacked_cases())
    return Figures(*[[await run_case(case, defence) for case in islice(cases, 0, None, every)] for cases in kinds])


def outcomes_of(figures: Figures) -> list[Outcome]:
    return [*figures.benign, *figures.attacked]


def as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "case": outcome.case.name,
        "is_done": outcome.is_done,
        "is_hacked": outcome.is_hacked,
        "is_misled": outcome.is_misled,
        "questions": outcome.questions,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
