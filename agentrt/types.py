"""Value types that are neither message nor event: what crosses a hook, what is set on an agent, unions named once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict, TypeGuard, TypeVar

from agentrt._runtime.block import (
    ContentBlock,
    DataBlock,
    JSONObject,
    Record,
    Strict,
    TextBlock,
    ToolCallBlock,
    ToolResultState,
    join_texts,
)
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.errors import ConfigError

__all__ = [
    "STRUCTURED_OUTPUT",
    "STRUCTURED_OUTPUT_HINT",
    "AgentHookTypes",
    "ChatResponse",
    "ChatUsage",
    "ContentSource",
    "ContextConfig",
    "DeferredSchema",
    "FinishedReason",
    "FlowLabel",
    "ImagePart",
    "ImageURL",
    "IncomingContent",
    "JSONObject",
    "JSONSchema",
    "LongTermMemoryMode",
    "MessageDict",
    "OpenQuestion",
    "PermissionBehavior",
    "PermissionContext",
    "PermissionDecision",
    "PermissionMode",
    "PermissionRule",
    "PostHookTypes",
    "PreHookTypes",
    "ReActAgentHookTypes",
    "ReActConfig",
    "Role",
    "SignRequest",
    "TextPart",
    "ToolChoice",
    "ToolChunk",
    "ToolFlow",
    "ToolOutput",
    "ToolResponse",
]

_DAY = 24 * 60 * 60

_Choice = TypeVar("_Choice", bound=StrEnum)
Role = Literal["user", "assistant", "system"]
"""Who speaks in a message."""
FinishedReason = Literal[
    "completed",
    "interrupted",
    "exceed_max_iters",
    "exceed_max_tool_calls",
    "exceed_max_seconds",
    "exceed_max_output",
    "exceed_max_form_attempts",
    "exceed_budget",
    "guardrail",
    "error",
    "failed",
]
"""Why a reply ended; "failed" is for one whose process died again and again, so that a runner gave it up."""
STRUCTURED_OUTPUT = "GenerateStructuredOutput"
"""The name of the tool through which a model gives an answer that must have a form."""
STRUCTURED_OUTPUT_HINT = (
    f"Give your final answer by calling the tool {STRUCTURED_OUTPUT}: an answer in words does not count."
)
"""The hint about it in a request; an adapter without such a tool uses another text."""
JSONSchema = JSONObject
"""A JSON schema."""
SignRequest = Callable[[str, str, bytes], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""A function of the method, the URL and the body of an HTTP request, which returns the headers that sign it."""
ToolOutput = list[TextBlock | DataBlock]
"""A tool's output, as content blocks."""


class TextPart(TypedDict):
    """Text in the content of a `MessageDict`."""

    type: Literal["text"]
    text: str


class ImageURL(TypedDict):
    """Where an image is: an address, or a data URL that holds it as base64."""

    url: str
    detail: NotRequired[Literal["auto"]]


class ImagePart(TypedDict):
    """An image in the content of a `MessageDict`."""

    type: Literal["image_url"]
    image_url: ImageURL


class MessageDict(TypedDict):
    """A message as OpenAI's API has it, without calls of tools and their results; `name` is that of the sender."""

    role: Role
    content: str | Sequence[TextPart | ImagePart | TextBlock | DataBlock]
    name: NotRequired[str]


LongTermMemoryMode = Literal["agent_control", "static_control", "both"]
"""Who finds and records long-term memories: the model by its tools, the runtime, or both."""
AgentHookTypes = Literal["pre_reply", "post_reply", "pre_print", "post_print", "pre_observe", "post_observe"]
"""The pre/post hooks of every agent."""
ReActAgentHookTypes = AgentHookTypes | Literal["pre_reasoning", "post_reasoning", "pre_acting", "post_acting"]
"""The pre/post hooks of an `Agent`."""
PreHookTypes = Literal["pre_reply", "pre_print", "pre_observe", "pre_reasoning", "pre_acting"]
"""The hooks that run before."""
PostHookTypes = Literal["post_reply", "post_print", "post_observe", "post_reasoning", "post_acting"]
"""The hooks that run after."""


_TOKEN_FIELDS = ("input_tokens", "output_tokens", "cache_input_tokens", "cache_creation_input_tokens")


@dataclass(slots=True, repr=False, eq=False)
class ChatUsage(Strict):
    """Tokens of one model call, or of several added up; `estimated` when the provider did not say all of them.

    `input_tokens` includes the cached ones. `replayed` says that the answer was kept from an earlier call, which was
    paid for then: such usage is known, and adds nothing to a sum. The usage of a message includes what sub-agents used:
    `subagents` has their parts by the ids of their replies, and `own` is the rest.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    estimated: bool = False
    replayed: bool = False
    subagents: "dict[str, ChatUsage] | None" = None

    def __post_init__(self) -> None:
        # A count that a server left out adds up as 0, and the sum is an estimate.
        if None in (self.input_tokens, self.output_tokens):
            self.estimated = True
        for name in _TOKEN_FIELDS:
            if getattr(self, name) is None:
                setattr(self, name, 0)

    @property
    def own(self) -> "ChatUsage":
        """This usage without the parts of sub-agents."""
        own = replace(self, subagents=None)
        for part in (self.subagents or {}).values():
            for name in _TOKEN_FIELDS:
                setattr(own, name, getattr(own, name) - getattr(part, name))
        return own

    def with_subagent(self, reply_id: str, usage: "ChatUsage") -> "ChatUsage":
        """Return this usage with the part of one sub-agent's reply, in place of its earlier part."""
        parts = self.subagents or {}
        before = parts.get(reply_id, _NO_USAGE)
        return ChatUsage(
            self.input_tokens + usage.input_tokens - before.input_tokens,
            self.output_tokens + usage.output_tokens - before.output_tokens,
            self.cache_input_tokens + usage.cache_input_tokens - before.cache_input_tokens,
            self.cache_creation_input_tokens + usage.cache_creation_input_tokens - before.cache_creation_input_tokens,
            self.estimated or usage.estimated,
            subagents={**parts, reply_id: usage},
        )

    def __add__(self, other: "ChatUsage") -> "ChatUsage":
        if self.replayed or other.replayed:
            paid = other if self.replayed else self
            return ChatUsage() if paid.replayed else replace(paid)
        added = dict(self.subagents or {})
        for reply_id, usage in (other.subagents or {}).items():
            added[reply_id] = added[reply_id] + usage if reply_id in added else usage
        return ChatUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_input_tokens + other.cache_input_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            self.estimated or other.estimated,
            subagents=added if self.subagents or other.subagents else None,
        )


_NO_USAGE = ChatUsage()


@dataclass(slots=True, repr=False, eq=False)
class ChatResponse(Record):
    """A model's whole answer, or one piece of it.

    A stream is any number of pieces with `is_last=False`, each holding only what is new, and then one with
    `is_last=True` that holds the whole content, the usage and the reason for stopping; without that one, the pieces are
    the whole, with the last usage and reason among them. `usage` is `None` if it is not known. Pieces of one tool
    call share its `id`, the first has its name, and their `input`s are to be joined. A signature of thinking comes with
    a piece of it.

    `finished_reason` is "stop", "tool_calls", "length" or another word of the provider, `None` when it does not say;
    with "pause" it has stopped in the middle of its own work, and an agent asks it to continue.
    """

    content: list[ContentBlock]
    is_last: bool = True
    usage: ChatUsage | None = None
    finished_reason: str | None = None
    id: str | None = None
    metadata: JSONObject | None = None


class DeferredSchema(dict[str, Any]):
    """The schema of a tool that a model finds by itself, where it has `supports_deferred_tools`.

    For any other model it is a schema like all others.
    """


@dataclass(slots=True, repr=False, eq=False)
class ToolChoice(Record):
    """Which tools the model may or must call.

    `mode` is "auto", "none", "required" or the name of the one tool to call; `tools` narrows the tools that the model
    may call, in a round (`on_reasoning`) or in one call of the model (`on_model_call`). The others are not sent, unless
    the model has `supports_allowed_tools`: its request stays as it is, so that the provider can read it from its cache.
    """

    mode: str = "auto"
    tools: list[str] | None = None

    def __post_init__(self) -> None:
        mode: object = self.mode  # as the caller wrote them, which need not be as the hints say
        tools: Any = self.tools
        if not isinstance(mode, str) or not mode:
            raise ValueError(
                f'ToolChoice(mode=...) must be "auto", "none", "required" or the name of a tool, not {mode!r:.200}'
            )
        # The characters of a plain `str` would pass for names.
        if tools is not None and (isinstance(tools, str) or not all(isinstance(name, str) for name in tools)):
            raise ValueError(f"ToolChoice(tools=...) must be a list of the names of tools, not {tools!r:.200}")


@dataclass(slots=True, repr=False, eq=False)
class ToolChunk(Record):
    """One piece of a tool's output: only what is new since the piece before it."""

    content: ToolOutput = field(default_factory=list)
    state: ToolResultState = ToolResultState.RUNNING
    is_last: bool = False
    metadata: JSONObject = field(default_factory=dict)


@dataclass(slots=True, repr=False, eq=False)
class ToolResponse(Record):
    """A tool's whole result.

    `metadata["response_msg"]`, a `Msg`, ends the reply with that message.

    With `waits` it is not a result yet: the call is running, and its reply is parked until one of these questions is
    answered. Then the tool is called again, and finds the answers in its `ToolContext`. Only a tool with `is_resumable`
    may do that. `content` and `metadata` count for nothing there.
    """

    content: ToolOutput = field(default_factory=list)
    state: ToolResultState = ToolResultState.SUCCESS
    metadata: JSONObject = field(default_factory=dict)
    is_last: bool = True
    waits: "Sequence[OpenQuestion]" = ()

    @property
    def text(self) -> str:
        """The text of the content, one block a line, without data."""
        return join_texts(self.content)


ContentSource = Literal[
    "input",
    "observed",
    "tool_result",
    "not_run",
    "external",
    "feedback",
    "hint",
    "summary",
    "passage",
    "memory",
]
"""Where content comes from.

"input" and "observed" are messages. "tool_result" is the result of a call that ran here, "external" that of one which a
program outside ran, and "not_run" what the runtime says of one that is denied, unknown, invalid or beyond a limit.
"feedback" is what the user adds to a yes or a no. "hint" is for the model alone, by `continue_with` or a
`HintBlockEvent`; "summary" takes the place of older messages; "passage" and "memory" are what a layer has found.
"""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class IncomingContent(Record):
    """Content that is about to join a conversation, and where it comes from; `dataclasses.replace` makes another.

    `tool_call` and `tool` are those that a result or feedback is about. `name` is the sender of a message, else the
    name of the tool, the source of a hint or the knowledge base of a passage. `state` is that of a result; `metadata`
    and `structured_output` are those of the message or result, which are saved and not sent to a model. `role` is that
    of a message: "assistant" for the answer of another agent.

    Layers of `on_content` return what is kept: the content and the metadata, of a message also its name and its
    structured output, of a result also its state.
    """

    source: ContentSource
    content: ToolOutput
    tool_call: ToolCallBlock | None = None
    name: str = ""
    tool: Any = None
    state: ToolResultState | None = None
    metadata: JSONObject = field(default_factory=dict)
    structured_output: Any = None
    role: Role | None = None

    @property
    def text(self) -> str:
        """The text of the content, one block a line, without data."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))

    def with_text(self, text: str) -> "IncomingContent":
        """Return a copy that holds this text and nothing else."""
        return replace(self, content=[TextBlock(text)])


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FlowLabel(Strict):
    """Where a value comes from, and who may read it; `a | b` is the label of a value that is made of both.

    An untrusted value may have been written by outsiders. `readers` are the names of those who may read it, `None` for
    anyone. `sources` are the tools and other sources that it comes from.
    """

    trusted: bool = True
    readers: frozenset[str] | None = None
    sources: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.trusted, bool):
            raise ConfigError(f"FlowLabel(trusted=...) must be True or False, not {repr_of(self.trusted)}")
        for name in ("readers", "sources"):
            names: object = getattr(self, name)
            if name == "sources" or names is not None:
                object.__setattr__(self, name, frozenset(_checked_names(f"FlowLabel({name}=...)", names)))

    def __or__(self, other: "FlowLabel") -> "FlowLabel":
        if self.readers is None or other.readers is None:
            readers = other.readers if self.readers is None else self.readers
        else:
            readers = self.readers & other.readers
        return FlowLabel(self.trusted and other.trusted, readers, self.sources | other.sources)

    def __hash__(self) -> int:
        return hash((self.trusted, self.readers, self.sources))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ToolFlow(Strict):
    """The trust in a tool's output, and the trust that its arguments need; see `InformationFlowMiddleware`.

    `trusted_output` says that outsiders cannot write the output, or names the fields of a JSON result that they cannot:
    `"items.id"`, where lists count for nothing and `*` stands for any characters. `trusted_input` names the arguments
    that must be trusted, `True` for all. `output_readers` are those who may read the trusted part of the output.
    `sends_to` is the argument whose values are the readers of a call. Raises `ConfigError` for a `str` where a list of
    names is meant.
    """

    trusted_output: bool | Sequence[str] = False
    trusted_input: bool | Sequence[str] = ()
    output_readers: Sequence[str] | None = None
    sends_to: str | None = None

    def __post_init__(self) -> None:
        for name in ("trusted_output", "trusted_input"):
            value: object = getattr(self, name)
            if not isinstance(value, bool):
                object.__setattr__(self, name, _checked_names(f"ToolFlow({name}=...)", value))
        if self.output_readers is not None:
            readers = _checked_names("ToolFlow(output_readers=...)", self.output_readers)
            object.__setattr__(self, "output_readers", readers)
        target: object = self.sends_to
        if target is not None and not (isinstance(target, str) and target):
            raise ConfigError(f"ToolFlow(sends_to=...) must be the name of an argument, not {repr_of(target)}")


def _checked_names(place: str, names: object) -> tuple[str, ...]:
    """Return the names; raises `ConfigError` for a `str`, whose characters would pass for names."""
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
        remedy = f": write [{names!r:.100}]" if isinstance(names, str) else ""
        raise ConfigError(f"{place} must be a list of names, not {repr_of(names)}{remedy}")
    return tuple(names)


class PermissionBehavior(StrEnum):
    """The decision on a tool call; `PASSTHROUGH` means no opinion."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"
    PASSTHROUGH = "passthrough"


class PermissionMode(StrEnum):
    """The decision on tool calls that neither a rule nor the tool itself has decided.

    `DEFAULT` asks. `ACCEPT_EDITS` asks too: tools that edit see the mode and may allow themselves. `EXPLORE` denies
    whatever is not read-only, and consults neither the tool nor the allow rules. `BYPASS` allows, even where the tool
    asks and is immune; deny and ask rules hold. `DONT_ASK` denies whatever would be asked.
    """

    DEFAULT = "default"
    ACCEPT_EDITS = "accept_edits"
    EXPLORE = "explore"
    BYPASS = "bypass"
    DONT_ASK = "dont_ask"


@dataclass(frozen=True, slots=True, repr=False)
class PermissionRule(Strict):
    """The decision on the tool calls that a rule covers.

    `tool_name` is a name or a pattern, where `*` stands for any characters and `?` for any one. `rule_content` is a
    pattern for what the call is about (`ToolBase.permission_subject`), `None` for all calls; `[*]` and `[?]` stand for
    the characters themselves. It is compared with text: `/work/*` fits `/work/../etc` as well. `source` says where the
    rule comes from.
    """

    tool_name: str
    rule_content: str | None = None
    behavior: PermissionBehavior = PermissionBehavior.ASK
    source: str = ""

    def __post_init__(self) -> None:
        # A misspelt behavior would match nothing, which is hard to notice.
        object.__setattr__(self, "behavior", _member("PermissionRule(behavior=...)", PermissionBehavior, self.behavior))
        for name in ("tool_name", "rule_content", "source"):
            value = getattr(self, name)
            if value is not None or name == "tool_name":
                object.__setattr__(self, name, _whole_text("PermissionRule", name, value))
            elif name == "source":
                object.__setattr__(self, name, "")
        name, parenthesis, content = self.tool_name.partition("(")
        if name and parenthesis and content.endswith(")"):  # as other programs write rules; it would cover no call
            raise ValueError(
                f"PermissionRule(tool_name=...) is the name of a tool, not {self.tool_name!r:.100}: write "
                f"PermissionRule({name!r:.100}, {content[:-1]!r:.100}, ...)"
            )


@dataclass(frozen=True, slots=True, repr=False)
class PermissionDecision(Strict):
    """The decision on one tool call; to change a decision, make another with `dataclasses.replace`.

    `message` is for the user who is asked, or for the model whose call is denied; `decision_reason` names the rule, the
    mode or the tool that decided. `suggested_rules` are what the user may agree to, to be asked less. An ASK that is
    `bypass_immune` is answered by the user and by nothing else.
    """

    behavior: PermissionBehavior
    message: str = ""
    decision_reason: str = ""
    suggested_rules: list[PermissionRule] = field(default_factory=list)
    bypass_immune: bool = False

    def __post_init__(self) -> None:
        # Frozen, so that a layer cannot change what the engine decided; mended here, since it is saved with the state.
        behavior = _member("PermissionDecision(behavior=...)", PermissionBehavior, self.behavior)
        object.__setattr__(self, "behavior", behavior)
        for name in ("message", "decision_reason"):
            text = _whole_text("PermissionDecision", name, getattr(self, name) or "")
            object.__setattr__(self, name, text)
        rules: Any = self.suggested_rules or []
        if not isinstance(rules, list) or not all(isinstance(rule, PermissionRule) for rule in rules):
            raise TypeError(
                f"PermissionDecision(suggested_rules=...) must be a list of PermissionRule, not {repr_of(rules)}"
            )
        object.__setattr__(self, "suggested_rules", rules)


def _member(place: str, kind: type[_Choice], value: Any) -> _Choice:
    if value.__class__ is kind:  # as nearly always, and an enumeration takes long to find its own member
        return value
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
    # Here, so that the error of the enum, which names no place, is not shown beside it.
    raise ValueError(f"{place} must be one of {choices}, not {repr_of(value)}")


def _whole_text(cls: str, name: str, value: object) -> str:
    """Return what a rule or decision says, as it can be saved; raises `TypeError` for what is not a `str`."""
    if not isinstance(value, str):
        raise TypeError(f"{cls}({name}=...) must be a str, not {repr_of(value)}")
    return whole_characters(value)


@dataclass(slots=True, repr=False, eq=False)
class OpenQuestion(Strict):
    """A question of a running tool call, whose answer it needs to continue.

    `tool_call` is what is asked about: an `id` of the tool's choice, a name and its input. Outside it has the path
    "{id of the tool's own call}/{that id}". `kind` says whose answer it waits for: "user" for a yes or no, "external"
    for a result. `message` says why the user is asked, `suggested_rules` what the user may agree to, to be asked less,
    and `inside` names the agents that the question comes from, outermost first.
    """

    tool_call: ToolCallBlock
    kind: Literal["user", "external"] = "user"
    message: str = ""
    suggested_rules: list[PermissionRule] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)


@dataclass(slots=True, repr=False, eq=False)
class PermissionContext(Strict):
    """The permissions of a conversation. The order of the rules does not matter.

    `allow_edited_input` lets the answer to a question change the arguments of the call, `allow_new_rules` lets it bring
    rules for later calls of that tool.
    """

    mode: PermissionMode = PermissionMode.DEFAULT
    rules: list[PermissionRule] = field(default_factory=list)
    allow_edited_input: bool = False
    allow_new_rules: bool = False

    def __post_init__(self) -> None:
        self.mode = _member("PermissionContext(mode=...)", PermissionMode, self.mode)
        rules: object = self.rules
        if not isinstance(rules, list) or (rules and not all(isinstance(rule, PermissionRule) for rule in rules)):
            raise TypeError(
                f"PermissionContext(rules=...) must be a list of PermissionRule, not {repr_of(rules)}: "
                f'write [PermissionRule("tool", behavior="allow")]'
            )


@dataclass(frozen=True, slots=True)
class ReActConfig:
    """How far one reply may go; each limit ends it tidily, with a `finished_reason` of its own.

    `max_iters` rounds, and then one more request for an answer in words, without tools; `max_tool_calls` in all rounds
    together, with those that tools make; `max_seconds` of work, not counting what it waits for answers; `max_output`
    characters that the model may write; `max_depth` replies and calls inside of each other, and `max_delegations` calls
    of sub-agents in all of them together, of which those of the outermost reply count. The user's yes counts for
    `answer_within` seconds. A session has at most `max_background` background calls that are not over; beyond, one is
    denied.

    `max_form_attempts` is for a reply with a `structured_schema`: it ends after this number of answers that do not
    fit. An answer in words, without a tool call, is one of them; calls of other tools are not. `agent.reply()` then
    raises `StructuredOutputError`, and with `raise_form_errors=False` returns the message with its `finished_reason`.

    With `parallel_tool_calls=False` the calls of one answer run one after the other, whatever their tools say.
    """

    max_iters: int = 50
    max_tool_calls: int = 1_000
    max_seconds: float = 6 * 60 * 60
    max_output: int = 10_000_000
    max_depth: int = 8
    max_delegations: int = 100
    max_background: int = 20
    max_form_attempts: int = 3
    answer_within: float = 30 * _DAY
    parallel_tool_calls: bool = True
    raise_form_errors: bool = True

    def __post_init__(self) -> None:
        for name in (
            "max_iters",
            "max_tool_calls",
            "max_output",
            "max_depth",
            "max_delegations",
            "max_background",
            "max_form_attempts",
        ):
            count: object = getattr(self, name)
            if type(count) is not int or count < 1:
                raise ConfigError(
                    f"{type(self).__name__}({name}=...) must be a whole number of at least 1, not {count!r}"
                )
        for name in ("parallel_tool_calls", "raise_form_errors"):
            choice: object = getattr(self, name)
            if not isinstance(choice, bool):
                raise ConfigError(f"{type(self).__name__}({name}=...) must be True or False, not {choice!r:.100}")
        for name in ("max_seconds", "answer_within"):
            seconds: object = getattr(self, name)
            if not _is_real_number(seconds) or not seconds > 0:
                raise ConfigError(
                    f"{type(self).__name__}({name}=...) must be a number of seconds above 0, not {seconds!r}"
                )


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """When a conversation that grows too long for its model is summarised, and how much of it stays.

    Both ratios are of the model's `max_input_tokens`, which is its `context_size` unless answers need room: it is
    summarised when it fills more than `trigger_ratio`, and the newest part that fits into `reserve_ratio` is kept as it
    is. `instructions` are for the model that writes the summary, in place of the runtime's own.
    """

    trigger_ratio: float = 0.8
    reserve_ratio: float = 0.1
    instructions: str | None = None

    def __post_init__(self) -> None:
        if not (_is_real_number(self.trigger_ratio) and _is_real_number(self.reserve_ratio)):
            raise ConfigError(f"the ratios of a ContextConfig must be numbers, not {self!r}")
        if not (self.instructions is None or isinstance(self.instructions, str)):
            raise ConfigError(f"ContextConfig(instructions=...) must be a str, not {self.instructions!r:.200}")
        if not 0 <= self.reserve_ratio < self.trigger_ratio <= 1:
            raise ConfigError(
                f"ContextConfig needs 0 <= reserve_ratio < trigger_ratio <= 1, not reserve_ratio="
                f"{self.reserve_ratio!r} and trigger_ratio={self.trigger_ratio!r}"
            )


def _is_real_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
