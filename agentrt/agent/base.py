"""AgentBase: what every agent is, whether its replies come from the runtime's loop or from code of its own."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from types import MethodType
from typing import Any, ClassVar, NoReturn

import anyio
import shortuuid

from agentrt.agent.hook_middleware import layers_for
from agentrt.agent.hook_registry import (
    REACT_HOOK_TYPES,
    HookRegistration,
    HookTable,
    are_same,
    class_hooks,
    hooks_of,
)
from agentrt.agent.overrides import OverriddenMethod, SetUp, made_by_init, own_methods, own_spec
from agentrt.agent.subscribers import broadcast
from agentrt.chain import Chains, HookSpec, compile_chains, explain
from agentrt.chain.check import overrides
from agentrt.chain.explain import ExplainFormat
from agentrt.concurrency.event_loop import call_soon_function, checkpoint
from agentrt.concurrency.interrupt import InterruptResult
from agentrt.concurrency.mailbox import Mailbox
from agentrt.concurrency.reaper import Reaper
from agentrt.conversation.run import Run
from agentrt.conversation.turns import Claim
from agentrt.errors import ChainContractError, ConfigError, InvalidInputError, MiddlewareConfigError, UsageError
from agentrt.event import AgentEvent
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.message import DataBlock, Msg
from agentrt.module import StateModule
from agentrt.output.audio import AudioPlayer
from agentrt.output.printer import Printer
from agentrt.output.queue import MessageQueue
from agentrt.state import AgentState
from agentrt.text import repr_of, whole_characters
from agentrt.tool import Toolkit

__all__ = ["AgentBase", "ReActAgentBase", "interrupted"]

_logger = logging.getLogger("agentrt")

Speech = DataBlock | list[DataBlock] | None
_NO_TOOLS = Toolkit()
# What a copy does not take over: it is in no hub, shows nothing to anybody and has no reply in progress.
_NOT_COPIED = {"_compiled", "_compiled_for", "_growing", "_own_methods", "_printer", "_queues", "_stops"}
_NOT_COPIED |= {"_subscribers", "chains", "msg_queue"}


class _Nowhere(Mailbox):
    """For the events of replies that have no layer to see them."""

    __slots__ = ()

    def post(self, item: object) -> None:
        pass


_NOWHERE = _Nowhere()


class OwnRun(Run):
    """One reply of an agent that writes its own `reply`."""

    is_silent = is_over = False
    chains: Chains

    def continue_with(self, hint: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError("continue_with() asks for another round, and an agent that writes its own reply has none")


_replies: ContextVar[Mapping[int, OwnRun]] = ContextVar("agentrt_replies")
"""The replies that the current task is working for, by the `id()` of the agent; the mappings never change."""


@made_by_init("_compiled_for", "_own_methods", "_printer", "_queues", "_stops", "_subscribers")
@made_by_init("chains", "id", "name", "state")
class AgentBase(HookRegistration, SetUp, StateModule):
    """Base of agents that write their own `async def reply(self, ...)`, and of `Agent`.

    The class's own `reply`, `observe` and `print` become the cores of chains when an agent is built: the middlewares'
    `on_reply`, `on_observe` and `on_print`, and pre/post hooks, run however they are called, and `super().reply(...)`
    in a subclass is the parent's plain method. Replies may run side by side, each with an `agent.run` of its own.
    """

    _cores: ClassVar[dict[str, Callable[..., Any]]]
    _inherited: ClassVar[dict[str, tuple[Callable[..., Any], tuple[str, ...]]]]
    _shows_by_itself: ClassVar[bool] = True
    runs_reply_loop: ClassVar[bool] = False
    """Whether replies are those of the runtime's loop, as an `Agent`'s are."""
    _table: ClassVar[tuple[HookSpec, ...]] = HOOKS

    def __init__(self, *, name: str | None = None, middlewares: Sequence[MiddlewareBase] = ()) -> None:
        super().__init__()
        _check_parts(type(self).__name__, name, middlewares)
        self.id = shortuuid.uuid()
        self.name = name or type(self).__name__
        self.state = AgentState()
        self._middlewares = tuple(middlewares)
        self._shows = self._shows_by_itself and not _console_is_disabled()
        self._reply_id: str | None = None
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Set up what is not copied."""
        self.msg_queue: Any = None
        self._queues = False
        self._printer = Printer()
        self._growing: Msg | None = None
        self._subscribers: dict[str, list[AgentBase]] = {}
        self._stops: set[Callable[[], object]] = set()
        self._compiled: HookTable | None = None
        self._own_methods = own_methods(type(self), self._inherited)
        self._compile_chains()
        self._install()

    async def reply(self, *args: Any, **kwargs: Any) -> Msg:
        """Answer; every class of agents writes its own."""
        raise NotImplementedError(f"{type(self).__name__} has no reply: write `async def reply(self, msg)`")

    async def observe(self, msg: Any) -> None:
        """Take in messages without answering them; a class whose agents listen writes its own."""
        if type(self).observe is AgentBase.observe:
            await self._fresh_chains().on_observe(self, msg=msg)
        else:  # reached by `super()`
            await _take_nothing_in(self, msg)

    async def print(self, msg: Msg, last: bool = True, speech: Speech = None) -> None:
        """Show a message, or as much of it as there is, on standard output and in `msg_queue`, where these are enabled.

        A message that grows is given again and again; only what is new since the last time is shown. `last` says that
        it is complete. `speech` is audio: the whole of it so far, of which what is new goes to the player.
        """
        if type(self).print is AgentBase.print:
            await self._fresh_chains().on_print(self, msg=msg, last=last, speech=speech)
        else:  # reached by `super()`
            await _show(self, msg, last, speech)

    async def __call__(self, *args: Any, **kwargs: Any) -> Msg:
        """Answer, and let those who subscribed to this agent observe the answer.

        A reply that `interrupt()` has stopped is answered by `handle_interrupt`.
        """
        with anyio.CancelScope() as scope:
            stop = partial(call_soon_function(), scope.cancel)
            self._stops.add(stop)
            try:
                answer = await self.reply(*args, **kwargs)
            finally:
                self._stops.discard(stop)
        if scope.cancelled_caught:
            answer = await _said_when_interrupted(self, args, kwargs)
        await self._broadcast(answer)
        return answer

    def interrupt(self) -> InterruptResult:
        """Stop the replies of `await agent(...)` that are in progress, from any task or thread; says if there were any.

        `await agent.reply(...)` is stopped by your own cancellation only.
        """
        stops = list(self._stops)
        for stop in stops:
            with suppress(RuntimeError):  # the event loop of that reply has ended meanwhile
                stop()
        return InterruptResult(bool(stops))

    async def handle_interrupt(self, *args: Any, **kwargs: Any) -> Msg:
        """Return the message of an interrupted reply, which had these arguments; made to be overridden."""
        return interrupted(self.name)

    @property
    def run(self) -> Run:
        """The reply in progress; raises `UsageError` between replies."""
        run = self._reply_here()
        if run is None:
            raise UsageError(f"agent {self.name!r} has no reply in progress: agent.run is there for hooks and tools")
        return run

    @property
    def reply_id(self) -> str | None:
        """The id of the reply in progress, else of the last one; `None` before the first."""
        run = self._reply_here()
        return self._reply_id if run is None else run.id

    def state_of(self, middleware: MiddlewareBase) -> dict[str, Any]:
        """Return the middleware's own data of this conversation; it is part of `state`, as JSON."""
        return self.state.middleware_data.setdefault(self.chains.key_of(middleware), {})

    def explain(self, format: ExplainFormat = "text") -> str:
        """Return the compiled chains, outermost layer first, as "text", "json" or "mermaid"."""
        self._fresh_chains()
        return explain(self.chains, self.name, self._explained(), self._tools_of_middlewares(), format)

    def reset_subscribers(self, msghub_name: str, subscribers: Sequence["AgentBase"]) -> None:
        """Let these agents, but not this one, observe what `await agent(...)` answers, and no others of that hub."""
        for each in subscribers:
            if not isinstance(each, AgentBase):
                raise UsageError(f"the subscribers of {self.name!r} must be agents, not {each!r:.200}")
        self._subscribers[msghub_name] = [each for each in subscribers if each is not self]

    def remove_subscribers(self, msghub_name: str) -> None:
        """Forget the subscribers of a hub; warns when there is no such hub."""
        if self._subscribers.pop(msghub_name, None) is None:
            _logger.warning("agent %r has no subscribers of a hub named %r", self.name, msghub_name)

    def set_msg_queue_enabled(self, enabled: bool, queue: Any = None) -> None:
        """Have what is printed put into `msg_queue` as well, or no longer.

        The queue holds `(msg, last, speech)` and needs an async `put`; without one there is a `MessageQueue` for a
        hundred items, and a reply waits while it is full. The message of an `Agent` that is not complete goes on
        growing in the queue: `msg.copy()` keeps it as it is.
        """
        if queue is not None and not callable(getattr(queue, "put", None)):
            raise UsageError(f"set_msg_queue_enabled() needs a queue with an async `put`, not {queue!r:.200}")
        if enabled and queue is None:
            queue = MessageQueue() if self.msg_queue is None else self.msg_queue
        self._queues = enabled
        self.msg_queue = queue if enabled else None

    def set_console_output_enabled(self, enabled: bool) -> None:
        """Have messages shown on standard output, or not."""
        self._shows = enabled

    def disable_console_output(self) -> None:
        """Show nothing on standard output any more."""
        self._shows = False

    def set_audio_player(self, player: Callable[[], AudioPlayer] | None) -> None:
        """Play speech with a player for each message, made by calling `player`."""
        if player is not None and not callable(player):
            raise UsageError(f"set_audio_player() needs a class or function that makes a player, not {player!r:.200}")
        self._printer.close()
        self._printer = Printer(player=player)

    # What follows is for the runtime.

    def _compile_chains(self) -> None:
        """Compile the chains, if they are not compiled for the hooks that there are now."""
        self._compiled_for = class_hooks.version
        hooks = hooks_of(self)
        if self._compiled is not None and are_same(hooks, self._compiled):
            return
        own = {method.hook: method for method in self._own_methods}
        table = [self._spec_around(spec, own[spec.name]) if spec.name in own else spec for spec in self._table]
        cores = self._cores | {hook: self._core_around(method) for hook, method in own.items()}
        _check_use(type(self).__name__, self._middlewares, cores)
        self.chains = compile_chains(MiddlewareBase, table, cores, [*self._middlewares, *layers_for(hooks)])
        self._compiled = hooks

    def _install(self) -> None:
        """Put the entries of the class's own methods on this agent, where they hide the methods themselves."""
        for method in self._own_methods:
            self.__dict__[method.name] = MethodType(self._entry_of(method), self)

    def _entry_of(self, method: OverriddenMethod) -> Callable[..., Any]:
        return method.entry

    def _spec_around(self, spec: HookSpec, method: OverriddenMethod) -> HookSpec:
        return own_spec(spec, method)

    def _core_around(self, method: OverriddenMethod) -> Callable[..., Any]:
        return method.core

    def _explained(self) -> dict[str, Any]:
        return self._cores | {method.hook: method.function for method in self._own_methods}

    def _tools_of_middlewares(self) -> dict[int, list[str]]:
        return {}

    def _reply_here(self) -> OwnRun | None:
        run = _replies.get({}).get(id(self))
        # A task that outlives the reply which it was started in still knows of that one.
        return None if run is None or run.is_over else run

    def _fresh_chains(self) -> Chains:
        """Return the chains: during a reply those that it began with."""
        run = self._reply_here()
        if run is not None:
            return run.chains
        if self._compiled_for != class_hooks.version:
            self._compile_chains()
        return self.chains

    async def _enter_chain(self, method: OverriddenMethod, values: dict[str, Any]) -> Any:
        """Enter the chain around one of the agent's own methods."""
        if method.hook == "on_reply":
            return await self._reply_through_chain(values)
        entered = getattr(self._fresh_chains(), method.hook)(self, **values)
        if method.hook in ("on_observe", "on_print"):
            return await entered
        return await _last_of(entered)

    async def _reply_through_chain(self, values: dict[str, Any]) -> Msg | None:
        ticket = Claim()
        ticket.reaper = Reaper()
        run = OwnRun(ticket, 0, _NO_TOOLS)
        run.chains = self._fresh_chains()
        if not run.chains.layers["on_reply"]:
            run.mailbox = _NOWHERE
        self._reply_id = run.id
        # Without those that are over: tasks that replies leave behind, and that reply in turn, would pass on ever more.
        others = {agent: each for agent, each in _replies.get({}).items() if not each.is_over}
        token = _replies.set({**others, id(self): run})
        try:
            answer = await _last_of(run.chains.on_reply(self, **values))
        finally:
            run.ended = run.is_over = True
            with suppress(ValueError):  # an event loop that ends in the middle may finish this in another context
                _replies.reset(token)
        if isinstance(answer, Msg):
            return answer
        if not run.is_silent:
            raise ChainContractError("on_reply ended without the final Msg")
        return None

    async def _broadcast(self, answer: Msg | None) -> None:
        if answer and self._subscribers:
            await broadcast(answer, [each for hub in self._subscribers.values() for each in hub])

    def __getstate__(self) -> dict[str, Any]:
        entries = {method.name for method in self._own_methods}
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED | entries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_afresh()


def _check_parts(cls: str, name: object, middlewares: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"{cls}(name=...) must be a text, not {repr_of(name)}")
    if name is not None and whole_characters(name) is not name:
        raise ConfigError(f"{cls}(name=...) holds half a character, which no file and no request can: {name!r:.200}")
    if not isinstance(middlewares, (list, tuple)):
        raise ConfigError(f"{cls}(middlewares=...) must be a list of middlewares, not {middlewares!r:.200}")


def _check_use(cls: str, middlewares: Sequence[MiddlewareBase], cores: Mapping[str, Any]) -> None:
    """Raise `MiddlewareConfigError` for a middleware of which nothing would ever run."""
    for each in middlewares:
        hooks = [spec.name for spec in HOOKS if _has(each, spec.name)]
        if hooks and not any(hook in cores for hook in hooks):
            raise MiddlewareConfigError(
                f"{type(each).__name__} would never run in agents like {cls}, which write their own reply: their hooks "
                f"are {', '.join(cores)}, and it has {', '.join(hooks)}; leave it out, or give it to an Agent"
            )


def _has(middleware: object, hook: str) -> bool:
    # What is no middleware at all is found by the compiler.
    return isinstance(middleware, MiddlewareBase) and overrides(middleware, MiddlewareBase, hook)


def _console_is_disabled() -> bool:
    return os.environ.get("AGENTRT_DISABLE_CONSOLE_OUTPUT", "").lower() in ("1", "true", "yes", "on")


async def _last_of(stream: Any) -> Any:
    """Read a stream to its end, and return its last item that is no event."""
    last = None
    try:
        async for item in stream:
            if not isinstance(item, AgentEvent):
                last = item
    finally:
        await stream.aclose()
    return last


async def _said_when_interrupted(agent: AgentBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = f"{type(agent).__name__}.handle_interrupt()"
    said: Any = agent.handle_interrupt(*args, **kwargs)
    if not isawaitable(said):
        raise ChainContractError(f"{name} must be a coroutine function: write `async def handle_interrupt`")
    answer = await said
    if answer is not None and not isinstance(answer, Msg):
        raise ChainContractError(f"{name} must return a Msg, or None to say nothing, not {answer!r:.200}")
    return answer


async def _take_nothing_in(agent: AgentBase, msg: Any) -> None:
    cls = type(agent).__name__
    raise NotImplementedError(f"{cls} takes in no messages: write `async def observe(self, msg)`")


async def _show(agent: AgentBase, msg: Msg, last: bool, speech: Speech) -> None:
    if not isinstance(msg, Msg):
        raise InvalidInputError(f"print() shows a Msg, not {msg!r:.200}")
    if agent._queues:
        await agent.msg_queue.put((msg if msg is agent._growing else msg.copy(), last, speech))
        await checkpoint()
    if agent._shows:
        agent._printer.show(msg, last, speech)


AgentBase._cores = {"on_reply": AgentBase.reply, "on_observe": _take_nothing_in, "on_print": _show}
AgentBase._inherited = {
    "reply": (AgentBase.reply, ()),
    "observe": (AgentBase.observe, ("msg",)),
    "print": (AgentBase.print, ("msg", "last", "speech")),
}


class ReActAgentBase(AgentBase):
    """Base of agents that reason and act in turns: hooks and middlewares run around these two as well.

    `Agent` does so in the runtime's loop. Another subclass writes its own `_reasoning` and `_acting`, and calls them in
    its `reply`; what these return flows through `on_reasoning` and `on_acting` as it is.
    """

    supported_hook_types: ClassVar[list[str]] = list(REACT_HOOK_TYPES)

    async def _reasoning(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _reasoning of its own")

    async def _acting(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _acting of its own")


ReActAgentBase._inherited = {
    **AgentBase._inherited,
    "_reasoning": (ReActAgentBase._reasoning, ()),
    "_acting": (ReActAgentBase._acting, ()),
}


def interrupted(name: str, reason: str | None = None) -> Msg:
    """Return what an agent says by itself when its reply was interrupted."""
    told = f" ({reason})" if reason else ""
    text = f"I was interrupted{told}. What would you like me to do instead?"
    return Msg(name, text, "assistant", metadata={"_is_interrupted": True}, finished_reason="interrupted")
