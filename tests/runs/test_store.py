"""The stores of runs keep what `check_run_store` asks for."""

import sqlite3
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import SessionIOError, UsageError
from agentrt.runs import RunWrite
from agentrt.runs.writer import RunWriter
from agentrt.state import AgentState, FileStateStore, InMemoryStateStore, PostgresStore, RedisStore, SQLiteStore
from agentrt.testing import StoreProblems, check_run_store
from tests.runs.conftest import call, make_agent
from tests.services import Service
from tests.state.conftest import new_schema


async def test_memory_keeps_runs():
    store = InMemoryStateStore()
    assert len(await check_run_store(lambda: store)) == 10


def damage_sqlite(path: Path, statement: str, session_id: str) -> None:
    with sqlite3.connect(path) as connection:
        changed = connection.execute(statement, {"session": session_id}).rowcount
    connection.close()
    assert changed


async def test_sqlite_keeps_runs_and_finds_damage(tmp_path: Path):
    path = tmp_path / "agent.db"
    of_run = "run = (SELECT min(number) FROM runs WHERE session = :session)"
    damages = {
        "a changed line": f"UPDATE run_lines SET line = replace(line, 'MODEL', 'MADEL') WHERE {of_run}",
        "a removed line": f"DELETE FROM run_lines WHERE n = 3 AND {of_run}",
        "a cut end": f"DELETE FROM run_lines WHERE n > 20 AND {of_run}",
        "a removed run": "DELETE FROM runs WHERE number = (SELECT min(number) FROM runs WHERE session = :session)",
    }
    found = await check_run_store(
        lambda: SQLiteStore(path),
        damages={name: partial(damage_sqlite, path, statement) for name, statement in damages.items()},
    )
    assert len(found) == 14


async def test_files_keep_runs_and_find_damage(tmp_path: Path):
    def change_first_run(session_id: str) -> None:
        paths = sorted((tmp_path / "runs").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        [path, *_] = [path for path in paths if session_id.encode() in path.read_bytes()]
        path.write_bytes(path.read_bytes().replace(b"MODEL", b"MADEL", 1))

    found = await check_run_store(lambda: FileStateStore(tmp_path), damages={"a changed line": change_first_run})
    assert len(found) == 11
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "runs").iterdir())


@pytest.mark.slow
async def test_postgres_keeps_runs(postgres: Service):
    schema = new_schema()
    assert len(await check_run_store(lambda: PostgresStore(postgres.url, schema=schema))) == 10


@pytest.mark.slow
async def test_redis_keeps_runs(redis: Service):
    prefix = new_schema()
    assert len(await check_run_store(lambda: RedisStore(redis.url, prefix=prefix))) == 10


async def test_a_torn_end_of_a_file_is_not_read(tmp_path: Path):
    """As a process leaves it that dies in a write."""
    async with FileStateStore(tmp_path) as store:
        agent = make_agent(store, script=["yes"]).with_state(AgentState(session_id="s1"))
        await agent.reply("Go")
        await store.runs.flush()
        [path] = (tmp_path / "runs").glob("*.jsonl")
        with path.open("ab") as file:
            file.write(b'{"n":99,"t":1,"kind":"ev')
        assert (await store.runs.verify("s1")).ok
        run = await store.runs.load("s1")
        row = store.runs._rows.find("s1", run.reply_id)
        line = b'{"n":%d,"t":1,"kind":"event"}' % (row.lines + 1)
        await store.runs.append([RunWrite(replace(row, lines=row.lines + 1), [line], {})])  # as a run that resumes
        assert list(await store.runs.raw_lines("s1", run.reply_id, row.lines)) == [line]


async def test_a_store_that_forgets_is_named():
    class Forgets(InMemoryStateStore):
        async def delete(self, session_id: str) -> None:
            self._saved.pop(session_id, None)

    store = Forgets()
    with pytest.raises(StoreProblems, match="a session that is deleted has no runs"):
        await check_run_store(lambda: store)


async def test_expired_runs_leave_what_the_next_one_names(store: InMemoryStateStore):
    """The chain stays whole, and nothing of old runs piles up."""
    state = AgentState(session_id="s1")
    for reply_id, keep in (("r1", 1e-6), ("r2", 1e-6), ("r3", 60.0)):
        agent = make_agent(store, script=["yes"], keep=keep).with_state(state)
        await agent.reply("Go", reply_id=reply_id)
    await store.runs.flush()
    assert await store.runs.expire() == 2
    assert (await store.runs.verify("s1")).ok
    assert [row.reply_id for row in store.runs._rows.of_session("s1")] == ["r2", "r3"]
    assert (await store.runs.load("s1")).context[0].get_text_content() == "Go"


@pytest.mark.parametrize("is_whole_session", [False, True])
async def test_run_after_a_deleted_one_has_its_contents(store: InMemoryStateStore, is_whole_session: bool):
    agent = make_agent(store, script=[[call("c1")], "It is there.", "Yes."])
    await agent.reply("Find it")
    session_id = agent.state.session_id
    await (store.runs.forget(session_id) if is_whole_session else store.runs.delete(session_id))
    await agent.reply("Is it?")
    run = await store.runs.load(session_id)
    assert [len(request.messages) for request in run.requests] == [4]
    assert (await run.replay(agent)).first is None


async def test_reading_a_broken_store_says_so_without_its_words(store: InMemoryStateStore, monkeypatch: Any):
    def fail(*_: object) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr(store.runs._rows, "of_session", fail)
    with pytest.raises(SessionIOError, match="could not read recorded runs: ValueError") as raised:
        await store.runs.load("s1")
    assert "secret" not in str(raised.value)


async def test_a_run_that_waits_to_be_written_is_not_unknown(store: InMemoryStateStore, monkeypatch: Any):
    agent = make_agent(store, script=["One.", "Two."])
    await agent.reply("Go", reply_id="r1")
    assert await store.runs.flush()
    session_id, may_write, write = agent.state.session_id, threading.Event(), store.runs._rows.write
    monkeypatch.setattr(store.runs._rows, "write", lambda batch: may_write.wait(20) and write(batch))
    monkeypatch.setattr(RunWriter.wait, "__defaults__", (0.01,))
    # A reader would wait for the store itself, which is held here by the write.
    monkeypatch.setattr(store.runs.writer, "_lock", threading.Lock())
    await agent.reply("Go on", reply_id="r2")
    for ask in (
        store.runs.load(session_id),  # which would be the older one
        store.runs.load(session_id, "r2"),
        store.runs.describe(session_id, "r2"),
    ):
        with pytest.raises(SessionIOError, match="may not be written yet"):
            await ask
    assert (await store.runs.load(session_id, "r1")).reply_id == "r1"
    may_write.set()
    monkeypatch.setattr(RunWriter.wait, "__defaults__", (20.0,))
    assert (await store.runs.load(session_id)).reply_id == "r2"


async def test_flush_waits_for_nothing_that_is_queued_later(store: InMemoryStateStore, monkeypatch: Any):
    writer, write = store.runs.writer, store.runs._rows.write

    logs: list[Any] = []

    def write_while_more_comes(batch: Any) -> None:
        write(batch)
        logs.extend(writer._open.values())
        writer.put(logs[0], 0, lambda *_: None, None)

    monkeypatch.setattr(store.runs._rows, "write", write_while_more_comes)
    agent = make_agent(store, script=["One."])
    await agent.reply("Go", reply_id="r1")
    assert await store.runs.flush()
    assert (await store.runs.load(agent.state.session_id)).reply_id == "r1"


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": True}, {"status": "done"}, {"cursor": "x"}, {"labels": {"": "x"}}]
)
async def test_wrong_arguments_of_a_list_are_refused(store: InMemoryStateStore, options: dict[str, Any]):
    with pytest.raises(UsageError):
        await store.runs.list(**options)
