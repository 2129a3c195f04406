"""Stores named by a URL, as on a command line."""

from collections.abc import Callable

from agentrt.errors import ConfigError
from agentrt.state.database.postgres import PostgresStore
from agentrt.state.database.redis import RedisStore
from agentrt.state.database.sqlite import SQLiteStore
from agentrt.state.file_store import FileStateStore
from agentrt.state.memory_store import InMemoryStateStore
from agentrt.state.store import SessionStore

_FORMS = "sqlite:agent.db, file:sessions, postgresql://host/database, redis://host or memory:"
_SERVER_STORES: dict[str, Callable[[str], SessionStore]] = {
    "postgresql": PostgresStore,
    "postgres": PostgresStore,
    "redis": RedisStore,
    "rediss": RedisStore,
}
_FILE_STORES: dict[str, Callable[[str], SessionStore]] = {"sqlite": SQLiteStore, "file": FileStateStore}


def state_store(url: str) -> SessionStore:
    """Return the store at that URL: "sqlite:agent.db", "postgresql://db/agents", "redis://cache", "file:sessions".

    "sqlite:" and "file:" precede a path; "memory:" is a store in this process. Raises `ConfigError`, without a
    password, for an unusable URL; nothing is opened yet.
    """
    if not isinstance(url, str):
        raise ConfigError(f"a store URL must be a str, such as {_FORMS}, not {url!r:.100}")
    scheme, colon, rest = url.partition(":")
    if scheme in _SERVER_STORES and colon:
        return _SERVER_STORES[scheme](url)
    if rest.startswith("//") and not rest.startswith("///") and scheme in _FILE_STORES:
        path = rest.removeprefix("//")
        raise ConfigError(
            f"{url!r:.100} names a machine, and a file is on this one: write {f'{scheme}:{path}'!r:.100}, "
            f"or {f'{scheme}:///{path}'!r:.100} for a path from the root"
        )
    if scheme in _FILE_STORES and rest:
        # Three slashes mean a URL without a host; the path begins with the last of them.
        return _FILE_STORES[scheme](rest.removeprefix("//") if rest.startswith("///") else rest)
    if url == "memory:":
        return InMemoryStateStore()
    # The scheme alone: the rest may hold a password.
    start = repr(f"{scheme}:...") if colon else repr(url)
    raise ConfigError(f"{start:.100} is not a store URL: write {_FORMS}")
