"""States in files: one journal per session, to which saves append their changes."""

import logging
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import NamedTuple, TypeVar

from anyio.lowlevel import checkpoint_if_cancelled

from agentrt.errors import SessionCorrupt, SessionIOError, SessionVersion, StateError
from agentrt.state.changes import StateChange, mark_saved, unsaved_changes
from agentrt.state.file import NOFOLLOW, AtomicFile, FileKeeper, hash_name, write_all
from agentrt.state.journal import (
    CHECKSUM_SIZE,
    JournalContents,
    encode_head,
    encode_lines,
    parse_json_line,
    parse_lines,
)
from agentrt.state.records.files import FileRunRows
from agentrt.state.records.rows import RunRows
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, check_session_id, check_ttl, session_status
from agentrt.state.state import AgentState, dump_messages, join_state, split_state, state_from_json
from agentrt.state.store import SessionStoreBase, check_revision, check_saved, next_revision
from agentrt.types import JSONObject

_logger = logging.getLogger("agentrt")
_FORMAT = "agentrt-state"
_VERSION = 2
_WHOLE = 1  # the version whose files hold one state each
_GROWTH = 4  # a journal is rewritten when it is this many times as long as the state
_MAX_SMALL = 1 << 16  # bytes: shorter ones may grow to this
_MAX_HEAD = 1 << 14  # bytes: no line with the id of a session is longer
_DirectoryResult = TypeVar("_DirectoryResult")


class FileStateStore(FileKeeper, SessionStoreBase):
    """Keeps each session in its own file in `directory`, which is created, for its owner alone, at the first save.

    A file is a journal: a save appends the new messages, and the rest of the state, so its cost does not depend on the
    length of the conversation. When the file is four times as long as the state, it is rewritten.

    A save is on the disk when it returns, and a crash leaves the old state or the new one. Any number of processes may
    use one directory: when two save on the same revision, one gets `SessionConflict`. Files are named by the SHA-256
    of the session's id. Errors are subclasses of `StateError`, and leave the old state in the file.

    With a `ttl` a session expires that many seconds after its last save. A list of sessions reads the beginning of
    every file, and the whole files of its page: for thousands of sessions, use a database.
    """

    def __init__(self, directory: str | os.PathLike[str], *, ttl: float | None = None) -> None:
        self._ttl = check_ttl(type(self).__name__, ttl)
        self._left_out: set[Path] = set()
        super().__init__(directory)

    @property
    def directory(self) -> Path:
        """The folder, as an absolute path."""
        return self._directory

    async def save(self, state: AgentState) -> None:
        """Save the state in its file, as `SessionStore.save` says."""
        check_saved(state)
        await checkpoint_if_cancelled()
        file = self._file(state.session_id)
        await self._change(file, "save", partial(file.write, unsaved_changes(state, self)))

    async def load(self, session_id: str) -> AgentState | None:
        """Return the saved state of the session or `None`.

        Raises `SessionCorrupt` for a damaged file, `SessionVersion` for one that this version does not understand. The
        end of a save that a crash cut off is ignored, and the state before it is returned.
        """
        file = self._file(session_id)
        return await self._read(file, partial(file.load, self))

    async def delete(self, session_id: str) -> None:
        """Delete the session's file, damaged or not, if it exists; a state based on it can no longer be saved."""
        await checkpoint_if_cancelled()
        file = self._file(session_id)
        await self._change(file, "delete", file.remove)
        # Also what other processes have recorded; a folder without runs is not looked into.
        if (self._directory / "runs").is_dir():  # one look at a folder
            await self.runs.forget(session_id)

    def _make_run_rows(self) -> RunRows:
        return FileRunRows(self._directory / "runs")

    async def describe(self, session_id: str) -> SessionInfo | None:
        """Return the info of the session or `None`; opens only the session's file.

        Raises `SessionCorrupt` and `SessionVersion` as `load` does.
        """
        file = self._file(session_id)
        return await self._read(file, file.describe)

    async def list(
        self, *, labels: Mapping[str, str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return a page of at most `limit` sessions, in the order of their ids, as `SessionStore` says.

        A file that is damaged, or of another version, is skipped, and an error in the log names it.
        """
        query = SessionQuery.check(labels, prefix, limit, cursor)
        return await self._look("list", partial(self._list, query))

    async def expire(self) -> int:
        """Delete expired sessions, as `SessionStore` says; returns how many there were."""
        removed = await self._look("expire", self._remove_expired) if self._ttl is not None else 0
        return removed + await super().expire()

    async def _look(self, action: str, work: Callable[[float], _DirectoryResult]) -> _DirectoryResult:
        await checkpoint_if_cancelled()
        try:
            return await self._operations.run(action, work, shield=False)
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise SessionIOError(f"could not {action} the sessions in {str(self._directory)!r}: {reason}") from exc

    def _list(self, query: SessionQuery, deadline: float) -> SessionPage:
        infos: list[SessionInfo] = []
        for session_id in sorted(filter(query.may_have, self._find_ids())):
            file = self._file(session_id)
            try:
                info = file.describe(deadline)
            except StateError as error:
                self._leave_out(file.path, str(error))
                continue
            if info is not None and query.matches(info):
                infos.append(info)
            if len(infos) > query.limit:  # one more than the page holds, which shows that there is another page
                break
        return query.page_of(infos)

    def _remove_expired(self, deadline: float) -> int:
        files = [self._file(session_id) for session_id in self._find_ids()]
        return sum(file.remove_expired(deadline) for file in files)

    def _find_ids(self) -> Iterator[str]:
        for path in self._directory.glob("*.state"):
            with _open_file(path, os.O_RDONLY) as descriptor:
                if descriptor is not None:
                    with open(descriptor, "rb", closefd=False) as file:
                        # It is in the first line, and in the second one in files of the first version.
                        lines = [parse_json_line(file.readline(_MAX_HEAD)) for _ in range(2)]
                    session_id = next((line["session_id"] for line in lines if "session_id" in line), None)
                    if isinstance(session_id, str) and path.stem == hash_name(session_id):
                        yield session_id
                    else:
                        self._leave_out(
                            path, f"the beginning of the file {str(path)!r} is damaged; it is kept as it is"
                        )

    def _leave_out(self, path: Path, reason: str) -> None:
        # One file must not hide all others. Logged once per file: a runner lists sessions repeatedly.
        if path not in self._left_out:
            self._left_out.add(path)
            _logger.error("left out of the sessions: %s", reason)

    def _file(self, session_id: str) -> "_StateFile":
        check_session_id(session_id)
        name = hash_name(session_id)
        return _StateFile(session_id, self._directory / f"{name}.state", self._directory / f"{name}.tmp", self._ttl)


class _Place(NamedTuple):
    """The position where a state ends in its journal, and the marks of an unchanged file.

    `sizes` are those of the messages that the state has, and `message_bytes` is their sum.
    """

    revision: int
    inode: int
    modified: int
    last_line: int
    end: int
    checksum: bytes
    sizes: "array[int]"
    message_bytes: int

    def is_current(self, descriptor: int) -> bool:
        """Say whether the file still ends with this save.

        A journal only grows, or is replaced by another file. So its size shows whether someone has saved since, and the
        checksum of its last line, which is of the revision too, that it is the same journal: an inode may be reused.
        """
        about = os.fstat(descriptor)
        if (about.st_size, about.st_ino, about.st_mtime_ns) != (self.end, self.inode, self.modified):
            return False
        os.lseek(descriptor, self.last_line, os.SEEK_SET)
        return os.read(descriptor, CHECKSUM_SIZE) == self.checksum


@dataclass(frozen=True, slots=True)
class _StateFile(AtomicFile):
    ttl: float | None

    def load(self, owner: object, deadline: float) -> AgentState | None:
        with _open_file(self.path, os.O_RDONLY) as descriptor:
            if descriptor is None or self._is_expired(descriptor):
                return None
            contents, place = self._read(descriptor, is_locked=False)
        state = join_state(contents.rest, contents.messages, contents.revision, self._description)
        mark_saved(state, owner, place)
        return state

    def describe(self, deadline: float) -> SessionInfo | None:
        with _open_file(self.path, os.O_RDONLY) as descriptor:
            if descriptor is None or self._is_expired(descriptor):
                return None
            contents, _ = self._read(descriptor, is_locked=False)
            about = os.fstat(descriptor)
            updated_at = about.st_mtime_ns
        state = state_from_json(contents.rest, contents.revision, self._description)
        return SessionInfo(
            self.session_id,
            contents.revision,
            # The first revision is the time in microseconds; each later one is greater by one.
            min(contents.revision * 1000, updated_at),
            updated_at,
            len(contents.messages),
            session_status(state),
            state.labels,
            about.st_size,
        )

    def write(self, change: StateChange, deadline: float) -> None:
        try:
            messages = change.dump_messages()
            with self.lock(deadline):
                if self._write(change, messages):
                    self._shrink(change)
        except BaseException:
            change.abandon()  # does nothing if it was accepted
            raise

    def remove(self, deadline: float) -> None:
        with self.lock(deadline):
            for path in (self.temporary, self.path):
                with suppress(FileNotFoundError):
                    os.unlink(path)
            self.sync()

    def remove_expired(self, deadline: float) -> bool:
        """Remove the file if it is expired; returns whether it was."""
        with self.lock(deadline):
            with _open_file(self.path, os.O_RDONLY) as descriptor:
                if descriptor is None or not self._is_expired(descriptor):
                    return False
            os.unlink(self.path)
            self.sync()
        return True

    def _is_expired(self, descriptor: int) -> bool:
        return self.ttl is not None and time_ns() - os.fstat(descriptor).st_mtime_ns >= self.ttl * 1e9

    def _write(self, change: StateChange, messages: list[bytes]) -> bool:
        """Save the change; returns whether the journal is too long for its state."""
        contents: JournalContents | None = None
        with _open_file(self.path, os.O_RDWR) as descriptor:
            # Treated as missing: the journal of the new session replaces it.
            if descriptor is not None and self._is_expired(descriptor):
                descriptor = None
            place: _Place | None = None if descriptor is None else change.place
            if descriptor is not None and (place is None or not place.is_current(descriptor)):
                contents, place = self._read(descriptor)
            saved = 0
            if contents is not None:
                saved = contents.revision
            elif place is not None:
                saved = place.revision
            check_revision(change.state, saved)
            revision = next_revision(max(saved, change.skipped) if saved else 0)
            if descriptor is not None and place is not None and not change.is_whole:
                return self._append(descriptor, change, place, revision, messages)
        if contents is not None and not change.is_whole:  # of a version that has no journal
            messages = contents.messages[: change.start] + messages
        new_place = self._replace_journal(revision, messages, change.head)
        # Before the sync, which may fail: the file is already replaced, so the next save is based on this one.
        change.accept(revision, new_place)
        self.sync()
        return False

    def _append(
        self, descriptor: int, change: StateChange, place: _Place, revision: int, messages: list[bytes]
    ) -> bool:
        lines = encode_lines(revision, change.start, messages, change.head)
        is_written = False
        try:
            if os.fstat(descriptor).st_size != place.end:  # a crash cut off the last line
                os.ftruncate(descriptor, place.end)
            os.lseek(descriptor, place.end, os.SEEK_SET)
            write_all(descriptor, b"".join(lines))
            is_written = True
            # The size counts as data. Not every system can skip the times.
            (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(descriptor)
        except OSError:
            try:
                os.ftruncate(descriptor, place.end)
            except OSError:
                if is_written:  # saved, but perhaps not on the disk: the next save writes everything
                    change.accept(revision, None)
                    change.state.touch()
                raise
            change.abandon(revision)
            raise
        about, sizes, new_sizes = os.fstat(descriptor), place.sizes, _sizes_of(messages)
        message_bytes = place.message_bytes - sum(sizes[change.start :]) + sum(new_sizes)
        sizes[change.start :] = new_sizes
        change.accept(revision, _place_at(about, revision, place.end, lines, sizes, message_bytes))
        return place.end > max(_MAX_SMALL, _GROWTH * (message_bytes + len(change.head)))

    def _shrink(self, change: StateChange) -> None:
        """Rewrite the journal with only the last save."""
        # That save is complete, and must not look as if it had failed. It does not matter whether the disk has room
        # for a second file; the next load or save finds a journal that cannot be read.
        with suppress(OSError, StateError):
            with _open_file(self.path, os.O_RDONLY) as descriptor:
                contents = None if descriptor is None else self._read(descriptor)[0]
            if contents is not None:
                change.move(self._replace_journal(contents.revision, contents.messages, contents.rest))
                self.sync()

    def _replace_journal(self, revision: int, messages: list[bytes], rest: bytes) -> _Place:
        """Replace the file by a journal with one save."""
        head = encode_head(_FORMAT, _VERSION, self.session_id)
        lines = encode_lines(revision, 0, messages, rest)
        self.replace(b"".join([head, *lines]))
        about, sizes = os.stat(self.path, follow_symlinks=False), _sizes_of(messages)
        return _place_at(about, revision, len(head), lines, sizes, sum(sizes))

    def _read(self, descriptor: int, *, is_locked: bool = True) -> tuple[JournalContents, _Place | None]:
        before, data = None, b""
        while True:
            about = os.fstat(descriptor)  # first: a place must not look newer than the data that was read
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                data = file.read()
            try:
                contents = self._decode(data)
                break
            except SessionCorrupt:
                # A writer may have cut off a torn line and appended another one during this read: then the two
                # are mixed, in this copy only.
                if is_locked or data == before:
                    raise
                before = data
        if contents.end == 0:
            return contents, None
        checksum = data[contents.last_line : contents.last_line + CHECKSUM_SIZE]
        sizes = _sizes_of(contents.messages)
        return contents, _Place(
            contents.revision,
            about.st_ino,
            about.st_mtime_ns,
            contents.last_line,
            contents.end,
            checksum,
            sizes,
            sum(sizes),
        )

    def _decode(self, data: bytes) -> JournalContents:
        first, _, rest = data.partition(b"\n")
        head = parse_json_line(first)
        left_alone = f"{self._description} is kept as it is"
        if head.get("format") != _FORMAT or not isinstance(head.get("version"), int):
            raise self._damage("is not one of agentrt, or its beginning is damaged")
        if head["version"] not in (_WHOLE, _VERSION):
            raise SessionVersion(
                f"the state was saved in format {head['version']}, but this version of agentrt reads {_VERSION}; "
                f"{left_alone}, so load it with the version that saved it, or a newer one"
            )
        if head["version"] == _WHOLE:
            return self._decode_whole(head, rest)
        if head.get("session_id") != self.session_id:
            raise self._foreign()
        damage = self._damage("is damaged: a checksum is wrong")
        if first + b"\n" != encode_head(_FORMAT, _VERSION, self.session_id):
            raise damage
        return parse_lines(data, len(first) + 1, damage)

    def _decode_whole(self, head: JSONObject, rest: bytes) -> JournalContents:
        """Return the content of a file of the first version: a line with the id and revision, then the state."""
        if head.get("sha256") != sha256(rest).hexdigest():
            raise self._damage("is damaged: its checksum is wrong")
        second, _, text = rest.partition(b"\n")
        session = parse_json_line(second)
        revision = session.get("revision")
        if session.get("session_id") != self.session_id or not isinstance(revision, int):
            raise self._foreign()
        state = state_from_json(text, revision, self._description)
        state_rest, _ = split_state(state, [])
        return JournalContents(revision, dump_messages(state.context, self.session_id, 0), state_rest, 0, 0)

    def _damage(self, what: str) -> SessionCorrupt:
        return SessionCorrupt(
            f"the saved state of session {self.session_id!r:.100} {what}; {self._description} is kept as it is: "
            f"put a copy in its place, or delete the session to start it again"
        )

    def _foreign(self) -> SessionCorrupt:
        return SessionCorrupt(
            f"the saved state belongs to another session than {self.session_id!r:.100}; {self._description} is kept as "
            f"it is"
        )

    @property
    def _description(self) -> str:
        return f"the file {str(self.path)!r}"


def _sizes_of(messages: list[bytes]) -> "array[int]":
    return array("Q", map(len, messages))  # a fifth of a list's memory


def _place_at(
    about: os.stat_result, revision: int, start: int, lines: list[bytes], sizes: "array[int]", message_bytes: int
) -> _Place:
    """Return the place of these lines at the end of a file, from `start` on."""
    end = start + sum(map(len, lines))
    checksum = lines[-1][:CHECKSUM_SIZE]
    return _Place(revision, about.st_ino, about.st_mtime_ns, end - len(lines[-1]), end, checksum, sizes, message_bytes)


@contextmanager
def _open_file(path: Path, flags: int) -> Iterator[int | None]:
    """Open the file or `None`; a symbolic link is not followed."""
    try:
        descriptor = os.open(path, flags | NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
