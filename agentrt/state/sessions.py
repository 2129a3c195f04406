"""The sessions of a store: what is said about each of them, in pages, and how one becomes another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrt.errors import ConfigError, UsageError
from agentrt.message import Msg
from agentrt.representation import never_raises
from agentrt.state.state import AgentState

__all__ = [
    "EPHEMERAL",
    "SessionInfo",
    "SessionPage",
    "SessionQuery",
    "SessionStatus",
    "check_labels",
    "check_session_id",
    "check_ttl",
    "fork_state",
    "session_status",
]

SessionStatus = Literal["idle", "running", "waiting"]
"""Whether a session has a reply in progress, and whether that waits for an answer."""

EPHEMERAL = {"ephemeral": "true"}
"""The label of a session for one answer: unless it waits, `expire` removes it an hour after its last save."""

_MAX_ID = 500  # characters: what the index of every database takes, whatever they are
_MAX_SESSIONS = 1_000
_MAX_LABELS = 64
_MAX_LABEL = 500  # characters, of a name and of a value
_MAX_TTL = 1_000_000_000  # seconds: databases count nanoseconds in 63 bits
_LAST_CHARACTER = 0x10FFFF
_SURROGATE_HALVES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a store says about a session without loading it.

    The times are in nanoseconds since the epoch, `updated_at` that of the last save. `messages` counts those that are
    finished. The `status` is that of the last save: a session whose process died in a reply is "running".
    """

    session_id: str
    revision: int
    created_at: int
    updated_at: int
    messages: int
    status: SessionStatus = "idle"
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of a list of sessions; `cursor` is what to ask for the next page with, `None` for the last page."""

    sessions: list[SessionInfo]
    cursor: str | None = None

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.sessions)} sessions, cursor={self.cursor!r:.100}>"


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Which sessions a list is of: in the order of their ids, which are compared by code points.

    `after` is the id that the page begins after, "" for the first page.
    """

    labels: dict[str, str]
    prefix: str
    limit: int
    after: str

    @classmethod
    def check(cls, labels: Any, prefix: Any, limit: Any, cursor: Any) -> "SessionQuery":
        """Return the query; raises `UsageError` for what cannot be one."""
        if labels is None:
            labels = {}
        check_labels(labels, "list(labels=...)")
        if not isinstance(prefix, str):
            raise UsageError(f"list(prefix=...) must be a str, the beginning of session ids, not {prefix!r:.100}")
        if type(limit) is not int or not 1 <= limit <= _MAX_SESSIONS:
            raise UsageError(f"list(limit=...) must be an int from 1 to {_MAX_SESSIONS}, not {limit!r:.100}")
        if cursor is not None and (not isinstance(cursor, str) or not cursor):
            raise UsageError(f"list(cursor=...) must be the cursor of the page before, or None, not {cursor!r:.100}")
        return cls(dict(labels), prefix, limit, cursor or "")

    @property
    def bounds(self) -> tuple[str, str]:
        """The smallest text that an id with that prefix can be, and the smallest that is greater than all of them."""
        # The last character that has a successor is replaced by it; what follows it counts for nothing then.
        for index in reversed(range(len(self.prefix))):
            following = ord(self.prefix[index]) + 1
            if following <= _LAST_CHARACTER:
                last = chr(_SURROGATE_HALVES.stop if following in _SURROGATE_HALVES else following)
                return self.prefix, self.prefix[:index] + last
        return self.prefix, chr(_LAST_CHARACTER) * (_MAX_ID + 1)

    def may_have(self, session_id: str) -> bool:
        """Say whether the session is one of these, whatever its labels are."""
        return session_id > self.after and session_id.startswith(self.prefix)

    def matches(self, info: SessionInfo) -> bool:
        """Say whether the session is one of these."""
        return self.may_have(info.session_id) and self.labels.items() <= info.labels.items()

    def page_of(self, infos: Iterable[SessionInfo]) -> SessionPage:
        """Return the page; `infos` are those that match, in order, at least one more than the page has if there is."""
        sessions: list[SessionInfo] = []
        for info in infos:
            # The id of the last one is the cursor, so that what is saved and deleted meanwhile moves no other session.
            if len(sessions) == self.limit:
                return SessionPage(sessions, sessions[-1].session_id)
            sessions.append(info)
        return SessionPage(sessions)


def check_session_id(session_id: object) -> None:
    """Raise `UsageError` for what cannot be the id of a session: a `str` of 1 to 500 characters."""
    if not isinstance(session_id, str) or not 1 <= len(session_id) <= _MAX_ID:
        length = f", which has {len(session_id)}" if isinstance(session_id, str) and session_id else ""
        raise UsageError(f"a session id must be a str of 1 to {_MAX_ID} characters, not {session_id!r:.100}{length}")


def check_labels(labels: object, place: str) -> None:
    """Raise `UsageError` for what cannot be labels: up to 64 pairs of `str`, without null characters."""
    if not isinstance(labels, Mapping):
        raise UsageError(f"{place} must be a dict of str, such as {{'owner': 'ann'}}, not {labels!r:.100}")
    if len(labels) > _MAX_LABELS:
        raise UsageError(f"{place} has {len(labels)} labels, and {_MAX_LABELS} are the most that a session may have")
    for name, value in labels.items():
        if not _is_label(name) or not name or not _is_label(value):
            raise UsageError(
                f"{place} holds {name!r:.100}: {value!r:.100}, but a name and a value are each a str of at most "
                f"{_MAX_LABEL} characters without null characters and surrogates, and a name is not empty"
            )


def _is_label(text: object) -> bool:
    if not isinstance(text, str) or len(text) > _MAX_LABEL or "\0" in text:
        return False
    return not any(ord(character) in _SURROGATE_HALVES for character in text)


def check_ttl(owner: str, ttl: object) -> float | None:
    """Return the seconds after which a session that is not saved again is gone; raises `ConfigError`."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= _MAX_TTL:
        raise ConfigError(
            f"{owner}(ttl=...) must be seconds, a number above 0 and at most {_MAX_TTL:,}, or None for no end, "
            f"not {ttl!r:.100}"
        )
    return float(ttl)


def session_status(state: AgentState) -> SessionStatus:
    """Return the status of a session whose state is saved like this."""
    if state.reply_context is None:
        return "idle"
    return "waiting" if state.reply_context.parked else "running"


def fork_state(state: AgentState, new_id: str, messages: int | None = None) -> AgentState:
    """Return a new session that has the first `messages` of the finished messages, or all, and no reply in progress.

    It shares objects with `state`, so save it and load it again. Raises `UsageError` where there are not so many.
    """
    check_session_id(new_id)
    context: list[Msg] = list(state.context)
    if messages is None:
        # What was observed meanwhile would have joined the history after the reply.
        context += state.reply_context.observed if state.reply_context is not None else []
    elif type(messages) is not int or not 0 <= messages <= len(context):
        raise UsageError(
            f"fork(messages=...) must be the number of messages to keep, an int from 0 to {len(context)}, or None for "
            f"all, not {messages!r:.100}"
        )
    else:
        del context[messages:]
    # A request for a reply that the fork does not have begins it anew, and does not repeat it.
    last = state.last_reply
    if last is not None and not any(message.id == last.reply_id for message in context):
        last = None
    # A fork is made to be kept.
    labels = {name: value for name, value in state.labels.items() if EPHEMERAL.get(name) != value}
    return replace(
        state, session_id=new_id, context=context, reply_context=None, last_reply=last, labels=labels, revision=0
    )
