"""The sessions of a store: their info, lists of them in pages, and forks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrt._runtime.options import check_whole
from agentrt._runtime.representation import never_raises
from agentrt.errors import ConfigError, UsageError
from agentrt.message import Msg
from agentrt.state.state import AgentState

SessionStatus = Literal["idle", "running", "waiting"]
"""Whether a session has a reply in progress, and whether that reply waits for an answer."""

EPHEMERAL = {"ephemeral": "true"}
"""The label of a session for one answer: unless it waits, `expire` removes it an hour after its last save."""

_MAX_ID = 500  # characters: fits into the index of every database, in any script
_MAX_SESSIONS = 1_000
_MAX_LABELS = 64
_MAX_LABEL = 500  # characters, of a name and of a value
_MAX_TTL = 1_000_000_000  # seconds: databases count nanoseconds in 63 bits
_LAST_CHARACTER = 0x10FFFF
_SURROGATE_HALVES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The facts about a session that a store knows without loading it.

    The times are in nanoseconds since the epoch; `updated_at` is that of the last save. `messages` counts the finished
    ones. The `status` is that of the last save: a session whose process died in a reply is "running". The `size` is the
    size of the stored session in bytes, `None` if unknown.
    """

    session_id: str
    revision: int
    created_at: int
    updated_at: int
    messages: int
    status: SessionStatus = "idle"
    labels: dict[str, str] = field(default_factory=dict)
    size: int | None = None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of a list of sessions; `cursor` requests the next page, and is `None` on the last page."""

    sessions: list[SessionInfo]
    cursor: str | None = None

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.sessions)} sessions, cursor={self.cursor!r:.100}>"


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """A query for sessions, in the order of their ids, which are compared by code points.

    The page begins after the id `after`, "" for the first page.
    """

    labels: dict[str, str]
    prefix: str
    limit: int
    after: str

    @classmethod
    def check(cls, labels: Any, prefix: Any, limit: Any, cursor: Any) -> "SessionQuery":
        """Return the query; raises `UsageError` for invalid arguments."""
        if labels is None:
            labels = {}
        check_labels(labels, "list(labels=...)")
        if not isinstance(prefix, str):
            raise UsageError(f"list(prefix=...) must be a str, the beginning of session ids, not {prefix!r:.100}")
        check_whole("list(limit=...)", limit, most=_MAX_SESSIONS, error=UsageError)
        if cursor is not None and (not isinstance(cursor, str) or not cursor):
            raise UsageError(f"list(cursor=...) must be the cursor of the page before, or None, not {cursor!r:.100}")
        return cls(dict(labels), prefix, limit, cursor or "")

    @property
    def bounds(self) -> tuple[str, str]:
        """The smallest possible id with the prefix, and the smallest text greater than all such ids."""
        # The last character that has a successor is replaced by it, and the rest is cut off.
        for index in reversed(range(len(self.prefix))):
            following = ord(self.prefix[index]) + 1
            if following <= _LAST_CHARACTER:
                last = chr(_SURROGATE_HALVES.stop if following in _SURROGATE_HALVES else following)
                return self.prefix, self.prefix[:index] + last
        return self.prefix, chr(_LAST_CHARACTER) * (_MAX_ID + 1)

    def may_have(self, session_id: str) -> bool:
        """Say whether the session matches, labels aside."""
        return session_id > self.after and session_id.startswith(self.prefix)

    def matches(self, info: SessionInfo) -> bool:
        """Say whether the session matches."""
        return self.may_have(info.session_id) and self.labels.items() <= info.labels.items()

    def page_of(self, infos: Iterable[SessionInfo]) -> SessionPage:
        """Return the page; `infos` are the matches in order, including one beyond the page if there are more."""
        sessions: list[SessionInfo] = []
        for info in infos:
            # The cursor is the last id, so that saves and deletions meanwhile do not shift other sessions.
            if len(sessions) == self.limit:
                return SessionPage(sessions, sessions[-1].session_id)
            sessions.append(info)
        return SessionPage(sessions)


def check_session_id(session_id: object) -> None:
    """Raise `UsageError` unless it can be the id of a session: a `str` of 1 to 500 characters."""
    if not isinstance(session_id, str) or not 1 <= len(session_id) <= _MAX_ID:
        length = f", which has {len(session_id)}" if isinstance(session_id, str) and session_id else ""
        raise UsageError(f"a session id must be a str of 1 to {_MAX_ID} characters, not {session_id!r:.100}{length}")


def check_labels(labels: object, place: str) -> None:
    """Raise `UsageError` unless these can be labels: up to 64 pairs of `str`, without null characters."""
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
    """Return the seconds from the last save of a session to its expiry; raises `ConfigError`."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= _MAX_TTL:
        raise ConfigError(
            f"{owner}(ttl=...) must be a number of seconds above 0, at most {_MAX_TTL:,}, or None for no limit, "
            f"not {ttl!r:.100}"
        )
    return float(ttl)


def session_status(state: AgentState) -> SessionStatus:
    """Return the status of a session with this state."""
    if state.reply_context is None:
        return "idle"
    return "waiting" if state.reply_context.parked else "running"


def fork_state(state: AgentState, new_id: str, messages: int | None = None) -> AgentState:
    """Return a new session that has the first `messages` of the finished messages, or all, and no reply in progress.

    It shares objects with `state`, so save it and load it again. Raises `UsageError` if there are fewer.
    """
    check_session_id(new_id)
    context: list[Msg] = list(state.context)
    if messages is None:
        # Messages observed meanwhile would have joined the context after the reply.
        context += state.reply_context.observed if state.reply_context is not None else []
    elif type(messages) is not int or not 0 <= messages <= len(context):
        raise UsageError(
            f"fork(messages=...) must be the number of messages to keep, an int from 0 to {len(context)}, or None for "
            f"all, not {messages!r:.100}"
        )
    else:
        del context[messages:]
    # A request for a reply that the fork lacks starts a new reply, and repeats none.
    last = state.last_reply
    if last is not None and not any(message.id == last.reply_id for message in context):
        last = None
    # A fork is not ephemeral, and the background calls of the other session wake that one.
    labels = {name: value for name, value in state.labels.items() if EPHEMERAL.get(name) != value}
    return replace(
        state,
        session_id=new_id,
        context=context,
        reply_context=None,
        last_reply=last,
        labels=labels,
        revision=0,
        tasks={},
        task=None,
    )
