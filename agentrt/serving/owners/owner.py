"""Owners: who sends a request, which sessions they have, and how much of the server they may use at a time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from threading import Lock
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

from agentrt.errors import ConfigError, UsageError
from agentrt.runner.requests import OWNER_LABEL
from agentrt.serving.failure import ApiError
from agentrt.serving.limits import Limits
from agentrt.serving.owners.session_counts import SessionCounts
from agentrt.state.sessions import check_labels

PlaceKind: TypeAlias = Literal["connections", "streams", "inputs", "mcp_sessions"]
_DIGEST_LENGTH = 40
"""In hexadecimal digits: 160 bits, so that nobody finds a name whose digest is that of another owner."""
_PLACE_REFUSALS: dict[PlaceKind, tuple[str, str, str, int]] = {
    "connections": ("too_many_connections", "requests in progress", "connections_per_owner", 1),
    "streams": ("too_many_streams", "open streams", "streams_per_owner", 1),
    "inputs": ("too_many_inputs", "open questions", "connections_per_owner", 10),
    "mcp_sessions": ("too_many_connections", "open MCP sessions", "connections_per_owner", 60),
}
"""The code, the words and the limit of a refusal, and the seconds to wait before another try."""


class Owner:
    """The sender of a request, as `auth` names it; without authentication the `name` is `None`, and nothing is counted.

    Each owner has a namespace: a stored session id is a digest of the owner's name, a dot, and the id that clients use.
    """

    def __init__(
        self, name: str | None, limits: Limits | None = None, session_counts: SessionCounts | None = None
    ) -> None:
        if name is not None:
            check_owner_name(name, "an owner")
        self.name = name
        self.limits = Limits() if limits is None else limits
        digest = "" if name is None else sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
        self.prefix = f"{digest}." if digest else ""
        """The beginning of all stored ids in the owner's namespace."""
        self.session_counts = session_counts or SessionCounts()
        self._counts: Counter[PlaceKind] = Counter()
        self._lock = Lock()  # questions are asked from other threads too
        self._most: dict[PlaceKind, int] = {
            "connections": self.limits.connections_per_owner,
            "streams": self.limits.streams_per_owner,
            # Each question may have a client that waits for its answer, and the answer needs a connection too.
            "inputs": max(1, self.limits.connections_per_owner // 2),
            "mcp_sessions": self.limits.connections_per_owner,
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r:.100}>"

    @property
    def labels(self) -> dict[str, str]:
        """The labels that a session of the owner has: none without authentication."""
        return {} if self.name is None else {OWNER_LABEL: self.name}

    def session_id(self, public: str) -> str:
        """Return the stored id of a session, from the id that clients use."""
        return f"{self.prefix}{public}"

    def public_id(self, stored: str) -> str:
        """Return the id that clients use, from a stored id; one outside the namespace is the same for both."""
        return stored.removeprefix(self.prefix)

    @contextmanager
    def place(self, kind: PlaceKind) -> Iterator[None]:
        """Count one more of this kind while the body runs; raises `ApiError` at the owner's limit."""
        if self.name is None:
            yield  # the limits of the whole server hold
            return
        with self._lock:
            if self._counts[kind] >= self._most[kind]:
                code, words, limit, seconds = _PLACE_REFUSALS[kind]
                raise ApiError(
                    429,
                    code,
                    f"you already have {self._most[kind]} {words}, the maximum: end one, or try again later",
                    details={"limit": limit},
                    headers={"Retry-After": str(seconds)},
                )
            self._counts[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[kind] -= 1


def check_owner_name(name: object, place: str) -> None:
    """Raise `ConfigError` for a name that no label can hold."""
    # One that is cut off or empty could be another owner's.
    if isinstance(name, str) and name:
        with suppress(UsageError):
            check_labels({OWNER_LABEL: name}, place)
            return
    raise ConfigError(
        f"{place} must be a str of 1 to 500 characters, without null characters and surrogates, not {name!r:.100}"
    )


class Owners:
    """The owners of a server: one object per name, for as long as it is in use."""

    def __init__(self, limits: Limits, *, are_known: bool) -> None:
        self.limits = limits
        self.are_known = are_known
        """Whether requests are authenticated."""
        self._session_counts = SessionCounts()
        self._owners: WeakValueDictionary[str | None, Owner] = WeakValueDictionary()
        self._lock = Lock()

    def get(self, name: str | None) -> Owner:
        """Return the owner of that name, with its counts."""
        with self._lock:
            owner = self._owners.get(name)
            if owner is None:
                owner = self._owners[name] = Owner(name, self.limits, self._session_counts)
            return owner
