"""How a database in a file is reached, which several processes of one machine may share."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import mkstemp
from typing import TypeVar

import anyio.to_thread

from agentrt.errors import MiddlewareConfigError

__all__ = ["ask_database", "check_database_path"]

_Answered = TypeVar("_Answered")
_OWNER_ONLY = 0o600
_LOCK_TIMEOUT = 0.15  # seconds; less than what a call may wait for the store
_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""


def check_database_path(owner: str, path: object, in_memory: str) -> Path:
    """Return the path of a file whose folder exists; `in_memory` is what to write for a store without a file."""
    if not isinstance(path, (str, os.PathLike)) or str(path) in ("", ":memory:"):
        raise MiddlewareConfigError(
            f"{owner}(path=...) must be the path of a file, not {path!r:.200}: for a store in memory, write "
            f"{in_memory} without a store"
        )
    file = Path(path)
    if not file.parent.is_dir():
        raise MiddlewareConfigError(
            f"{owner}(path=...) is {str(file)!r:.200}, whose folder {str(file.parent)!r:.200} does not exist: make it "
            f"first"
        )
    if file.is_dir():
        raise MiddlewareConfigError(f"{owner}(path=...) is {str(file)!r:.200}, a folder: give the path of a file in it")
    return file


async def ask_database(path: Path, schema: str, question: Callable[[sqlite3.Connection], _Answered]) -> _Answered:
    """Put a question to the database, in a thread; the file is made if need be, for its owner alone to read."""

    def ask() -> _Answered:
        # Made before SQLite opens it, which gives the files beside it the same mode.
        if not path.exists():
            _create(path)
        path.chmod(_OWNER_ONLY)  # one that was there may be readable by others
        # A connection for each question, so that no thread that hangs holds one that another needs.
        with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT)) as database:
            # A damaged value is for its reader to refuse, who replaces it; a failing file would be left alone for good.
            database.text_factory = lambda value: value.decode("utf-8", "surrogateescape")
            database.executescript(_PRAGMAS + schema)
            return question(database)

    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)


def _create(path: Path) -> None:
    """Make an empty file that only its owner can read, unless another process has just made it."""
    # By another name, since the system drops all locks that the process has on a file when it closes the file once, and
    # those of another thread may be among them.
    descriptor, draft = mkstemp(prefix=path.name, dir=path.parent)
    os.close(descriptor)
    # Unlike a renamed file, a link never replaces one that is there.
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
