"""States in Redis, with the extra `redis`: a hash per session and a list of its messages, changed by one script."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from agentrt.database.redis import RedisClient
from agentrt.errors import ConfigError, SessionVersion
from agentrt.keywords import suggest_keywords
from agentrt.state.database.store import (
    DatabaseStore,
    SavedRows,
    SaveMark,
    SessionDatabase,
    SessionRow,
    encode_text,
    read_labels,
)
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, SessionStatus, check_ttl
from agentrt.text import lazy_pattern

__all__ = ["RedisStore"]

_RunScript = Callable[..., Any]
_KEY_PREFIX = lazy_pattern(r"[A-Za-z0-9_.:-]{1,100}")
_LAYOUT = 1  # the version of how sessions are kept
_THREADS = 8
_AT_A_TIME = 200  # ids of a list that are looked up at once

# Scripts run one at a time, and whole: each sees what one save has left. KEYS are the session's hash, its list of
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
# The first key is that of the session "", with which all others begin.
_DESCRIBE = """
    local rows = {}
    for index, id in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
        rows[index] = {id, redis.call('HMGET', KEYS[1] .. id,
            'revision', 'created_at', 'updated_at', 'messages', 'status', 'labels')}
    end
    return rows
"""
# An id stays in the sorted set when Redis has let its session expire.
_REMOVE_EXPIRED = """
    local ids, count = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[1], '+', 'LIMIT', 0, ARGV[2]), 0
    for _, id in ipairs(ids) do
        if redis.call('EXISTS', KEYS[1] .. id) == 0 then count = count + redis.call('ZREM', KEYS[3], id) end
    end
    return {#ids, ids[#ids] or '', count}
"""
_GET_LAYOUT = "return redis.call('GET', KEYS[4])"


@suggest_keywords(schema="prefix", dsn="url")
class RedisStore(DatabaseStore):
    """Keeps sessions in the Redis at `url`, under keys that begin with `prefix`, with the extra `redis`.

    A save sends the messages that are new, and the rest of the state, to one script, so it is done whole or not at all.
    Any number of machines may use the server; of two that save on the same revision, one gets `SessionConflict`. A save
    that has returned is as safe as the server's `appendonly` and `appendfsync` say: by default, Redis writes to the
    disk now and then only.

    With a `ttl` a session is gone so many seconds after its last save, by the server's clock. The scripts use several
    keys, so a Redis cluster will not do. At most eight connections are used at a time, from a thread. `async with
    store` closes them at the end; `aclose` does the same.
    """

    def __init__(self, url: str, *, prefix: str = "agentrt", ttl: float | None = None) -> None:
        owner = type(self).__name__
        name: object = prefix
        if not isinstance(name, str) or not _KEY_PREFIX.fullmatch(prefix):
            raise ConfigError(
                f"{owner}(prefix=...) must have 1 to 100 letters, digits, '_', '.', ':' and '-', not {prefix!r:.100}"
            )
        # Such keys would belong to a store with the prefix before this part.
        if parts := {"session", "messages"}.intersection(prefix.split(":")[1:]):
            raise ConfigError(
                f"{owner}(prefix={prefix!r}) has the part {min(parts)!r}, as keys of a store with a shorter prefix do: "
                f"choose another word"
            )
        super().__init__(_RedisDatabase(owner, url, prefix, check_ttl(owner, ttl)), threads=_THREADS)


class _RedisDatabase(SessionDatabase):
    remedy = "restore Redis from a backup"

    def __init__(self, owner: str, url: str, prefix: str, ttl: float | None) -> None:
        self._client = RedisClient(owner, url)
        self._prefix = prefix.encode()
        # Redis counts in milliseconds, and refuses an expiry after none.
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

    def list(self, run: _RunScript, query: SessionQuery) -> SessionPage:
        first, end = map(encode_text, query.bounds)
        # By bytes, whose order is that of the code points.
        low = b"(" + encode_text(query.after) if query.after >= query.prefix else b"[" + first
        infos: list[SessionInfo] = []
        while len(infos) <= query.limit:
            rows = run(_DESCRIBE, "", [low, b"(" + end, _AT_A_TIME])
            found = (_read_info(self.place, *row) for row in rows if row[1][0] is not None)  # else it has expired
            infos += filter(query.matches, found)
            if len(rows) < _AT_A_TIME:
                break
            low = b"(" + rows[-1][0]
        return query.page_of(infos)

    def expire(self, run: _RunScript) -> int:
        forgotten, low = 0, b"-"
        while True:
            found, last, count = run(_REMOVE_EXPIRED, "", [low, _AT_A_TIME])
            forgotten += int(count)
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


def _read_info(place: str, session_id: bytes, fields: Sequence[bytes]) -> SessionInfo:
    *numbers, status, labels = fields
    name, kind = session_id.decode(), cast(SessionStatus, status.decode())
    revision, created_at, updated_at, messages = map(int, numbers)
    pairs = read_labels(labels, name, place)
    return SessionInfo(name, revision, created_at, updated_at, messages, kind, pairs)
