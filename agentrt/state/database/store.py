"""The base of stores in databases: it runs operations in threads, in order, with a time limit."""

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

from agentrt._runtime.database.operations import DatabaseError, OperationQueue
from agentrt._runtime.representation import never_raises
from agentrt.errors import SessionConflict, SessionCorrupt, SessionIOError, StateError
from agentrt.state.changes import StateChange, mark_saved, unsaved_changes
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, check_session_id, session_status
from agentrt.state.state import AgentState, join_state
from agentrt.state.store import SessionStoreBase, check_revision, check_saved, next_revision

_DatabaseResult = TypeVar("_DatabaseResult")


class SaveMark(NamedTuple):
    """The token of a save: two writers may use the same revision, but never the same token; it is not 0."""

    revision: int
    token: int = 0


class SessionRow(NamedTuple):
    """The row that a save writes for a session: the revision after `base`, which is 0 for a new session.

    The first `start` messages stay, and with the added ones there are `message_count`.
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
        """Return the row of a save on the revision `base`."""
        # From the system: a seeded generator may give the same numbers in two processes.
        return self._replace(base=base, revision=next_revision(base), token=randbits(62) + 1)

    def as_dict(self) -> dict[str, object]:
        """Return the fields by their names."""
        return self._asdict()

    @property
    def mark(self) -> SaveMark:
        """The token of the save."""
        return SaveMark(self.revision, self.token)


class SavedRows(NamedTuple):
    """The saved rows of a session; damaged unless there are `message_count` messages."""

    revision: int
    message_count: int
    head: bytes
    messages: Sequence[bytes]


class SessionDatabase(ABC):
    """The database of a store. Each method runs in a thread, with a connection from `connect`.

    `place` names it in messages, without a password; `remedy` is the advice for damaged rows.
    """

    place: str
    remedy: str

    @abstractmethod
    def connect(self, deadline: float) -> AbstractContextManager[Any]:
        """Return a connection to the migrated database that waits no longer than `deadline`, in `time.monotonic()`.

        Failures raise `DatabaseError`, also inside the block.
        """

    @abstractmethod
    def write(self, connection: Any, row: SessionRow, messages: Sequence[bytes]) -> SaveMark | None:
        """Save the row and the messages from `row.start` on, atomically; returns `None`.

        Where another revision is saved than `row.base`, it changes nothing, and returns that one, 0 for none. The token
        is that of its row, 0 where the database is in this process, and always says what it has done.
        """

    @abstractmethod
    def read(self, connection: Any, session_id: str) -> SavedRows | None:
        """Return the saved rows of a session, `None` if there are none."""

    @abstractmethod
    def delete(self, connection: Any, session_id: str) -> None:
        """Delete a session, if it exists."""

    @abstractmethod
    def describe(self, connection: Any, session_id: str) -> SessionInfo | None:
        """Return the info of a session, `None` for an unknown one."""

    @abstractmethod
    def list(self, connection: Any, query: SessionQuery) -> SessionPage:
        """Return a page of the sessions."""

    @abstractmethod
    def expire(self, connection: Any) -> int:
        """Delete expired sessions; returns how many there were."""

    def migrate(self, connection: Any) -> None:  # noqa: B027  # there may be nothing to do
        """Migrate the database; does nothing if `connect` does so."""

    def close(self) -> None:  # noqa: B027  # there may be nothing to do
        """Close idle files and connections."""


class DatabaseStore(SessionStoreBase):
    """Keeps sessions in a database, a row per session and one per message; at most `threads` threads use it at once."""

    def __init__(self, database: SessionDatabase, threads: int) -> None:
        self._database = database
        self._operations = OperationQueue(threads)
        # A thread whose caller asyncio has cancelled is no longer counted, so a single thread needs a queue of its own.
        self._is_serial = threads == 1

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._database.place}>"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy of an agent has the same database

    async def save(self, state: AgentState) -> None:
        """Save the state in the database, as `SessionStore.save` says."""
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
                # The earlier save of this state with an unknown outcome succeeded: this one follows it, as a whole one.
                row = row.based_on(found.revision)
                found = self._write_once(row, messages, deadline)
            if found is not None:
                check_revision(change.state, found.revision)
                raise SessionConflict(
                    f"session {row.session_id!r:.100} is being saved by another writer: load it again"
                )
            change.accept(row.revision, None)
        # Here, since the caller may leave before this thread ends.
        except StateError:
            change.abandon()
            raise
        except BaseException:
            change.doubt(row.mark)
            raise

    def _write_once(self, row: SessionRow, messages: Sequence[bytes], deadline: float) -> SaveMark | None:
        """Save the row; returns `None`, or the revision and token that are saved instead."""
        write = partial(self._database.write, row=row, messages=messages)
        try:
            return self._ask(write, deadline)
        except DatabaseError as error:
            if not error.is_lost:
                raise
        # The outcome is unknown, so the save is repeated: if it had succeeded, its own token is found.
        found = self._ask(write, deadline)
        return None if found == row.mark else found

    async def load(self, session_id: str) -> AgentState | None:
        """Return the saved state of the session or `None`.

        Raises `SessionCorrupt` for damaged rows, `SessionVersion` for those of another version.
        """
        check_session_id(session_id)
        rows = await self._ask_in_thread("load", session_id, partial(self._database.read, session_id=session_id))
        if rows is None:
            return None
        place = f"session {session_id!r:.100} in {self._database.place}"
        # The content of rows is checked when it is loaded; missing rows are found only here.
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
        """Delete the session, damaged or not, if it exists; a state based on it can no longer be saved."""
        check_session_id(session_id)
        delete = partial(self._database.delete, session_id=session_id)
        await self._forget_runs(session_id)
        await self._ask_in_thread("delete", session_id, delete, shield=True)

    async def describe(self, session_id: str) -> SessionInfo | None:
        """Return the info of the session or `None`."""
        check_session_id(session_id)
        describe = partial(self._database.describe, session_id=session_id)
        return await self._ask_in_thread("describe", session_id, describe)

    async def list(
        self, *, labels: Mapping[str, str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return a page of at most `limit` sessions, in the order of their ids, as `SessionStore` says."""
        query = SessionQuery.check(labels, prefix, limit, cursor)
        return await self._ask_in_thread("list", None, partial(self._database.list, query=query))

    async def expire(self) -> int:
        """Delete expired sessions, as `SessionStore` says; returns how many there were."""
        removed = await self._ask_in_thread("expire", None, self._database.expire, shield=True)
        return removed + await super().expire()

    async def migrate(self) -> None:
        """Migrate the database now, not at the first operation. Raises `SessionVersion` for a newer one."""
        await self._ask_in_thread("migrate", None, self._database.migrate, shield=True)

    async def aclose(self) -> None:
        """Close idle files and connections; the next operation opens them again."""
        await self._close_runs()
        await self._run("close", None, lambda deadline: self._database.close(), shield=True)

    async def _ask_in_thread(
        self, action: str, session_id: str | None, ask: Callable[[Any], _DatabaseResult], *, shield: bool = False
    ) -> _DatabaseResult:
        if shield:  # otherwise it is cancelled while it waits for the thread
            await checkpoint_if_cancelled()
        return await self._run(action, session_id, partial(self._ask, ask), shield=shield)

    def _ask(self, ask: Callable[[Any], _DatabaseResult], deadline: float) -> _DatabaseResult:
        with self._database.connect(deadline) as connection:
            return ask(connection)

    async def _run(
        self, action: str, session_id: str | None, work: Callable[[float], _DatabaseResult], *, shield: bool
    ) -> _DatabaseResult:
        # Operations on one session keep their order; the others do not wait for each other.
        key = "" if self._is_serial else session_id or object()
        error: type[StateError] = SessionIOError
        try:
            return await self._operations.run(key, work, shield=shield)
        except DatabaseError as exc:
            reason, error = str(exc), exc.error
        except TimeoutError as exc:
            reason = exc.strerror or type(exc).__name__
        # Raised here, since the database's error, which may quote its input, would be kept as the context.
        what = "the sessions" if session_id is None else f"session {session_id!r:.100}"
        raise error(f"could not {action} {what} in {self._database.place}: {reason}")


def read_labels(text: str | bytes, session_id: str, place: str) -> dict[str, str]:
    """Return the labels of a session; raises `SessionCorrupt`, naming the session, for damaged ones."""
    with suppress(ValueError):
        labels = from_json(text)
        if isinstance(labels, dict):
            return labels
    raise SessionCorrupt(f"the labels of session {session_id!r:.100} in {place} are damaged: delete it, or restore it")


def encode_text(text: str) -> bytes:
    """Return the text in UTF-8, surrogates included: no id has one, so nothing is found."""
    return text.encode(errors="surrogatepass")
