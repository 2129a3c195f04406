"""AgentBase: what every agent is, whether its replies come from the runtime's loop or from code of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from types import MethodType
from typing import Any, ClassVar, NamedTuple, NoReturn

import anyio

from agentrt._runtime.block import new_name
from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.explain import ExplainFormat, ToolDescriptions, explain
from agentrt._runtime.chain.layer_record import OBSERVED_LAYERS
from agentrt._runtime.chain.spec import ObservableCore
from agentrt._runtime.chain.terms.entries import layers_in, split_entries
from agentrt._runtime.concurrency.event_loop import call_soon_function
from agentrt._runtime.concurrency.interrupt import InterruptResult
from agentrt._runtime.conversation.run import Run
from agentrt._runtime.keywords.attributes import compute_missing, suggest_attributes
from agentrt._runtime.keywords.old_keywords import accept_old_keywords
from agentrt._runtime.output.printer import Printer
from agentrt._runtime.representation import describe_setting, never_raises, repr_as_call
from agentrt.agent.audience import AgentConversation, Audience, AudienceMethods, Speech, console_is_disabled
from agentrt.agent.delegation.lineage import NO_PARENT, Lineage
from agentrt.agent.held_values import HeldValueMethods
from agentrt.agent.hook_registration import REACT_HOOK_TYPES, HookRegistration
from agentrt.agent.initialization import check_initialized, refuse_before_init
from agentrt.agent.installed import packages_of
from agentrt.agent.layers import CHAINS_ARE_BUILT, Layers
from agentrt.agent.overrides.custom_reply import (
    CustomRun,
    OverriddenReply,
    current_reply,
    custom_events,
    observe_custom_events,
)
from agentrt.agent.overrides.overridden_method import (
    ChainedMethods,
    OverriddenCall,
    OverriddenMethod,
    OverriddenStep,
    hook_method,
)
from agentrt.agent.peer_words import BASE_ATTRIBUTES
from agentrt.agent.validation import check_agent_name, check_is_list, check_use
from agentrt.errors import ChainContractError, NoReplyError
from agentrt.hooks import HOOKS, AgentChains, LayerEntry, MiddlewareBase
from agentrt.message import Msg
from agentrt.module import StateModule
from agentrt.state import AgentState
from agentrt.workspace import FileSystemBase


def _ask_once_per_reply(agent: "AgentBase", name: str, question: Callable[[Any], bool]) -> bool:
    """Return the answer that the reply in progress has to a condition of a layer; asks each time between replies."""
    reply = agent.live_conversation.reply or current_reply(agent)
    if reply is None:
        return question(agent)
    answer = reply.conditions.get(name)
    if answer is None:
        answer = reply.conditions[name] = question(agent)
    return answer


class _Compiled(NamedTuple):
    """The sources of an agent's chains; shared by its conversations, and therefore replaced, not changed.

    `entries` are the middlewares with the terms that are stated for them. `tools` are those that each middleware
    contributes, `overrides` the methods that the class overrides, and `lineage` says for which agents this one works.
    `inner` are the inner layers; with others the chains are compiled again.
    """

    middlewares: tuple[MiddlewareBase, ...]
    entries: tuple[LayerEntry, ...]
    tools: tuple[tuple[Any, ...], ...] = ()
    overrides: tuple[OverriddenMethod, ...] = ()
    lineage: Lineage = NO_PARENT
    inner: tuple[MiddlewareBase, ...] = ()


async def _refuse_to_observe(agent: object, msg: object) -> NoReturn:
    raise NotImplementedError(f"{type(agent).__name__} cannot observe messages: write `async def observe(self, msg)`")


def _make_id(agent: "AgentBase") -> str:
    """Return the id of an agent, made at its first read: making one takes longer than opening a conversation."""
    check_initialized(agent)
    agent_id: str = vars(agent).setdefault("id", new_name())  # several threads may ask for it at once
    return agent_id


@suggest_attributes(**BASE_ATTRIBUTES)
@compute_missing(id=_make_id)
@refuse_before_init
class AgentBase(AudienceMethods, HeldValueMethods, HookRegistration, ChainedMethods, StateModule):
    """Base of agents that write their own `async def reply(self, ...)`, and of `Agent`.

    The class's own `reply`, `observe` and `print` become the cores of chains when an agent is built: the middlewares'
    `on_reply`, `on_observe` and `on_print`, and pre/post hooks, run whichever way the methods are called, and
    `super().reply(...)` in a subclass is the parent's plain method. Replies may run side by side, each with an
    `agent.run` of its own.
    """

    _shows_by_itself: ClassVar[bool] = True
    runs_reply_loop: ClassVar[bool] = False
    """Whether replies are those of the runtime's loop, as an `Agent`'s are."""
    description = ""
    """Its purpose, in a sentence or two; other agents and programs, which choose by it, are shown it."""
    workspace: FileSystemBase | None = None
    """The files that its tools may use, which they find as `ToolContext.workspace`; it may be set at any time."""

    id: str
    name: str
    state: AgentState
    chains: AgentChains
    live_conversation: AgentConversation
    _compiled: _Compiled

    def __init__(self, *, name: str | None = None, middlewares: Sequence[LayerEntry] = ()) -> None:
        super().__init__()
        check_agent_name(type(self), name)
        check_is_list(type(self), middlewares)
        self.name = name or type(self).__name__
        self.state = AgentState()  # holds what middlewares keep, also of agents that have no messages in it
        shows = self._shows_by_itself and not console_is_disabled()
        self.live_conversation = AgentConversation(Audience(shows, Printer()))
        self._compile_first(middlewares, NO_PARENT)

    @property
    def middlewares(self) -> tuple[MiddlewareBase, ...]:
        """The middlewares that this agent was built with, outermost first; `with_middlewares` takes others."""
        return self._compiled.middlewares

    @middlewares.setter
    def middlewares(self, middlewares: object) -> None:
        raise AttributeError(f"agent.middlewares cannot be set: {CHAINS_ARE_BUILT}")

    @property
    def lineage(self) -> Lineage:
        """The agents that this one works for, as their tool, and which of its middlewares it has of them."""
        return self._compiled.lineage

    @hook_method("on_reply", OverriddenReply)
    async def reply(self, *args: Any, **kwargs: Any) -> Msg:
        """Answer; every class of agents writes its own."""
        raise NotImplementedError(f"{type(self).__name__} has no reply: write `async def reply(self, msg)`")

    @hook_method("on_observe", OverriddenCall)
    @accept_old_keywords(msgs="msg")
    async def observe(self, msg: Any) -> None:
        """Take in messages without answering them; a class whose agents listen writes its own."""
        if "observe" in vars(self):  # an entry hides this method, which only `super()` reaches
            await _refuse_to_observe(self, msg)
        else:
            await self.current_chains().on_observe(self, msg=msg)

    @hook_method("on_print", OverriddenCall)
    async def print(self, msg: Msg, last: bool = True, speech: Speech = None) -> None:
        """Show a message, or as much of it as there is, on standard output and in `msg_queue`, where these are enabled.

        A message that grows is given again and again; only what is new since the last time is shown. `last` says that
        it is complete. `speech` is all of the audio so far; the player gets what is new of it.
        """
        if "print" in vars(self):  # an entry hides this method, which only `super()` reaches
            await self._show(msg, last, speech)
        else:
            await self.current_chains().on_print(self, msg=msg, last=last, speech=speech)

    _cores: ClassVar[dict[str, Any]] = {
        "on_reply": reply,
        "on_observe": _refuse_to_observe,
        "on_print": AudienceMethods._show,
        "on_event": ObservableCore(custom_events, observe_custom_events),
        "on_layer": OBSERVED_LAYERS,
    }

    async def __call__(self, *args: Any, **kwargs: Any) -> Msg:
        """Answer, and let those who subscribed to this agent observe the answer.

        A reply that `interrupt()` has stopped is answered by `handle_interrupt`.
        """
        answer = await self._reply_or_handle_interrupt(*args, **kwargs)
        await self._broadcast(answer)
        return answer

    async def _reply_or_handle_interrupt(self, *args: Any, **kwargs: Any) -> Msg:
        # A scope rather than the cancellation of a task: the caller's own cancellation stays what it is.
        with anyio.CancelScope() as scope:
            stop = partial(call_soon_function(), scope.cancel)
            self.live_conversation.stops[stop] = None
            try:
                answer = await self.reply(*args, **kwargs)
            finally:
                self.live_conversation.stops.pop(stop, None)
        if scope.cancelled_caught:
            kwargs.pop("deps", None)  # a reply takes them whatever its parameters are, and this need not
            name = f"{type(self).__name__}.handle_interrupt()"
            result: object = self.handle_interrupt(*args, **kwargs)
            if not isawaitable(result):
                raise ChainContractError(f"{name} must be a coroutine function: write `async def handle_interrupt`")
            answer = await result
            if answer is not None and not isinstance(answer, Msg):
                raise ChainContractError(f"{name} must return a Msg, or None to say nothing, not {answer!r:.200}")
        return answer

    @accept_old_keywords(msg="reason")
    def interrupt(self, reason: str | Msg | None = None) -> InterruptResult:
        """Stop the replies of `await agent(...)` that are in progress, from any task or thread; says if there were any.

        `await agent.reply(...)` is stopped by your own cancellation only. Only an `Agent` uses the `reason`: a custom
        `reply` sees the cancellation alone, as in AgentScope 1.x.
        """
        stops = list(self.live_conversation.stops)  # a copy, as replies may end in other threads meanwhile
        for stop in stops:
            with suppress(RuntimeError):  # the event loop of that reply has ended meanwhile
                stop()
        return InterruptResult(bool(stops))

    async def handle_interrupt(self, *args: Any, **kwargs: Any) -> Msg:
        """Return the message of an interrupted reply, which had these arguments; made to be overridden."""
        return interrupted_msg(self.name)

    @property
    def run(self) -> Run:
        """The reply in progress; raises `NoReplyError` between replies."""
        reply = current_reply(self)
        if reply is None:
            raise no_reply_error(self.name)
        return CustomRun(reply)

    @property
    def reply_id(self) -> str | None:
        """The id of the reply in progress, else of the last one; `None` before the first."""
        reply = current_reply(self)
        return self.live_conversation.last_reply_id if reply is None else reply.id

    @never_raises
    def __repr__(self) -> str:
        return repr_as_call(type(self).__name__, self._describe_parts())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the `repr` in IPython, with one line per part if it is long."""
        printer.text(repr_as_call(type(self).__name__, self._describe_parts(), broken=True))

    def _describe_parts(self) -> dict[str, str | list[str]]:
        """Return texts for what this agent is made of, as far as it is there."""
        attributes: dict[str, object] = vars(self)
        names = [name for name in ("name", "model", "toolkit") if name in attributes]
        parts: dict[str, str | list[str]] = {name: describe_setting(attributes[name]) for name in names}
        if parts.get("toolkit") == "Toolkit()":  # which has nothing
            del parts["toolkit"]
        if "_compiled" in attributes and self._compiled.middlewares:
            parts["middlewares"] = [describe_setting(middleware) for middleware in self._compiled.middlewares]
        return parts

    def state_of(self, middleware: MiddlewareBase) -> dict[str, Any]:
        """Return the middleware's own data of this conversation; it is part of `state`, as JSON."""
        return self.state.middleware_data.setdefault(self.chains.key_of(middleware), {})

    def identity_of(self, middleware: MiddlewareBase) -> Mapping[str, str]:
        """Return the user or owner of the reply in progress, as `run.identity` does; between replies, of a new one."""
        in_reply = self.live_conversation.reply is not None
        return self.run.identity(middleware) if in_reply else middleware.identify(self)

    def explain(self, format: ExplainFormat = "text") -> str:
        """Return the compiled chains, outermost layer first, as "text", "json" or "mermaid"."""
        self.current_chains()  # with the inner layers that came since the last reply
        # Overridden methods are shown as they are written, not as the cores that call them.
        functions = self._cores | {method.hook: method.function for method in self._compiled.overrides}
        origins = self.lineage.names_by_id()
        tools = self._describe_tools()
        packages = packages_of(self.chains.middlewares)
        about = {id(middleware): middleware.describe(self) for middleware in self._compiled.middlewares}
        return explain(
            self.chains,
            self.name,
            functions,
            tools.of_middlewares,
            format,
            origins,
            tools.children,
            tools.toolsets,
            tools.inner_tools,
            packages,
            about,
            tools.background,
        )

    def current_chains(self) -> AgentChains:
        """Return the chains, with the inner layers that there are now; during a reply those that it began with."""
        reply = current_reply(self)
        if reply is not None:  # inner layers that come during a reply are those of the next one
            return reply.chains
        self._compile_if_stale()
        return self.chains

    # What follows is for the runtime.

    def _compile_first(
        self, entries: Iterable[LayerEntry], lineage: Lineage, tools: tuple[tuple[object, ...], ...] = ()
    ) -> None:
        stated = tuple(split_entries(entries))
        layers = Layers(layers_in(stated))
        self._compiled = _Compiled(layers, stated, tools, self._overridden_methods(), lineage)
        self._compile_chains(self.inner_layers.of(self, ()))
        self._install()

    def _compile_if_stale(self) -> None:
        compiled = self._compiled.inner
        inner = self.inner_layers.of(self, compiled)
        if inner is not compiled:  # by identity, which costs least: an agent without inner layers has the empty tuple
            self._compile_chains(inner)

    def _compile_chains(self, inner: tuple[MiddlewareBase, ...]) -> None:
        """Compile the chains, with these layers inside of all others: they see the arguments that reach the cores."""
        compiled = self._compiled
        overridden = {method.hook: method for method in compiled.overrides}
        # A class with parameters of its own has them as the keys of its hook.
        table = [overridden[spec.name].adapt(spec) if spec.name in overridden else spec for spec in HOOKS]
        cores = self._cores | {hook: method.core for hook, method in overridden.items()}
        check_use(type(self), compiled.middlewares, cores)
        layers = [*compiled.entries, *inner]
        origins = compiled.lineage.names_by_id() if compiled.lineage.inherited else {}
        self.chains = compile_chains(MiddlewareBase, table, cores, layers, AgentChains, origins, _ask_once_per_reply)
        # Last: layers that were refused are refused again at the next entry.
        self._compiled = compiled._replace(inner=inner)

    def _install(self) -> None:
        """Put the entries of overridden methods on this agent, where they hide the methods themselves."""
        for method in self._compiled.overrides:
            vars(self)[method.name] = MethodType(method.entry, self)

    def _describe_tools(self) -> ToolDescriptions:
        """Return what `explain` shows of the tools."""
        return ToolDescriptions()

    def __getstate__(self) -> dict[str, object]:
        # A copy is in no hub, has no queue and no reply in progress, and compiles its own chains.
        compiled, conversation = self._compiled, self.live_conversation
        left_out = {"chains", "live_conversation", "_compiled", *(method.name for method in compiled.overrides)}
        attributes = {"id": self.id, **{name: value for name, value in vars(self).items() if name not in left_out}}
        shows, last_reply_id = conversation.audience.shows, conversation.last_reply_id
        # Everything else of these objects belongs to this process: locks, threads, functions.
        made_of = (compiled.entries, compiled.tools, compiled.lineage, shows, last_reply_id)
        return {**attributes, "_made_of": made_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        entries, tools, lineage, shows, last_reply_id = vars(self).pop("_made_of")
        self.live_conversation = AgentConversation(Audience(shows, Printer()), last_reply_id=last_reply_id)
        self._compile_first(entries, lineage, tools)


class ReActAgentBase(AgentBase):
    """Base of agents that reason and act in turns: hooks and middlewares run around these two as well.

    `Agent` does so in the runtime's loop. Another subclass writes its own `_reasoning` and `_acting`, and calls them in
    its `reply`; what these return flows through `on_reasoning` and `on_acting` as it is.
    """

    supported_hook_types: ClassVar[list[str]] = list(REACT_HOOK_TYPES)

    @hook_method("on_reasoning", OverriddenStep)
    async def _reasoning(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _reasoning of its own")

    @hook_method("on_acting", OverriddenStep)
    async def _acting(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _acting of its own")


def no_reply_error(name: str) -> NoReplyError:
    """Return the error of `agent.run` between replies, also for those who mean by it to ask the agent."""
    return NoReplyError(
        f"agent {name!r} has no reply in progress: use agent.run only in hooks and tools, and ask the agent with "
        f"`await agent.reply(message)`"
    )


def interrupted_msg(name: str, reason: str | None = None) -> Msg:
    """Return the message of an agent whose reply was interrupted."""
    why = f" ({reason})" if reason else ""
    text = f"I was interrupted{why}. What would you like me to do instead?"
    return Msg(name, text, "assistant", metadata={"_is_interrupted": True}, finished_reason="interrupted")
