"""Sessions in files: one file per session, complete at any moment, whichever process dies."""

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from agentrt._runtime.database.file_lock import lock_until
from agentrt._runtime.database.operations import OperationQueue
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError, SessionIOError

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""The flags of every file: symbolic links are not followed."""

_NEVER_A_FOLDER = {errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_TEMPORARY = lazy_pattern(r"[0-9a-f]{64}\.tmp")
_FileResult = TypeVar("_FileResult")
_FileWork = Callable[[float], _FileResult]


def resolve_folder(directory: object, cls: str) -> Path:
    """Return the path; raises `ConfigError` for one that cannot be a folder."""
    path = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{cls} needs the path of the folder that keeps its files, not {directory!r:.200}")
    why = ""
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            why = "it is a file"
    except OSError as error:
        why = str(error.strerror) if error.errno in _NEVER_A_FOLDER else ""
    except ValueError as error:  # a null character, half a surrogate pair
        why = str(error)
    if why:
        raise ConfigError(f"{cls} cannot keep its files in {path!r:.200} ({why}): give the path of a folder")
    return Path(os.path.abspath(path))


def resolve_file(path: object, cls: str) -> Path:
    """Return the path; raises `ConfigError` unless it can be a file in an existing folder."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or text in ("", ":memory:"):
        remedy = "; for states in memory there is InMemoryStateStore()" if text == ":memory:" else ""
        raise ConfigError(f"{cls} needs the path of its file, such as 'agent.db', not {path!r:.200}{remedy}")
    why = ""
    try:
        os.fsencode(text)
        os.stat(os.path.dirname(os.path.abspath(text)))
        if os.path.isdir(text):
            why = "it is a folder"
    except OSError as error:
        why = f"its folder: {error.strerror}"
    except ValueError as error:  # a null character, half a surrogate pair
        why = str(error)
    # A system with names of bytes accepts it until the file is opened.
    if "\0" in text:
        why = "it has a null character"
    if why:
        raise ConfigError(f"{cls} cannot keep its file at {text!r:.200} ({why}): give the path of a file")
    return Path(os.path.abspath(text))


class FileKeeper:
    """Keeps sessions in files of one directory: files are replaced atomically, one operation after the other."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = resolve_folder(directory, type(self).__name__)
        self._operations = OperationQueue()
        self._is_ready = False

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._directory)!r})"

    async def _change(self, file: "AtomicFile", action: str, work: _FileWork[None]) -> None:
        await self._run_in_order(file, action, partial(self._prepare_and_run, work), shield=True)

    async def _read(self, file: "AtomicFile", work: _FileWork[_FileResult]) -> _FileResult:
        return await self._run_in_order(file, "load", work, shield=False)

    def _prepare_and_run(self, work: _FileWork[None], deadline: float) -> None:
        if not self._is_ready:
            missing = [folder for folder in (self._directory, *self._directory.parents) if not folder.exists()]
            for folder in reversed(missing):  # each folder's name must be on the disk before its content
                folder.mkdir(mode=0o700, exist_ok=True)
                _sync_directory(folder.parent)
            if not self._directory.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            # The temporary files of processes that died in a save: those whose lock is free.
            for path in self._directory.glob("*.tmp"):
                if _TEMPORARY.fullmatch(path.name):
                    with suppress(OSError), _hold_lock(_lock_path(path), deadline=0):
                        os.unlink(path)
            self._is_ready = True
        work(deadline)

    async def _run_in_order(
        self, file: "AtomicFile", action: str, work: _FileWork[_FileResult], *, shield: bool
    ) -> _FileResult:
        run = partial(file.convert_errors, action)
        try:
            return await self._operations.run(file.path, lambda deadline: run(partial(work, deadline)), shield=shield)
        except TimeoutError as exc:
            raise file.error(action, exc.strerror or type(exc).__name__) from exc


@dataclass(frozen=True, slots=True)
class AtomicFile:
    """The file of one session, and the temporary file, named by a `hash_name`, that replaces it.

    Each method runs in a thread, from start to end.
    """

    session_id: str
    path: Path
    temporary: Path

    def lock(self, deadline: float) -> AbstractContextManager[None]:
        """Keep other processes from changing the file."""
        return _hold_lock(_lock_path(self.temporary), deadline)

    def replace(self, data: bytes) -> None:
        """Replace the file by `data`, under its lock; durable once `sync` has returned too."""
        try:
            # The session's lock is held, so a file of that name was left by a process that died.
            with suppress(FileNotFoundError):
                os.unlink(self.temporary)
            # Exclusively, and without following links, so that a link cannot redirect the write.
            descriptor = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o600)
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)  # before the file gets its name: a crash must not leave the name of an empty file
            finally:
                os.close(descriptor)
            os.replace(self.temporary, self.path)  # atomic: a reader sees the old file or the new one
        except OSError:
            with suppress(OSError):
                os.unlink(self.temporary)
            raise

    def sync(self) -> None:
        """Wait until the names in the directory are on the disk."""
        _sync_directory(self.path.parent)

    def convert_errors(self, action: str, work: Callable[[], _FileResult]) -> _FileResult:
        """Return the result of `work`; its `OSError` becomes `SessionIOError`."""
        try:
            return work()
        except OSError as exc:
            raise self.error(action, exc.strerror or type(exc).__name__) from exc

    def error(self, action: str, reason: str) -> SessionIOError:
        """Return the error that names the failed action and the file."""
        return SessionIOError(f"could not {action} session {self.session_id!r:.100} in {str(self.path)!r}: {reason}")


def hash_name(text: str) -> str:
    """Return the SHA-256 of the text in hex: a file name that is valid everywhere and leads nowhere else."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data: a single write may be partial."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_file(path: Path) -> bytes:
    """Return the file's content; a symbolic link is not followed."""
    with open(os.open(path, os.O_RDONLY | NOFOLLOW), "rb") as file:
        return file.read()


def _sync_directory(directory: Path) -> None:
    if sys.platform == "win32":  # which cannot sync a directory
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_path(path: Path) -> Path:
    # 256 lock files for all sessions: the session's own file is replaced by each save, and a lock file
    # per session could never be removed without a race.
    return path.with_name(f"{path.name[:2]}.lock")


@contextmanager
def _hold_lock(path: Path, deadline: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
    try:
        with lock_until(descriptor, deadline):
            yield
    finally:
        os.close(descriptor)
