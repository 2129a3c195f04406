"""Events: everything that happens in a reply, in order.

`seq` counts up over the whole conversation and is never used twice, `created_at` is a clock reading in nanoseconds
since the epoch; both are filled in by the runtime. An event is cheap to make and is only turned into JSON at an edge
(`to_json`, `from_json`), where times are ISO 8601 text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from time import time_ns
from typing import Annotated, Any, Literal

import pydantic
from pydantic_core import from_json, to_json

from agentrt._runtime.block import (
    CHOSEN_BY_TYPE,
    ContentBlock,
    DataBlock,
    Strict,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    no_json_form,
    parse_json,
)
from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.timestamp import WireTimestamp
from agentrt.errors import InvalidInputError
from agentrt.types import ChatUsage, FinishedReason, JSONObject, PermissionDecision, PermissionRule, Role, ToolOutput

__all__ = [
    "AgentEvent",
    "AnyEvent",
    "BlocksWithdrawnEvent",
    "ConfirmResult",
    "CustomEvent",
    "DataBlockDeltaEvent",
    "DataBlockEndEvent",
    "DataBlockStartEvent",
    "ExceedMaxItersEvent",
    "ExternalExecutionResultEvent",
    "HintBlockEvent",
    "ModelCallEndEvent",
    "ModelCallRetryEvent",
    "ModelCallStartEvent",
    "ProviderBlockEvent",
    "ReplyClosedEvent",
    "ReplyEndEvent",
    "ReplyResumedEvent",
    "ReplyStartEvent",
    "RequireExternalExecutionEvent",
    "RequireUserConfirmEvent",
    "SubagentEndEvent",
    "SubagentStartEvent",
    "TaskStartedEvent",
    "TextBlockDeltaEvent",
    "TextBlockEndEvent",
    "TextBlockStartEvent",
    "ThinkingBlockDeltaEvent",
    "ThinkingBlockEndEvent",
    "ThinkingBlockStartEvent",
    "ToolCallDeltaEvent",
    "ToolCallEndEvent",
    "ToolCallStartEvent",
    "ToolResultDataDeltaEvent",
    "ToolResultEndEvent",
    "ToolResultStartEvent",
    "ToolResultTextDeltaEvent",
    "UserConfirmResultEvent",
    "UserInterruptEvent",
]


_DELTA = "write event.delta, of the events whose type ends with _DELTA"
_EVENT_JSON = "write event.to_json()"
_EVENT_NAME = "write event.tool_call_name, of the events about a tool"
_BY_CALLER = "write question.answer(value): the caller runs these calls"
# What other frameworks call the fields and methods of an event.
_EVENT_GUESSES = {
    "args": "the deltas of TOOL_CALL_DELTA are its JSON text",
    "arguments": "the deltas of TOOL_CALL_DELTA are its JSON text",
    "call_id": "write event.tool_call_id, of the events about a tool",
    "chunk": _DELTA,
    "content": _DELTA,
    "dict": _EVENT_JSON,
    "event": "write event.type",
    "event_type": "write event.type",
    "json": _EVENT_JSON,
    "kind": "write event.type",
    "message": "write agent.reply_stream(..., yield_final_msg=True), which ends with the message",
    "model_dump": _EVENT_JSON,
    "model_dump_json": _EVENT_JSON,
    "name": _EVENT_NAME,
    "text": _DELTA,
    "timestamp": "write event.created_at",
    "tool_name": _EVENT_NAME,
}


@suggest_attributes(**_EVENT_GUESSES)
@dataclass(slots=True, repr=False, eq=False)
class AgentEvent(Strict):
    """Base of all events; `reply_id` names the reply that it belongs to."""

    reply_id: str
    seq: int = field(default=0, kw_only=True)
    created_at: WireTimestamp = field(default_factory=time_ns, kw_only=True, repr=False)
    metadata: JSONObject | None = field(default=None, kw_only=True)

    @property
    def type(self) -> str:
        """The kind of event, in upper case; each child has its own literal."""
        raise TypeError(f"{type(self).__name__} is the base class of all events: make an instance of a subclass")

    @property
    def id(self) -> str:
        """A name for this event that no other event of the conversation has."""
        return f"{self.reply_id}:{self.seq}"

    def to_json(self) -> str:
        """Return the event as one line of JSON; raises `InvalidInputError` where it holds what JSON cannot."""
        try:
            return _event_adapter().dump_json(self).decode()  # type: ignore[arg-type]  # the base is abstract, its children are the union
        except (ValueError, RecursionError) as error:
            raise no_json_form(f"the event {self.type} of the reply {self.reply_id!r:.100}", error) from error

    @staticmethod
    def from_json(text: str | bytes) -> "AnyEvent":
        """Return the event that `to_json` wrote; raises `InvalidInputError`, saying why, for anything else."""
        return parse_json(_event_adapter(), text, "an event")


@dataclass(slots=True, repr=False, eq=False)
class ReplyStartEvent(AgentEvent):
    """A reply begins. A reply that resumes after an answer does not begin again."""

    session_id: str
    name: str
    role: Role = "assistant"
    type: Literal["REPLY_START"] = "REPLY_START"


@dataclass(slots=True, repr=False, eq=False)
class ReplyResumedEvent(AgentEvent):
    """A reply resumes after its process died, or a layer resumes it again: `blocks` and `usage` replace what was shown.

    `begun_at` is when the reply began.
    """

    blocks: list[ContentBlock]
    session_id: str = ""
    name: str = ""
    role: Role = "assistant"
    usage: ChatUsage | None = None
    begun_at: WireTimestamp = 0
    type: Literal["REPLY_RESUMED"] = "REPLY_RESUMED"


@dataclass(slots=True, repr=False, eq=False)
class ReplyEndEvent(AgentEvent):
    """The reply is over: the last event. A parked, cancelled or abandoned reply has none."""

    session_id: str
    finished_reason: FinishedReason = "completed"
    error: str | None = None
    structured_output: Any = None
    type: Literal["REPLY_END"] = "REPLY_END"


@dataclass(slots=True, repr=False, eq=False)
class ModelCallStartEvent(AgentEvent):
    """The model is about to be called: once in each round, however many attempts that takes.

    `is_answer_wrapped` says that the reply asks for a structured output that is not an object, such as a list: the
    model writes it as the property `value` of one.
    """

    model_name: str
    is_answer_wrapped: bool = False
    type: Literal["MODEL_CALL_START"] = "MODEL_CALL_START"


@dataclass(slots=True, repr=False, eq=False)
class ModelCallEndEvent(AgentEvent):
    """The model's answer is complete; tokens that were not counted are `None`.

    Those of an answer that was `replayed` from an earlier call are known, and in no sum.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    finished_reason: str | None = None
    estimated: bool = False
    replayed: bool = False
    type: Literal["MODEL_CALL_END"] = "MODEL_CALL_END"


@dataclass(slots=True, repr=False, eq=False)
class ModelCallRetryEvent(AgentEvent):
    """An attempt at the model was given up: forget the blocks named in `block_ids`, another attempt follows.

    Emitted through `agent.run.emit`, which fills in `block_ids`.
    """

    reason: str = ""
    attempt: int = 1
    wait_seconds: float = 0.0
    block_ids: list[str] = field(default_factory=list)
    reply_id: str = field(default="", kw_only=True)
    type: Literal["MODEL_CALL_RETRY"] = "MODEL_CALL_RETRY"


@dataclass(slots=True, repr=False, eq=False)
class BlocksWithdrawnEvent(AgentEvent):
    """The blocks named in `block_ids` no longer count: a layer has replaced them.

    The runtime announces it before the blocks that take their place, if there are any. Unlike after
    `ModelCallRetryEvent`, no other attempt at the model follows.
    """

    block_ids: list[str]
    type: Literal["BLOCKS_WITHDRAWN"] = "BLOCKS_WITHDRAWN"


@dataclass(slots=True, repr=False, eq=False)
class TextBlockStartEvent(AgentEvent):
    """A block of text begins; deltas and an end with its `block_id` follow."""

    block_id: str
    type: Literal["TEXT_BLOCK_START"] = "TEXT_BLOCK_START"


@dataclass(slots=True, repr=False, eq=False)
class TextBlockDeltaEvent(AgentEvent):
    """More text for an open block."""

    block_id: str
    delta: str
    type: Literal["TEXT_BLOCK_DELTA"] = "TEXT_BLOCK_DELTA"


@dataclass(slots=True, repr=False, eq=False)
class TextBlockEndEvent(AgentEvent):
    """The block is complete; `text`, when given, replaces what the deltas said."""

    block_id: str
    text: str | None = None
    type: Literal["TEXT_BLOCK_END"] = "TEXT_BLOCK_END"


@dataclass(slots=True, repr=False, eq=False)
class ThinkingBlockStartEvent(AgentEvent):
    """A block of reasoning begins; deltas and an end with its `block_id` follow."""

    block_id: str
    type: Literal["THINKING_BLOCK_START"] = "THINKING_BLOCK_START"


@dataclass(slots=True, repr=False, eq=False)
class ThinkingBlockDeltaEvent(AgentEvent):
    """More reasoning for an open block."""

    block_id: str
    delta: str
    type: Literal["THINKING_BLOCK_DELTA"] = "THINKING_BLOCK_DELTA"


@dataclass(slots=True, repr=False, eq=False)
class ThinkingBlockEndEvent(AgentEvent):
    """The block is complete; `signature` is what the provider wants back with it."""

    block_id: str
    signature: str | None = None
    type: Literal["THINKING_BLOCK_END"] = "THINKING_BLOCK_END"


@dataclass(slots=True, repr=False, eq=False)
class DataBlockStartEvent(AgentEvent):
    """An image, sound or file begins; deltas and an end with its `block_id` follow."""

    block_id: str
    media_type: str
    name: str | None = None
    type: Literal["DATA_BLOCK_START"] = "DATA_BLOCK_START"


@dataclass(slots=True, repr=False, eq=False)
class DataBlockDeltaEvent(AgentEvent):
    """Bytes for an open block, base64-encoded by themselves in `data`, or all of them behind `url`."""

    block_id: str
    media_type: str
    data: str | None = None
    url: str | None = None
    type: Literal["DATA_BLOCK_DELTA"] = "DATA_BLOCK_DELTA"


@dataclass(slots=True, repr=False, eq=False)
class DataBlockEndEvent(AgentEvent):
    """The block is complete."""

    block_id: str
    type: Literal["DATA_BLOCK_END"] = "DATA_BLOCK_END"


@dataclass(slots=True, repr=False, eq=False)
class HintBlockEvent(AgentEvent):
    """A note to the model entered the conversation, such as the one of `agent.run.continue_with`."""

    block_id: str
    hint: str
    source: str | None = None
    type: Literal["HINT_BLOCK"] = "HINT_BLOCK"


@dataclass(slots=True, repr=False, eq=False)
class ProviderBlockEvent(AgentEvent):
    """The provider did something on its own side; `content` is JSON text, as in `ProviderBlock`."""

    block_id: str
    provider: str
    content: str
    type: Literal["PROVIDER_BLOCK"] = "PROVIDER_BLOCK"


@dataclass(slots=True, repr=False, eq=False)
class ToolCallStartEvent(AgentEvent):
    """The model begins to write a tool call; deltas and an end with its `tool_call_id` follow.

    So do calls that a tool makes, while that runs. Their ids are paths, "{id of the tool's own call}/{number}", and no
    message has them.
    """

    tool_call_id: str
    tool_call_name: str
    type: Literal["TOOL_CALL_START"] = "TOOL_CALL_START"


@dataclass(slots=True, repr=False, eq=False)
class ToolCallDeltaEvent(AgentEvent):
    """More JSON text of the call's input."""

    tool_call_id: str
    delta: str
    # Empty in JSON of earlier versions, and where a layer that makes such an event leaves it out.
    tool_call_name: str = field(default="", kw_only=True)
    type: Literal["TOOL_CALL_DELTA"] = "TOOL_CALL_DELTA"


@dataclass(slots=True, repr=False, eq=False)
class ToolCallEndEvent(AgentEvent):
    """The call is written; it has not run."""

    tool_call_id: str
    tool_call_name: str = field(default="", kw_only=True)
    type: Literal["TOOL_CALL_END"] = "TOOL_CALL_END"


@dataclass(slots=True, repr=False, eq=False)
class ToolResultStartEvent(AgentEvent):
    """The runtime takes up a tool call: it runs, is denied, or goes to the caller. Deltas and an end follow."""

    tool_call_id: str
    tool_call_name: str
    type: Literal["TOOL_RESULT_START"] = "TOOL_RESULT_START"


@dataclass(slots=True, repr=False, eq=False)
class ToolResultTextDeltaEvent(AgentEvent):
    """More text from the tool; a new `block_id` begins a new block."""

    tool_call_id: str
    delta: str
    block_id: str = ""
    tool_call_name: str = field(default="", kw_only=True)
    type: Literal["TOOL_RESULT_TEXT_DELTA"] = "TOOL_RESULT_TEXT_DELTA"


@dataclass(slots=True, repr=False, eq=False)
class ToolResultDataDeltaEvent(AgentEvent):
    """Bytes from the tool, base64-encoded by themselves in `data`, or all of them behind `url`."""

    tool_call_id: str
    block_id: str
    media_type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None
    tool_call_name: str = field(default="", kw_only=True)
    type: Literal["TOOL_RESULT_DATA_DELTA"] = "TOOL_RESULT_DATA_DELTA"


@dataclass(slots=True, repr=False, eq=False)
class ToolResultEndEvent(AgentEvent):
    """The call has its result, and the state holds it; `output`, when given, replaces what the deltas said."""

    tool_call_id: str
    state: ToolResultState
    output: ToolOutput | None = None
    tool_call_name: str = field(default="", kw_only=True)
    type: Literal["TOOL_RESULT_END"] = "TOOL_RESULT_END"


@dataclass(slots=True, repr=False, eq=False)
class ExceedMaxItersEvent(AgentEvent):
    """The reply used up its rounds, and then answered without tools; its end follows."""

    name: str
    type: Literal["EXCEED_MAX_ITERS"] = "EXCEED_MAX_ITERS"


@dataclass(slots=True, repr=False, eq=False)
class SubagentStartEvent(AgentEvent):
    """A tool call of this reply enters a sub-agent; `resumed` says that it was entered before.

    The events of the sub-agent's reply follow, with its own `reply_id`.
    """

    tool_call_id: str
    name: str
    child_reply_id: str
    child_session_id: str
    resumed: bool = False
    type: Literal["SUBAGENT_START"] = "SUBAGENT_START"


@dataclass(slots=True, repr=False, eq=False)
class SubagentEndEvent(AgentEvent):
    """A tool call leaves its sub-agent: with the state of the result, or `RUNNING` where it waits for an answer.

    `usage` is what the sub-agent's reply has used so far, with its own sub-agents.
    """

    tool_call_id: str
    name: str
    child_reply_id: str
    child_session_id: str
    resumed: bool = False
    state: ToolResultState = ToolResultState.SUCCESS
    usage: ChatUsage | None = None
    type: Literal["SUBAGENT_END"] = "SUBAGENT_END"


@dataclass(slots=True, repr=False, eq=False)
class TaskStartedEvent(AgentEvent):
    """A background call of this reply was let go: it is made as the reply `task_id` of a session of its own.

    Its result wakes this session, in a reply that begins with it.
    """

    tool_call_id: str
    task_id: str
    session_id: str
    type: Literal["TASK_STARTED"] = "TASK_STARTED"


@dataclass(slots=True, repr=False, eq=False)
class RequireUserConfirmEvent(AgentEvent):
    """The reply waits for the user to decide on `tool_calls`; `questions` says of each, by its id, why it is asked.

    An id with a "/" is the path of a call inside of a running one; `inside` has the names of the agents that it
    comes from, outermost first.
    """

    tool_calls: list[ToolCallBlock]
    questions: dict[str, PermissionDecision] = field(default_factory=dict)
    inside: dict[str, list[str]] = field(default_factory=dict)
    type: Literal["REQUIRE_USER_CONFIRM"] = "REQUIRE_USER_CONFIRM"

    @property
    def url(self) -> str | None:
        """The first page that the user is asked to open, such as one to log in on; `None` if there is none."""
        for call in self.tool_calls:
            # Only of a question inside of a call: one of the model's own calls may have any URL among its arguments.
            if "/" in call.id and call.name in ("mcp_login", "mcp_elicitation"):
                url = from_json(call.input or "{}").get("url")
                if isinstance(url, str):
                    return url
        return None

    def approve(self, *calls: ToolCallBlock, always: bool = False) -> "UserConfirmResultEvent":
        """Return the answer that approves these calls, or all if none is given.

        `always` also accepts the rules that the question suggests, for later calls.
        """
        approved = []
        for call in self._chosen(calls):
            rules = self.questions[call.id].suggested_rules if always and call.id in self.questions else []
            approved.append(ConfirmResult(True, replace(call), list(rules)))
        return self._answer_with(approved)

    def deny(self, feedback: str | None = None, *calls: ToolCallBlock) -> "UserConfirmResultEvent":
        """Return the answer that denies these calls, or all if none is given; `feedback` tells the model why."""
        if feedback is not None and not isinstance(feedback, str):
            raise InvalidInputError(
                f"deny(feedback) must be a str, which tells the model why, not {feedback!r:.100}: name the calls after "
                f'it, as in question.deny("why", call)'
            )
        denied = [ConfirmResult(False, replace(call), feedback=feedback) for call in self._chosen(calls)]
        return self._answer_with(denied)

    def answer(self, value: object, call: ToolCallBlock | None = None) -> "UserConfirmResultEvent":
        """Return the answer that approves the call with a changed input: a dict of the values that change.

        For a call with a single value, `value` may be that value. `call` may be left out if only one waits. A layer's
        `Question` takes changed values; a tool's call takes them if the conversation has `allow_edited_input`.
        """
        call = _only_call(self.tool_calls, call)
        parsed: object = from_json(call.input or "{}")
        old = parsed if isinstance(parsed, dict) else {}
        if not isinstance(value, Mapping):
            if len(old) != 1:
                raise InvalidInputError(
                    f"answer() was given {value!r:.100}, but {call.name!r:.100} has the values {sorted(old)}: give a "
                    f"dict of those that change"
                )
            value = dict.fromkeys(old, value)
        return self._answer_with([ConfirmResult(True, replace(call, input=_json_of({**old, **value})))])

    def _chosen(self, calls: Sequence[ToolCallBlock]) -> Sequence[ToolCallBlock]:
        return [_only_call(self.tool_calls, call) for call in calls] or self.tool_calls

    def _answer_with(self, results: "list[ConfirmResult]") -> "UserConfirmResultEvent":
        return UserConfirmResultEvent(self.reply_id, results)


@suggest_attributes(approve=_BY_CALLER, deny=_BY_CALLER)
@dataclass(slots=True, repr=False, eq=False)
class RequireExternalExecutionEvent(AgentEvent):
    """The reply waits for the caller to run `tool_calls` itself; it is parked, so no end follows.

    Ids with a "/", and `inside`, are as in `RequireUserConfirmEvent`.
    """

    tool_calls: list[ToolCallBlock]
    inside: dict[str, list[str]] = field(default_factory=dict)
    type: Literal["REQUIRE_EXTERNAL_EXECUTION"] = "REQUIRE_EXTERNAL_EXECUTION"

    def answer(self, value: object, call: ToolCallBlock | None = None) -> "ExternalExecutionResultEvent":
        """Return the answer with the result of the call: a `str`, blocks, or a value that becomes JSON.

        `call` may be left out if only one waits.
        """
        call = _only_call(self.tool_calls, call)
        holds_blocks = isinstance(value, list) and all(isinstance(item, (TextBlock, DataBlock)) for item in value)
        output: Any = value if isinstance(value, str) or (value and holds_blocks) else _json_of(value)
        return ExternalExecutionResultEvent(self.reply_id, [ToolResultBlock(call.id, call.name, output)])


def _only_call(asked: Sequence[ToolCallBlock], call: ToolCallBlock | None) -> ToolCallBlock:
    if call is None:
        if len(asked) == 1:
            return asked[0]
        raise InvalidInputError(
            f"answer() was given no call, but {len(asked)} wait: name one, as in question.answer(value, "
            f"question.tool_calls[0])"
        )
    for known in asked:
        if known.id == getattr(call, "id", None):  # of any object: the error below names it
            return known
    raise InvalidInputError(f"{call!r:.200} is not one of the question's tool_calls: {[call.id for call in asked]}")


def _json_of(value: object) -> str:
    try:
        return to_json(value).decode()
    except ValueError as error:
        problem = str(error)
    raise InvalidInputError(f"answer() was given a value without a JSON form: {problem:.200}")


@dataclass(slots=True, repr=False, eq=False)
class ConfirmResult(Strict):
    """The user's decision on one tool call; `rules` are to hold for later calls too, `feedback` is for the model."""

    confirmed: bool
    tool_call: ToolCallBlock
    rules: list[PermissionRule] = field(default_factory=list)
    feedback: str | None = None


@dataclass(slots=True, repr=False, eq=False)
class UserConfirmResultEvent(AgentEvent):
    """Input: the answer to `RequireUserConfirmEvent`."""

    confirm_results: list[ConfirmResult]
    session_id: str | None = field(default=None, kw_only=True)
    type: Literal["USER_CONFIRM_RESULT"] = "USER_CONFIRM_RESULT"


@dataclass(slots=True, repr=False, eq=False)
class ExternalExecutionResultEvent(AgentEvent):
    """Input: the answer to `RequireExternalExecutionEvent`."""

    execution_results: list[ToolResultBlock]
    session_id: str | None = field(default=None, kw_only=True)
    type: Literal["EXTERNAL_EXECUTION_RESULT"] = "EXTERNAL_EXECUTION_RESULT"


@dataclass(slots=True, repr=False, eq=False)
class UserInterruptEvent(AgentEvent):
    """Input: stop the reply, also one that waits for an answer."""

    session_id: str | None = field(default=None, kw_only=True)
    type: Literal["USER_INTERRUPT"] = "USER_INTERRUPT"


@dataclass(slots=True, repr=False, eq=False)
class CustomEvent(AgentEvent):
    """Whatever a middleware or tool wants to tell the listener."""

    name: str
    value: Any = None
    reply_id: str = field(default="", kw_only=True)
    type: Literal["CUSTOM"] = "CUSTOM"


@dataclass(slots=True)
class ReplyClosedEvent:
    """The last that an observer sees of a reply: everything is closed and saved. It is in no stream.

    `reason` is that of its `REPLY_END`, and for a reply without one "parked", "closed" (its reader left), "cancelled"
    or "error". `agent.run` is gone by then.
    """

    reply_id: str
    reason: FinishedReason | Literal["parked", "closed", "cancelled"]
    type: Literal["REPLY_CLOSED"] = "REPLY_CLOSED"


AnyEvent = Annotated[
    ReplyStartEvent
    | ReplyResumedEvent
    | ReplyEndEvent
    | ModelCallStartEvent
    | ModelCallEndEvent
    | ModelCallRetryEvent
    | BlocksWithdrawnEvent
    | TextBlockStartEvent
    | TextBlockDeltaEvent
    | TextBlockEndEvent
    | ThinkingBlockStartEvent
    | ThinkingBlockDeltaEvent
    | ThinkingBlockEndEvent
    | DataBlockStartEvent
    | DataBlockDeltaEvent
    | DataBlockEndEvent
    | HintBlockEvent
    | ProviderBlockEvent
    | ToolCallStartEvent
    | ToolCallDeltaEvent
    | ToolCallEndEvent
    | ToolResultStartEvent
    | ToolResultTextDeltaEvent
    | ToolResultDataDeltaEvent
    | ToolResultEndEvent
    | ExceedMaxItersEvent
    | SubagentStartEvent
    | SubagentEndEvent
    | TaskStartedEvent
    | RequireUserConfirmEvent
    | RequireExternalExecutionEvent
    | UserConfirmResultEvent
    | ExternalExecutionResultEvent
    | UserInterruptEvent
    | CustomEvent,
    CHOSEN_BY_TYPE,
]
"""Any event of a reply, as one type: `event.type` says which."""


@cache
def _event_adapter() -> "pydantic.TypeAdapter[AnyEvent]":
    # Built on first use: it takes milliseconds, and a program that never serialises should not pay for it at import.
    return pydantic.TypeAdapter(AnyEvent)
