"""The number of sessions of each owner and their bytes, recounted from time to time and not for each request."""

from collections import OrderedDict
from dataclasses import dataclass, field
from time import monotonic

from agentrt.serving.failure import ApiError
from agentrt.serving.limits import Limits
from agentrt.state import SessionStore

_FRESH_SECONDS = 600.0
"""The age at which a count is made again: other processes add sessions too, and sessions expire."""
_MAX_COUNTS = 10_000
_SESSIONS_AT_ONCE = 1_000
_RETRY_AFTER = {"Retry-After": "60"}


@dataclass(slots=True)
class _Count:
    sessions: int = 0
    bytes: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    """The part of `bytes` of each session used since the count, by stored id."""
    counted_at: float = 0.0


class SessionCounts:
    """Counts the sessions in an owner's namespace, and keeps the count up to date between two recounts.

    A session counts with the size that the store reports. If it reports none, only the messages added here count.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, int], _Count] = OrderedDict()

    async def add(self, prefix: str, store: SessionStore, limits: Limits, session_id: str, size: int) -> None:
        """Count a session of that size before it is saved; raises `ApiError` where a limit is reached."""
        count = await self._count(prefix, store)
        if count.sessions >= limits.sessions_per_owner:
            words = f"you already have {limits.sessions_per_owner:,} sessions, the most allowed: delete some first"
            details = {"limit": "sessions_per_owner"}
            raise ApiError(429, "too_many_sessions", words, details=details, headers=_RETRY_AFTER)
        if count.bytes >= limits.bytes_per_owner:
            raise full_of_bytes(limits)
        count.sessions += 1
        count.bytes += size
        count.sizes[session_id] = size

    async def is_full(self, prefix: str, store: SessionStore, limits: Limits) -> bool:
        """Say whether the sessions have reached their limit of bytes."""
        return (await self._count(prefix, store)).bytes >= limits.bytes_per_owner

    def remove(self, prefix: str, store: SessionStore, session_id: str) -> None:
        """Note that a session was deleted, or was not saved."""
        count = self._counts.get((prefix, id(store)))
        if count is not None:
            count.sessions = max(0, count.sessions - 1)
            count.bytes = max(0, count.bytes - count.sizes.pop(session_id, 0))

    def note_size(self, prefix: str, store: SessionStore, session_id: str, size: int) -> None:
        """Note the size of a session that the store reports now."""
        count = self._counts.get((prefix, id(store)))
        if count is not None:
            count.bytes += size - count.sizes.get(session_id, size)
            count.sizes[session_id] = size

    def add_bytes(self, prefix: str, store: SessionStore, session_id: str, added: int, size: int) -> None:
        """Add bytes to a session that had this size; the next `note_size` corrects the sum."""
        count = self._counts.get((prefix, id(store)))
        if count is not None:
            count.bytes += added
            count.sizes[session_id] = count.sizes.get(session_id, size) + added

    async def _count(self, prefix: str, store: SessionStore) -> _Count:
        key = prefix, id(store)
        count = self._find_fresh(key)
        if count is None:
            counted, cursor = _Count(), None
            while True:
                page = await store.list(prefix=prefix, limit=_SESSIONS_AT_ONCE, cursor=cursor)
                counted.sessions += len(page.sessions)
                counted.bytes += sum(info.size or 0 for info in page.sessions)
                cursor = page.cursor
                if cursor is None:
                    break
            counted.counted_at = monotonic()
            # Another request may have counted meanwhile, and added its own.
            count = self._find_fresh(key) or counted
            self._counts[key] = count
        self._counts.move_to_end(key)
        if len(self._counts) > _MAX_COUNTS:
            self._counts.popitem(last=False)
        return count

    def _find_fresh(self, key: tuple[str, int]) -> _Count | None:
        count = self._counts.get(key)
        return count if count is not None and count.counted_at > monotonic() - _FRESH_SECONDS else None


def full_of_bytes(limits: Limits) -> ApiError:
    """Return the refusal for an owner whose sessions have reached their limit of bytes."""
    words = f"your sessions have reached {limits.bytes_per_owner:,} bytes, the most allowed: delete some first"
    return ApiError(429, "too_many_bytes", words, details={"limit": "bytes_per_owner"}, headers=_RETRY_AFTER)
