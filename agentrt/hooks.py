"""The hooks: what a middleware may wrap, in the order of a reply.

A middleware derives from `MiddlewareBase` and overrides the hooks it needs. `HOOKS` is the one table that the compiler,
the checks, `explain()` and the documentation read.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypedDict, Unpack

from agentrt.chain import Chains, HookSpec
from agentrt.chain.check import check_constraints, check_instance
from agentrt.chain.order import sort_middlewares
from agentrt.event import (
    AgentEvent,
    AnyEvent,
    ExternalExecutionResultEvent,
    ReplyClosedEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import DataBlock, MessageDict, Msg, ToolCallBlock
from agentrt.model_interface.base import ChatModelBase, ModelResult
from agentrt.model_interface.message_dict import message_from_dict
from agentrt.model_interface.wire import WireRecord
from agentrt.representation import repr_by_settings
from agentrt.tool.base import ToolBase
from agentrt.tool.offer import OfferedTools, as_offered_tools
from agentrt.types import (
    ChatResponse,
    ContextConfig,
    JSONSchema,
    PermissionDecision,
    ToolChoice,
    ToolChunk,
    ToolResponse,
)

__all__ = [
    "HOOKS",
    "ActingOverrides",
    "ActingValues",
    "AgentChains",
    "CheckPermissionOverrides",
    "CheckPermissionValues",
    "CompressContextOverrides",
    "CompressContextValues",
    "MiddlewareBase",
    "ModelCallOverrides",
    "ModelCallValues",
    "NextActing",
    "NextCheckPermission",
    "NextCompressContext",
    "NextModelCall",
    "NextObserve",
    "NextPrint",
    "NextReasoning",
    "NextReply",
    "ObserveOverrides",
    "ObserveValues",
    "PrintOverrides",
    "PrintValues",
    "ReasoningOverrides",
    "ReasoningValues",
    "ReplyInput",
    "ReplyOverrides",
    "ReplyValues",
    "arrange",
]

ReplyInput = Msg | list[Msg] | UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent | None
"""What a layer of `on_reply` gets as `inputs`."""


# What comes in has every key: `...Values`. What `next_handler` takes needs none of them: `...Overrides`.


class ReplyValues(TypedDict):
    """What `on_reply` receives."""

    inputs: ReplyInput
    structured_schema: Any


class ReplyOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_reply` takes; inner layers see the message that a dict stands for."""

    inputs: str | MessageDict | ReplyInput
    structured_schema: Any


class ReasoningValues(TypedDict):
    """What `on_reasoning` receives."""

    tool_choice: ToolChoice | None


class ReasoningOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_reasoning` takes; a plain `str` is the mode of a `ToolChoice`.

    Inner layers see that `ToolChoice`.
    """

    tool_choice: ToolChoice | str | None


class ModelCallValues(TypedDict):
    """What `on_model_call` receives; `messages` is a new list for each call, the messages in it are shared."""

    messages: list[Msg]
    tools: list[JSONSchema]
    tool_choice: ToolChoice | None
    current_model: ChatModelBase


class ModelCallOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_model_call` takes; a plain `str` is the mode of a `ToolChoice`.

    A `ToolBase` among the tools can be called in this round. Inner layers see its schema, and that `ToolChoice`.
    """

    messages: list[Msg]
    tools: Sequence[JSONSchema | ToolBase]  # of a union of lists, mypy would refuse [*input_kwargs["tools"], tool]
    tool_choice: ToolChoice | str | None
    current_model: ChatModelBase


class ActingValues(TypedDict):
    """What `on_acting` receives."""

    tool_call: ToolCallBlock


class ActingOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_acting` takes."""

    tool_call: ToolCallBlock


class CheckPermissionValues(TypedDict):
    """What `on_check_permission` receives; copies, so what runs is not changed here."""

    tool_call: ToolCallBlock
    tool: ToolBase
    tool_input: dict[str, Any]


class CheckPermissionOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_check_permission` takes."""

    tool_call: ToolCallBlock
    tool: ToolBase
    tool_input: dict[str, Any]


class CompressContextValues(TypedDict):
    """What `on_compress_context` receives."""

    context_config: ContextConfig
    instructions: str | None


class CompressContextOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_compress_context` takes."""

    context_config: ContextConfig
    instructions: str | None


class ObserveValues(TypedDict):
    """What `on_observe` receives."""

    msg: str | Msg | list[Msg] | None


class ObserveOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_observe` takes; inner layers see the message that a dict stands for."""

    msg: str | MessageDict | Msg | list[Msg] | None


class PrintValues(TypedDict):
    """What `on_print` receives; the message of a reply in progress keeps growing, so keep no reference to it."""

    msg: Msg
    last: bool
    speech: DataBlock | list[DataBlock] | None


class PrintOverrides(TypedDict, total=False):
    """What the `next_handler` of `on_print` takes."""

    msg: Msg
    last: bool
    speech: DataBlock | list[DataBlock] | None


class NextReply(Protocol):
    """The next layer of `on_reply`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[ReplyOverrides]) -> AsyncGenerator[AnyEvent | Msg, None]: ...


class NextReasoning(Protocol):
    """The next layer of `on_reasoning`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[ReasoningOverrides]) -> AsyncGenerator[AnyEvent | Msg, None]: ...


class NextModelCall(Protocol):
    """The next layer of `on_model_call`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[ModelCallOverrides]) -> Awaitable[ModelResult]: ...


class NextActing(Protocol):
    """The next layer of `on_acting`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[ActingOverrides]) -> AsyncGenerator[ToolChunk | ToolResponse, None]: ...


class NextCheckPermission(Protocol):
    """The next layer of `on_check_permission`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[CheckPermissionOverrides]) -> Awaitable[PermissionDecision]: ...


class NextCompressContext(Protocol):
    """The next layer of `on_compress_context`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[CompressContextOverrides]) -> Awaitable[None]: ...


class NextObserve(Protocol):
    """The next layer of `on_observe`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[ObserveOverrides]) -> Awaitable[None]: ...


class NextPrint(Protocol):
    """The next layer of `on_print`; a key left out keeps the value that reached this layer."""

    def __call__(self, **overrides: Unpack[PrintOverrides]) -> Awaitable[None]: ...


# Converters of what layers pass on. Those that refuse come before the check of types, which cannot say what to write.


def _as_tool_choice(value: object, _: object) -> object:
    return ToolChoice(value) if isinstance(value, str) else value


def _as_message(value: object, _: object) -> object:
    return message_from_dict(value) if isinstance(value, Mapping) else value


def _refuse_spec(value: object, _: object) -> object:
    if isinstance(value, str):  # a model made for each call would open connections that nobody closes
        raise ValueError(
            "current_model must be ChatModelBase: make the model once, with chat_model(...), and pass that on"
        )
    return value


def _refuse_text(value: object, _: object) -> object:
    if isinstance(value, str):
        raise ValueError("messages must be list: write messages=[*input_kwargs['messages'], UserMsg(...)]")
    return value


_NONE = type(None)
_TOOL_CHOICE = (ToolChoice, _NONE)
_ANSWER_EVENTS = (UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent)

HOOKS: tuple[HookSpec, ...] = (
    HookSpec(
        "on_reply",
        "stream",
        ("inputs", "structured_schema"),
        (AgentEvent, Msg),
        Msg,
        "one whole reply, to its end",
        types={"inputs": (str, Msg, list, *_ANSWER_EVENTS, _NONE)},
        converters={"inputs": _as_message},
    ),
    HookSpec(
        "on_reasoning",
        "stream",
        ("tool_choice",),
        (AgentEvent, Msg),
        None,
        "one round of asking the model",
        types={"tool_choice": _TOOL_CHOICE},
        converters={"tool_choice": _as_tool_choice},
    ),
    HookSpec(
        "on_system_prompt",
        "transformer",
        ("agent", "current_prompt"),
        (str,),
        str,
        "each assembly of the system prompt",
    ),
    HookSpec(
        "on_model_call",
        "call",
        ("messages", "tools", "tool_choice", "current_model"),
        (ChatResponse,),
        ChatResponse,
        "one attempt at the model, nearest the wire",
        types={
            "messages": (list,),
            "tools": (OfferedTools,),
            "tool_choice": _TOOL_CHOICE,
            "current_model": (ChatModelBase,),
        },
        converters={
            "messages": _refuse_text,
            "tools": as_offered_tools,
            "tool_choice": _as_tool_choice,
            "current_model": _refuse_spec,
        },
    ),
    HookSpec(
        "on_check_permission",
        "call",
        ("tool_call", "tool", "tool_input"),
        (),
        PermissionDecision,
        "deciding on one tool call",
        "a call that cannot be run: an unknown tool, invalid arguments",
        types={"tool_call": (ToolCallBlock,), "tool": (ToolBase,), "tool_input": (dict,)},
    ),
    HookSpec(
        "on_acting",
        "stream",
        ("tool_call",),
        (ToolChunk, ToolResponse),
        ToolResponse,
        "running one permitted tool call",
        # These get their results without the chain, so that a layer need not tell them from calls that ran.
        "a call that is not run here: an unknown tool, invalid arguments, one that is denied, an external one",
        types={"tool_call": (ToolCallBlock,)},
    ),
    HookSpec(
        "on_compress_context",
        "call",
        ("context_config", "instructions"),
        (),
        None,
        "shrinking a conversation that fills its model's context",
        types={"context_config": (ContextConfig,), "instructions": (str, _NONE)},
    ),
    HookSpec(
        "on_observe",
        "call",
        ("msg",),
        (),
        None,
        "taking in messages without answering them",
        types={"msg": (str, Msg, list, _NONE)},
        converters={"msg": _as_message},
    ),
    HookSpec(
        "on_print",
        "call",
        ("msg", "last", "speech"),
        (),
        None,
        "showing one message, or as much of it as there is",
        types={"msg": (Msg,), "last": (bool,), "speech": (DataBlock, list, _NONE)},
    ),
    HookSpec(
        "on_event",
        "observer",
        ("agent", "event"),
        (AgentEvent, ReplyClosedEvent),
        None,
        "every event of a reply as it leaves, numbered, and the end of the reply",
    ),
    HookSpec(
        "on_wire",
        "observer",
        ("agent", "record"),
        (WireRecord,),
        None,
        "every request that is sent to a model, and the end of each",
        inside_of="on_model_call",
    ),
)
"""The hook table: the chains in the order of a reply, then the observers."""


class AgentChains(Chains):
    """The chains of an agent: an entry for each hook that has a core, called as the core is: `entry(agent, **values)`.

    Where no middleware overrides the hook, the entry is the core itself. Agents that write their own `reply` have
    entries for `on_reply`, `on_observe` and `on_print`, and what passes through their `on_reply` is theirs to say.
    """

    on_reply: Callable[..., AsyncGenerator[AgentEvent | Msg, None]]
    on_reasoning: Callable[..., AsyncGenerator[AgentEvent | Msg, None]]
    on_system_prompt: Callable[..., Awaitable[str]]
    on_model_call: Callable[..., Awaitable[ModelResult]]
    on_check_permission: Callable[..., Awaitable[PermissionDecision]]
    on_acting: Callable[..., AsyncGenerator[ToolChunk | ToolResponse, None]]
    on_compress_context: Callable[..., Awaitable[None]]
    on_observe: Callable[..., Awaitable[None]]
    on_print: Callable[..., Awaitable[None]]
    on_event: Callable[..., AsyncGenerator[AgentEvent | Msg, None]]
    on_wire: Callable[..., Awaitable[ModelResult]]


class MiddlewareBase:
    """Base of all middlewares: override the hooks you need, leave the others alone.

    Custom agents, which write their own `reply`, have four of them: `on_reply`, whose values are then the parameters
    of that `reply`, `on_observe`, `on_print` and `on_event`.

    An onion hook receives the agent (which is the conversation), the values on their way in, and `next_handler`, which
    runs the next layer with those values and whatever it is given to override them. Code before `next_handler` runs in
    list order, code after it in reverse; put what must happen in any case into a `finally`. One instance may serve many
    conversations at once, so data of one reply belongs in `agent.run.scratch(self)` and data of one conversation in
    `agent.state_of(self)`.
    """

    # Class attributes, so that a middleware need not call `super().__init__()`.

    key: str | None = None
    """Names this middleware's data in a saved state; the class name when not set."""

    position: str | None = None
    """"outermost" or "innermost": checked, never used to reorder."""

    emits: bool = False
    """Whether its hooks call `agent.run.emit`: they then run in a task of their own, so events are seen at once.

    They need none where nobody sees an event before the reply is over: in an awaited one without layers of `on_reply`.
    The events of a class that does not say so are seen when its hook returns control, and the runtime warns of them.
    `on_reply` and `on_reasoning` need not say so: their events flow in any case.
    """

    holds_answers: bool = False
    """Whether it holds a streamed answer until that is whole; `agentrt chat` tells the user so."""

    inherited: bool = False
    """Whether it runs in agents that are tools of its agent as well: as a policy, a count or a record should.

    There it is the same instance, in the place that its order and theirs allow. It brings no tools to them but hidden
    ones.
    """

    wraps: ClassVar[Collection[type | str]] = ()
    """Middlewares, by class or class name, that must come later in the list.

    A dict gives a reason for each, which errors and `explain()` show.
    """

    wrapped_by: ClassVar[Collection[type | str]] = ()
    """Middlewares that must come earlier in the list; likewise."""

    requires: ClassVar[Sequence[type | str]] = ()
    """Middlewares that must be in the list."""

    needs_hooks: ClassVar[Sequence[str]] = ()
    """Hooks without which it would do only half of its work: agents that lack one, as custom agents do, refuse it."""

    __repr__ = repr_by_settings

    def list_tools(self) -> Sequence[Any]:
        """Return the tools that this middleware brings to the agent; asked once, when the agent is built.

        A `ToolGroup` among them can be switched on and off, like those of a toolkit. They do not enter the user's
        `Toolkit`; tools that are registered there later reach the agent as well.
        """
        return ()

    def identify(self, agent: Any) -> Mapping[str, str]:
        """Return the user or owner whom a new reply is for, by names of the middleware's choice: `{"owner": "ann"}`.

        Called once per reply, after the layers of `on_reply` have set its `deps`, or when the middleware first reads
        `agent.run.identity(self)`. The result is saved with the reply, and does not change when another user answers
        its questions.
        """
        return {}

    # `agent` and `input_kwargs` are `Any` so that a subclass may narrow them. Items are typed by their base class here,
    # so that a subclass may name it or `AnyEvent`. The hooks are plain functions that return what `next_handler` gives,
    # so that `super().on_reply(...)` passes everything through without a frame of its own.

    def on_reply(
        self, agent: Any, input_kwargs: Any, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        """Wrap one whole reply: every round, every tool, the end. Must end with the final `Msg`.

        What that message says is announced and kept, whether the core or a layer made it.
        """
        return next_handler(**input_kwargs)

    # Its items are `Any`, so that a hook written for AgentScope, which says that only events pass, type-checks too.
    def on_reasoning(
        self, agent: Any, input_kwargs: Any, next_handler: Callable[..., AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        """Wrap one round of asking the model, which ends with its `Msg` if it calls no tools.

        Another `Msg` replaces the model's answer: all that was said in the round.
        """
        return next_handler(**input_kwargs)

    def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: NextModelCall) -> Awaitable[ModelResult]:
        """Wrap one attempt at the model. Returns a `ChatResponse` or an async generator of them."""
        return next_handler(**input_kwargs)

    def on_acting(
        self, agent: Any, input_kwargs: Any, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        """Wrap running one permitted tool call. Must end with one `ToolResponse`."""
        return next_handler(**input_kwargs)

    def on_check_permission(
        self, agent: Any, input_kwargs: Any, next_handler: NextCheckPermission
    ) -> Awaitable[PermissionDecision]:
        """Wrap deciding on one tool call; decisions are replaced, never changed.

        What the rules and the tool say holds where it is stricter, except for an ASK that is not `bypass_immune`: a
        layer may answer that. A layer's own ASK stands in every mode, in BYPASS as well; DONT_ASK makes it a DENY.
        """
        return next_handler(**input_kwargs)

    def on_compress_context(self, agent: Any, input_kwargs: Any, next_handler: NextCompressContext) -> Awaitable[None]:
        """Wrap shrinking the context. Calls of the model made there have `agent.run.is_internal` set."""
        return next_handler(**input_kwargs)

    def on_observe(self, agent: Any, input_kwargs: Any, next_handler: NextObserve) -> Awaitable[None]:
        """Wrap taking in messages without answering them."""
        return next_handler(**input_kwargs)

    def on_print(self, agent: Any, input_kwargs: Any, next_handler: NextPrint) -> Awaitable[None]:
        """Wrap showing one message, again and again while it grows; `last` says that it is complete."""
        return next_handler(**input_kwargs)

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        """Change the system prompt, each time it is assembled; runs left to right."""
        return current_prompt

    # The observers, which no layer can keep anything from.

    def on_event(self, agent: Any, event: Any) -> None:
        """Look at each event as it leaves the reply, numbered, and last at a `ReplyClosedEvent`.

        It sees what the reader sees, whether or not there is one, in the reply's own task: it must not block or wait.
        What it returns is ignored, what it raises is logged by its type, and it changes nothing that it is given.
        """

    def on_wire(self, agent: Any, record: WireRecord) -> None:
        """Look at each request as it is sent to a model, and at the end of that call, which comes exactly once.

        There is one for each attempt of a retry, each fallback, each `ask_model` and each summary, and none for an
        answer that a layer gives itself. For the rest it is as `on_event`.
        """


def arrange(layers: Sequence[MiddlewareBase]) -> list[MiddlewareBase]:
    """Return the layers in an order that their classes allow, as close to the given one as possible.

    An agent checks the order of its middlewares and never changes it: print this order, and write it into your program.
    Raises `MiddlewareConfigError` if constraints contradict each other.
    """
    for layer in layers:
        check_instance(layer, MiddlewareBase)
        check_constraints(layer)
    return sort_middlewares(layers)
