"""What stores in databases have in common: they hand rows to the database, in threads, in order, and not for ever."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from json import dumps
from secrets import randbits
from typing import Any, NamedTuple, Self, TypeVar

from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled
from pydantic_core import from_json

from agentrt.database.operations import DatabaseError, OperationQueue
from agentrt.errors import SessionConflict, SessionCorrupt, SessionIOError, StateError
from agentrt.representation import never_raises
from agentrt.state.changes import StateChange, mark_saved, unsaved_changes
from agentrt.state.sessions import SessionPage, SessionQuery, check_session_id, session_status
from agentrt.state.state import AgentState, join_state
from agentrt.state.store import SessionStoreBase, check_revision, check_saved, next_revision

__all__ = ["DatabaseStore", "SaveMark", "SavedRows", "SessionDatabase", "SessionRow", "encode_text", "read_labels"]

_DatabaseResult = TypeVar("_DatabaseResult")


class SaveMark(NamedTuple):
    """What a save is known by: two writers give the same revision, but never the same token, which is not 0."""

    revision: int
    token: int = 0


class SessionRow(NamedTuple):
    """What a save writes about a session: it is the revision after `base`, 0 for a session that is new.

    The first `start` messages that are there stay, and with those that are added there are `message_count`.
    """

    session_id: str
    start: int
    message_count: int
    status: str
    labels: str
    head: bytes
    base: int = 0
    revision: int = 0
    token: int = 0

    def based_on(self, base: int) -> "SessionRow":
        """Return the row of a save on that revision."""
        # From the system: what a program seeds may give the same numbers in two processes.
        return self._replace(base=base, revision=next_revision(base), token=randbits(62) + 1)

    def as_dict(self) -> dict[str, object]:
        """Return the fields by their names."""
        return self._asdict()

    @property
    def mark(self) -> SaveMark:
        """What the save is known by."""
        return SaveMark(self.revision, self.token)


class SavedRows(NamedTuple):
    """What is saved of a session; it is damaged unless it has `message_count` messages."""

    revision: int
    message_count: int
    head: bytes
    messages: Sequence[bytes]


class SessionDatabase(ABC):
    """A database, as a store needs it. Each method runs in a thread, with a connection that `connect` gives.

    `place` names it in messages, without a password; `remedy` is what to do where rows of it are damaged.
    """

    place: str
    remedy: str

    @abstractmethod
    def connect(self, deadline: float) -> AbstractContextManager[Any]:
        """Return a connection to what is up to date, which waits no longer than that, in `time.monotonic()`.

        Raises `DatabaseError` for what fails, also inside of the block.
        """

    @abstractmethod
    def write(self, connection: Any, row: SessionRow, messages: Sequence[bytes]) -> SaveMark | None:
        """Save the row and the messages from `row.start` on, whole or not at all; returns `None`.

        Where another revision is saved than `row.base`, it changes nothing, and returns that one, 0 for none. The token
        is that of its row, 0 where the database is in this process, and always says what it has done.
        """

    @abstractmethod
    def read(self, connection: Any, session_id: str) -> SavedRows | None:
        """Return what is saved of a session, if it is there."""

    @abstractmethod
    def delete(self, connection: Any, session_id: str) -> None:
        """Remove a session, if it is there."""

    @abstractmethod
    def list(self, connection: Any, query: SessionQuery) -> SessionPage:
        """Return a page of the sessions."""

    @abstractmethod
    def expire(self, connection: Any) -> int:
        """Remove what expired sessions leave; returns how many there were."""

    def migrate(self, connection: Any) -> None:  # noqa: B027  # there may be nothing to do
        """Do what is left to do to bring it up to date: nothing, where `connect` does so."""

    def close(self) -> None:  # noqa: B027  # there may be nothing to do
        """Close what is open and not in use."""


class DatabaseStore(SessionStoreBase):
    """Keeps sessions in a database, a row per session and one per message; `threads` of them use it at a time."""

    def __init__(self, database: SessionDatabase, threads: int) -> None:
        self._database = database
        self._operations = OperationQueue(threads)
        # A thread whose caller asyncio has cancelled is not counted any more, so one thread alone needs one line.
        self._is_serial = threads == 1

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._database.place}>"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy of an agent has the same database

    async def save(self, state: AgentState) -> None:
        """Keep the state as it is now, in the database, as `SessionStore.save` says."""
        check_saved(state)
        await checkpoint_if_cancelled()
        change = unsaved_changes(state, self)
        count, labels = change.start + len(change.messages), dumps(state.labels, sort_keys=True)
        row = SessionRow(state.session_id, change.start, count, session_status(state), labels, change.head)
        await self._run("save", state.session_id, partial(self._write, change, row), shield=True)

    def _write(self, change: StateChange, row: SessionRow, deadline: float) -> None:
        try:
            messages = change.dump_messages()
            row = row.based_on(change.state.revision)
            found = self._write_once(row, messages, deadline)
            if found is not None and found == change.doubtful:
                # An earlier save of this state, which may have failed, was done: this one follows it, as a whole one.
                row = row.based_on(found.revision)
                found = self._write_once(row, messages, deadline)
            if found is not None:
                check_revision(change.state, found.revision)
                raise SessionConflict(
                    f"session {row.session_id!r:.100} is being saved by another writer: load it again"
                )
            change.accept(row.revision, None)
        # Here, since the caller may have left before this thread ends.
        except StateError:
            change.abandon()
            raise
        except BaseException:
            change.doubt(row.mark)
            raise

    def _write_once(self, row: SessionRow, messages: Sequence[bytes], deadline: float) -> SaveMark | None:
        """Save the row; returns `None`, or what is saved in its place."""
        write = partial(self._database.write, row=row, messages=messages)
        try:
            return self._ask(write, deadline)
        except DatabaseError as error:
            if not error.is_lost:
                raise
        # It may have been done or not, and is asked for again: if it was done, what is found is this very save.
        found = self._ask(write, deadline)
        return None if found == row.mark else found

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none.

        Raises `SessionCorrupt` for damaged rows, `SessionVersion` for those of another version.
        """
        check_session_id(session_id)
        rows = await self._ask_in_thread("load", session_id, partial(self._database.read, session_id=session_id))
        if rows is None:
            return None
        place = f"session {session_id!r:.100} in {self._database.place}"
        # What is in a row is looked at when it is loaded; that none is missing is seen only here.
        if len(rows.messages) != rows.message_count or not isinstance(rows.head, bytes):
            raise SessionCorrupt(
                f"{place} is damaged: it has {len(rows.messages)} messages for {rows.message_count}; "
                f"{self._database.remedy}, or delete the session to start it again"
            )
        # Outside of the queue, since reading the JSON takes longer than reading the rows.
        state = await to_thread.run_sync(join_state, rows.head, rows.messages, rows.revision, place)
        mark_saved(state, self)
        return state

    async def delete(self, session_id: str) -> None:
        """Remove the session, damaged or not, if it is there; a state based on it can no longer be saved."""
        check_session_id(session_id)
        delete = partial(self._database.delete, session_id=session_id)
        await self._ask_in_thread("delete", session_id, delete, shield=True)

    async def list(
        self, *, labels: Mapping[str, str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return a page of at most `limit` sessions, in the order of their ids, as `SessionStore` says."""
        query = SessionQuery.check(labels, prefix, limit, cursor)
        return await self._ask_in_thread("list", None, partial(self._database.list, query=query))

    async def expire(self) -> int:
        """Remove the data of expired sessions, as `SessionStore` says; returns how many there were."""
        removed = await self._ask_in_thread("expire", None, self._database.expire, shield=True)
        return removed + await super().expire()

    async def migrate(self) -> None:
        """Bring the database up to date; the first operation does so else. Raises `SessionVersion` for a newer one."""
        await self._ask_in_thread("migrate", None, self._database.migrate, shield=True)

    async def aclose(self) -> None:
        """Close files and connections that are not in use; the next operation opens them again."""
        await self._run("close", None, lambda deadline: self._database.close(), shield=True)

    async def _ask_in_thread(
        self, action: str, session_id: str | None, ask: Callable[[Any], _DatabaseResult], *, shield: bool = False
    ) -> _DatabaseResult:
        if shield:  # else it is cancelled where it waits for the thread
            await checkpoint_if_cancelled()
        return await self._run(action, session_id, partial(self._ask, ask), shield=shield)

    def _ask(self, ask: Callable[[Any], _DatabaseResult], deadline: float) -> _DatabaseResult:
        with self._database.connect(deadline) as connection:
            return ask(connection)

    async def _run(
        self, action: str, session_id: str | None, work: Callable[[float], _DatabaseResult], *, shield: bool
    ) -> _DatabaseResult:
        # Operations on one session keep their order; those on none need not wait for each other.
        key = "" if self._is_serial else session_id or object()
        error: type[StateError] = SessionIOError
        try:
            return await self._operations.run(key, work, shield=shield)
        except DatabaseError as exc:
            reason, error = str(exc), exc.error
        except TimeoutError as exc:
            reason = exc.strerror or type(exc).__name__
        # Raised here, since an error of the database, which may quote what it was given, would be kept as the context.
        what = "the sessions" if session_id is None else f"session {session_id!r:.100}"
        raise error(f"could not {action} {what} in {self._database.place}: {reason}")


def read_labels(text: str | bytes, session_id: str, place: str) -> dict[str, str]:
    """Return the labels that are kept of a session; raises `SessionCorrupt`, naming it, for what is damaged."""
    with suppress(ValueError):
        labels = from_json(text)
        if isinstance(labels, dict):
            return labels
    raise SessionCorrupt(f"the labels of session {session_id!r:.100} in {place} are damaged: delete it, or restore it")


def encode_text(text: str) -> bytes:
    """Return the UTF-8 of the text, and what is like it for a surrogate: nothing is saved under such."""
    return text.encode(errors="surrogatepass")
