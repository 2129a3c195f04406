"""A reply that a class of agents writes itself, without the runtime's loop: its way through the chain, its `agent.run`.

Such replies may run side by side, so the one in progress is that of the current task.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

from anyio import get_cancelled_exc_class

from agentrt._runtime.chain.spec import HookSpec, Notify
from agentrt._runtime.concurrency.lifespan import open_for_reply
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.concurrency.reaper import Reaper
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.run import Run
from agentrt._runtime.conversation.turns import Claim
from agentrt.agent.overrides.overridden_method import ChainedAgent, HookMethod, OverriddenMethod, last_item
from agentrt.errors import ChainContractError, UsageError
from agentrt.event import AgentEvent, ReplyClosedEvent, ReplyEndEvent, ReplyStartEvent
from agentrt.hooks import AgentChains
from agentrt.message import Msg
from agentrt.tool import Toolkit

_NO_TOOLS = Toolkit()


class _NoMailbox(Mailbox):
    """For the events of replies that have no layer to see them."""

    def post(self, item: object) -> None:
        pass


_NO_MAILBOX = _NoMailbox()


class _CustomReply(ReplyRun):
    """One reply of an agent that writes its own `reply`."""

    is_silent = is_over = False
    chains: AgentChains


class CustomRun(Run):
    """Such a reply as hooks see it."""

    __slots__ = ()

    async def ask_model(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(
            "ask_model() asks through on_model_call, which an agent that writes its own reply does not have: ask the "
            "model itself in that reply"
        )

    def stop(self, reason: object, message: object = None) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError("stop() ends a step, which an agent that writes its own reply does not have: return there")

    def continue_with(self, hint: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(
            "continue_with() asks for another round, which an agent that writes its own reply does not have: "
            "ask the model again in that reply"
        )


_replies: ContextVar[Mapping[int, _CustomReply]] = ContextVar("agentrt_custom_replies")
"""The replies that the current task is working for, by the `id()` of the agent; the mappings never change."""


def current_reply(agent: object) -> _CustomReply | None:
    """Return the reply of this agent that the current task is working for."""
    reply = _replies.get({}).get(id(agent))
    # A task that outlives the reply which it was started in still knows of that one.
    return None if reply is None or reply.is_over else reply


def custom_events(agent: ChainedAgent, reply: _CustomReply, values: dict[str, object]) -> Any:
    """The core of on_event: the stream that leaves on_reply."""
    return reply.chains.on_reply(agent, **values)


def observe_custom_events(notify: Notify) -> Any:
    """Return `custom_events` with observers around it.

    They see what leaves on_reply: no start is supplied where a layer answers by itself, and no end for an error.
    """

    async def run_observed(
        agent: ChainedAgent, reply: _CustomReply, values: dict[str, object]
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        items = custom_events(agent, reply, values)
        closed = ReplyClosedEvent(reply.id, "completed")
        try:
            async for item in items:
                # Numbered here, as no driver does it for these replies.
                if not isinstance(item, Msg):
                    notify(agent, reply.progress.assign_seq(item))
                yield item
        except GeneratorExit:
            closed.reason = "closed"
            raise
        except BaseException as error:
            closed.reason = "cancelled" if isinstance(error, get_cancelled_exc_class()) else "error"
            raise
        finally:
            try:
                await items.aclose()
            finally:
                notify(agent, closed)

    return run_observed


class OverriddenReply(OverriddenMethod):
    """The `reply` of a class that derives from `AgentBase`.

    Its `deps` do not flow through the chain, where hooks get copies of all values: `agent.run` has them.
    """

    def __init__(self, cls: type, name: str, function: Callable[..., object], overridden: HookMethod) -> None:
        super().__init__(cls, name, function, overridden)
        if self.declares_deps:
            self.keys = tuple(key for key in self.keys if key != "deps")

    def values(self, agent: object, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """Return the values of all parameters, and the `deps`, which every reply may be given."""
        if self.declares_deps or "deps" not in kwargs:
            return super().values(agent, args, kwargs)
        others = {name: value for name, value in kwargs.items() if name != "deps"}
        return {**super().values(agent, args, others), "deps": kwargs["deps"]}

    def adapt(self, spec: HookSpec) -> HookSpec:
        """Return the line of the hook table for a reply, which may say nothing."""
        return replace(super().adapt(spec), terminal=None)

    async def run_chain(self, agent: ChainedAgent, values: dict[str, object]) -> Msg | None:
        """Run one reply, and return its message, or `None` where it says nothing."""
        claim = Claim()
        claim.reaper = Reaper()
        run = _CustomReply(agent, claim, 0, _NO_TOOLS)
        # Not through the chain: hooks get copies of all that flows there, and a database cannot be copied.
        run.deps = values.pop("deps", None)
        run.chains = agent.current_chains()
        if not run.chains.layers["on_reply"] and run.chains.on_event is custom_events:
            run.mailbox = _NO_MAILBOX
        agent.live_conversation.last_reply_id = run.id
        # Without those that are over: tasks that replies leave behind, and that reply in turn, would pass on ever more.
        others = {agent_id: other for agent_id, other in _replies.get({}).items() if not other.is_over}
        token = _replies.set({**others, id(agent): run})
        try:
            on_reply, on_event = run.chains.on_reply, run.chains.on_event
            is_observed = on_event is not custom_events
            async with AsyncExitStack() as lifespans:
                await open_for_reply(lifespans, run.chains)
                answer = await last_item(on_event(agent, run, values) if is_observed else on_reply(agent, **values))
        finally:
            run.ended = run.is_over = True
            with suppress(ValueError):  # an event loop that ends in the middle may finish this in another context
                _replies.reset(token)
        if isinstance(answer, Msg):
            return answer
        if not run.is_silent:
            raise ChainContractError("on_reply ended without the final Msg: pass on what next_handler() gives")
        return None

    async def _core(self, agent: ChainedAgent, /, **values: object) -> AsyncGenerator[AgentEvent | Msg, None]:
        run, session_id = current_reply(agent), agent.state.session_id
        assert run is not None  # the one that entered the chain
        run.ended = False  # a layer may have us called again
        yield ReplyStartEvent(run.id, session_id, agent.name)
        answer = await self(agent, self.with_deps(values, run.deps))
        if answer is not None and not isinstance(answer, Msg):
            raise ChainContractError(f"{self.title} must return a Msg, or None to say nothing, not {answer!r:.200}")
        for event in run.mailbox.take():
            yield event
        run.ended, run.is_silent = True, answer is None
        yield ReplyEndEvent(run.id, session_id, "completed")
        if answer is not None:
            yield answer
