"""States in one SQLite database: a row per session and one per message, so a save writes what is new."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any, Literal

from pydantic_core import from_json

from agentrt._runtime.database.operations import DatabaseError
from agentrt._runtime.database.sqlite_file import SQLiteFile, transaction
from agentrt.errors import ConfigError, SessionCorrupt, SessionVersion
from agentrt.state.database.sqlite_runs import FORGET_RUNS, RUN_TABLES, SQLiteRunRows
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
from agentrt.state.records.rows import RunRows
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, check_ttl

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
    """,
    RUN_TABLES,
]
"""Each brings the schema from the version that is its index to the next one; none is ever changed."""

_FIND_SESSION = "SELECT number, revision, labels FROM sessions WHERE id = ? AND (expires_at IS NULL OR expires_at > ?)"
# The rows of an expired session stay until `expire`, or until its id is reused.
_FORGET_EXPIRED = "DELETE FROM sessions WHERE id = ? AND expires_at <= ?"
_DELETE = "DELETE FROM sessions WHERE id = ?"
_EXPIRE = "DELETE FROM sessions WHERE expires_at <= ? RETURNING id"
# One statement, since another connection may create the tables between two.
_READ_VERSION = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version
"""
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
# The length of a BLOB is in the header of its row, so its overflow pages are not read.
_INFO = """
    SELECT id, revision, created_at, updated_at, messages, status, labels,
        length(head) + (SELECT coalesce(sum(length(message)), 0) FROM messages WHERE session = number)
    FROM sessions
    WHERE (expires_at IS NULL OR expires_at > ?)
"""
_WITH_ID = " AND id = ?"
_ON_PAGE = " AND id > ? AND id >= ? AND id < ?"
_WITH_LABEL = " AND number IN (SELECT session FROM labels WHERE name = ? AND value = ?)"


class SQLiteStore(DatabaseStore):
    """Keeps sessions in the SQLite database at `path`, which is created, readable by its owner alone, at the first use.

    A save writes the new messages, and the rest of the state, so its cost does not depend on the length of the
    conversation. Any number of processes on one machine may use the file; when two save on the same revision, one
    gets `SessionConflict`. A crash leaves the old state or the new one.

    With `durability="full"` a save that has returned survives a loss of power. With "process" it survives the death of
    the process, and costs a fraction; a loss of power may take back the last saves, but leaves the database whole.
    With a `ttl` a session expires that many seconds after its last save. `async with store` closes the file at the end;
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

    def _make_run_rows(self) -> RunRows:
        # A record may lose its last lines where power is lost; a state may not.
        return SQLiteRunRows(partial(_SQLiteDatabase, self._path, is_full=False, ttl=None))

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    @property
    def durability(self) -> Durability:
        """The failures that a returned save survives."""
        return self._durability


class _SQLiteDatabase(SessionDatabase):
    """The file and the one connection to it; the methods run one after the other."""

    remedy = "put a copy of the database in its place"

    def __init__(self, path: Path, is_full: bool, ttl: float | None) -> None:
        self.path = path
        self.place = repr(str(path))
        self._is_full = is_full
        self._ttl = ttl
        self._file = SQLiteFile(path)

    @contextmanager
    def connect(self, deadline: float) -> Iterator[sqlite3.Connection]:
        try:
            yield self._file.connect(self._prepare)
        except OSError as exc:
            raise DatabaseError(exc.strerror or type(exc).__name__) from None
        except sqlite3.DatabaseError as exc:
            code = getattr(exc, "sqlite_errorcode", None)  # unset for errors raised by Python's own module
            if code is not None and code & 0xFF in _DAMAGED:
                reason = "the file is damaged, or is not a database; it is kept as it is, so put a copy in its place"
                raise DatabaseError(reason, SessionCorrupt) from None
            raise DatabaseError(getattr(exc, "sqlite_errorname", type(exc).__name__)) from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._read_version(connection)  # before anything is written
        connection.execute("PRAGMA foreign_keys = ON")  # off by default, in each connection
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_full else 'NORMAL'}")
        self._migrate(connection)

    def close(self) -> None:
        self._file.close()

    def write(self, connection: sqlite3.Connection, row: SessionRow, messages: Sequence[bytes]) -> SaveMark | None:
        now = time_ns()
        expires_at = None if self._ttl is None else now + int(self._ttl * 1e9)
        fields = (row.revision, now, expires_at, row.message_count, row.status, row.labels, row.head)
        with transaction(connection):
            # It starts as a write transaction, so that the rows read here are still current when they are replaced.
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
            if row.labels != labels:  # rarely
                connection.execute(_FORGET_LABELS, (number,))
                pairs = from_json(row.labels).items()
                connection.executemany(_ADD_LABELS, ((*pair, number) for pair in pairs))
        return None

    def read(self, connection: sqlite3.Connection, session_id: str) -> SavedRows | None:
        with transaction(connection, "DEFERRED"):  # so that both statements see one save
            row = connection.execute(_LOAD, (_bindable(session_id), time_ns())).fetchone()
            if row is None:
                return None
            number, revision, count, head = row
            messages = [message for (message,) in connection.execute(_MESSAGES, (number,))]
        return SavedRows(revision, count, head, messages)

    def delete(self, connection: sqlite3.Connection, session_id: str) -> None:
        with transaction(connection):
            for statement in (_DELETE, *FORGET_RUNS):
                connection.execute(statement, (_bindable(session_id),))

    def expire(self, connection: sqlite3.Connection) -> int:
        with transaction(connection):
            expired = connection.execute(_EXPIRE, (time_ns(),)).fetchall()
            for statement in FORGET_RUNS:
                connection.executemany(statement, expired)
        return len(expired)

    def describe(self, connection: sqlite3.Connection, session_id: str) -> SessionInfo | None:
        row = connection.execute(f"{_INFO}{_WITH_ID}", (time_ns(), _bindable(session_id))).fetchone()
        return None if row is None else self._read_info(row)

    def list(self, connection: sqlite3.Connection, query: SessionQuery) -> SessionPage:
        parameters: list[object] = [time_ns(), *map(_bindable, (query.after, *query.bounds))]
        for label in query.labels.items():
            parameters += label
        sql = f"{_INFO}{_ON_PAGE}{_WITH_LABEL * len(query.labels)} ORDER BY id LIMIT ?"
        rows = connection.execute(sql, (*parameters, query.limit + 1))
        return query.page_of(map(self._read_info, rows))

    def _read_info(self, row: tuple[Any, ...]) -> SessionInfo:
        session_id, *about, labels, size = row
        fields = [session_id, *about, read_labels(labels, session_id, self.place), size]
        return SessionInfo(*fields)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        while self._read_version(connection) < len(_MIGRATIONS):
            with transaction(connection):
                version = self._read_version(connection)  # again: another process may have migrated it meanwhile
                if version < len(_MIGRATIONS):
                    for statement in _MIGRATIONS[version].split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {version + 1}")

    def _read_version(self, connection: sqlite3.Connection) -> int:
        application, version, tables = connection.execute(_READ_VERSION).fetchone()
        # A new or empty file has none of these.
        if application != _APPLICATION and (application or version or tables):
            raise SessionCorrupt(f"{str(self.path)!r} is the database of another program: choose another path")
        if version > len(_MIGRATIONS):
            raise SessionVersion(
                f"{str(self.path)!r} has the schema {version}, and this version of agentrt knows {len(_MIGRATIONS)}: "
                f"use the version that made it, or a newer one; nothing was changed"
            )
        return int(version)


def _bindable(text: str) -> str | bytes:
    """Return the text; one with a surrogate as bytes, which equal no text, since no saved id has one."""
    data = encode_text(text)
    return text if data.decode(errors="replace") == text else data
