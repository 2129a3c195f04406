"""The rows of runs in Redis: a hash and a list of lines for each run, and a hash of contents for each session."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from json import dumps
from time import monotonic
from typing import Any

from pydantic_core import from_json

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt.state.database.store import encode_text
from agentrt.state.records.rows import RunQuery, RunRow, RunRows, RunWrite

# Scripts are atomic. KEYS[1] is the prefix of all keys of runs. The others are made of it in the script, since their
# names depend on what is stored. Rows are JSON in one hash, and a sorted set has their order.
_WRITE_RUNS = """
    local at = 1
    for _ = 1, tonumber(ARGV[at]) do
        local key, root, row, count = ARGV[at + 1], ARGV[at + 2], ARGV[at + 4], tonumber(ARGV[at + 5])
        local session = ARGV[at + 3]
        at = at + 5
        local number = redis.call('ZSCORE', KEYS[1] .. 'order', key)
        if not number then
            number = redis.call('INCR', KEYS[1] .. 'number')
            redis.call('ZADD', KEYS[1] .. 'order', number, key)
            redis.call('HSET', KEYS[1] .. 'last', session, key)
        end
        redis.call('HSET', KEYS[1] .. 'rows', key, row)
        redis.call('SADD', KEYS[1] .. 'root:' .. root, key)
        for index = 1, count do redis.call('RPUSH', KEYS[1] .. 'lines:' .. key, ARGV[at + index]) end
        at = at + count
        local contents = tonumber(ARGV[at + 1])
        at = at + 1
        for index = 1, contents do
            redis.call('HSET', KEYS[1] .. 'contents:' .. root, ARGV[at + 2 * index - 1], ARGV[at + 2 * index])
        end
        at = at + 2 * contents
    end
    return 1
"""
_READ_ROWS = """
    local rows = {}
    local keys = ARGV
    if ARGV[1] == 'root' then keys = redis.call('SMEMBERS', KEYS[1] .. 'root:' .. ARGV[2])
    elseif ARGV[1] == 'last' then keys = {redis.call('HGET', KEYS[1] .. 'last', ARGV[2]) or ''}
    elseif ARGV[1] == 'all' then
        keys = redis.call('ZREVRANGEBYSCORE', KEYS[1] .. 'order', ARGV[2], '-inf', 'LIMIT', 0, ARGV[3])
    end
    for _, key in ipairs(keys) do
        local row = redis.call('HGET', KEYS[1] .. 'rows', key)
        if row then rows[#rows + 1] = {row, redis.call('ZSCORE', KEYS[1] .. 'order', key)} end
    end
    return rows
"""
_READ_LINES = "return redis.call('LRANGE', KEYS[1] .. 'lines:' .. ARGV[1], ARGV[2], -1)"
_READ_CONTENTS = """
    local found = {}
    for index = 2, #ARGV do found[index - 1] = redis.call('HGET', KEYS[1] .. 'contents:' .. ARGV[1], ARGV[index]) end
    return found
"""
_BURY_RUN = """
    redis.call('HSET', KEYS[1] .. 'rows', ARGV[1], ARGV[2])
    redis.call('DEL', KEYS[1] .. 'lines:' .. ARGV[1])
    return 1
"""
_REMOVE_RUN = """
    redis.call('HDEL', KEYS[1] .. 'rows', ARGV[1])
    redis.call('ZREM', KEYS[1] .. 'order', ARGV[1])
    redis.call('SREM', KEYS[1] .. 'root:' .. ARGV[2], ARGV[1])
    redis.call('DEL', KEYS[1] .. 'lines:' .. ARGV[1])
    return 1
"""
_SWEEP = """
    local keep = {}
    for index = 2, #ARGV do keep[ARGV[index]] = true end
    for _, hash in ipairs(redis.call('HKEYS', KEYS[1] .. 'contents:' .. ARGV[1])) do
        if not keep[hash] then redis.call('HDEL', KEYS[1] .. 'contents:' .. ARGV[1], hash) end
    end
    return 1
"""
REDIS_FORGET_RUNS = """
    for _, key in ipairs(redis.call('SMEMBERS', KEYS[1] .. 'root:' .. ARGV[1])) do
        redis.call('HDEL', KEYS[1] .. 'rows', key)
        redis.call('ZREM', KEYS[1] .. 'order', key)
        redis.call('DEL', KEYS[1] .. 'lines:' .. key)
    end
    redis.call('HDEL', KEYS[1] .. 'last', ARGV[1])
    redis.call('DEL', KEYS[1] .. 'root:' .. ARGV[1], KEYS[1] .. 'contents:' .. ARGV[1])
    return 1
"""
_MAX_ROWS = 500  # of a list that are looked at in one script


class RedisRunRows(RunRows):
    """Keeps rows, lines and contents under keys that begin with the prefix of a store, by scripts.

    Each script is atomic. Deleting takes several, so that a process that dies in between leaves what a further call
    removes.
    """

    def __init__(self, make_client: Callable[[], Any], prefix: bytes) -> None:
        self._make_client, self._prefix = make_client, prefix
        self._client: Any = make_client()

    def __getstate__(self) -> dict[str, Any]:
        return {"make_client": self._make_client, "prefix": self._prefix}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # as if it were new

    def _run(self, script: str, *arguments: Any) -> Any:
        return self._client.run_script(monotonic() + MAX_WAIT, script, [self._prefix], arguments)

    def write(self, writes: Sequence[RunWrite]) -> None:
        arguments: list[Any] = [len(writes)]
        for write in writes:
            row = write.row
            arguments += [_run_key(*row.key), encode_text(row.root), encode_text(row.session_id), _row_json(row)]
            arguments += [len(write.lines), *write.lines, len(write.contents)]
            for pair in write.contents.items():
                arguments += pair
        self._run(_WRITE_RUNS, *arguments)

    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        rows = self._run(_READ_ROWS, _run_key(session_id, reply_id))
        return _read_row(*rows[0]) if rows else None

    def last(self, session_id: str) -> RunRow | None:
        rows = self._run(_READ_ROWS, "last", encode_text(session_id))
        return _read_row(*rows[0]) if rows else super().last(session_id)

    def of_session(self, session_id: str) -> list[RunRow]:
        # A run is found by its root. That of a sub-agent is found through the list of all, which is read rarely.
        rows = self.of_root(session_id) or self._all()
        return [row for row in rows if row.session_id == session_id]

    def of_root(self, root: str) -> list[RunRow]:
        rows = [_read_row(*row) for row in self._run(_READ_ROWS, "root", encode_text(root))]
        return sorted(rows, key=lambda row: row.number)

    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        return list(self._run(_READ_LINES, _run_key(session_id, reply_id), after))

    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        chosen = list(hashes)
        for start in range(0, len(chosen), _MAX_ROWS):
            part = chosen[start : start + _MAX_ROWS]
            contents = self._run(_READ_CONTENTS, encode_text(root), *part)
            found.update((digest, content) for digest, content in zip(part, contents, strict=True) if content)
        return found

    def page(self, query: RunQuery) -> list[RunRow]:
        found: list[RunRow] = []
        before = query.before
        while len(found) <= query.limit:
            below = "+inf" if before is None else f"({before}"
            rows = [_read_row(*row) for row in self._run(_READ_ROWS, "all", below, _MAX_ROWS)]
            found += filter(query.matches, rows)
            if len(rows) < _MAX_ROWS:
                break
            before = rows[-1].number
        return found[: query.limit + 1]

    def expired(self, now: int) -> list[RunRow]:
        return [row for row in self._all() if row.expires_at <= now]

    def bury(self, row: RunRow) -> None:
        self._run(_BURY_RUN, _run_key(*row.key), _row_json(row))

    def remove(self, row: RunRow) -> None:
        self._run(_REMOVE_RUN, _run_key(*row.key), encode_text(row.root))

    def sweep(self, root: str, keep: Collection[str]) -> None:
        self._run(_SWEEP, encode_text(root), *keep)

    def close(self) -> None:
        self._client.close()

    def _all(self) -> list[RunRow]:
        found: list[RunRow] = []
        below = "+inf"
        while True:
            rows = [_read_row(*row) for row in self._run(_READ_ROWS, "all", below, _MAX_ROWS)]
            found += rows
            if len(rows) < _MAX_ROWS:
                return found[::-1]
            below = f"({rows[-1].number}"


def _run_key(session_id: str, reply_id: str) -> bytes:
    # With the length of the first, so that no two pairs of ids have one key.
    session = encode_text(session_id)
    return b"%d:%s:%s" % (len(session), session, encode_text(reply_id))


def _row_json(row: RunRow) -> str:
    return dumps({**asdict(row), "about": row.about.decode()})


def _read_row(text: bytes, number: bytes) -> RunRow:
    values = from_json(text)
    parent = values["parent"]
    changed = {"about": values["about"].encode(), "parent": parent and tuple(parent), "number": int(float(number))}
    return RunRow(**{**values, **changed})
