"""States in one SQLite database: a row per session and one per message, so a save writes what is new."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time_ns
from typing import Any, Literal

from pydantic_core import from_json

from agentrt.database.open_file import OpenFile
from agentrt.database.operations import MAX_WAIT, DatabaseError
from agentrt.errors import ConfigError, SessionCorrupt, SessionVersion
from agentrt.keywords import suggest_keywords
from agentrt.state.database.store import (
    DatabaseStore,
    SavedRows,
    SaveMark,
    SessionDatabase,
    SessionRow,
    encode_text,
    read_labels,
)
from agentrt.state.file import resolve_file
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, check_ttl

__all__ = ["SQLiteStore"]

Durability = Literal["full", "process"]

_APPLICATION = 0x61677274  # "agrt", in the header of the file
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_MIGRATIONS = [
    """
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, so that no row finds another session
        id TEXT NOT NULL UNIQUE,
        revision INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        expires_at INTEGER,
        messages INTEGER NOT NULL,
        status TEXT NOT NULL,
        labels TEXT NOT NULL,
        head BLOB NOT NULL
    );
    CREATE INDEX sessions_by_expiry ON sessions (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE messages (
        session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        position INTEGER NOT NULL,
        message BLOB NOT NULL,
        PRIMARY KEY (session, position)
    ) WITHOUT ROWID;
    CREATE TABLE labels (
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        PRIMARY KEY (name, value, session)
    ) WITHOUT ROWID;
    CREATE INDEX labels_by_session ON labels (session);
    """
]
"""Each brings the schema from the version that is its index to the next one; none is ever changed."""

_FIND_SESSION = "SELECT number, revision, labels FROM sessions WHERE id = ? AND (expires_at IS NULL OR expires_at > ?)"
# Rows of an expired session stay until `expire`, or until its id is used again.
_FORGET_EXPIRED = "DELETE FROM sessions WHERE id = ? AND expires_at <= ?"
_DELETE = "DELETE FROM sessions WHERE id = ?"
_EXPIRE = "DELETE FROM sessions WHERE expires_at <= ?"
_INSERT = """
    INSERT INTO sessions (id, created_at, revision, updated_at, expires_at, messages, status, labels, head)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UPDATE = """
    UPDATE sessions SET revision = ?, updated_at = ?, expires_at = ?, messages = ?, status = ?, labels = ?, head = ?
    WHERE number = ?
"""
# The first messages stay as they are, so a save in a long conversation touches none of their pages.
_CUT = "DELETE FROM messages WHERE session = ? AND position >= ?"
_ADD_MESSAGES = "INSERT INTO messages (session, position, message) VALUES (?, ?, ?)"
_FORGET_LABELS = "DELETE FROM labels WHERE session = ?"
_ADD_LABELS = "INSERT INTO labels VALUES (?, ?, ?)"
_LOAD = """
    SELECT number, revision, messages, head FROM sessions WHERE id = ? AND (expires_at IS NULL OR expires_at > ?)
"""
_MESSAGES = "SELECT message FROM messages WHERE session = ? ORDER BY position"
_LIST = """
    SELECT id, revision, created_at, updated_at, messages, status, labels FROM sessions
    WHERE id > ? AND id >= ? AND id < ? AND (expires_at IS NULL OR expires_at > ?)
"""
_WITH_LABEL = " AND number IN (SELECT session FROM labels WHERE name = ? AND value = ?)"


@suggest_keywords(directory="path", url="path", filename="path")
class SQLiteStore(DatabaseStore):
    """Keeps sessions in the SQLite database at `path`, which is made, for its owner alone, at the first use.

    A save writes the messages that are new, and the rest of the state, so it costs the same however long the
    conversation is. Any number of processes on one machine may use the file; of two that save on the same revision, one
    gets `SessionConflict`. A crash leaves the old state or the new one.

    With `durability="full"` a save that has returned survives a loss of power. With "process" it survives the death of
    the process, and costs a fraction; a loss of power may take back the last saves, but leaves the database whole.
    With a `ttl` a session is gone so many seconds after its last save. `async with store` closes the file at the end;
    `aclose` does the same.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "full", ttl: float | None = None
    ) -> None:
        owner = type(self).__name__
        if durability not in ("full", "process"):
            raise ConfigError(f"{owner}(durability=...) must be 'full' or 'process', not {durability!r:.100}")
        database = _SQLiteDatabase(resolve_file(path, owner), durability == "full", check_ttl(owner, ttl))
        # One connection: SQLite has one writer at a time in any case, and a save takes less than a millisecond.
        super().__init__(database, threads=1)
        self._path, self._durability = database.path, durability

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    @property
    def durability(self) -> Durability:
        """What a save that has returned survives."""
        return self._durability


class _SQLiteDatabase(SessionDatabase):
    """The file and the one connection to it; the methods run one after the other."""

    remedy = "put a copy of the database in its place"

    def __init__(self, path: Path, is_full: bool, ttl: float | None) -> None:
        self.path = path
        self.place = repr(str(path))
        self._is_full = is_full
        self._ttl = ttl
        self._connection: sqlite3.Connection | None = None
        self._file: OpenFile | None = None  # that the connection is to

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_connection": None, "_file": None}  # a copy opens the file by itself

    @contextmanager
    def connect(self, deadline: float) -> Iterator[sqlite3.Connection]:
        try:
            if self._file is not None and not self._file.is_current():
                self.close()  # a copy was put in its place
            if self._connection is None:
                self._connection = self._open()
                self._file = OpenFile(self.path)
            yield self._connection
        except OSError as exc:
            raise DatabaseError(exc.strerror or type(exc).__name__) from None
        except sqlite3.DatabaseError as exc:
            code = getattr(exc, "sqlite_errorcode", None)  # unset for what is raised by Python's own module
            if code is not None and code & 0xFF in _DAMAGED:
                reason = "the file is damaged, or is not a database; it is kept as it is, so put a copy in its place"
                raise DatabaseError(reason, SessionCorrupt) from None
            raise DatabaseError(getattr(exc, "sqlite_errorname", type(exc).__name__)) from None

    def _open(self) -> sqlite3.Connection:
        # A file that SQLite makes can be read by all users. One that is there is not opened: closing it would drop the
        # locks that other connections of this process have on it.
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        # It waits for a lock less long than the operation may take.
        connection = sqlite3.connect(self.path, timeout=MAX_WAIT - 1, isolation_level=None, check_same_thread=False)
        try:
            self._read_version(connection)  # before anything is written
            connection.execute("PRAGMA foreign_keys = ON")  # off by default, in each connection
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_full else 'NORMAL'}")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        connection, self._connection, self._file = self._connection, None, None
        if connection is not None:
            connection.close()

    def write(self, connection: sqlite3.Connection, row: SessionRow, messages: Sequence[bytes]) -> SaveMark | None:
        now = time_ns()
        expires_at = None if self._ttl is None else now + int(self._ttl * 1e9)
        fields = (row.revision, now, expires_at, row.message_count, row.status, row.labels, row.head)
        with _in_transaction(connection):
            # It has begun as a writer's, so that what is read here is still true when it is written over.
            found = connection.execute(_FIND_SESSION, (row.session_id, now)).fetchone()
            number, saved, labels = found or (None, 0, "{}")
            if saved != row.base:
                return SaveMark(saved)
            if number is None:
                connection.execute(_FORGET_EXPIRED, (row.session_id, now))
                number = connection.execute(_INSERT, (row.session_id, now, *fields)).lastrowid
            else:
                connection.execute(_UPDATE, (*fields, number))
                connection.execute(_CUT, (number, row.start))
            rows = ((number, position, message) for position, message in enumerate(messages, row.start))
            connection.executemany(_ADD_MESSAGES, rows)
            if row.labels != labels:  # in nearly no save
                connection.execute(_FORGET_LABELS, (number,))
                pairs = from_json(row.labels).items()
                connection.executemany(_ADD_LABELS, ((*pair, number) for pair in pairs))
        return None

    def read(self, connection: sqlite3.Connection, session_id: str) -> SavedRows | None:
        with _in_transaction(connection, "DEFERRED"):  # so that both statements see one save
            row = connection.execute(_LOAD, (_bindable(session_id), time_ns())).fetchone()
            if row is None:
                return None
            number, revision, count, head = row
            messages = [message for (message,) in connection.execute(_MESSAGES, (number,))]
        return SavedRows(revision, count, head, messages)

    def delete(self, connection: sqlite3.Connection, session_id: str) -> None:
        connection.execute(_DELETE, (_bindable(session_id),))

    def expire(self, connection: sqlite3.Connection) -> int:
        return connection.execute(_EXPIRE, (time_ns(),)).rowcount

    def list(self, connection: sqlite3.Connection, query: SessionQuery) -> SessionPage:
        parameters: list[object] = [*map(_bindable, (query.after, *query.bounds)), time_ns()]
        for label in query.labels.items():
            parameters += label
        sql = f"{_LIST}{_WITH_LABEL * len(query.labels)} ORDER BY id LIMIT ?"
        rows = connection.execute(sql, (*parameters, query.limit + 1))
        return query.page_of(
            SessionInfo(id, revision, created_at, updated_at, messages, status, read_labels(labels, id, self.place))
            for id, revision, created_at, updated_at, messages, status, labels in rows
        )

    def _migrate(self, connection: sqlite3.Connection) -> None:
        while self._read_version(connection) < len(_MIGRATIONS):
            with _in_transaction(connection):
                version = self._read_version(connection)  # once more: another process may have done it meanwhile
                if version < len(_MIGRATIONS):
                    for statement in _MIGRATIONS[version].split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {version + 1}")

    def _read_version(self, connection: sqlite3.Connection) -> int:
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [version] = connection.execute("PRAGMA user_version").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # A file that is new, or empty, has none of these.
        if application != _APPLICATION and (application or version or tables):
            raise SessionCorrupt(f"{str(self.path)!r} is the database of another program: choose another path")
        if version > len(_MIGRATIONS):
            raise SessionVersion(
                f"{str(self.path)!r} has the schema {version}, and this version of agentrt knows {len(_MIGRATIONS)}: "
                f"use the version that made it, or a newer one; nothing was changed"
            )
        return int(version)


@contextmanager
def _in_transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")  # inside of the `try`: where it fails, the transaction is still open
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")  # where SQLite has not done so by itself
        raise


def _bindable(text: str) -> str | bytes:
    """Return the text, or bytes, which are equal to no text, where it has a surrogate: nothing is saved under such."""
    data = encode_text(text)
    return text if data.decode(errors="replace") == text else data
