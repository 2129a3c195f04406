"""Nothing takes more calls than it did; a busy machine cannot bend that.

When a change is worth its calls, or takes fewer, `python3 dev.py bench --write-limits` writes the table anew.
"""

import json
from collections.abc import Mapping

import pytest

from benchmarks import limits
from benchmarks.limits import GUARDED, count_rows, excesses, name_of, read_limits, write_limits
from benchmarks.rows import Row
from benchmarks.suite import choose


@pytest.fixture
def table() -> Mapping[str, float]:
    found = read_limits()
    if not found:
        pytest.skip(f"no calls were counted with Python {limits.VERSION}")
    return found


@pytest.mark.parametrize("group", GUARDED)
def test_nothing_takes_more_calls_than_its_limit(group: str, table: Mapping[str, float]) -> None:
    assert excesses(count_rows([group]), table) == []


def test_every_limit_belongs_to_a_line() -> None:
    tables = json.loads(limits.FILE.read_text(encoding="utf-8"))
    names = {name_of(line) for line in choose(GUARDED).lines}
    assert [name for table in tables.values() for name in table if name not in names] == []


def row(calls: float) -> Row:
    return Row("W1", "", "F", 1.0, calls, calls, None)


@pytest.mark.parametrize(("calls", "problems"), [(90, 0), (100, 0), (102, 0), (103, 1)])
def test_a_few_percent_more_calls_are_an_excess(calls: float, problems: int) -> None:
    assert len(excesses([row(calls)], {"W1": 100.0})) == problems


def test_a_line_without_a_limit_is_a_problem() -> None:
    assert excesses([row(1.0)], {}) == ["W1 has no limit"]


def test_written_limits_are_the_calls_of_today(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(limits, "FILE", tmp_path / "limits.json")
    monkeypatch.setattr(limits, "GUARDED", ["W1"])
    (tmp_path / "limits.json").write_text('{"3.0": {"W1": 7}}', encoding="utf-8")
    write_limits()
    tables = json.loads((tmp_path / "limits.json").read_text(encoding="utf-8"))
    rows = count_rows(["W1"])  # again: the letters of an id are not always made by as many calls
    assert tables == {
        "3.0": {"W1": 7},
        limits.VERSION: {name_of(row): pytest.approx(row.agentrt, rel=0.02) for row in rows},
    }
    assert excesses(rows, read_limits()) == []
