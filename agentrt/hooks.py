"""The hooks: what a middleware may wrap, in the order of a reply.

A middleware derives from `MiddlewareBase` and overrides the hooks it needs. `HOOKS` is the one table that the compiler,
the checks, `explain()` and the documentation read.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, Protocol, TypedDict, Unpack

from agentrt._runtime.boundary import ANSWERS, AnswerEvent, read_message
from agentrt._runtime.chain.chains import Chains
from agentrt._runtime.chain.check import check_constraints, check_duplicates, check_instance, overrides
from agentrt._runtime.chain.layer_record import LayerOutcome, LayerRecord
from agentrt._runtime.chain.order import arrange_entries
from agentrt._runtime.chain.spec import EVERY_STEP, HookSpec
from agentrt._runtime.chain.terms.entries import Bundle, Limited, When, layers_in, split_entries
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.wire import WireRecord
from agentrt._runtime.representation import repr_by_settings
from agentrt.errors import MiddlewareConfigError
from agentrt.event import AgentEvent, AnyEvent, ReplyClosedEvent
from agentrt.message import DataBlock, MessageDict, Msg, TextBlock, ToolCallBlock, ToolResultState
from agentrt.tool.base import ToolBase
from agentrt.tool.table import OfferedTools, as_offered_tools
from agentrt.types import (
    ChatResponse,
    ContextConfig,
    IncomingContent,
    JSONSchema,
    PermissionBehavior,
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
    "LayerEntry",
    "LayerOutcome",
    "LayerRecord",
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
    "guards_or_observes",
    "must_state_inheritance",
]

ReplyInput = Msg | list[Msg] | AnswerEvent | None
"""The `inputs` of a layer of `on_reply`."""


# What comes in has every key: `...Values`. What `next_handler` takes needs none of them: `...Overrides`.


class ReplyValues(TypedDict):
    """The `input_kwargs` of `on_reply`."""

    inputs: ReplyInput
    structured_schema: Any


class ReplyOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_reply`; inner layers see a dict as the message that it describes."""

    inputs: str | MessageDict | ReplyInput
    structured_schema: Any


class ReasoningValues(TypedDict):
    """The `input_kwargs` of `on_reasoning`."""

    tool_choice: ToolChoice | None


class ReasoningOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_reasoning`; a plain `str` is the mode of a `ToolChoice`.

    Inner layers see that `ToolChoice`.
    """

    tool_choice: ToolChoice | str | None


class ModelCallValues(TypedDict):
    """The `input_kwargs` of `on_model_call`; `messages` is a new list for each call, but its messages are shared."""

    messages: list[Msg]
    tools: list[JSONSchema]
    tool_choice: ToolChoice | None
    current_model: ChatModelBase


class ModelCallOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_model_call`; a plain `str` is the mode of a `ToolChoice`.

    A `ToolBase` among the tools can be called in this round. Inner layers see its schema, and that `ToolChoice`.
    """

    messages: list[Msg]
    tools: Sequence[JSONSchema | ToolBase]  # of a union of lists, mypy would refuse [*input_kwargs["tools"], tool]
    tool_choice: ToolChoice | str | None
    current_model: ChatModelBase


class ActingValues(TypedDict):
    """The `input_kwargs` of `on_acting`."""

    tool_call: ToolCallBlock


class ActingOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_acting`."""

    tool_call: ToolCallBlock


class CheckPermissionValues(TypedDict):
    """The `input_kwargs` of `on_check_permission`; copies, so changes do not affect the call."""

    tool_call: ToolCallBlock
    tool: ToolBase
    tool_input: dict[str, Any]


class CheckPermissionOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_check_permission`."""

    tool_call: ToolCallBlock
    tool: ToolBase
    tool_input: dict[str, Any]


class CompressContextValues(TypedDict):
    """The `input_kwargs` of `on_compress_context`."""

    context_config: ContextConfig
    instructions: str | None


class CompressContextOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_compress_context`."""

    context_config: ContextConfig
    instructions: str | None


class ObserveValues(TypedDict):
    """The `input_kwargs` of `on_observe`."""

    msg: str | Msg | list[Msg] | None


class ObserveOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_observe`; inner layers see a dict as the message that it describes."""

    msg: str | MessageDict | Msg | list[Msg] | None


class PrintValues(TypedDict):
    """The `input_kwargs` of `on_print`; the message of a reply in progress keeps growing: keep no reference to it."""

    msg: Msg
    last: bool
    speech: DataBlock | list[DataBlock] | None


class PrintOverrides(TypedDict, total=False):
    """The keywords of `next_handler` in `on_print`."""

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


def _as_tool_choice(value: object, _: object, layer: str) -> object:
    return ToolChoice(value) if isinstance(value, str) else value


def _as_message(value: object, _: object, layer: str) -> object:
    return read_message(value) if isinstance(value, Mapping) else value


def _refuse_str(problem: str) -> Callable[[object, object, str], object]:
    def convert(value: object, _: object, layer: str) -> object:
        if isinstance(value, str):
            raise ValueError(problem)
        return value

    return convert


# The refusals of hooks whose layers guard.


def _withhold(agent: Any, values: Mapping[str, Any], why: str) -> object:
    return values["content"].with_text("[withheld]")


def _stop_reply(agent: Any, values: Mapping[str, object], why: str) -> object:
    return agent.run.stop("guardrail", f"The reply was stopped: {why}.")


_NONE = type(None)
_TOOL_CHOICE = (ToolChoice, _NONE)

HOOKS: tuple[HookSpec, ...] = (
    HookSpec(
        "on_reply",
        "stream",
        ("inputs", "structured_schema"),
        (AgentEvent, Msg),
        Msg,
        "one whole reply, to its end",
        types={"inputs": (str, Msg, list, *ANSWERS, _NONE)},
        converters={"inputs": _as_message},
    ),
    HookSpec(
        "on_content",
        "transformer",
        ("agent", "content"),
        (IncomingContent,),
        IncomingContent,
        "each piece of content that joins the conversation from outside",
        "what the model writes, and the results of hidden tools",
        denied=_withhold,
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
        denied=_stop_reply,
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
        "on_tools",
        "transformer",
        ("agent", "current_tools"),
        (list,),
        list,
        "each assembly of the tools: before a request, and when a reply resumes",
        "hidden tools, and the one that takes an answer in a form",
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
            "messages": _refuse_str("messages must be list: write messages=[*input_kwargs['messages'], UserMsg(...)]"),
            "tools": as_offered_tools,
            "tool_choice": _as_tool_choice,
            # A model made for each call would open connections that nobody closes.
            "current_model": _refuse_str(
                "current_model must be ChatModelBase: make the model once, with chat_model(...), and pass that on"
            ),
        },
        denied=_stop_reply,
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
        denied=lambda agent, values, why: PermissionDecision(PermissionBehavior.DENY, why, bypass_immune=True),
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
        denied=lambda agent, values, why: ToolResponse(
            [TextBlock(f"The result is withheld: {why}.")], ToolResultState.DENIED
        ),
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
    HookSpec(
        "on_layer",
        "observer",
        ("agent", "record"),
        (LayerRecord,),
        None,
        "every call of a layer, and of what its chain stands around, as it begins and as it ends",
        "hooks that have no layer, and the observers",
        inside_of=EVERY_STEP,
    ),
)
"""The hook table: the chains in the order of a reply, then the observers."""


class AgentChains(Chains):
    """The chains of an agent: an entry for each hook that has a core, called as the core is: `entry(agent, **values)`.

    Where no middleware overrides the hook, the entry is the core itself. Agents that write their own `reply` have
    entries for `on_reply`, `on_observe` and `on_print`, and what passes through their `on_reply` is theirs to say.
    """

    on_reply: Callable[..., Any]
    on_content: Callable[..., Awaitable[IncomingContent]]
    on_reasoning: Callable[..., Any]
    on_system_prompt: Callable[..., Awaitable[str]]
    on_tools: Callable[..., Awaitable[list[ToolBase]]]
    on_model_call: Callable[..., Awaitable[ModelResult]]
    on_check_permission: Callable[..., Awaitable[PermissionDecision]]
    on_acting: Callable[..., Any]
    on_compress_context: Callable[..., Awaitable[None]]
    on_observe: Callable[..., Awaitable[None]]
    on_print: Callable[..., Awaitable[None]]
    on_event: Callable[..., Any]
    on_wire: Callable[..., Awaitable[ModelResult]]
    on_layer: Callable[..., Any]


class MiddlewareBase:
    """Base of all middlewares: override the hooks you need, leave the others alone.

    Custom agents, which write their own `reply`, have five of them: `on_reply`, whose values are then the parameters
    of that `reply`, `on_observe`, `on_print`, `on_event` and `on_layer`.

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

    The events of a class that does not say so are seen when its hook returns control; `check_middleware` finds such a
    class. One that says `emits = False` finds that soon enough. `on_reply` and `on_reasoning` need not say so: their
    events flow in any case.
    """

    holds_answers: bool = False
    """Whether it holds a streamed answer until that is whole; `agentrt chat` tells the user so."""

    inherited: bool | None = None
    """Whether it runs in agents that are tools of its agent as well: as a policy, a count or a record should.

    There it is the same instance, in the place that its order and theirs allow. It brings no tools to them but hidden
    ones. `None` means no, and is for layers that neither guard nor observe: one that does states it, or draws a warning
    where its agent has sub-agents.
    """

    opens_in_replies: ClassVar[bool] = True
    """Whether a reply opens the `lifespan` that nobody else has opened; `False` if its hooks work without it."""

    wraps: ClassVar[Collection[type | str]] = ()
    """Middlewares, by class or class name, that must come later in the list.

    A dict gives a reason for each, which errors and `explain()` show.
    """

    wrapped_by: ClassVar[Collection[type | str]] = ()
    """Middlewares that must come earlier in the list; likewise."""

    requires: ClassVar[Sequence[type | str]] = ()
    """Middlewares that must be in the list."""

    rewrites: ClassVar[Collection[str]] = ()
    """The parts of a request that it may change after they were sent: some of "tools", "system" and "history".

    A request otherwise begins with all of the conversation's last one, up to the hints at its end: providers cache by
    that. `lint` and `check_middleware` name a layer that changes a part and does not say so.
    """

    limits: ClassVar[Mapping[str, tuple[float, str]]] = {}
    """By its name, the seconds that a hook may take of its own, and what a failure means: "raise", "skip" or "deny".

    As `{"on_check_permission": (2.0, "deny")}`. A user who says otherwise, by `Limited`, is followed.
    """

    needs_hooks: ClassVar[Sequence[str]] = ()
    """Hooks without which it would do only half of its work: agents that lack one, as custom agents do, refuse it."""

    __repr__ = repr_by_settings

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Open what this middleware needs while it is used, and close it afterwards.

        Override it as an async context manager, with `@asynccontextmanager`. It is entered once per event loop for all
        who use the middleware, in a task of its own, and so may hold a task group. `async with agent` uses it, as does
        each reply, which opens it for itself if nobody else does, unless `opens_in_replies` is `False`.
        """
        return nullcontext()

    async def health(self) -> str | None:
        """Return what is wrong, `None` if nothing is; `agent.health()` asks each middleware that overrides it."""
        return None

    def list_tools(self) -> Sequence[Any]:
        """Return the tools that this middleware brings to the agent; asked once, when the agent is built.

        A `ToolGroup` among them can be switched on and off, like those of a toolkit. They do not enter the user's
        `Toolkit`; tools that are registered there later reach the agent as well.
        """
        return ()

    def describe(self, agent: Any) -> Sequence[str]:
        """Return lines about this middleware in that agent, for `explain()`."""
        return ()

    def identify(self, agent: Any) -> Mapping[str, str]:
        """Return the user or owner of a new reply, under names that the middleware chooses: `{"owner": "ann"}`.

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

    async def on_tools(self, agent: Any, current_tools: list[ToolBase]) -> list[ToolBase]:
        """Change the tools of a round; runs left to right, before each request and when a reply resumes.

        The list is the layer's own, in the order in which the tools are offered. What is not in it cannot be called.
        A tool that is added here may ask the user, or run elsewhere: whichever process gets the answer has it again.
        """
        return current_tools

    async def on_content(self, agent: Any, content: IncomingContent) -> IncomingContent:
        """Change what joins the conversation, before it is kept, announced or sent; runs left to right.

        All that comes from outside passes here once; what the last layer returns is all that there is. Beside a layer
        of this hook, the pieces of a tool's output are not announced: its result is, once it has passed.
        `agent.run.stop()` ends the reply, which keeps "[withheld]" in the place of the content.
        """
        return content

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

    def on_layer(self, agent: Any, record: LayerRecord) -> None:
        """Look at each call of a layer as it begins, and at its end, which comes exactly once.

        Values that are not the same object as further out were changed by a layer between. There is one call for each
        of `next_handler`; a stream of a hundred items is one. Hooks without a layer have no chain, and are not seen.
        For the rest it is as `on_event`.
        """


_GUARDING_HOOKS = (
    "on_check_permission",
    "on_acting",
    "on_model_call",
    "on_content",
    "on_event",
    "on_wire",
    "on_layer",
)


def guards_or_observes(middleware: MiddlewareBase) -> bool:
    """Say whether it overrides a hook in which a layer guards, counts or records."""
    return any(overrides(middleware, MiddlewareBase, hook) for hook in _GUARDING_HOOKS)


def must_state_inheritance(middleware: MiddlewareBase) -> bool:
    """Say whether it guards or observes, and does not state whether it is inherited."""
    return middleware.inherited is None and guards_or_observes(middleware)


LayerEntry = MiddlewareBase | When | Limited | Bundle
"""An entry in a list of middlewares: a layer, or a layer with terms."""


def arrange(layers: Sequence[LayerEntry]) -> list[LayerEntry]:
    """Return the layers in an order that their classes allow, as close to the given one as possible.

    The list is flat: each entry holds one layer under the terms that apply to it. An agent checks the order of its
    middlewares and never changes it: print this order, and write it into your program. Raises `MiddlewareConfigError`
    if there is no such order, with all constraints that contradict each other and all layers that are missing.
    """
    entry_list: object = layers
    if not isinstance(entry_list, Iterable):
        raise MiddlewareConfigError(f"arrange(...) takes a list of middlewares, not {entry_list!r:.200}: write [...]")
    entries = split_entries(layers)
    bare = layers_in(entries)
    for layer in bare:
        check_instance(layer, MiddlewareBase)
        check_constraints(layer)
    check_duplicates(bare)
    return arrange_entries(entries)
