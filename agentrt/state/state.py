"""The state of a conversation: its messages, and the reply in progress."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from threading import RLock
from typing import Any, Literal

import pydantic
from pydantic_core import CoreConfig, SchemaSerializer, ValidationError, from_json

from agentrt._runtime.block import InProcess, Strict, new_name
from agentrt._runtime.flow.handles import HeldValues
from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.representation import never_raises, repr_as_call
from agentrt._runtime.text import type_with_article
from agentrt.errors import SessionCorrupt, SessionUnserializable, SessionVersion, UsageError
from agentrt.event import ConfirmResult
from agentrt.message import (
    ContentBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    message_adapter,
    message_serializer,
)
from agentrt.types import (
    FinishedReason,
    JSONObject,
    JSONSchema,
    OpenQuestion,
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    PermissionRule,
)

WRAPPER = "value"
"""The property that wraps an answer which is not an object."""


_NO_MESSAGES: Any = {"revision": True, "context": True, "reply_context": {"message": {"content"}}}
_MAX_LOADED_AT_ONCE = 100  # messages
_MAX_PARENT = 450  # characters of a session's id that are in those of its tasks
_STAYS = "it is kept as it is, so load it"


# Stands for a session id until it is first read: most new states are replaced by loaded ones.
_NO_ID_YET: Any = object()
_id_lock = RLock()  # reentrant: the garbage collector may run under it, and a finalizer may read an id

# The names of a state's fields and methods in other frameworks, and in pydantic's models.
_STATE_JSON = "write state.model_dump_json()"
_STATE_GUESSES = {
    "dict": _STATE_JSON,
    "from_json": "write AgentState.model_validate_json(text)",
    "history": "write state.context",
    "id": "write state.session_id",
    "json": _STATE_JSON,
    "memory": "write state.context",
    "messages": "write state.context",
    "model_dump": _STATE_JSON,
    "model_validate": "write AgentState.model_validate_json(text)",
    "to_dict": _STATE_JSON,
    "to_json": _STATE_JSON,
}


Waits = Literal["user", "external", "inner"]
"""Whose answer a tool call waits for; "inner" is a running call that waits for answers to its own questions."""


@dataclass(slots=True, repr=False, eq=False)
class CallDecision(Strict):
    """The decision on one tool call. `by` is "policy" or "user".

    `waits_for` says whose answer the call waits for; `digest` then identifies the question, the tool and its input to
    the byte, and `asked_at` is its time, in nanoseconds since the epoch. `asked_seq` is the number of the event that
    asked, 0 before that event. `original_input` is the model's input if the user changed it, and `fingerprint` that
    of the tool in question. `result_digest` identifies a program's result where another one is kept in its place.
    `task_id` is that of the task that makes the call, where it was let go: it may have been submitted.
    """

    behavior: PermissionBehavior
    by: Literal["policy", "user"] = "policy"
    message: str = ""
    digest: str = ""
    waits_for: Waits | None = None
    asked_at: int = 0
    asked_seq: int = 0
    original_input: str | None = None
    suggested_rules: list[PermissionRule] = field(default_factory=list)
    fingerprint: str | None = None
    result_digest: str = ""
    task_id: str = ""

    def question(self) -> PermissionDecision:
        """Return the question to the user."""
        # A new list: the program that asks the user may change it, and ours is saved.
        return PermissionDecision(self.behavior, self.message, suggested_rules=[*self.suggested_rules])


@dataclass(slots=True, repr=False, eq=False)
class InnerCall(Strict):
    """A call that another tool call makes, or a question that it asks: the decision, and the outcome once there is one.

    In `question.tool_call`, the id is the path by which it is answered; in `answer` and in `result` it is the id that
    the tool gave. `begun` says whether a call may have taken effect; it is `None` for a mere question, of a sub-agent
    say, which runs nothing in this conversation.
    """

    question: OpenQuestion
    decision: CallDecision
    answer: ConfirmResult | None = None
    result: ToolResultBlock | None = None
    begun: bool | None = None

    @property
    def is_call(self) -> bool:
        """Whether it is a call of this conversation, and not a question alone."""
        return self.begun is not None


@dataclass(slots=True, repr=False, eq=False)
class HiddenCall(Strict):
    """A call that a layer made instead of the model: the tool, and the question to the user, if any.

    `is_taken` says that the layer has read the outcome.
    """

    name: str
    question: str = ""
    is_taken: bool = False


@dataclass(slots=True, repr=False, eq=False)
class TaskRecord(Strict):
    """A background call that was let go: its id, its tool, the id of the call, and the session and reply it came from.

    The id is that of the reply which makes the call, in a session of its own.
    """

    id: str
    tool: str
    call_id: str
    parent: str
    parent_reply: str = ""  # in older states

    @property
    def session_id(self) -> str:
        """The session of the task."""
        parent = self.parent
        if len(parent) > _MAX_PARENT:  # no store takes an id of more than 500 characters
            parent = f"{parent[: _MAX_PARENT - 17]}-{sha256(parent.encode()).hexdigest()[:16]}"
        return f"{parent}~{self.id}"

    @property
    def wake_id(self) -> str:
        """The id of the reply that is woken by the result; the queue takes an id once."""
        return f"{self.id}.done"


@dataclass(slots=True, repr=False, eq=False)
class StructuredTask(Strict):
    """The JSON schema of a reply's answer, and the model's answer once there is one.

    `is_wrapped` says that the answer, which is not an object, is the one property of the schema, and `is_replaced`
    that a layer or a subclass has replaced the caller's schema. `attempts` counts
    the invalid answers, up to `max_attempts`, and `misfit` says why the last one was invalid.
    """

    schema: JSONSchema
    output: JSONObject | None = None
    is_wrapped: bool = False
    is_replaced: bool = False
    attempts: int = 0
    max_attempts: int = 3
    misfit: str = ""

    def begin_again(self) -> None:
        """Clear the answer and the failed attempts."""
        self.output, self.attempts, self.misfit = None, 0, ""

    @property
    def answer(self) -> Any:
        """The answer as JSON, `None` until there is one."""
        return self.output[WRAPPER] if self.is_wrapped and self.output is not None else self.output


@dataclass(slots=True, repr=False, eq=False)
class ReplyContext(Strict):
    """The reply in progress. `message` joins the context when the reply is over, and `observed` after it.

    `round_start` is where the blocks of the current round begin in `message.content`; `summarised` is how many of them
    the conversation's summary covers. `tool_calls` counts the calls, `written` and `received` count the characters
    from the model and from the tools, and `worked` the seconds that it took so far, without the wait for
    answers. `response` is a tool's result that ends the reply. `decisions` holds the decision on each tool
    call, by its id, `ids` the number of the last id assigned. `paused` says that the model's provider stopped in the
    middle of its own work and continues in the next round. `parked` says that nothing was running when this was
    saved; otherwise calls without a result may have been running.

    `kept` is the data that running calls keep for a resume, by their ids, and `inner` is the journal of the calls that
    they make and of their questions, by path. Both are deleted with the result of the call. `hidden_calls` are the
    calls that layers have made and no model sees, by their ids, `None` without any. `delegations` counts the calls of
    sub-agents at all depths. `identities` has the results of the layers' `identify` at the start of the reply,
    and `middleware_data` their data for the reply; both by the layers' keys. `conditions` has the answers to the
    conditions of layers, by the key of the first layer that each covers. `is_task` says that the reply makes one
    background call, whose result is its answer: no model is asked.

    For runners: `takeovers` counts the processes that died with the reply since `known_results` tool results were
    saved, `deaths` is the queue's count at the last takeover, and `handed_over` says that its last
    process handed it over, and did not die.
    """

    reply_id: str
    message: Msg
    max_iters: int
    cur_iter: int = 0
    round_start: int = 0
    empty_rounds: int = 0
    tool_calls: int = 0
    written: int = 0
    received: int = 0
    worked: float = 0.0
    summarised: int = 0
    ids: int = 0
    paused: bool = False
    parked: bool = False
    response: Msg | None = None
    structured: StructuredTask | None = None
    decisions: dict[str, CallDecision] = field(default_factory=dict)
    observed: list[Msg] = field(default_factory=list)
    delegations: int = 0
    identities: dict[str, dict[str, str] | None] = field(default_factory=dict)
    middleware_data: dict[str, JSONObject] = field(default_factory=dict)
    conditions: dict[str, bool] = field(default_factory=dict)
    kept: dict[str, JSONObject] = field(default_factory=dict)
    inner: dict[str, InnerCall] = field(default_factory=dict)
    hidden_calls: dict[str, HiddenCall] | None = None
    is_task: bool = False
    takeovers: int = 0
    known_results: int = 0
    deaths: int = 0
    handed_over: bool = False

    @property
    def blocks(self) -> list[ContentBlock]:
        """The blocks of the reply so far."""
        content = self.message.content
        if content.__class__ is str:
            self.message.content = content = [TextBlock(content)]
        return content  # type: ignore[return-value]  # a list by now

    def decision_about(self, call_id: str) -> CallDecision | None:
        """Return the decision on a call, or on one inside it; `None` before the decision."""
        inner = self.inner.get(call_id)
        return self.decisions.get(call_id) if inner is None else inner.decision

    def record_decision(self, call: ToolCallBlock, decision: CallDecision) -> None:
        """Put the decision on a call on record; that on an inner call, whose id is a path, joins the journal."""
        inner = self.inner.get(call.id)
        if "/" not in call.id:
            self.decisions[call.id] = decision
        elif inner is None:
            block = ToolCallBlock(call.id, call.name, call.input)
            self.inner[call.id] = InnerCall(OpenQuestion(block), decision, begun=False)
        else:
            inner.decision = decision


@dataclass(slots=True, repr=False, eq=False)
class ReplyOutcome(Strict):
    """The outcome of a reply, and the decisions on its tool calls, by their ids.

    `answer_start` is where the blocks of its last round begin in the message that was kept.
    """

    reply_id: str
    finished_reason: FinishedReason
    error: str | None = None
    decisions: dict[str, CallDecision] = field(default_factory=dict)
    answer_start: int = 0


class _Recorded(InProcess):
    """Base of saved objects: stores keep a record of their last save on the object itself, in this process only."""

    __slots__ = ("save_record",)

    save_record: Any  # of `changes.py`, which imports this module

    def __getstate__(self) -> tuple[None, JSONObject]:
        _, values = super().__getstate__()
        values.pop("save_record", None)
        return None, values


@suggest_attributes(**_STATE_GUESSES)
@dataclass(slots=True, repr=False, eq=False)
class AgentState(_Recorded, Strict):
    """One complete conversation: saved and loaded again, it continues in another process.

    `context` holds the finished messages, oldest first. `sequence` is the number of the last event. `active_groups` are
    the tool groups that this conversation has activated, `None` for the toolkit's defaults. `known_tools` has the
    `fingerprint` of tools that have one, by their names, with that of a tool which has them in a toolkit of its own
    before them: a call of one that has changed is asked about.
    `middleware_data` is what `agent.state_of(middleware)` returns, by the middleware's key. `labels` are the
    application's own, such as `{"owner": "ann"}`: stores find sessions by them, and no model sees them. `revision`
    names the saved state that this one is based on, 0 for none: stores compare it and set it. `held` is the runtime's:
    the values for which handles stand, see `Agent.hold`. `tasks` has the background calls that were let go and have not
    woken the conversation yet, by their ids; in the conversation of such a call, `task` is its record.

    A store may write only the new messages in `context` since the last save: those that were appended, put in
    the place of others, or moved. A message that is edited in place is saved if `touch` is called.

    Agents over one state object share it as one conversation, and reply one at a time.

    A dataclass, validated by pydantic when it is loaded, not a pydantic model: the loop reads and sets these fields all
    the time, which is ten times as slow on a model.
    """

    version: Literal[1] = 1
    session_id: str = field(default_factory=lambda: _NO_ID_YET)
    context: list[Msg] = field(default_factory=list)
    summary: str = ""
    reply_context: ReplyContext | None = None
    last_reply: ReplyOutcome | None = None
    sequence: int = 0
    active_groups: list[str] | None = None
    known_tools: dict[str, str] = field(default_factory=dict)
    permission_context: PermissionContext = field(default_factory=PermissionContext)
    middleware_data: dict[str, JSONObject] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    revision: int = 0
    held: HeldValues | None = None
    tasks: dict[str, TaskRecord] = field(default_factory=dict)
    task: TaskRecord | None = None

    @never_raises
    def __repr__(self) -> str:
        values = {"session_id": repr(self.session_id), "context": f"<{len(self.context)} messages>"}
        reply = self.reply_context
        if reply is not None:
            values["reply_context"] = f"<the reply {reply.reply_id!r}, {'parked' if reply.parked else 'in progress'}>"
        if self.last_reply is not None:
            values["last_reply"] = repr(self.last_reply.finished_reason)
        return repr_as_call(type(self).__name__, values)

    def touch(self, message: Msg | None = None) -> None:
        """Have the next save write a message of `context` that was edited in place, or all of them.

        Not needed for the reply in progress, nor for any field other than `context`. Raises `UsageError` for a message
        that is not in the conversation, such as a copy of one that is.
        """
        if message is not None:
            context = self.reply_context
            in_progress = () if context is None else (context.message, context.response, *context.observed)
            if not any(other is message for other in (*reversed(self.context), *in_progress)):
                raise UsageError(
                    f"AgentState.touch() was given {message!r:.200}, which is not in this conversation: change the "
                    f"message that is in state.context itself, not a copy of it, and pass that one"
                )
        record = getattr(self, "save_record", None)
        if record is not None:
            record.forget(message)

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the state as loadable JSON; raises `SessionUnserializable`, naming the part that JSON cannot hold."""
        with suppress(ValueError):
            text = _dump_state(self, indent=indent)
            if _is_loadable(text):
                return text.decode()
        raise unserializable(self)

    @staticmethod
    def model_validate_json(text: str | bytes) -> "AgentState":
        """Return the state that `model_dump_json` wrote.

        Raises `SessionVersion` for one that this version of agentrt does not understand, `SessionCorrupt` for text that
        is not a JSON object.
        """
        json_text: object = text
        if not isinstance(json_text, (str, bytes, bytearray)):
            raise UsageError(
                f"AgentState.model_validate_json() takes JSON text, not {type_with_article(json_text)}: give it what "
                f"model_dump_json() returned"
            )
        return _load_state(text, "the text", "load it")


_slot_of_session_id: Any = vars(AgentState)["session_id"]


def _read_session_id(state: AgentState) -> object:
    session_id: object = _slot_of_session_id.__get__(state)
    if session_id is _NO_ID_YET:
        with _id_lock:  # two threads may read it at the same time
            session_id = _slot_of_session_id.__get__(state)
            if session_id is _NO_ID_YET:
                session_id = new_name()
                _slot_of_session_id.__set__(state, session_id)
    return session_id


# A `__getattr__` would slow down the other attributes, which the loop reads far more often.
setattr(AgentState, "session_id", property(_read_session_id, _slot_of_session_id.__set__))  # noqa: B010  # a field


def has_session_id(state: AgentState) -> bool:
    """Say whether the state has a session id: a given one, or one generated by an earlier read."""
    return _slot_of_session_id.__get__(state) is not _NO_ID_YET


def state_to_json(state: AgentState) -> bytes:
    """Return the state as loadable JSON, without its revision.

    Raises `SessionUnserializable`, naming the part that JSON cannot hold, or that could not be loaded again.
    """
    with suppress(ValueError, TypeError):  # these may quote the state, so none leaves this function
        rest = _dump_state(state, indent=2, exclude={"revision", "context"})
        text = _with_context(rest, _dump_each(state.context))
        if _is_loadable(text):
            return text
    raise unserializable(state)


def split_state(state: AgentState, messages: list[Msg] | None = None) -> tuple[bytes, list[bytes]]:
    """Return the head, which is the state without its messages and revision, and the messages, or the given ones.

    Each is a line of loadable JSON. Raises `SessionUnserializable`, as `state_to_json` does.
    """
    with suppress(ValueError, TypeError):
        head = _dump_state(state, exclude={"revision", "context"})
        texts = _dump_each(state.context if messages is None else messages)
        if _is_loadable(_with_context(head, texts)):
            return head, texts
    raise unserializable(state)


def dump_head(state: AgentState) -> bytes:
    """Return the state as JSON, without its revision, its messages and the content of the reply in progress."""
    return _dump_state(state, exclude=_NO_MESSAGES)


def dump_messages(messages: list[Msg], session_id: str, start: int) -> list[bytes]:
    """Return messages of a state, from the index `start` on, each as a line of loadable JSON.

    Raises `SessionUnserializable`, as `state_to_json` does.
    """
    with suppress(ValueError, TypeError):
        texts = _dump_each(messages)
        if _is_loadable(_with_context(b"{}", texts)):
            return texts
    if len(messages) == 1:
        raise _unserializable_part(session_id, f"its context[{start}]")
    # One by one, to find the first broken one.
    return [dump_messages([message], session_id, start + index)[0] for index, message in enumerate(messages)]


def state_from_json(text: bytes, revision: int, place: str) -> AgentState:
    """Return the state that `state_to_json` wrote, as that revision; `place` names its place in errors.

    Raises `SessionCorrupt` for anything but a state, and `SessionVersion` for a state of another version of agentrt.
    """
    state = _load_state(text, place, _STAYS)
    state.revision = revision
    return state


def join_state(head: bytes, messages: Sequence[bytes], revision: int, place: str) -> AgentState:
    """Return the state that `split_state` took apart; `place` names its place in errors.

    Raises `SessionCorrupt` for anything but a state, and `SessionVersion` for a state of another version of agentrt.
    """
    state = state_from_json(head, revision, place)
    # In parts, so that the event loop runs in between.
    for first in range(0, len(messages), _MAX_LOADED_AT_ONCE):
        part = _load_state(_with_context(b"{}", messages[first : first + _MAX_LOADED_AT_ONCE]), place, _STAYS)
        state.context += part.context
    return state


def _load_state(text: str | bytes, place: str, remedy: str) -> AgentState:
    # A state of an older version would be migrated here, before it is validated: one function per version,
    # from JSON to JSON. So far there is one version.
    try:
        return _state_adapter().validate_json(text)
    except ValidationError as exc:
        fields = [str(error["loc"][0]) for error in exc.errors(include_input=False) if error["loc"]]
    # Raised here, since pydantic's error, which quotes the refused value, would be kept as the context.
    if not fields:
        raise SessionCorrupt(f"{place} does not hold the JSON of a state; {remedy} from a copy that is whole")
    raise SessionVersion(
        f"{place} was saved by another version of agentrt: this one does not understand its {fields[0]!r:.100}; "
        f"{remedy} with the version that saved it, or a newer one"
    )


def drop_unsavable(message: Msg) -> list[str]:
    """Remove the parts of a message that cannot be saved and loaded; returns their names.

    A tool call is removed together with its result.
    """
    left_out: list[str] = []
    if not isinstance(message.content, str):
        dropped = [block for block in message.content if not _is_sound_message(Msg("", [block], "assistant"))]
        ids = [block.id for block in dropped]
        left_out = [type(block).__name__ for block in dropped]
        message.content = [block for block in message.content if block.id not in ids]
    empty = Msg("", [], "assistant")
    for name in ("metadata", "usage", "structured_output", "finished_reason", "error"):
        value = getattr(message, name)
        setattr(empty, name, value)
        if not _is_sound_message(empty):
            left_out.append(name)
            setattr(message, name, {} if name == "metadata" else None)
        setattr(empty, name, getattr(message, name))
    return left_out


def _is_sound_message(message: Msg) -> bool:
    with suppress(ValueError, TypeError):
        message_adapter().validate_json(message_serializer().to_json(message, warnings="none"))
        return True
    return False


def _dump_each(messages: Iterable[Msg]) -> list[bytes]:
    dump = message_serializer().to_json
    return [dump(message, warnings="none") for message in messages]


def _with_context(rest: bytes, messages: Iterable[bytes]) -> bytes:
    """Return the JSON of a state, one message per line, from the JSON of all other fields."""
    comma = b"" if rest == b"{}" else b","
    return b"".join([rest[:-1].rstrip(), comma, b'\n  "context": [\n', b",\n".join(messages), b"\n]}"])


def _is_loadable(text: bytes) -> bool:
    try:
        if b"NaN" in text or b"Infinity" in text:  # not JSON, except inside strings
            from_json(text, allow_inf_nan=False, cache_strings="none")
        _state_adapter().validate_json(text)
    except ValueError:
        return False
    return True


def unserializable(state: AgentState) -> SessionUnserializable:
    """Return the error that names the part of the state that cannot be saved."""
    refuse = partial(_unserializable_part, state.session_id)
    # The smallest parts come first, so that the error is as exact as possible.
    for holder in (state, state.reply_context):
        data = getattr(holder, "middleware_data", None)
        for key, value in data.items() if isinstance(data, dict) else ():
            if not _can_be_saved(AgentState(middleware_data={key: value}), {"middleware_data"}):
                return refuse(f"the data of the middleware {key!r:.100}")
    parts: list[tuple[Any, ...]] = []
    if isinstance(state.context, list):
        parts += [("context", index) for index in range(len(state.context))]
    parts += [(field,) for field in AgentState.__dataclass_fields__]
    for name, *rest in parts:
        if not _can_be_saved(state, {name: set(rest)} if rest else {name}):
            return refuse("".join([f"its {name}", *(f"[{key}]" for key in rest)]))
    return refuse("it")


def _unserializable_part(session_id: str, part: str) -> SessionUnserializable:
    return SessionUnserializable(
        f"the state of session {session_id!r:.100} cannot be saved: {part} holds something that "
        f"has no JSON form, or not the type that it should have; keep strings, finite numbers, lists and dicts there"
    )


def _can_be_saved(state: AgentState, part: Any) -> bool:
    with suppress(ValueError, TypeError):
        return _is_loadable(_dump_state(state, include=part))
    return False


def _dump_state(state: AgentState, **options: Any) -> bytes:
    return _state_serializer().to_json(state, warnings="none", **options)


@cache
def _state_serializer() -> SchemaSerializer:
    # A number that is not finite is written as such, not as `null`, so that it is noticed.
    return SchemaSerializer(_state_adapter().core_schema, CoreConfig(ser_json_inf_nan="constants"))


@cache
def _state_adapter() -> "pydantic.TypeAdapter[AgentState]":
    return pydantic.TypeAdapter(AgentState)
