"""What stores on servers promise beyond what all stores do: passwords, servers that are away, damage, versions."""

import asyncio
import gc
import signal
import sys
from functools import partial

import anyio
import pytest

from agentrt.errors import ConfigError, SessionCorrupt, SessionIOError, SessionVersion
from agentrt.message import UserMsg
from agentrt.state import AgentState, PostgresStore, RedisStore
from agentrt.testing import check_store
from tests.middleware.redis_server import RedisServer, when_redis_fails
from tests.postgres_server import PostgresServer
from tests.state.conftest import new_schema

pytestmark = when_redis_fails  # garbage of one test is collected at the end of the file

SECRET = "hunter2-secret"

URLS = [
    "",
    None,
    3,
    "localhost",
    f"user:{SECRET}@localhost",
    f"http://u:{SECRET}@h/",
    f"mysql://u:{SECRET}@h/?p={SECRET}",
]


@pytest.mark.parametrize("cls", [PostgresStore, RedisStore])
@pytest.mark.parametrize("url", URLS)
def test_url_of_something_else_is_refused_without_its_password(cls, url):
    with pytest.raises(ConfigError, match=rf"^{cls.__name__}\(url=") as caught:
        cls(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "url"),
    [
        (PostgresStore, f"postgresql://u:{SECRET}@h:port/x?{SECRET}"),
        (PostgresStore, f"postgresql://u:{SECRET}@h:99999/x"),
        (PostgresStore, f"postgresql://u:{SECRET}@h/x?nothing={SECRET}"),
        (PostgresStore, f"postgresql://u:{SECRET}@h/x?connect_timeout={SECRET}"),
        (RedisStore, f"redis://u:{SECRET}@h:port"),
        (RedisStore, f"redis://u:{SECRET}@h:99999999"),
        (RedisStore, f"redis://u:{SECRET}@h/agents"),
    ],
)
def test_url_that_cannot_be_read_is_refused_without_its_password(cls, url):
    with pytest.raises(ConfigError) as caught:
        cls(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or SECRET not in str(caught.value.__context__)


@pytest.mark.parametrize("schema", ["", "A", "a-b", 'a"b', "a" * 64, 3, None, "1a"])
def test_schema_that_is_not_a_plain_name_is_refused(schema):
    with pytest.raises(ConfigError, match=r"schema=\.\.\.\) must be"):
        PostgresStore("postgresql://localhost", schema=schema)


@pytest.mark.parametrize("size", [0, True, 1001, "8"])
def test_pool_size_that_is_not_a_number_is_refused(size):
    with pytest.raises(ConfigError, match=r"pool_size=\.\.\.\) must be"):
        PostgresStore("postgresql://localhost", pool_size=size)


@pytest.mark.parametrize("prefix", ["", "a b", "{a}", 3, None, "a" * 101])
def test_prefix_that_is_not_a_plain_name_is_refused(prefix):
    with pytest.raises(ConfigError, match=r"prefix=\.\.\.\) must have"):
        RedisStore("redis://localhost", prefix=prefix)


@pytest.mark.parametrize("prefix", ["a:session", "a:messages:b"])
def test_prefix_among_the_keys_of_another_one_is_refused(prefix):
    with pytest.raises(ConfigError, match=r"has the part '(session|messages)'.*choose another word"):
        RedisStore("redis://localhost", prefix=prefix)


@pytest.mark.parametrize(("cls", "package"), [(PostgresStore, "psycopg"), (RedisStore, "coredis")])
def test_missing_package_names_the_extra(monkeypatch, cls, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf'needs the package {package}: pip install "agentrt\['):
        cls("postgresql://localhost")


@pytest.mark.slow
@pytest.mark.parametrize(
    "store",
    [PostgresStore(f"postgresql://ann:{SECRET}@127.0.0.1:1/x"), RedisStore(f"redis://ann:{SECRET}@127.0.0.1:1")],
    ids=["postgres", "redis"],
)
async def test_server_that_is_away_is_an_error_that_hides_the_password(store):
    state = AgentState(session_id="s")
    for operation in (lambda: store.save(state), lambda: store.load("s"), store.list, store.migrate):
        with pytest.raises(SessionIOError, match=r"could not .* at 127\.0\.0\.1:1") as caught:
            await operation()
        assert SECRET not in repr(caught.value) + str(caught.value.__cause__) + str(caught.value.__context__)
    assert state.revision == 0
    assert SECRET not in repr(store)
    gc.collect()  # what coredis leaves behind, while it is expected


@pytest.mark.slow
async def test_database_that_was_started_again_is_connected_again():
    server = PostgresServer()
    try:
        async with PostgresStore(server.url) as store:
            state = AgentState(session_id="s", context=[UserMsg("1")])
            await store.save(state)
            revision = state.revision
            server.stop()
            with pytest.raises(SessionIOError, match="could not save session 's'"):
                await store.save(state)
            assert state.revision == revision
            server.start()
            state.context.append(UserMsg("2"))
            await store.save(state)
            assert await store.load("s") == state
    finally:
        server.close()


@pytest.mark.slow
async def test_redis_that_hangs_is_given_up(monkeypatch):
    from agentrt._runtime.database import operations

    server = RedisServer()
    try:
        store = RedisStore(server.url)
        state = AgentState(session_id="s")
        await store.save(state)
        monkeypatch.setattr(operations, "MAX_WAIT", 0.2)
        monkeypatch.setattr(operations, "_EXTRA_WAIT", 0.1)
        server.send(signal.SIGSTOP)
        with pytest.raises(SessionIOError, match="may or may not have been done"):
            await store.save(state)
        server.send(signal.SIGCONT)
        monkeypatch.undo()
        await anyio.sleep(0.2)
        loaded = await store.load("s")
        assert loaded is not None
        await store.save(loaded)
    finally:
        server.close()
        gc.collect()  # what coredis leaves behind, while it is expected


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM {}.messages WHERE position = 1",
        "UPDATE {}.messages SET message = substring(message FROM 1 FOR 20) WHERE position = 1",
        "UPDATE {}.sessions SET head = substring(head FROM 5)",
        "UPDATE {}.sessions SET messages = 1",
    ],
)
async def test_damaged_row_names_its_session_and_nothing_of_it(postgres, damage):
    import psycopg

    schema = new_schema()
    async with PostgresStore(postgres.url, schema=schema) as store:
        await store.save(AgentState(session_id="s", context=[UserMsg(SECRET), UserMsg(SECRET)], summary=SECRET))
        with psycopg.connect(postgres.url) as connection:
            connection.execute(damage.format(schema))
        with pytest.raises(SessionCorrupt, match="session 's'") as caught:
            await store.load("s")
        assert SECRET not in str(caught.value)
        await store.delete("s")
        assert await store.load("s") is None


async def test_newer_schema_is_refused_before_any_write(postgres, redis):
    import coredis
    import psycopg

    schema = new_schema()
    async with PostgresStore(postgres.url, schema=schema) as store:
        await store.migrate()
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"INSERT INTO {schema}.schema_version VALUES (99)")
    async with PostgresStore(postgres.url, schema=schema) as store:
        for operation in (store.migrate(), store.load("s"), store.save(AgentState(session_id="s"))):
            with pytest.raises(SessionVersion, match="has the version 99, and this version of agentrt knows"):
                await operation
    other = RedisStore(redis.url, prefix=schema)
    await other.save(AgentState(session_id="s"))
    async with coredis.Redis.from_url(redis.url) as client:
        await client.set(f"{schema}:layout", 99)
    for operation in (other.migrate(), other.load("s"), other.save(AgentState(session_id="t"))):
        with pytest.raises(SessionVersion, match="the layout 99, and this version of agentrt knows"):
            await operation
    await other.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_many_messages_are_saved_at_once_and_after_others(open_store, anyio_backend):
    store = await open_store()
    state = AgentState(session_id="s", context=[UserMsg(str(number)) for number in range(3000)])
    await store.save(state)
    state.context[1000:] = [UserMsg(f"new {number}") for number in range(2500)]
    await store.save(state)
    assert await store.load("s") == state
    state.context[3000:] = [UserMsg("last")]
    await store.save(state)
    assert await store.load("s") == state


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_save_after_one_that_asyncio_cancelled_is_the_last(postgres, redis, kind, anyio_backend):
    schema = new_schema()
    store = PostgresStore(postgres.url, schema=schema) if kind == "postgres" else RedisStore(redis.url, prefix=schema)
    async with store:
        state = AgentState(session_id="s", context=[UserMsg("0")])
        await store.save(state)
        for number in range(1, 12):
            state.context.append(UserMsg(str(number) * 1000))
            task = asyncio.create_task(store.save(state))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            del state.context[number % 5 + 1 :]
            await store.save(state)
            assert await store.load("s") == state


async def test_processes_that_migrate_at_once_make_one_schema(postgres):
    schema = new_schema()
    stores = [PostgresStore(postgres.url, schema=schema) for _ in range(6)]
    async with anyio.create_task_group() as tasks:
        for store in stores:
            tasks.start_soon(store.migrate)
    await stores[0].save(AgentState(session_id="s"))
    for store in stores:
        await store.aclose()


def damage_rows(url: str, schema: str, session_id: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        session = connection.execute(
            f"SELECT number FROM {schema}.sessions WHERE id = %s", [session_id.encode()]
        ).fetchone()
        connection.execute(f"DELETE FROM {schema}.messages WHERE session = %s AND position = 1", session)


async def damage_entries(url: str, prefix: str, session_id: str) -> None:
    import coredis

    async with coredis.Redis.from_url(url) as client:
        await client.lpop(f"{prefix}:messages:{session_id}")


async def check_kind(kind: str, url: str, **options: int) -> None:
    schema = new_schema()
    open_store, damage = partial(PostgresStore, url, schema=schema), partial(damage_rows, url, schema)
    if kind == "redis":
        open_store, damage = partial(RedisStore, url, prefix=schema), partial(damage_entries, url, schema)
    report = await check_store(
        open_store, open_expiring=lambda ttl: open_store(ttl=ttl), damages={"a message is missing": damage}, **options
    )
    assert (report.missing, report.untried) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_stores_on_servers_pass_the_kit(request, kind, anyio_backend):
    await check_kind(kind, request.getfixturevalue(kind).url, kills=0, runs=1, steps=5)


@pytest.mark.slow
@pytest.mark.usefixtures("resource_tracker_runs")
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_stores_on_servers_pass_the_kit_with_kills(request, kind):
    await check_kind(kind, request.getfixturevalue(kind).url, kills=4)
