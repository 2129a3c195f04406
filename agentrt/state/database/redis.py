"""States in Redis, with the extra `redis`: a hash per session and a list of its messages, saved by one script."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, cast

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt._runtime.database.redis import RedisClient
from agentrt._runtime.hidden import HiddenStr
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError, SessionVersion
from agentrt.state.database.redis_runs import REDIS_FORGET_RUNS, RedisRunRows
from agentrt.state.database.store import (
    DatabaseStore,
    SavedRows,
    SaveMark,
    SessionDatabase,
    SessionRow,
    encode_text,
    read_labels,
)
from agentrt.state.records.rows import RunRows
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, SessionStatus, check_ttl

_RunScript = Callable[..., Any]
_KEY_PREFIX = lazy_pattern(r"[A-Za-z0-9_.:-]{1,100}")
_LAYOUT = 1  # the version of the layout
_THREADS = 8
_AT_A_TIME = 200  # ids of a list that are looked up at once

# Scripts are atomic, and run one at a time: each sees complete saves only. KEYS are the session's hash, its list of
# messages, the sorted set of all ids and the version of the layout.
_SAVE = """
    local layout = redis.call('GET', KEYS[4])
    if layout and tonumber(layout) > tonumber(ARGV[1]) then return {'layout', layout} end
    local saved = redis.call('HGET', KEYS[1], 'revision') or '0'
    if saved ~= ARGV[3] then return {'saved', saved, redis.call('HGET', KEYS[1], 'token') or '0'} end
    if not layout then redis.call('SET', KEYS[4], ARGV[1]) end
    local now = redis.call('TIME')
    local nanoseconds = now[1] .. string.format('%06d', now[2]) .. '000'
    local start = tonumber(ARGV[5])
    if saved == '0' or start == 0 then redis.call('DEL', KEYS[2]) else redis.call('LTRIM', KEYS[2], 0, start - 1) end
    for first = 12, #ARGV, 1000 do
        redis.call('RPUSH', KEYS[2], unpack(ARGV, first, math.min(first + 999, #ARGV)))
    end
    redis.call('HSETNX', KEYS[1], 'created_at', nanoseconds)
    redis.call('HSET', KEYS[1], 'revision', ARGV[4], 'updated_at', nanoseconds, 'messages', ARGV[6],
        'status', ARGV[7], 'labels', ARGV[8], 'head', ARGV[9], 'token', ARGV[11])
    redis.call('ZADD', KEYS[3], 0, ARGV[2])
    for index = 1, 2 do
        if ARGV[10] == '' then redis.call('PERSIST', KEYS[index]) else redis.call('PEXPIRE', KEYS[index], ARGV[10]) end
    end
    return {'done'}
"""
_LOAD_SESSION = """
    local about = redis.call('HMGET', KEYS[1], 'revision', 'messages', 'head')
    if not about[1] then return {} end
    return {about[1], about[2], about[3], redis.call('LRANGE', KEYS[2], 0, -1), redis.call('GET', KEYS[4])}
"""
_REMOVE = """
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('ZREM', KEYS[3], ARGV[1])
    return 1
"""
# The list counts with its memory, since the sizes of the messages would have to be read. Where
# users may not ask for that, and in servers that do not know it, the size is not known. A list without messages is not
# there, and takes nothing.
_READ_ABOUT = """
    local function read_about(session, messages)
        local about = redis.call('HMGET', session,
            'revision', 'created_at', 'updated_at', 'messages', 'status', 'labels')
        local taken = redis.pcall('MEMORY', 'USAGE', messages, 'SAMPLES', '0') or 0
        if type(taken) == 'number' then about[7] = redis.call('HSTRLEN', session, 'head') + taken end
        return about
    end
"""
_DESCRIBE = f"{_READ_ABOUT} return read_about(KEYS[1], KEYS[2])"
# The first keys are those of the session "", with which all others begin.
_LIST = f"""{_READ_ABOUT}
    local rows = {{}}
    for index, id in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
        rows[index] = {{id, read_about(KEYS[1] .. id, KEYS[2] .. id)}}
    end
    return rows
"""
# An id stays in the sorted set when Redis has let its session expire.
_REMOVE_EXPIRED = """
    local ids, gone = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[1], '+', 'LIMIT', 0, ARGV[2]), {}
    for _, id in ipairs(ids) do
        if redis.call('EXISTS', KEYS[1] .. id) == 0 and redis.call('ZREM', KEYS[3], id) == 1 then
            gone[#gone + 1] = id
        end
    end
    return {#ids, ids[#ids] or '', gone}
"""
_GET_LAYOUT = "return redis.call('GET', KEYS[4])"


class RedisStore(DatabaseStore):
    """Keeps sessions in the Redis at `url`, under keys that begin with `prefix`, with the extra `redis`.

    A save sends the new messages, and the rest of the state, to one script, so it is atomic.
    Any number of machines may use the server; when two save on the same revision, one gets `SessionConflict`. A save
    that has returned is as durable as the server's `appendonly` and `appendfsync` say: by default, Redis writes to the
    disk only now and then.

    With a `ttl` a session expires that many seconds after its last save, by the server's clock. The scripts use several
    keys, so a Redis cluster is not supported. At most eight connections are used at a time, from a thread. `async with
    store` closes them at the end; `aclose` does the same.
    """

    def __init__(self, url: str, *, prefix: str = "agentrt", ttl: float | None = None) -> None:
        owner = type(self).__name__
        name: object = prefix
        if not isinstance(name, str) or not _KEY_PREFIX.fullmatch(prefix):
            raise ConfigError(
                f"{owner}(prefix=...) must have 1 to 100 letters, digits, '_', '.', ':' and '-', not {prefix!r:.100}"
            )
        # Such keys would collide with those of a store with the shorter prefix.
        if parts := {"session", "messages", "runs"}.intersection(prefix.split(":")[1:]):
            raise ConfigError(
                f"{owner}(prefix={prefix!r}) has the part {min(parts)!r}, as keys of a store with a shorter prefix do: "
                f"choose another word"
            )
        super().__init__(_RedisDatabase(owner, url, prefix, check_ttl(owner, ttl)), threads=_THREADS)
        self._make_rows = partial(RedisRunRows, partial(RedisClient, owner, HiddenStr(url)), f"{prefix}:runs:".encode())

    def _make_run_rows(self) -> RunRows:
        return self._make_rows()


class _RedisDatabase(SessionDatabase):
    remedy = "restore Redis from a backup"

    def __init__(self, owner: str, url: str, prefix: str, ttl: float | None) -> None:
        self._client = RedisClient(owner, url)
        self._prefix = prefix.encode()
        # Redis counts in milliseconds, and refuses an expiry of 0.
        self._ttl = b"" if ttl is None else max(1, int(ttl * 1000))
        self.place = f"{self._client.place} (prefix {prefix!r})"

    @contextmanager
    def connect(self, deadline: float) -> Iterator[_RunScript]:
        yield partial(self._run_script, deadline)

    def _run_script(self, deadline: float, text: str, session_id: str = "", arguments: Sequence[Any] = ()) -> Any:
        name = encode_text(session_id)
        keys = [self._prefix + key for key in (b":session:" + name, b":messages:" + name, b":ids", b":layout")]
        return self._client.run_script(deadline, text, keys, arguments)

    def close(self) -> None:
        self._client.close()

    def write(self, run: _RunScript, row: SessionRow, messages: Sequence[bytes]) -> SaveMark | None:
        arguments = [_LAYOUT, row.session_id.encode(), row.base, row.revision, row.start, row.message_count]
        arguments += [row.status, row.labels, row.head, self._ttl, row.token, *messages]
        answer, *found = run(_SAVE, row.session_id, arguments)
        if answer == b"layout":
            self._check_layout(found[0])
        return None if answer == b"done" else SaveMark(*map(int, found))

    def read(self, run: _RunScript, session_id: str) -> SavedRows | None:
        answer = run(_LOAD_SESSION, session_id)
        if not answer:
            return None
        revision, count, head, messages, layout = answer
        self._check_layout(layout)
        return SavedRows(int(revision), int(count), head, messages)

    def delete(self, run: _RunScript, session_id: str) -> None:
        run(_REMOVE, session_id, [encode_text(session_id)])
        self._forget_runs(session_id)

    def _forget_runs(self, session_id: str) -> None:
        prefix = [self._prefix + b":runs:"]
        self._client.run_script(monotonic() + MAX_WAIT, REDIS_FORGET_RUNS, prefix, [encode_text(session_id)])

    def describe(self, run: _RunScript, session_id: str) -> SessionInfo | None:
        fields = run(_DESCRIBE, session_id)
        return None if fields[0] is None else _read_info(self.place, encode_text(session_id), fields)

    def list(self, run: _RunScript, query: SessionQuery) -> SessionPage:
        first, end = map(encode_text, query.bounds)
        # By bytes, which are ordered like code points.
        low = b"(" + encode_text(query.after) if query.after >= query.prefix else b"[" + first
        infos: list[SessionInfo] = []
        while len(infos) <= query.limit:
            rows = run(_LIST, "", [low, b"(" + end, _AT_A_TIME])
            found = (_read_info(self.place, *row) for row in rows if row[1][0] is not None)  # otherwise it has expired
            infos += filter(query.matches, found)
            if len(rows) < _AT_A_TIME:
                break
            low = b"(" + rows[-1][0]
        return query.page_of(infos)

    def expire(self, run: _RunScript) -> int:
        forgotten, low = 0, b"-"
        while True:
            found, last, gone = run(_REMOVE_EXPIRED, "", [low, _AT_A_TIME])
            forgotten += len(gone)
            for session_id in gone:
                self._forget_runs(session_id.decode())
            if found < _AT_A_TIME:
                return forgotten
            low = b"(" + last

    def migrate(self, run: _RunScript) -> None:
        self._check_layout(run(_GET_LAYOUT))

    def _check_layout(self, layout: bytes | None) -> None:
        if layout is not None and int(layout) > _LAYOUT:
            raise SessionVersion(
                f"the sessions in {self.place} have the layout {int(layout)}, and this version of agentrt knows "
                f"{_LAYOUT}: use the version that made them, or a newer one; nothing was changed"
            )


def _read_info(place: str, session_id: bytes, fields: Sequence[Any]) -> SessionInfo:
    *numbers, status, labels = fields[:6]
    name, kind = session_id.decode(), cast(SessionStatus, status.decode())
    revision, created_at, updated_at, messages = map(int, numbers)
    pairs = read_labels(labels, name, place)
    return SessionInfo(name, revision, created_at, updated_at, messages, kind, pairs, *fields[6:])
