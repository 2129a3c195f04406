"""What a SQLite store promises beyond what all stores do: its file, its schema, crashes and other processes."""

import asyncio
import os
import pickle
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest

from agentrt._runtime.database import operations, sqlite_file
from agentrt.errors import ConfigError, SessionConflict, SessionCorrupt, SessionIOError, SessionVersion
from agentrt.message import UserMsg
from agentrt.state import AgentState, SQLiteStore

SECRET = "4111 1111"


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows: list[tuple[object, ...]] = []
        for statement in statements:
            rows += connection.execute(statement)
        return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.mark.parametrize("durability", ["full", "process"])
async def test_a_save_writes_the_new_messages_alone(path, durability):
    async with SQLiteStore(path, durability=durability) as store:
        state = AgentState(session_id="s", context=[UserMsg(str(number)) for number in range(300)])
        await store.save(state)
        counts = []
        store._database._file._connection.set_trace_callback(
            lambda sql: counts.append(sql) if "INTO messages" in sql else None
        )
        state.context += [UserMsg("new"), UserMsg("newer")]
        await store.save(state)
        loaded = await store.load("s")
        loaded.context.append(UserMsg("newest"))
        await store.save(loaded)
        assert len(counts) == 3
        assert await store.load("s") == loaded


async def test_file_is_for_its_owner_alone(path):
    async with SQLiteStore(path) as store:
        await store.save(AgentState())
        modes = [stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()]
        assert modes
        assert not any(mode & 0o077 for mode in modes)


async def test_store_opens_again_after_it_was_closed(path):
    store = SQLiteStore(path)
    async with store:
        await store.save(AgentState(session_id="s"))
    assert await store.load("s") is not None
    await store.aclose()
    await store.aclose()


@pytest.mark.parametrize("given", ["", ":memory:", None, 3, b"x", "nul\0", "\ud800", "no/such/folder/x", "."])
def test_path_that_cannot_be_a_database_is_refused(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^SQLiteStore (needs the path|cannot keep)"):
        SQLiteStore(given)


@pytest.mark.parametrize("durability", ["none", None, 1])
def test_durability_that_there_is_not_is_refused(path, durability):
    with pytest.raises(ConfigError, match="must be 'full' or 'process', not"):
        SQLiteStore(path, durability=durability)


async def test_newer_schema_is_refused_before_any_write(path):
    async with SQLiteStore(path) as store:
        await store.save(AgentState(session_id="s"))
    run_sql(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    async with SQLiteStore(path) as store:
        for operation in (store.migrate(), store.load("s"), store.save(AgentState(session_id="t"))):
            with pytest.raises(SessionVersion, match="schema 99, and this version of agentrt knows"):
                await operation
    assert path.read_bytes() == before


async def test_database_of_another_program_is_left_alone(path):
    run_sql(path, "CREATE TABLE accounts (id)")
    async with SQLiteStore(path) as store:
        with pytest.raises(SessionCorrupt, match="the database of another program"):
            await store.save(AgentState(session_id="s"))
    assert run_sql(path, "SELECT name FROM sqlite_master") == [("accounts",)]


async def test_a_new_file_opens_while_another_connection_creates_it(path, monkeypatch):
    connect = sqlite3.connect

    class Interrupted(sqlite3.Connection):
        executed = 0

        def execute(self, *args):
            self.executed += 1
            if self.executed == 2:
                monkeypatch.undo()
                anyio.run(create)
            return super().execute(*args)

    async def create():
        async with SQLiteStore(path) as other:
            await other.save(AgentState(session_id="other"))

    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Interrupted))
    async with SQLiteStore(path) as store:
        await store.save(AgentState(session_id="s"))
        assert [info.session_id for info in (await store.list()).sessions] == ["other", "s"]


async def test_file_that_is_not_a_database_is_kept(path):
    path.write_bytes(b"My card is 4111 1111." * 1000)
    async with SQLiteStore(path) as store:
        with pytest.raises(SessionCorrupt, match=r"could not load session .s. .*is not a database") as caught:
            await store.load("s")
    assert SECRET not in str(caught.value)
    assert path.read_bytes().startswith(b"My card")


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM messages WHERE position = 1",
        "UPDATE messages SET message = substr(message, 1, 20) WHERE position = 1",
        "UPDATE sessions SET head = substr(head, 5)",
        "UPDATE sessions SET head = 7",
        "UPDATE sessions SET messages = 1",
    ],
)
async def test_damaged_row_names_its_session_and_nothing_of_it(path, damage):
    async with SQLiteStore(path) as store:
        await store.save(AgentState(session_id="s", context=[UserMsg(SECRET), UserMsg(SECRET)], summary=SECRET))
        await store.save(AgentState(session_id="other"))
        run_sql(path, damage)
        with pytest.raises(SessionCorrupt, match="session 's'") as caught:
            await store.load("s")
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None
        await store.delete("s")
        assert await store.load("s") is None


@pytest.mark.parametrize("labels", ["'{'", "'[1]'", "x'ff'"])
async def test_damaged_labels_name_their_session(path, labels):
    async with SQLiteStore(path) as store:
        await store.save(AgentState(session_id="s"))
        run_sql(path, f"UPDATE sessions SET labels = {labels}")
        with pytest.raises(SessionCorrupt, match=r"session 's' in .* are damaged"):
            await store.list()


async def test_removed_database_takes_nothing_more(path):
    async with SQLiteStore(path) as store:
        state = AgentState(session_id="s")
        await store.save(state)
        kept = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink()
        for operation in (store.save, lambda state: store.load("s")):
            with pytest.raises(SessionIOError, match="was removed while it was open: put it back, or close"):
                await operation(state)
        path.write_bytes(kept[0])
        Path(f"{path}-wal").write_bytes(kept[1])
        assert await store.load("s") == state
        await store.save(state)
    async with SQLiteStore(path) as other:
        assert await other.load("s") == state


async def test_pickled_store_opens_the_same_file(path):
    async with SQLiteStore(path, durability="process") as store:
        await store.save(AgentState(session_id="s"))
        async with pickle.loads(pickle.dumps(store)) as other:
            assert (other.path, other.durability) == (path, "process")
            assert await other.load("s") == await store.load("s")


async def test_failed_save_leaves_the_state_as_it_was(path, monkeypatch):
    async with SQLiteStore(path) as store:
        state = AgentState(session_id="s", context=[UserMsg("1")])
        await store.save(state)
        revision = state.revision
        store._database._file._connection.execute("PRAGMA max_page_count = 1")  # as on a full disk
        state.context += [UserMsg("2" * 100_000)]
        with pytest.raises(SessionIOError, match=r"could not save session .s. in .*SQLITE_FULL"):
            await store.save(state)
        assert state.revision == revision
        assert len((await store.load("s")).context) == 1
        store._database._file._connection.execute("PRAGMA max_page_count = 1000000")
        await store.save(state)
        assert await store.load("s") == state


async def test_locked_database_gives_up_after_a_while(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "MAX_WAIT", 1.05)
    async with SQLiteStore(path) as store:
        await store.migrate()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SessionIOError, match="SQLITE_BUSY"):
                await store.save(AgentState(session_id="s"))
        await store.save(AgentState(session_id="s"))


async def test_cancelled_save_is_done_before_the_cancellation_leaves(path):
    async with SQLiteStore(path) as store:
        state = AgentState(session_id="s")
        await store.save(state)
        state.context += [UserMsg(str(number)) for number in range(1000)]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.save, state)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert await store.load("s") == state


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_save_after_one_that_asyncio_cancelled_is_the_last(path, anyio_backend):
    async with SQLiteStore(path) as store:
        state = AgentState(session_id="s", context=[UserMsg("0")])
        await store.save(state)
        for number in range(1, 30):
            state.context.append(UserMsg(str(number) * 1000))
            task = asyncio.create_task(store.save(state))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            del state.context[number % 5 + 1 :]
            await store.save(state)
            assert await store.load("s") == state


async def test_saves_of_two_stores_never_overwrite_each_other(path):
    async with SQLiteStore(path) as one, SQLiteStore(path) as other:
        await one.save(AgentState(session_id="s", summary="0"))
        conflicts = 0

        async def increment(store: SQLiteStore) -> None:
            nonlocal conflicts
            for _ in range(20):
                while True:
                    state = await store.load("s")
                    state.summary = str(int(state.summary) + 1)
                    try:
                        await store.save(state)
                        break
                    except SessionConflict:
                        conflicts += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(increment, one)
            tasks.start_soon(increment, other)
        assert (await one.load("s")).summary == "40"


def test_first_use_by_several_processes_makes_one_schema(path, program_runner, tmp_path):
    program = "import sys, anyio; from agentrt.state import *; anyio.run(SQLiteStore(sys.argv[1]).migrate)"
    errors = tmp_path / "errors"
    children = [program_runner.start(program, str(path), errors=errors) for _ in range(3)]
    assert [child.wait() for child in children] == [0] * 3, errors.read_text()
    assert errors.read_text() == ""
    assert run_sql(path, "SELECT count(*) FROM sessions") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "process"])
async def test_processes_killed_in_their_saves_leave_whole_states(path, durability):
    program = """
import os, sys, anyio
from agentrt.message import UserMsg
from agentrt.state import AgentState, SQLiteStore

async def main():
    store = SQLiteStore(sys.argv[1], durability=sys.argv[2])
    state = await store.load("s") or AgentState(session_id="s", summary="0")
    while True:
        number = int(state.summary) + 1
        state.summary = str(number)
        state.context += [UserMsg(f"{number} " + "x" * 5000)] * (number % 3)
        if number % 7 == 0:
            del state.context[-2:]
        await store.save(state)
        os.write(1, b"%d\\n" % number)

anyio.run(main)
"""
    told = 0
    for kill in range(10):
        child = subprocess.Popen([sys.executable, "-c", program, str(path), durability], stdout=subprocess.PIPE)
        lines = b""
        while lines.count(b"\n") < 3 + kill:
            lines += os.read(child.stdout.fileno(), 1000)
        child.kill()
        lines += child.stdout.read()
        child.wait()
        child.stdout.close()
        told = int(lines.rpartition(b"\n")[0].rpartition(b"\n")[2])
        async with SQLiteStore(path) as store:
            state = await store.load("s")
        found = int(state.summary)
        assert found in (told, told + 1)
        expected: list[str] = []
        for number in range(1, found + 1):
            expected += [f"{number} " + "x" * 5000] * (number % 3)
            if number % 7 == 0:
                del expected[-2:]
        assert [message.content for message in state.context] == expected


async def test_save_that_takes_too_long_says_that_it_may_be_done(path, monkeypatch):
    async with SQLiteStore(path) as store:
        state = AgentState(session_id="s")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            await store.load("s")
            other.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(operations, "MAX_WAIT", 0.05)
            monkeypatch.setattr(operations, "_EXTRA_WAIT", 0.05)
            with pytest.raises(SessionIOError, match=r"no answer for 0\.05 seconds, so it may or may not"):
                await store.save(state)
        monkeypatch.undo()
        state.summary = "later"
        await store.save(state)
        assert await store.load("s") == state
