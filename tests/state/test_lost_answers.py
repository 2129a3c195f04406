"""A server whose answer to a save is lost, or that says nothing at all: nothing is lost, nothing is done twice."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from agentrt._runtime.database import operations
from agentrt.errors import SessionConflict, SessionIOError
from agentrt.message import UserMsg
from agentrt.state import AgentState, PostgresStore, RedisStore
from tests.middleware.redis_server import when_redis_fails
from tests.servers.proxy import Proxy, proxy_to
from tests.state.conftest import new_schema

pytestmark = when_redis_fails

# What the request of a save has in it: the last one of a save of many messages to PostgreSQL is its commit.
SAVES = [("postgres", b"sessions SET revision", 1), ("postgres", b"COMMIT", 1500), ("redis", b"LTRIM", 1)]
every_save = pytest.mark.parametrize(("kind", "request_of_save", "added"), SAVES, ids=["postgres", "commit", "redis"])

StoreOf = Callable[..., Any]


@pytest.fixture
def proxy(kind: str, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with proxy_to(request.getfixturevalue(kind).address) as proxy:
        yield proxy
    gc.collect()  # what coredis leaves behind, while it is expected


@pytest.fixture
def store_at(kind: str, request: pytest.FixtureRequest) -> StoreOf:
    """A function that makes a store of the server at a port, or without one of the server itself."""
    service, schema = request.getfixturevalue(kind), new_schema()

    def open_at(port: int | None = None) -> Any:
        url = service.url if port is None else service.url_at(port)
        return PostgresStore(url, schema=schema) if kind == "postgres" else RedisStore(url, prefix=schema)

    return open_at


def messages(count: int) -> list[UserMsg]:
    return [UserMsg(str(number)) for number in range(count)]


@pytest.mark.slow
@every_save
async def test_save_whose_answer_is_lost_is_done_once(proxy, store_at, request_of_save, added):
    async with store_at(proxy.port) as store:
        state = AgentState(session_id="s", context=messages(3))
        await store.save(state)
        revision = state.revision
        state.context += messages(added)
        proxy.lose_answer_to(request_of_save)
        await store.save(state)
        assert not proxy.is_waiting
        assert state.revision == revision + 1
        assert await store.load("s") == state


@pytest.mark.slow
@every_save
async def test_save_that_was_done_unseen_is_no_conflict_later(proxy, store_at, request_of_save, added):
    async with store_at(proxy.port) as store:
        state = AgentState(session_id="s", context=messages(5))
        await store.save(state)
        revision, context = state.revision, list(state.context)
        state.context = context[:2] + messages(added)
        proxy.lose_answer_to(request_of_save, goes_down=True)
        with pytest.raises(SessionIOError, match="could not save session 's'"):
            await store.save(state)
        assert state.revision == revision
        proxy.is_down = False
        # What the lost save has removed is there again, as if it had never been saved.
        state.context = [*context, UserMsg("last")]
        await store.save(state)
        assert await store.load("s") == state


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_first_save_that_was_done_unseen_is_no_conflict_later(kind, proxy, store_at):
    async with store_at(proxy.port) as store:
        await store.save(AgentState(session_id="other"))
        state = AgentState(session_id="s", context=messages(1))
        proxy.lose_answer_to(b"INSERT INTO" if kind == "postgres" else b"LTRIM", goes_down=True)
        with pytest.raises(SessionIOError, match="could not save session 's'"):
            await store.save(state)
        proxy.is_down = False
        await store.save(state)
        assert await store.load("s") == state
        # One that knows nothing of it is still refused.
        with pytest.raises(SessionConflict, match="already saved"):
            await store.save(AgentState(session_id="s"))


@pytest.mark.slow
@every_save
async def test_save_of_another_writer_after_a_lost_one_is_kept(proxy, store_at, request_of_save, added):
    async with store_at(proxy.port) as store, store_at() as other:
        state = AgentState(session_id="s")
        await store.save(state)
        state.context += messages(added)
        proxy.lose_answer_to(request_of_save, goes_down=True)
        with pytest.raises(SessionIOError):
            await store.save(state)
        proxy.is_down = False
        theirs = await other.load("s")
        assert theirs == AgentState(session_id="s", context=state.context, revision=theirs.revision)
        theirs.summary = "theirs"
        await other.save(theirs)
        with pytest.raises(SessionConflict, match="was saved by another writer"):
            await store.save(state)
        assert await store.load("s") == theirs


def shorten_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_WAIT", 0.3)
    monkeypatch.setattr(operations, "_EXTRA_WAIT", 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_server_that_is_silent_is_given_up_with_its_thread(kind, proxy, store_at, monkeypatch):
    async with store_at(proxy.port) as store:
        state = AgentState(session_id="s")
        await store.save(state)
        shorten_patience(monkeypatch)
        proxy.is_silent = True
        with pytest.raises(SessionIOError, match=r"no answer for 0\.3 seconds, so it may or may not"):
            await store.save(state)
        assert busy_threads() == []
        monkeypatch.undo()
        proxy.is_silent = False
        await store.save(state)
        assert await store.load("s") == state


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_many_calls_of_a_silent_server_leave_no_threads(kind, proxy, store_at, monkeypatch):
    shorten_patience(monkeypatch)
    async with store_at(proxy.port) as store:
        proxy.is_silent = True
        for _ in range(5):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(expect_error, store, f"{number}")
        # To connect, psycopg takes two seconds at least.
        while busy_threads():  # noqa: ASYNC110  # nobody is told when a thread is free
            await anyio.sleep(0.05)


async def expect_error(store: Any, session_id: str) -> None:
    with pytest.raises(SessionIOError):
        await store.save(AgentState(session_id=session_id))
    assert len(busy_threads()) <= 8  # as many as there are connections


def busy_threads() -> list[str]:
    """Return the threads that are in a store."""
    return [
        thread.name
        for thread in threading.enumerate()
        if "agentrt/state" in _files_of(sys._current_frames().get(thread.ident or 0))
        and thread is not threading.current_thread()
    ]


def _files_of(frame: Any) -> str:
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return " ".join(files)
