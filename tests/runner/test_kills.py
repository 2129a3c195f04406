"""Workers that are killed while they are busy: `python -m tests.runner.kill_run` does the same for longer."""

import os
import signal
from functools import partial
from pathlib import Path

import anyio
import pytest

from agentrt.runner import Runner
from agentrt.state import SQLiteStore
from tests.program_runner import ProgramRunner
from tests.runner import kill_run, task_kills


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_is_lost_and_nothing_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idempotent: bool, program_runner: ProgramRunner
) -> None:
    monkeypatch.setenv("KILL_TEST_LOG", str(tmp_path / "effects.log"))
    monkeypatch.setitem(os.environ, "KILL_TEST_TOOL_SECONDS", "0.3")
    report = await kill_run.run(
        program_runner, tmp_path, conversations=6, replies=2, workers=2, every=1, idempotent=idempotent
    )
    log = (tmp_path / "workers.log").read_text()
    assert not report.problems, "\n".join([*report.problems, log[-3000:]])
    assert (report.finished, report.results.total()) == (12, 36)
    # A quick machine may have finished before the first kill.
    assert not report.kills or "taking over reply" in log
    assert "stopping: SIGTERM" in log


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [False, True])
async def test_background_calls_come_back_once_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idempotent: bool, program_runner: ProgramRunner
) -> None:
    for name, value in {"LOG": "", "IDEMPOTENT": "", "TOOL_SECONDS": "0.3"}.items():
        monkeypatch.setenv(f"KILL_TEST_{name}", value)
    url = str(tmp_path / "agent.db")
    environment = task_kills.environment_of(tmp_path, url, idempotent=idempotent)
    workers = kill_run.Workers(program_runner, tmp_path, 2, environment, task_kills.WORKER)
    report = await task_kills.run(workers, tmp_path, url, conversations=6, every=0.3, idempotent=idempotent)
    assert not report.problems, "\n".join([*report.problems, (tmp_path / "workers.log").read_text()[-3000:]])
    assert report.results.total() == 18


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_reply_that_kills_each_worker_is_given_up_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program_runner: ProgramRunner
) -> None:
    monkeypatch.setenv("KILL_TEST_LOG", str(tmp_path / "effects.log"))
    from tests.runner.poison_app import agent

    store = SQLiteStore(tmp_path / "agent.db")
    worker = partial(
        program_runner.start,
        kill_run.COMMAND,
        *["worker", "tests.runner.poison_app:agent", "--store", f"sqlite:{store.path}"],
        errors=tmp_path / "workers.log",
        environment={**os.environ},
    )
    codes: list[int] = []
    async with Runner(agent, store) as runner:
        handles = [
            await runner.submit(f"s{number}", "poison" if number == 2 else "book", reply_id="r") for number in range(6)
        ]
        while len(codes) < 5:
            codes.append(await anyio.to_thread.run_sync(worker().wait))
        last = worker()
        messages = [await handle.result() for handle in handles]
        last.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(last.wait) == 0
    assert codes == [-9] * 5
    assert [message.finished_reason for message in messages] == ["completed"] * 2 + ["failed"] + ["completed"] * 3
    assert messages[2].error == "the process that ran it died 5 times"
