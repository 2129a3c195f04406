"""Schedules: when they are due, and that each time is submitted once."""

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from time import time_ns
from zoneinfo import ZoneInfo

import anyio
import pytest

from agentrt.errors import ConfigError
from agentrt.runner import Runner
from agentrt.runner.schedule import Schedule, next_tick_function
from agentrt.runner.sqlite.queue import SQLiteQueue
from agentrt.state import InMemoryStateStore
from tests.runner.conftest import make_agent, work

SECOND = 10**9


def schedule(when: object) -> Schedule:
    return Schedule("name", "s", None, {}, next_tick_function(when))


@pytest.mark.parametrize("when", [3600, 3600.0, timedelta(hours=1), "0 * * * *"])
def test_hourly_schedule_is_due_at_each_hour(when):
    start = int(datetime(2026, 3, 1, 12, 20).astimezone().timestamp()) * SECOND
    due = schedule(when).next_after(start)
    assert (due - start) // SECOND == 2400
    assert schedule(when).next_after(due) == due + 3600 * SECOND


@pytest.mark.parametrize("when", [60, "* * * * *"])
def test_last_time_that_was_missed_is_found_among_any_number(when):
    now = int(datetime(2026, 3, 1, 12, 20, 30).astimezone().timestamp()) * SECOND
    for seconds in (40, 100, 10_000, 40_000_000):
        assert schedule(when).last_missed(now - seconds * SECOND, now) == now - 30 * SECOND
    assert schedule(when).last_missed(now - 20 * SECOND, now) is None


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneInfo]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield ZoneInfo("Europe/Berlin")
    time.tzset()


@pytest.mark.skipif(sys.platform == "win32", reason="the time zone of a process cannot be set there")
@pytest.mark.parametrize(
    ("line", "day", "due"),
    [
        ("0 9 * * *", "2026-10-24", ["24 09:00+02:00", "25 09:00+01:00", "26 09:00+01:00"]),
        ("0 9 * * *", "2026-03-28", ["28 09:00+01:00", "29 09:00+02:00", "30 09:00+02:00"]),
        ("30 * * * *", "2026-10-25 01:00", ["25 01:30+02:00", "25 02:30+02:00", "25 02:30+01:00", "25 03:30+01:00"]),
        ("30 * * * *", "2026-03-29 01:00", ["29 01:30+01:00", "29 03:30+02:00"]),
    ],
)
def test_line_of_cron_keeps_its_hours_when_the_clocks_change(berlin, line, day, due):
    after = int(datetime.fromisoformat(day).replace(tzinfo=berlin).timestamp()) * SECOND
    found = []
    for _ in due:
        after = schedule(line).next_after(after)
        found.append(datetime.fromtimestamp(after // SECOND, berlin).isoformat(" ", "minutes")[8:])
    assert found == due


@pytest.mark.parametrize("when", [0, 0.5, True, float("nan"), "every day", "61 * * * *", None])
def test_what_cannot_be_a_schedule_is_refused(when):
    with pytest.raises(ConfigError, match=r"0 9 \* \* 1-5"):
        Runner(make_agent(), InMemoryStateStore()).every(when, "s", "Hi!")


def test_name_of_a_schedule_is_its_own():
    runner = Runner(make_agent(), InMemoryStateStore())
    runner.every(60, "s", "Hi!")
    with pytest.raises(ConfigError, match="has a schedule 's' already"):
        runner.every(90, "s", "Ho!")


async def test_missed_times_are_made_up_for_once(sqlite):
    queue = SQLiteQueue(sqlite.path, max_per_owner=9)
    await sqlite.migrate()
    await queue.open()
    await queue.note_tick("s", time_ns() - 10 * 3600 * SECOND)
    await queue.close()
    for _ in range(2):  # the second worker has missed none
        runner = Runner(make_agent(), sqlite)
        runner.every(3600, "s", "Digest!")
        async with work(runner):
            with anyio.move_on_after(60):
                while await sqlite.load("s") is None or await runner._queue.find_replies("s"):  # noqa: ASYNC110
                    await anyio.sleep(0.02)
    state = await sqlite.load("s")
    assert [message.get_text_content() for message in state.context] == ["Digest!", "You said: Digest!"]
