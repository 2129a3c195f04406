"""A SQLite database shared by several programs: connections and errors."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Protocol, TypeVar

from agentrt._runtime.database.sqlite_file import create_private, transaction
from agentrt._runtime.database.worker_threads import Deadline, WorkerThreads
from agentrt._runtime.options import import_extra
from agentrt.errors import ConfigError, StoreError


class SQLiteConnection(Protocol):
    """The methods of both libraries' connections that are used here."""

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ..., /) -> Any: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any: ...


_WorkResult = TypeVar("_WorkResult")
_DatabaseWork = Callable[[SQLiteConnection], _WorkResult]
_FOR_VECTORS = ("apsw", "sqlite_vec")
_IN_MEMORY = ":memory:"
_MAX_DATABASE_THREADS = 4
_MAX_DATABASE_SECONDS = 10.0
_MAX_LOCK_SECONDS = 5.0  # another program may write for this long
_STEPS = 10_000  # of SQLite's machine between two checks of the clock: well under a millisecond
_REMEDIES = {
    "database is locked": "another program is writing to it: try again",
    "database or disk is full": "make room on the disk",
    "attempt to write a readonly database": "change the mode of its file and folder, or give another path",
    "unable to open database file": "it is a folder, or in one that may not be used: give another path",
    "file is not a database": "it is a file of another kind: give another path",
    "database disk image is malformed": "the file is damaged: restore it from a backup, or remove it and index again",
}


class SQLiteDatabase:
    """Runs work on one database in threads: a file, readable by its owner only, or ":memory:".

    `schema` creates the tables of version `version` if there are none; `name` is the table that stores the version,
    so that a file may hold the tables of others too.
    """

    # Files in which this process searches by vectors. All connections to such a file use one library: two in one
    # process do not see each other's locks, and drop them.
    _files_with_vectors: ClassVar[set[str]] = set()

    def __init__(self, owner: str, path: object, *, schema: str, name: str, version: int) -> None:
        if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
            raise ConfigError(f'{owner}(path=...) must be the path of a file, or ":memory:", not {path!r:.200}')
        self.path = str(path) if str(path) == _IN_MEMORY else os.path.abspath(path)
        folder = Path(self.path).parent
        if self.path != _IN_MEMORY and not folder.is_dir():
            raise ConfigError(
                f"{owner}(path=...) is {str(path)!r:.200}, whose folder {str(folder)!r:.200} does not exist: "
                f"make it first"
            )
        self._owner, self._schema, self._name, self._version = owner, schema, name, version
        self._threads = WorkerThreads(_MAX_DATABASE_THREADS, _MAX_DATABASE_SECONDS)
        self._in_memory: Any = None
        self._has_vectors = False
        self._lock = Lock()

    def path_to_pickle(self) -> str:
        """Return the path by which another process opens the database; raises `TypeError` for one in memory."""
        if self.path == _IN_MEMORY:
            raise TypeError(f"a {self._owner} in memory cannot be pickled: give it the path of a file")
        return self.path

    def use_vectors(self) -> None:
        """Load sqlite-vec into every connection; raises `ConfigError` without the extra `rag`."""
        for package in _FOR_VECTORS:
            import_extra(self._owner, "rag", package)
        if self._in_memory is not None and not self._has_vectors:
            raise ConfigError(
                f"the {self._owner} in memory has been used without an embedding: give it one before its first use"
            )
        self._has_vectors = True
        if self.path != _IN_MEMORY:
            self._files_with_vectors.add(os.path.realpath(self.path))

    async def read(self, work: _DatabaseWork[_WorkResult]) -> _WorkResult:
        """Return the result of the work, which sees one snapshot of the database."""
        return await self._run("read", "DEFERRED", work)

    async def write(self, work: _DatabaseWork[_WorkResult], extra_seconds: float = 0.0) -> _WorkResult:
        """Return the result of the work; its changes are atomic, and undone if it raises."""
        return await self._run("write", "IMMEDIATE", work, extra_seconds)

    async def _run(
        self, action: str, kind: str, work: _DatabaseWork[_WorkResult], extra_seconds: float = 0.0
    ) -> _WorkResult:
        seconds = _MAX_DATABASE_SECONDS + extra_seconds

        def run(deadline: Deadline) -> _WorkResult:
            with self._turn(deadline, action), self._open() as connection:
                # So that no slow work outlives its caller or its time limit.
                connection.set_progress_handler(lambda: not deadline.seconds_left(), _STEPS)
                try:
                    self._make_tables(connection)
                    with transaction(connection, kind):
                        return work(connection)
                finally:
                    connection.set_progress_handler(None, 0)

        try:
            return await self._threads.run(run, extra_seconds)
        except TimeoutError:
            failure = f"it gave no answer for {seconds:g} seconds"
        except (sqlite3.Error, OSError) as error:
            failure = _describe_failure(error, seconds)
        except Exception as error:
            if type(error).__module__ != "apsw":  # by name, since it may not be installed
                raise
            failure = _describe_failure(error, seconds)
        raise StoreError(f"{self._owner} could not {action} {self.path!r:.200}: {failure}")

    @contextmanager
    def _turn(self, deadline: Deadline, action: str) -> Iterator[None]:
        """Wait for the turn to write, or to use the single connection in memory."""
        if action == "read" and self.path != _IN_MEMORY:
            yield
            return
        # SQLite also makes writers wait, but in no order, so that one of many might wait too long.
        if not self._lock.acquire(timeout=deadline.seconds_left()):
            raise TimeoutError
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self.path == _IN_MEMORY:
            if self._in_memory is None:
                self._in_memory = self._connect()
            yield self._in_memory
            return
        create_private(self.path)
        # A connection for each operation, so that a hanging thread holds none that another needs.
        with closing(self._connect()) as connection:
            yield connection

    def _connect(self) -> Any:
        if not self._has_vectors and os.path.realpath(self.path) not in self._files_with_vectors:
            # Without implicit transactions: ours are explicit.
            return sqlite3.connect(self.path, timeout=_MAX_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        apsw, sqlite_vec = (import_extra(self._owner, "rag", package) for package in _FOR_VECTORS)
        connection = apsw.Connection(self.path)
        connection.set_busy_timeout(int(_MAX_LOCK_SECONDS * 1000))
        connection.enable_load_extension(True)
        connection.load_extension(sqlite_vec.loadable_path())
        connection.enable_load_extension(False)
        return connection

    def _make_tables(self, connection: Any) -> None:
        exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        if connection.execute(exists, (self._name,)).fetchone() is None:
            connection.execute("PRAGMA journal_mode = WAL")  # readers and one writer at once
            with transaction(connection):
                # Checked again, now that no other program can create them at the same time.
                if connection.execute(exists, (self._name,)).fetchone() is None:
                    for statement in self._schema.split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"CREATE TABLE {self._name} (version INTEGER NOT NULL)")
                    connection.execute(f"INSERT INTO {self._name} VALUES (?)", (self._version,))
        version = connection.execute(f"SELECT version FROM {self._name}").fetchone()[0]
        if version != self._version:
            remedy = "update agentrt" if version > self._version else "use the agentrt that made it"
            raise StoreError(
                f"{self._owner} cannot use {self.path!r:.200}: its tables are of version {version}, and this agentrt "
                f"knows version {self._version}: {remedy}, or give another path"
            )
        connection.execute("PRAGMA synchronous = NORMAL")  # in WAL a commit survives the program, and no crash tears it


def _describe_failure(error: Exception, seconds: float) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    words = str(error)
    if words == "interrupted":
        return f"it took more than {seconds:g} seconds, and was stopped"
    return f"{words} ({_REMEDIES[words]})" if words in _REMEDIES else words
