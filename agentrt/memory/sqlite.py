"""A memory in a SQLite database."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

from agentrt._runtime.database.sqlite import SQLiteConnection, SQLiteDatabase
from agentrt._runtime.representation import repr_by_settings
from agentrt._runtime.text import type_with_article
from agentrt.errors import ConfigError, SessionCorrupt, SessionUnserializable
from agentrt.memory.arguments import check_marks, check_new_mark, messages_to_add, strings_of
from agentrt.memory.base import MemoryBase, require_summary
from agentrt.memory.stored_message import marked_message_from_json, message_to_json
from agentrt.message import Msg
from agentrt.types import JSONObject

# All texts are JSON in ASCII, since a model's text may hold unpaired surrogates, which the database would refuse.
_MEMORY_TABLES = """
CREATE TABLE memory_sessions (session TEXT PRIMARY KEY, revision INTEGER NOT NULL, summary TEXT NOT NULL);
CREATE TABLE memory_messages (place INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL,
    message TEXT NOT NULL, marks TEXT NOT NULL);
CREATE INDEX memory_messages_by_session ON memory_messages (session, id)"""
_MAX_SESSION = 1_000  # characters of its name


class SQLiteMemory(MemoryBase):
    """Keeps the messages of a session in the SQLite database at `path`, or in this process with ":memory:".

    Several processes, and memories of several sessions, may use one file; it is made at the first use, for its owner
    alone, and its folder must exist. A database that fails raises `StoreError`, and changes nothing. The messages are
    in the database and nowhere else: the `state_dict` is empty.
    """

    __repr__ = repr_by_settings

    def __init__(self, path: str | os.PathLike[str], session: str) -> None:
        super().__init__()
        name: object = session
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_SESSION:
            raise ConfigError(
                f"SQLiteMemory(session=...) must be a str of 1 to {_MAX_SESSION:,} characters, the conversation whose "
                f"messages these are, not {session!r:.200}"
            )
        self._database = SQLiteDatabase("SQLiteMemory", path, schema=_MEMORY_TABLES, name="memory_schema", version=1)
        self.path = self._database.path
        self.session = session
        self._key = json.dumps(session)

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy of an agent has the same database

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._database.path_to_pickle(), self.session)

    def state_dict(self) -> JSONObject:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state_dict: JSONObject, strict: bool = True) -> None:
        """Load a state that `state_dict` returned, which changes nothing."""
        state: object = state_dict
        if not isinstance(state, dict):
            raise TypeError(f"the state of {type(self).__name__} must be a dict, not {type_with_article(state)}")

    async def read_revision(self) -> int:
        """Return a number that changes whenever the messages do, in any process."""

        def read(connection: SQLiteConnection) -> int:
            found = connection.execute("SELECT revision FROM memory_sessions WHERE session = ?", (self._key,))
            return int((found.fetchone() or (0,))[0])

        return await self._database.read(read)

    async def add(
        self, memories: Msg | list[Msg] | None, marks: str | list[str] | None = None, allow_duplicates: bool = False
    ) -> None:
        """Add messages, each with these marks; without `allow_duplicates`, those with a known id are left out."""
        new_marks = json.dumps(strings_of("marks", marks))
        rows = [
            (self._key, json.dumps(msg.id), _json_text(number, msg), new_marks)
            for number, msg in enumerate(messages_to_add(memories))
        ]
        if not rows:
            return

        def add(connection: SQLiteConnection) -> int:
            known = "SELECT 1 FROM memory_messages WHERE session = ? AND id = ?"
            insert = "INSERT INTO memory_messages (session, id, message, marks) VALUES (?, ?, ?, ?)"
            added = 0
            for row in rows:
                if allow_duplicates or connection.execute(known, row[:2]).fetchone() is None:
                    connection.execute(insert, row)
                    added += 1
            return added

        await self._change(add)

    async def delete(self, msg_ids: list[str]) -> int:
        """Remove the messages with these ids, and return how many there were."""
        ids = list(map(json.dumps, strings_of("msg_ids", msg_ids)))

        def delete(connection: SQLiteConnection) -> int:
            statement = "DELETE FROM memory_messages WHERE session = ? AND id = ?"
            removed = 0
            for msg_id in ids:
                connection.execute(statement, (self._key, msg_id))
                removed += connection.execute("SELECT changes()").fetchone()[0]
            return removed

        return await self._change(delete)

    async def delete_by_mark(self, mark: str | list[str]) -> int:
        """Remove the messages that have the mark, or any of them, and return how many there were."""
        unwanted = set(strings_of("mark", mark))

        def delete(connection: SQLiteConnection) -> int:
            places = [(place,) for place, marks in self._marks(connection) if not unwanted.isdisjoint(marks)]
            connection.executemany("DELETE FROM memory_messages WHERE place = ?", places)
            return len(places)

        return await self._change(delete)

    async def size(self) -> int:
        """Return the number of messages."""

        def count(connection: SQLiteConnection) -> int:
            found = connection.execute("SELECT count(*) FROM memory_messages WHERE session = ?", (self._key,))
            return int(found.fetchone()[0])

        return await self._database.read(count)

    async def clear(self) -> None:
        """Delete everything of the session, the summary too."""

        def clear(connection: SQLiteConnection) -> int:
            connection.execute("DELETE FROM memory_messages WHERE session = ?", (self._key,))
            connection.execute("UPDATE memory_sessions SET summary = '\"\"' WHERE session = ?", (self._key,))
            return 1

        await self._change(clear)

    async def get_memory(
        self, mark: str | None = None, exclude_mark: str | None = None, prepend_summary: bool = True
    ) -> list[Msg]:
        """Return the messages, oldest first: those with `mark` and without `exclude_mark`, where these are given."""
        check_marks(mark=mark, exclude_mark=exclude_mark)

        def read(connection: SQLiteConnection) -> tuple[list[tuple[str, str]], str]:
            statement = "SELECT message, marks FROM memory_messages WHERE session = ? ORDER BY place"
            summary = connection.execute("SELECT summary FROM memory_sessions WHERE session = ?", (self._key,))
            return connection.execute(statement, (self._key,)).fetchall(), (summary.fetchone() or ('""',))[0]

        rows, summary = await self._database.read(read)
        messages: list[Msg] = []
        for number, (text, mark_text) in enumerate(rows):
            marks = _loads(number, mark_text)
            if (mark is None or mark in marks) and (exclude_mark is None or exclude_mark not in marks):
                messages.append(marked_message_from_json(number, [_loads(number, text), marks])[0])
        compressed = require_summary(_loads(len(rows), summary))
        if prepend_summary and compressed:
            messages.insert(0, Msg("user", compressed, "user"))
        return messages

    async def update_messages_mark(
        self, new_mark: str | None, old_mark: str | None = None, msg_ids: list[str] | None = None
    ) -> int:
        """Put `new_mark` on messages, in place of `old_mark` if given, and return how many messages changed."""
        check_new_mark(new_mark, old_mark)
        ids = None if msg_ids is None else strings_of("msg_ids", msg_ids)
        added = [] if new_mark is None else [new_mark]

        def update(connection: SQLiteConnection) -> int:
            selected = [
                (json.dumps([*(mark for mark in marks if mark not in (old_mark, new_mark)), *added]), place)
                for place, marks in self._marks(connection, ids)
                if old_mark is None or old_mark in marks
            ]
            connection.executemany("UPDATE memory_messages SET marks = ? WHERE place = ?", selected)
            return len(selected)

        return await self._database.write(update)

    async def update_compressed_summary(self, summary: str) -> None:
        """Replace the summary."""
        text = json.dumps(require_summary(summary))

        def update(connection: SQLiteConnection) -> None:
            self._bump(connection, 0)
            connection.execute("UPDATE memory_sessions SET summary = ? WHERE session = ?", (text, self._key))

        await self._database.write(update)

    async def _change(self, change: Callable[[SQLiteConnection], int]) -> int:
        """Run a change of messages, add the number of changed messages to the revision, and return that number."""

        def work(connection: SQLiteConnection) -> int:
            number = change(connection)
            self._bump(connection, number)
            return number

        return await self._database.write(work)

    def _bump(self, connection: SQLiteConnection, number: int) -> None:
        statement = (
            "INSERT INTO memory_sessions (session, revision, summary) VALUES (?, ?, '\"\"') "
            "ON CONFLICT (session) DO UPDATE SET revision = revision + excluded.revision"
        )
        connection.execute(statement, (self._key, number))

    def _marks(self, connection: SQLiteConnection, ids: Sequence[str] | None = None) -> list[tuple[int, list[str]]]:
        statement = "SELECT place, marks, id FROM memory_messages WHERE session = ? ORDER BY place"
        known_ids = None if ids is None else set(map(json.dumps, ids))
        rows = connection.execute(statement, (self._key,)).fetchall()
        return [
            (place, _loads(place, marks)) for place, marks, msg_id in rows if known_ids is None or msg_id in known_ids
        ]


def _json_text(number: int, msg: Msg) -> str:
    fields = message_to_json(number, msg)
    try:
        return json.dumps(fields, allow_nan=False)
    except ValueError:
        pass
    raise SessionUnserializable(f"message {number} to be added to a memory has a number that is not finite")


def _loads(number: int, text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        pass
    raise SessionCorrupt(f"message {number} of a memory cannot be read: it is not JSON")
