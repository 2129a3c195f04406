"""Access to a database file, which several processes of one machine may share."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import mkstemp
from typing import TypeVar

import anyio.to_thread

from agentrt.errors import MiddlewareConfigError

_Answered = TypeVar("_Answered")
_OWNER_ONLY = 0o600
_LOCK_TIMEOUT = 0.15  # seconds; less than a call may wait for the store
_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""


def check_database_path(owner: str, path: object, in_memory: str) -> Path:
    """Return the path of a file whose folder exists; `in_memory` is the code for a store without a file."""
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
    """Run a query in a thread; the file is created if needed, readable by its owner only."""

    def ask() -> _Answered:
        # Created before SQLite opens it, which gives its companion files the same mode.
        if not path.exists():
            # Under another name, since closing a file drops all locks of the process on it, and those of another thread
            # may be among them.
            descriptor, draft = mkstemp(prefix=path.name, dir=path.parent)
            os.close(descriptor)
            # Unlike a rename, a link never replaces a file that another process has just created.
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            finally:
                os.unlink(draft)
        path.chmod(_OWNER_ONLY)  # an existing file may be readable by others
        # A connection per request, so that a hanging thread does not hold one that another needs.
        with closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT)) as database:
            # A damaged value is refused, and replaced, by its reader; a failing file would never recover.
            database.text_factory = lambda value: value.decode("utf-8", "surrogateescape")
            database.executescript(_PRAGMAS + schema)
            return question(database)

    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
