"""States in files: one file per session, whole at any moment, whichever process dies.

A file is three pieces of JSON: a line with the format, its version and the SHA-256 of all that follows; a line with the
session's id and revision; the state. `tail -n +2 FILE | sha256sum` checks it by hand.
"""

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from json import dumps
from pathlib import Path
from threading import Event, Lock
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled
from pydantic_core import from_json

from agentrt.errors import ConfigError, SessionCorrupt, SessionIOError, SessionVersion
from agentrt.keywords import suggest_keywords
from agentrt.representation import never_raises
from agentrt.state.state import AgentState, state_from_json, state_to_json
from agentrt.state.store import check_revision, check_saved, check_session_id, next_revision
from agentrt.types import JSONObject

__all__ = ["AtomicFile", "FileKeeper", "FileStateStore", "hash_name", "lock_until", "read_file"]

_FORMAT = "agentrt-state"
_VERSION = 1
_MAX_WAIT = 10.0  # seconds
_EXTRA_WAIT = 1.0
_NEVER_A_FOLDER = {errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_TEMPORARY = re.compile(r"[0-9a-f]{64}\.tmp")
_FileResult = TypeVar("_FileResult")
_FileWork = Callable[[float], _FileResult]


def _resolve_folder(directory: object, cls: str) -> Path:
    """Return the path; raises `ConfigError` for what is not a folder and can never become one."""
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


@suggest_keywords()
class FileKeeper:
    """Keeps sessions in files of one directory: a file is replaced as a whole, one operation after the other."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = _resolve_folder(directory, type(self).__name__)
        self._last: dict[Path, _QueuedOperation] = {}
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
            self._make_directory()
            self._remove_leftovers()
            self._is_ready = True
        work(deadline)

    def _make_directory(self) -> None:
        missing = [folder for folder in (self._directory, *self._directory.parents) if not folder.exists()]
        for folder in reversed(missing):  # each name must be on the disk before what is inside of it
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync_directory(folder.parent)
        if not self._directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def _remove_leftovers(self) -> None:
        """Remove what was left by processes that died in a save: temporary files whose lock is free."""
        for path in self._directory.glob("*.tmp"):
            if _TEMPORARY.fullmatch(path.name):
                with suppress(OSError), _hold_lock(_lock_path(path), deadline=0):
                    os.unlink(path)

    async def _run_in_order(
        self, file: "AtomicFile", action: str, work: _FileWork[_FileResult], *, shield: bool
    ) -> _FileResult:
        operation = self._last[file.path] = _QueuedOperation(self._last.get(file.path))
        run = partial(file.convert_errors, action, partial(operation.run, work, time.monotonic() + _MAX_WAIT))
        try:
            # The thread stops waiting first, unless it is the disk that hangs.
            with anyio.move_on_after(_MAX_WAIT + _EXTRA_WAIT, shield=shield):
                return await to_thread.run_sync(run, abandon_on_cancel=True)
        finally:
            operation.withdraw()
            if operation.is_done() and self._last.get(file.path) is operation:
                del self._last[file.path]
        raise file.error(action, f"no answer for {_MAX_WAIT:g} seconds, so it may or may not have been done")


class FileStateStore(FileKeeper):
    """Keeps each session in a file of its own in `directory`, which is made, for its owner alone, at the first save.

    A save is on the disk when it returns, and a crash leaves the old state or the new one. Any number of processes may
    use one directory: of two that save on the same revision, one gets `SessionConflict`. Files are named by the SHA-256
    of the session's id. Errors are children of `StateError`, and leave the file as it was.
    """

    async def save(self, state: AgentState) -> None:
        """Keep the state as it is now, in place of the one that it is based on, and set its `revision`.

        A cancellation waits for the write; one of asyncio's own does not, and the write ends without its caller. Raises
        `SessionConflict` when the saved state is another one, `SessionUnserializable` for what JSON cannot hold or what
        could not be loaded again, and `SessionIOError` also when it takes more than ten seconds.
        """
        check_saved(state)
        await checkpoint_if_cancelled()
        file = self._file(state.session_id)
        await self._change(file, "save", partial(file.write, state, state_to_json(state)))

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none.

        Raises `SessionCorrupt` for a damaged file, `SessionVersion` for one that this version does not understand.
        """
        file = self._file(session_id)
        return await self._read(file, file.load)

    async def delete(self, session_id: str) -> None:
        """Remove the session's file, damaged or not, if it is there; a state based on it can no longer be saved."""
        await checkpoint_if_cancelled()
        file = self._file(session_id)
        await self._change(file, "delete", file.remove)

    def _file(self, session_id: str) -> "_StateFile":
        check_session_id(session_id)
        name = hash_name(session_id)
        return _StateFile(session_id, self._directory / f"{name}.state", self._directory / f"{name}.tmp")


class _QueuedOperation:
    """One operation on a session: runs in a thread when those before it are over, unless its caller left by then.

    A task that `asyncio` itself cancels leaves at once, whatever shields it: its thread then continues alone, and the
    next operation must not overtake it.
    """

    __slots__ = ("_claim", "_ended", "before", "never_ran")

    def __init__(self, before: "_QueuedOperation | None") -> None:
        # Those that were withdrawn are skipped, or a disk that hangs would make an ever longer chain.
        while before is not None and before.never_ran:
            before = before.before
        self.before: _QueuedOperation | None = before
        self._claim = Lock()
        self._ended = Event()
        self.never_ran: bool = False

    def run(self, work: _FileWork[_FileResult], deadline: float) -> _FileResult:
        if self.before is not None and not self.before.wait(deadline):
            raise TimeoutError(errno.ETIMEDOUT, f"an earlier operation on it has not ended for {_MAX_WAIT:g} seconds")
        self.before = None  # it has ended: what it holds can be freed
        if not self._claim.acquire(blocking=False):
            raise TimeoutError(errno.ECANCELED, "its caller has left")  # so nothing ever shows this
        try:
            return work(deadline)
        finally:
            self._ended.set()

    def withdraw(self) -> None:
        """Prevent the operation from running, unless it already does."""
        if self._claim.acquire(blocking=False):
            self.never_ran = True
            self._ended.set()

    def is_done(self) -> bool:
        return self.wait(0)

    def wait(self, deadline: float) -> bool:
        """Wait for this operation and all before it; returns whether they ended in time."""
        before = self.before
        if before is not None and not before.wait(deadline):
            return False
        return self._ended.wait(max(0, deadline - time.monotonic()))


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
        """Put `data` in the file's place, under its lock; it is safe there once `sync` has returned, too."""
        try:
            self._write_temporary(data)
            os.replace(self.temporary, self.path)  # atomic: a reader sees the old file or the new one
        except OSError:
            with suppress(OSError):
                os.unlink(self.temporary)
            raise

    def sync(self) -> None:
        """Wait until the disk knows the names in the directory as they are now."""
        _sync_directory(self.path.parent)

    def convert_errors(self, action: str, work: Callable[[], _FileResult]) -> _FileResult:
        """Return what `work` returns, and raise `SessionIOError` where it raises `OSError`."""
        try:
            return work()
        except OSError as exc:
            raise self.error(action, exc.strerror or type(exc).__name__) from exc

    def error(self, action: str, reason: str) -> SessionIOError:
        """Return the error that says what could not be done to which file."""
        return SessionIOError(f"could not {action} session {self.session_id!r:.100} in {str(self.path)!r}: {reason}")

    def _write_temporary(self, data: bytes) -> None:
        # The session's lock is held, so a file of that name was left by a process that died.
        with suppress(FileNotFoundError):
            os.unlink(self.temporary)
        # Exclusively and without following links, so that nobody can redirect the write by putting a link there.
        descriptor = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600)
        try:
            rest = memoryview(data)
            while rest:  # a write may take a part only
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)  # before the file gets its name: a crash must not leave the name of an empty file
        finally:
            os.close(descriptor)


class _StateFile(AtomicFile):
    __slots__ = ()

    def load(self, deadline: float) -> AgentState | None:
        saved = self._read()
        if saved is None:
            return None
        revision, text = saved
        return state_from_json(text, revision, f"the file {str(self.path)!r}")

    def write(self, state: AgentState, text: bytes, deadline: float) -> None:
        with self.lock(deadline):
            saved = self._read()
            saved_revision = 0 if saved is None else saved[0]
            check_revision(state, saved_revision)
            revision = next_revision(saved_revision)
            self.replace(_encode_file(self.session_id, revision, text))
            # Before the sync, which may fail: the file has been replaced, so the next save is based on this one.
            state.revision = revision
            self.sync()

    def remove(self, deadline: float) -> None:
        with self.lock(deadline):
            for path in (self.temporary, self.path):
                with suppress(FileNotFoundError):
                    os.unlink(path)
            self.sync()

    def _read(self) -> tuple[int, bytes] | None:
        try:
            return self._decode(read_file(self.path))
        except FileNotFoundError:
            return None

    def _decode(self, data: bytes) -> tuple[int, bytes]:
        first, _, rest = data.partition(b"\n")
        second, _, text = rest.partition(b"\n")
        head, session = _parse_line(first), _parse_line(second)
        left_alone = f"the file {str(self.path)!r} is kept as it is"
        if head.get("format") != _FORMAT or not isinstance(head.get("version"), int):
            raise SessionCorrupt(
                f"the saved state of session {self.session_id!r:.100} is not one of agentrt, or its beginning is "
                f"damaged; {left_alone}: put a copy in its place, or delete the session to start it again"
            )
        if head["version"] != _VERSION:
            raise SessionVersion(
                f"the state was saved in format {head['version']}, but this version of agentrt reads {_VERSION}; "
                f"{left_alone}, so load it with the version that saved it, or a newer one"
            )
        if head.get("sha256") != sha256(rest).hexdigest():
            raise SessionCorrupt(
                f"the saved state of session {self.session_id!r:.100} is damaged: its checksum is wrong; {left_alone}: "
                f"put a copy in its place, or delete the session to start it again"
            )
        revision = session.get("revision")
        if session.get("session_id") != self.session_id or not isinstance(revision, int):
            raise SessionCorrupt(
                f"the saved state belongs to another session than {self.session_id!r:.100}; {left_alone}"
            )
        return revision, text


def hash_name(text: str) -> str:
    """Return the SHA-256 of the text in hex: the name of a file that is valid everywhere and leads nowhere else."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _encode_file(session_id: str, revision: int, text: bytes) -> bytes:
    session_line = dumps({"session_id": session_id, "revision": revision})
    rest = b"".join([session_line.encode(), b"\n", text, b"\n"])
    head = dumps({"format": _FORMAT, "version": _VERSION, "sha256": sha256(rest).hexdigest()})
    return b"".join([head.encode(), b"\n", rest])


def _parse_line(line: bytes) -> JSONObject:
    with suppress(ValueError):
        if isinstance(parsed := from_json(line), dict):
            return parsed
    return {}


def read_file(path: Path) -> bytes:
    """Return what is in the file; a symbolic link is not followed."""
    with open(os.open(path, os.O_RDONLY | _NOFOLLOW), "rb") as file:
        return file.read()


def _sync_directory(directory: Path) -> None:
    if sys.platform == "win32":  # where a directory cannot be synced
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_path(path: Path) -> Path:
    # A file to lock for every 256th of the sessions: the session's own file is replaced by each save, and a lock file
    # per session could never be removed without a race.
    return path.with_name(f"{path.name[:2]}.lock")


@contextmanager
def _hold_lock(path: Path, deadline: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW, 0o600)
    try:
        with lock_until(descriptor, deadline):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_until(descriptor: int, deadline: float) -> Iterator[None]:
    """Keep other processes from locking the same file; blocks its thread, and raises `TimeoutError` at the deadline."""
    # The lock is the kernel's: it goes with its process, so a dead one leaves none behind.
    from filelock import lock_descriptor, unlock_descriptor  # here, since only programs that save need it

    pause = 0.0005
    while not lock_descriptor(descriptor, blocking=False):
        if time.monotonic() >= deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process has held its lock for too long")
        time.sleep(pause)  # in a worker thread: the event loop runs meanwhile
        pause = min(2 * pause, 0.01)
    try:
        yield
    finally:
        unlock_descriptor(descriptor)  # and not by closing alone, since a forked process may hold a copy
