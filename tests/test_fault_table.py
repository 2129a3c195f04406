"""The table of faults names tests that exist, and leaves no fault out."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = (TESTS / "README.md").read_text(encoding="utf-8")
FAULTS = set(range(1, 69))


def rows() -> dict[int, list[tuple[str, str]]]:
    """Return the tests of each fault, by its number."""
    found = {}
    for line in TABLE.splitlines():
        if numbers := re.match(r"\| (\d+)(?:, (\d+))? ", line):
            tests = re.findall(r"`([\w/]+\.py)::(\w+)`", line)
            found |= {int(number): tests for number in numbers.groups() if number}
    return found


def test_every_fault_has_its_row_and_its_test():
    assert {number for number, tests in rows().items() if tests} == FAULTS


def test_every_test_in_the_table_exists():
    missing = [f"{file}::{test}" for tests in rows().values() for file, test in tests if test not in names_in(file)]
    assert not missing


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
