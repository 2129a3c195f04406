"""A pytest plugin that reports the rooms whose tests take longer than `budgets.toml` allows.

A room is a folder, or a file, directly in `tests/`. With `--enforce-budgets` a room above 1.5 times its budget fails
the run. Budgets are for a quiet machine; on a slower or busier one they grow with the time of a fixed piece of work,
which is measured between the tests.
"""

import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["rooms_over_budget"]

TESTS = Path(__file__).parent
SAMPLE_EVERY = 600  # tests
TOLERANCE = 1.5


def rooms_over_budget(seconds: Mapping[str, float], budgets: Mapping[str, float], factor: float) -> list[str]:
    """Return "room: seconds, budget" of each room that took more than `factor` times its budget, worst first.

    Rooms without a budget share that of "others".
    """
    rooms: Counter[str] = Counter()
    for room, spent in seconds.items():
        rooms[room if room in budgets else "others"] += spent
    ranked = sorted(rooms, key=lambda room: rooms[room] / budgets[room], reverse=True)
    return [
        f"{room}: {rooms[room]:.0f} s, budget {factor * budgets[room]:.0f} s"
        for room in ranked
        if rooms[room] > factor * budgets[room]
    ]


class Budgets:
    """Adds up the seconds of each room, and measures the speed of the machine meanwhile."""

    def __init__(self, config: pytest.Config) -> None:
        table = tomllib.loads((TESTS / "budgets.toml").read_text(encoding="utf-8"))
        self.budgets: dict[str, float] = table["seconds"]
        self.quiet = float(table["yardstick"]["seconds"])
        self.is_enforced = bool(config.getoption("--enforce-budgets"))
        self.seconds: Counter[str] = Counter()
        self.samples: list[float] = []
        self.tests = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        if self.tests % SAMPLE_EVERY == 0:
            self.samples.append(_time_yardstick())
        self.tests += 1
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[_room_of(report.nodeid)] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.samples += getattr(node, "workeroutput", {}).get("yardstick", ())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # in a worker: pytest-xdist sends it to the process that reports
            output["yardstick"] = self.samples
        elif self.is_enforced and self._rooms_over(TOLERANCE) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if rooms := self._rooms_over(1.0):
            terminalreporter.section("rooms over budget")
            for room in rooms:
                terminalreporter.line(room)
            if self.is_enforced and self._rooms_over(TOLERANCE):
                remedy = "make its tests faster, or raise its budget in tests/budgets.toml"
                terminalreporter.line(f"a room took more than {TOLERANCE} times its budget: {remedy}", red=True)

    def _rooms_over(self, factor: float) -> list[str]:
        pace = max(1.0, statistics.median(self.samples or [0]) / self.quiet)
        return rooms_over_budget(self.seconds, self.budgets, factor * pace)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--enforce-budgets", action="store_true", help="fail if a room takes 1.5 times its budget")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "not slow":  # the default of `addopts`: other runs take other times
        config.pluginmanager.register(Budgets(config), "budgets")


def _room_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return path.removeprefix("tests/").partition("/")[0].removesuffix(".py").removeprefix("test_")


def _time_yardstick() -> float:
    # Long enough for the scheduler to give other processes their turns, so that a busy machine shows.
    start = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return time.perf_counter() - start
