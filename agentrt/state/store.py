"""Where states are kept."""

from collections.abc import Iterator
from contextlib import suppress
from time import time_ns
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import from_json

from agentrt.errors import SessionConflict, SessionCorrupt, SessionUnserializable, SessionVersion, UsageError
from agentrt.state.state import AgentState, _adapter

__all__ = [
    "InMemoryStateStore",
    "StateStore",
    "check_revision",
    "check_session_id",
    "next_revision",
    "state_from_json",
    "state_to_json",
]


class StateStore(Protocol):
    """Keeps one state per session.

    `save` returns only once the state is safe; the runtime waits for it before the next side effect.
    """

    async def save(self, state: AgentState) -> None:
        """Keep the state under its `session_id`, in place of the one that it is based on, and set its `revision`.

        Raises `SessionConflict` when that is no longer the saved one: of two writers, the second is told.
        """
        ...

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none."""
        ...


class InMemoryStateStore:
    """Keeps states in this process, as JSON, so that what is loaded shares nothing with what was saved."""

    def __init__(self) -> None:
        self._saved: dict[str, tuple[int, bytes]] = {}

    async def save(self, state: AgentState) -> None:
        """Keep the state under its `session_id`, in place of the one that it is based on, and set its `revision`.

        Raises `SessionConflict` when that is no longer the saved one, and `SessionUnserializable` for what JSON cannot
        hold.
        """
        check_session_id(state.session_id)
        text = state_to_json(state)
        saved, _ = self._saved.get(state.session_id, (0, b""))
        check_revision(state, saved)
        state.revision = next_revision(saved)
        self._saved[state.session_id] = state.revision, text

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none."""
        check_session_id(session_id)
        saved = self._saved.get(session_id)
        return None if saved is None else state_from_json(saved[1], saved[0], f"session {session_id!r:.100}")

    async def delete(self, session_id: str) -> None:
        """Forget the session, if it is there. A state that was based on it can no longer be saved."""
        check_session_id(session_id)
        self._saved.pop(session_id, None)


def check_session_id(session_id: object) -> None:
    """Raise `UsageError` for what names no session."""
    if not isinstance(session_id, str) or not session_id:
        raise UsageError(f"a session id must be a text that is not empty, not {session_id!r:.100}")


def check_revision(state: AgentState, saved: int) -> None:
    """Raise `SessionConflict` unless the state is based on the saved revision, 0 for none."""
    if state.revision == saved:
        return
    session = f"session {state.session_id!r:.100}"
    if not saved:
        raise SessionConflict(
            f"{session} is not saved here (any more), and this state is based on its revision {state.revision}: "
            f"to save it as a new one, set state.revision = 0"
        )
    if not state.revision:
        raise SessionConflict(
            f"{session} is saved already, as revision {saved}, and this state is a new one (revision 0): "
            f"load the saved one and continue it, or choose another session_id"
        )
    raise SessionConflict(
        f"{session} was saved by another writer as revision {saved}, and this state is based on revision "
        f"{state.revision}: load the saved one and make the change again"
    )


def next_revision(saved: int) -> int:
    """Return the revision after this one.

    The first is the time in microseconds, so that a session which is deleted and begun again never comes to a revision
    that it had before.
    """
    return saved + 1 if saved else time_ns() // 1000


def state_to_json(state: AgentState) -> bytes:
    """Return the state as JSON, without its revision. Raises `SessionUnserializable`, naming what JSON cannot hold."""
    text = _dumped(state, exclude={"revision"})
    if text is None:
        raise SessionUnserializable(
            f"the state of session {state.session_id!r:.100} cannot be saved: {_culprit(state)} holds something that "
            f"has no JSON form, or not the type that it should have; keep texts, numbers, lists and dicts there"
        )
    return text


def state_from_json(text: bytes, revision: int, place: str) -> AgentState:
    """Return the state that `state_to_json` gave; raises `SessionVersion` for one that another version of it gave."""
    # A state of an older version would be brought up to date here, before it is validated: one function per version,
    # from JSON to JSON. There has been one version so far.
    try:
        state = _adapter().validate_json(text)
    except ValidationError as exc:
        fields = [str(each["loc"][0]) for each in exc.errors(include_input=False) if each["loc"]]
    else:
        state.revision = revision
        return state
    # Raised here, since pydantic's error, which quotes what it refused, would go along as the context.
    if not fields:
        raise SessionCorrupt(f"{place} holds no JSON; it is kept as it is")
    raise SessionVersion(
        f"{place} was saved by another version of agentrt: this one does not understand its {fields[0]!r:.100}; "
        f"it is kept as it is, so load it with the version that saved it, or a newer one"
    )


def _culprit(state: AgentState) -> str:
    for path in _paths(state):
        if _dumped(state, include=_only(path)) is None:
            field, *rest = path
            if field == "middleware_data":
                return f"the data of the middleware {rest[0]!r:.100}"
            return "".join([f"its {field}", *(f"[{each}]" for each in rest)])
    return "it"


def _paths(state: AgentState) -> Iterator[tuple[Any, ...]]:
    yield from (("middleware_data", key) for key in state.middleware_data)
    yield from (("context", index) for index in range(len(state.context)))
    yield from ((field,) for field in AgentState.__dataclass_fields__)


def _only(path: tuple[Any, ...]) -> Any:
    field, *rest = path
    return {field: set(rest)} if rest else {field}


def _dumped(state: AgentState, **what: Any) -> bytes | None:
    # Pydantic's errors, which are ValueErrors, may quote the state: none goes on from here.
    with suppress(ValueError):
        text = _adapter().dump_json(state, indent=2, warnings="error", **what)
        from_json(text, cache_strings="none")  # what is nested deeper than a parser goes could never be loaded
        return text
    with suppress(ValueError):  # a text in place of an enum, say, is as good, if it can be loaded
        text = _adapter().dump_json(state, indent=2, warnings="none", **what)
        _adapter().validate_json(text)
        return text
    return None
