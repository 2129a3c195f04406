"""A SQLite file that stays open, and the transactions of all connections to such files."""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentrt._runtime.database.operations import MAX_WAIT


class _Connection(Protocol):
    def execute(self, statement: str, /) -> object: ...


_ConnectionT = TypeVar("_ConnectionT", bound=_Connection)


class SQLiteFile:
    """The one connection to a database, opened at the first use; without a path it is in memory.

    A file that was replaced is opened again. A copy opens a connection of its own.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that the connection is to

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_connection": None, "_identity": None}

    def connect(self, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        """Return the connection; a new one has been prepared. Raises `FileNotFoundError` if its file is gone."""
        if self._identity is not None and self._identify() != self._identity:
            self.close()
        if self._connection is None:
            if self._path is not None:
                create_private(self._path)
            # The wait for a lock ends before the time limit of the operation.
            connection = sqlite3.connect(
                self._path or ":memory:", timeout=MAX_WAIT - 1, isolation_level=None, check_same_thread=False
            )
            try:
                prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            if self._path is not None:
                self._identity = self._identify()
        return self._connection

    def close(self) -> None:
        """Close the connection; the next use opens another one."""
        connection, self._connection, self._identity = self._connection, None, None
        if connection is not None:
            connection.close()

    def _identify(self) -> tuple[int, int]:
        assert self._path is not None
        try:
            about = os.stat(self._path)
        except FileNotFoundError:
            # Writes to a removed file succeed, and are lost.
            reason = "its file was removed while it was open: put it back, or close the store to start with a new one"
            raise FileNotFoundError(errno.ENOENT, reason) from None
        return about.st_dev, about.st_ino


def create_private(path: str | Path) -> None:
    """Create the file, readable by its owner only, unless it exists.

    SQLite creates files that all users can read, and gives its companion files the mode of the first. An existing file
    is not opened: closing it would drop the locks that other connections of this process have on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def transaction(connection: _ConnectionT, kind: str = "IMMEDIATE") -> Iterator[_ConnectionT]:
    """Commit what is written inside, or nothing of it."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield connection
        connection.execute("COMMIT")  # inside the `try`: if it fails, the transaction is still open
    except BaseException:
        # SQLite may have rolled back by itself, as when the disk is full.
        with suppress(Exception):
            connection.execute("ROLLBACK")
        raise
