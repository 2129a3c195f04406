"""Many machines that fail: nothing is lost, nothing runs twice, and followers see what is saved.

`python -m tests.runner.dbos.machines_run` does the same for longer.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.runner.dbos import machines_run

CONVERSATIONS = 9  # of three tool calls each
FAULTS: list[Any] = [{"freeze": 1.0}, {"cut": 0.5, "kill": 3.0}, {"restart": 3.0}]


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids="-".join)
async def test_no_effect_is_lost_and_none_is_repeated(tmp_path: Path, monkeypatch, dbos_programs, own_server, faults):
    monkeypatch.setenv("KILL_TEST_LOG", "")
    monkeypatch.setenv("KILL_TEST_IDEMPOTENT", "")
    monkeypatch.setenv("KILL_TEST_TOOL_SECONDS", "0.5")
    report = await machines_run.run(dbos_programs, own_server, tmp_path, faults=faults, conversations=CONVERSATIONS)
    log = (tmp_path / "workers.log").read_text()
    assert not report.problems, "\n".join([*report.problems, log[-3000:]])
    assert (report.finished, report.results.total()) == (CONVERSATIONS, 3 * CONVERSATIONS)
    assert report.kills > 0
    assert "ready: " in log


@pytest.mark.slow
async def test_idempotent_tools_leave_nothing_unknown(tmp_path: Path, monkeypatch, dbos_programs, own_server):
    monkeypatch.setenv("KILL_TEST_LOG", "")
    monkeypatch.setenv("KILL_TEST_IDEMPOTENT", "")
    monkeypatch.setenv("KILL_TEST_TOOL_SECONDS", "0.5")
    report = await machines_run.run(
        dbos_programs, own_server, tmp_path, faults={"kill": 2.0}, conversations=CONVERSATIONS, idempotent=True
    )
    log = (tmp_path / "workers.log").read_text()
    assert not report.problems, "\n".join([*report.problems, log[-3000:]])
    assert report.results == {"success": 3 * CONVERSATIONS}, log[-3000:]
    assert report.kills > 0
