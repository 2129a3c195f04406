"""Background calls on many machines: the same promises, whichever worker has the parent and which the task."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt.event import TaskStartedEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from tests.postgres_server import PostgresServer
from tests.program_runner import ProgramRunner
from tests.runner import task_kills
from tests.runner.conftest import answer_to, approved_pay, make_agent, work
from tests.runner.dbos.machines_run import Machines
from tests.runner.kill_app import TOOLS
from tests.runner.test_tasks import BossModel, ask_in_task, background, clerk, started, woken


@pytest.mark.slow
async def test_task_is_let_go_seen_and_stopped_from_elsewhere(new_runner, store, waiting):
    def agent() -> Any:
        return make_agent(background(waiting.wait), approved_pay())

    async with new_runner(agent()) as client, work(new_runner(agent())):
        task = await started(await client.submit("s", "call wait", labels={"owner": "ann"}))
        await waiting.begun.wait()
        [info] = await client.tasks("s")
        assert (info.id, info.tool, info.state) == (task.task_id, "wait", "running")
        parked = await client.submit("s", "call pay")
        question = [event async for event in parked.events()][-1]
        assert await client.stop_task("s", task.task_id)
        await client.handle(task.session_id, task.task_id).result()
        await client.answer("s", answer_to(question))
        assert f"({task.task_id}) was stopped" in await woken(client, "s", task)
        [info] = await client.tasks("s")
        assert info.state == "over"
        state = await store.load(task.session_id)
        assert state.labels == {"owner": "ann"}
        await client.delete("s")
        assert (await store.list()).sessions == []


@pytest.mark.slow
async def test_queued_task_is_stopped_unrun_and_wakes(new_runner, store, waiting):
    calls = [ToolCallBlock(str(number), "wait", "{}") for number in range(2)]
    model = ScriptedChatModel([calls, "Two.", *["Woken."] * 9])
    async with work(new_runner(make_agent(background(waiting.wait), model=model), max_concurrency=1)) as runner:
        handle = await runner.submit("s", "Go")
        tasks = [event async for event in handle.events() if isinstance(event, TaskStartedEvent)]
        await waiting.begun.wait()
        # Either may run first; the other one has no state yet.
        [queued] = [task for task in tasks if await store.load(task.session_id) is None]
        assert await runner.stop_task("s", queued.task_id)
        waiting.release.set()
        await woken(runner, "s", queued)
    state = await store.load("s")
    words = [message.get_text_content() for message in state.context if message.name == "task"]
    assert f"The background call of wait ({queued.task_id}) was stopped." in words
    assert waiting.runs == 1


@pytest.mark.slow
async def test_question_of_a_task_is_answered_from_elsewhere(new_runner):
    async with (
        new_runner(make_agent(clerk(), model=BossModel())) as client,
        work(new_runner(make_agent(clerk(), model=BossModel()))),
    ):
        task, question = await ask_in_task(client, "clerk")
        await client.answer("s", answer_to(question))
        assert "is done. Its result follows.\nPaid it." in await woken(client, "s", task)


@pytest.mark.slow
async def test_task_whose_saved_session_is_gone_runs_once_and_wakes(new_runner, store, waiting):
    runner = new_runner(make_agent(background(waiting.wait)))
    async with runner, anyio.create_task_group() as group:
        group.start_soon(runner.work)
        task = await started(await runner.submit("s", "call wait"))
        await waiting.begun.wait()
        group.cancel_scope.cancel()
    await store.delete(task.session_id)
    async with work(new_runner(make_agent(background(waiting.wait)))) as runner:
        assert f"({task.task_id}) was stopped." in await woken(runner, "s", task)
    assert waiting.runs == 1


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [False, True])
async def test_no_result_is_lost_and_none_comes_twice(
    tmp_path: Path, monkeypatch, dbos_programs: ProgramRunner, own_server: PostgresServer, idempotent
):
    monkeypatch.setenv("KILL_TEST_TOOL_SECONDS", "0.5")
    monkeypatch.setenv("KILL_TEST_LOG", "")
    monkeypatch.setenv("KILL_TEST_IDEMPOTENT", "")
    environment = task_kills.environment_of(tmp_path, own_server.url, idempotent=idempotent)
    environment["KILL_TEST_VERSIONS"] = "1"
    machines = Machines(dbos_programs, own_server, tmp_path, 3, environment, 0.0, task_kills.WORKER)
    report = await task_kills.run(machines, tmp_path, own_server.url, conversations=8, every=0.5, idempotent=idempotent)
    log = (tmp_path / "workers.log").read_text()
    assert not report.problems, "\n".join([*report.problems, log[-3000:]])
    assert report.results.total() == 8 * len(TOOLS)
    assert report.kills > 0
