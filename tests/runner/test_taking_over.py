"""What a worker finds in its store: replies that were left, sessions that others write, and a store that is away."""

import sqlite3
from contextlib import closing
from hashlib import sha256
from typing import Any

import anyio
import pytest

from agentrt import AgentState
from agentrt.errors import SessionCorrupt, SessionIOError
from agentrt.runner import Runner
from agentrt.runner.sqlite.queue import SQLiteQueue
from agentrt.runner.sqlite.worker_lock import WorkerLock
from agentrt.state import FileStateStore, InMemoryStateStore, SQLiteStore
from agentrt.tool import FunctionTool, ToolContext
from tests.loop.helpers import rebuilt
from tests.runner.conftest import make_agent, work


async def leave_reply(store: Any, *, takeovers: int = 0, tool: str = "look") -> None:
    """Leave the reply "r" of session "s" in progress, as a process does that dies after a call."""
    agent = make_agent(look, SEARCH, state=AgentState(session_id="s"), state_store=store)
    async with agent.reply_stream(f"call {tool}", reply_id="r") as stream:
        async for event in stream:
            if event.type == "TOOL_RESULT_END":
                break
        await stream.hand_over()
    context = agent.state.reply_context
    assert context is not None
    context.takeovers, context.known_results = takeovers, 1
    await store.save(agent.state)


async def look() -> str:
    return "seen"


async def search(context: ToolContext) -> str:
    return " ".join([(await context.call("look")).text for _ in range(2)])


SEARCH = FunctionTool(search, is_resumable=True)


async def test_results_of_inner_calls_count_as_progress():
    store = InMemoryStateStore()
    await leave_reply(store, takeovers=4, tool="search")
    state = await store.load("s")
    state.reply_context.known_results = 0
    await store.save(state)
    async with work(Runner(make_agent(look, SEARCH), store)) as runner:
        await (await runner.submit("s", "And?")).result()
        message = await runner.handle("s", "r").result()
    assert message.finished_reason == "completed"


@pytest.mark.parametrize(("takeovers", "reason"), [(3, "completed"), (4, "failed")])
async def test_reply_that_has_killed_its_workers_is_given_up(caplog, takeovers, reason):
    store = InMemoryStateStore()
    await leave_reply(store, takeovers=takeovers)
    async with work(Runner(make_agent(look), store)) as runner:
        handle = await runner.submit("s", "And?")
        assert (await handle.result()).get_text_content() == "You said: And?"
        message = await runner.handle("s", "r").result()
        events = [event async for event in runner.events("s", "r")]
    assert message.finished_reason == reason
    state = await store.load("s")
    kept = next(message for message in state.context if message.id == "r")
    assert rebuilt(events).content == kept.content
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    if reason == "failed":
        assert message.error == "the process that ran it died 5 times"
        assert errors == ["reply r of session 's' is given up: the process that ran it died 5 times"]


async def test_reply_that_nobody_has_queued_yet_is_waited_for():
    store = InMemoryStateStore()
    await leave_reply(store)
    runner, events = Runner(make_agent(look), store), []
    async with runner, anyio.create_task_group() as group:
        async for event in runner.events("s", "r"):
            if not events:
                group.start_soon(runner.work)
            events.append(event)
        await runner.drain()
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))
    state = await store.load("s")
    assert rebuilt(events).content == state.context[-1].content


async def test_reply_that_said_nothing_and_is_given_up_is_found():
    store, agent = InMemoryStateStore(), make_agent(state=AgentState(session_id="s"))
    agent.state_store = store
    stream = agent.reply_stream("Hi!", reply_id="r")
    await anext(stream)
    await stream.hand_over()
    assert agent.state.reply_context is not None
    agent.state.reply_context.takeovers = 4
    await store.save(agent.state)
    async with work(Runner(make_agent(), store)) as runner:
        await (await runner.submit("s", "And?")).result()
        message = await runner.handle("s", "r").result()
    assert (message.finished_reason, message.content) == ("failed", [])


async def die_with_it(store: Any, *, begun: int, waiting: int = 0) -> None:
    """Claim what is queued, and die: some workers while they run it, others while they run what may kill as well."""
    queue = SQLiteQueue(store.path, max_per_owner=9)
    for number in range(begun + waiting):
        claimed = await queue.claim("dead:1:1")
        assert claimed is not None
        if number < begun:
            await queue.begin(claimed)
        assert await queue.recover() == [("s", claimed.request.reply_id, "dead:1:1")]
    await queue.close()


async def test_reply_that_was_only_there_is_not_given_up(sqlite):
    async with Runner(make_agent(), sqlite) as runner:
        handle = await runner.submit("s", "Hi!")
    await die_with_it(sqlite, begun=4, waiting=20)
    async with work(Runner(make_agent(), sqlite)) as runner:
        assert (await runner.handle("s", handle.reply_id).result()).finished_reason == "completed"


async def test_reply_that_kills_before_its_first_save_is_given_up(sqlite):
    async with Runner(make_agent(), sqlite) as runner:
        handle = await runner.submit("s", "Hi!")
    await die_with_it(sqlite, begun=5)
    async with work(Runner(make_agent(), sqlite)) as runner:
        message = await runner.handle("s", handle.reply_id).result()
        assert (await (await runner.submit("s", "And?")).result()).finished_reason == "completed"
    assert message.finished_reason == "failed"
    assert "died 5 times" in (message.error or "")
    state = await sqlite.load("s")
    assert [message.role for message in state.context] == ["user", "user", "assistant"]


async def test_session_that_another_writer_has_saved_is_no_failure(sqlite):
    runs = 0

    async def meddle() -> str:
        """Save the session behind the back of the reply."""
        nonlocal runs
        runs += 1
        state = await sqlite.load("s")
        state.labels["seen"] = "yes"
        await sqlite.save(state)
        return "meddled"

    async with work(Runner(make_agent(meddle), sqlite)) as runner:
        handle = await runner.submit("s", "call meddle")
        message = await handle.result()
        events = [event async for event in handle.events()]
    state = await sqlite.load("s")
    assert (message.finished_reason, runs, state.labels) == ("completed", 1, {"seen": "yes"})
    assert rebuilt(events).content == state.context[-1].content


class AwayStore(InMemoryStateStore):
    """A store that is away for some operations."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.failures = 0
        self._error = SessionIOError("the store is away") if error is None else error

    async def save(self, state: AgentState) -> None:
        self._fail()
        await super().save(state)

    async def load(self, session_id: str) -> AgentState | None:
        self._fail()
        return await super().load(session_id)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self._error


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "patience"), [(1, 10), (3, 10), (1, 0), (3, 0)])
async def test_store_that_is_away_is_waited_for(monkeypatch, failures, patience):
    monkeypatch.setattr("agentrt.runner.execution._PATIENCE", patience)
    store = AwayStore()

    async def look() -> str:
        store.failures = failures
        return "seen"

    async with work(Runner(make_agent(look), store)) as runner:
        handle = await runner.submit("s", "call look")
        while True:
            try:
                message = await handle.result()
            except SessionIOError:  # of the follower, who asks the same store
                continue
            break
        events = [event async for event in handle.events()]
    state = await store.load("s")
    assert state is not None
    assert message.finished_reason == "completed"
    assert [event.type for event in events].count("REPLY_END") == 1
    assert rebuilt(events).content == state.context[-1].content


@pytest.mark.parametrize("when", ["before", "in a call"])
async def test_store_that_fails_in_its_own_way_is_waited_for(monkeypatch, when):
    monkeypatch.setattr("agentrt.runner.execution._PATIENCE", 0)
    store = AwayStore(ConnectionResetError("at secret.example"))

    async def look() -> str:
        store.failures = 2 * (when == "in a call")
        return "seen"

    async with work(Runner(make_agent(look), store)) as runner:
        handle = await runner.submit("s", "call look")
        store.failures = 2 * (when == "before")
        message, problems = None, []
        while message is None:
            try:
                message = await handle.result()
            except SessionIOError as error:  # of the follower, who asks the same store
                problems.append(str(error))
    assert message.finished_reason == "completed"
    assert set(problems) <= {"the store failed: ConnectionResetError"}


async def test_full_disk_is_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("agentrt.runner.execution._PATIENCE", 0)
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_note(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*arguments, **options))
        return connections[-1]

    def limit(pages: int) -> None:
        for connection in connections:
            connection.execute(f"PRAGMA max_page_count = {pages}")  # and never less than there are

    runs = 0

    async def write_much() -> str:
        """Return more than the disk has room for."""
        nonlocal runs
        runs += 1
        limit(1)
        return "x" * 50_000

    monkeypatch.setattr(sqlite3, "connect", connect_and_note)
    async with SQLiteStore(tmp_path / "states.db") as store, work(Runner(make_agent(write_much), store)) as runner:
        handle = await runner.submit("s", "call write_much")
        while "waits for its store" not in caplog.text:  # noqa: ASYNC110  # no event tells of it
            await anyio.sleep(0.01)
        with pytest.raises(SessionIOError, match="SQLITE_FULL"):
            await runner.submit("t", "y" * 500_000)
        limit(1_000_000)
        message = await handle.result()
        assert (await (await runner.submit("t", "y" * 500_000)).result()).finished_reason == "completed"
        state = await store.load("s")
    results = state.context[-1].get_content_blocks("tool_result")
    # What it did is not lost, and not known: it does not run again.
    assert (message.finished_reason, runs, [result.state for result in results]) == ("completed", 1, ["unknown"])


async def test_removed_queue_takes_no_input(tmp_path):
    async with Runner(make_agent(), FileStateStore(tmp_path)) as runner:
        await runner.submit("s", "Hi!", reply_id="r")
        for path in tmp_path.glob("queue.db*"):
            path.unlink()
        with pytest.raises(SessionIOError, match=r"queue\.db' could not be written: its file was removed"):
            await runner.submit("s", "Hi!")


async def test_damaged_file_stops_no_other_session(tmp_path):
    store = FileStateStore(tmp_path)
    for name in ("good", "bad"):
        await store.save(AgentState(session_id=name))
    (tmp_path / f"{sha256(b'bad').hexdigest()}.state").write_bytes(b"")
    async with work(Runner(make_agent(), store)) as runner:
        for name in ("good", "new"):
            assert (await (await runner.submit(name, "Hi!")).result()).finished_reason == "completed"
        with pytest.raises(SessionCorrupt, match="session 'bad'"):
            await runner.submit("bad", "Hi!")


async def test_damaged_session_ends_its_replies_and_no_others(sqlite):
    async with Runner(make_agent(), sqlite) as runner:
        handles = [await runner.submit(name, "Hi!") for name in ("good", "bad")]
        await sqlite.save(AgentState(session_id="bad"))
    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.execute("UPDATE sessions SET head = '{' WHERE id = 'bad'")
        connection.commit()
    async with work(Runner(make_agent(), sqlite)) as runner:
        assert (await runner.handle("good", handles[0].reply_id).result()).finished_reason == "completed"
        await sqlite.delete("bad")  # what a person does about it
        await (await runner.submit("bad", "Once more!")).result()
        message = await runner.handle("bad", handles[1].reply_id).result()
    assert message.finished_reason in ("failed", "completed")  # by when it was deleted


async def test_deleted_lock_file_is_made_again_and_keeps_others_out(sqlite, caplog):
    lock = sqlite.path.with_name(f"{sqlite.path.name}.worker")
    other = WorkerLock(lock, "other")
    async with work(Runner(make_agent(), sqlite)) as runner:
        await (await runner.submit("s1", "Hi")).result()
        lock.unlink()
        while not lock.exists():  # noqa: ASYNC110  # a file has no event
            await anyio.sleep(0.01)
        assert not other.take()
        # Another worker that comes first has it, and this one waits.
        lock.unlink()
        assert other.take()
        while "the lock file" not in caplog.text:  # noqa: ASYNC110  # nor has a log
            await anyio.sleep(0.01)
        other.release()
        assert (await (await runner.submit("s2", "Hi")).result()).get_text_content() == "You said: Hi"
