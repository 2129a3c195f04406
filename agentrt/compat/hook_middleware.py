"""HookMiddleware: pre/post hooks as layers of the chains.

Registering a hook with an agent or its class makes them inner layers of the agent.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Protocol

from agentrt._runtime.chain.attribution import ORIGIN_NOTE, has_origin_note
from agentrt._runtime.chain.spec import Values
from agentrt._runtime.conversation.run import Run
from agentrt.agent.hook_registration import Hook
from agentrt.errors import HookError
from agentrt.event import AgentEvent
from agentrt.hooks import MiddlewareBase
from agentrt.message import AssistantMsg, Msg
from agentrt.types import ToolChunk, ToolResponse

HookTable = Mapping[str, Mapping[str, Hook]]
"""By type of hook and then by name, in the order of registration; without types that have no hooks."""

_ARGUMENTS_OF_AGENT = {"inputs": "msg", "structured_schema": "structured_model"}


class HookedAgent(Protocol):
    """The part of an agent that the layers use."""

    name: str

    @property
    def runs_reply_loop(self) -> bool: ...
    @property
    def run(self) -> Run: ...


@dataclass(slots=True, eq=False)
class _HookCall:
    """One hook at work; a task that it leaves behind may outlive it."""

    agent: HookedAgent
    core: str
    is_over: bool = False


_calls: ContextVar[tuple[_HookCall, ...]] = ContextVar("agentrt_hook_calls", default=())


class HookMiddleware(MiddlewareBase):
    """Runs pre hooks before a core and post hooks after it; one class for each core.

    `pre` and `post` hold the hooks by name, in the order in which they run. Each gets copies: what it changes counts
    only if it returns it. A core that raises has no post hooks. A hook that calls the core that it belongs to, of the
    same agent, gets a `HookError`.
    """

    inherited = False
    position = "innermost"  # as in AgentScope, where hooks wrap the method itself
    core = ""

    def __init__(self, pre: Mapping[str, Hook] | None = None, post: Mapping[str, Hook] | None = None) -> None:
        self._pre = tuple((pre or {}).items())
        self._post = tuple((post or {}).items())

    async def before(self, agent: HookedAgent, kwargs: Values) -> Values:
        """Run the pre hooks and return the arguments as they leave them."""
        if any(call.agent is agent and call.core == self.core and not call.is_over for call in _calls.get()):
            raise HookError(
                f"a hook of {agent.name!r} called {self.core}, which it is a hook of, and would never end: "
                f"do that after the {self.core}, or change its arguments or result instead"
            )
        for name, hook in self._pre:
            changes = await self._run(agent, f"pre_{self.core} hook {name!r}", hook, self._copy_arguments(kwargs))
            if changes is None:
                continue
            if not isinstance(changes, dict):
                raise HookError(f"the pre_{self.core} hook {name!r} must return a dict or None, not {changes!r:.200}")
            unknown = [key for key in changes if key not in kwargs]
            if unknown:
                raise HookError(
                    f"the pre_{self.core} hook {name!r} returned the argument {unknown[0]!r}, which {self.core} does "
                    f"not have: it has {', '.join(kwargs)}"
                )
            kwargs = {**kwargs, **changes}
        return kwargs

    async def after(self, agent: HookedAgent, kwargs: Values, output: Any) -> Any:
        """Run the post hooks and return the result as they leave it."""
        for name, hook in self._post:
            # New copies for each hook: unreturned changes in place by the previous one do not count.
            arguments, result = self._copy_arguments(kwargs), self._copy_value("its result", output)
            changed = await self._run(agent, f"post_{self.core} hook {name!r}", hook, arguments, result)
            if changed is None:
                continue
            expected = self.result_of(agent)
            if expected is not None and not isinstance(changed, expected):
                raise HookError(
                    f"the post_{self.core} hook {name!r} must return a {expected.__name__} or None, "
                    f"not {changed!r:.200}"
                )
            output = changed
        return output

    def result_of(self, agent: HookedAgent) -> type | None:
        """Return what type the core's result has, `None` for any or for a core that has no result."""
        return None

    async def _run(self, agent: HookedAgent, name: str, hook: Hook, *values: object) -> object:
        call = _HookCall(agent, self.core)
        token = _calls.set((*_calls.get(), call))
        try:
            result = hook(agent, *values)
            return await result if isawaitable(result) else result
        except Exception as error:
            if not has_origin_note(error):
                error.add_note(f"{ORIGIN_NOTE}the {name} of {agent.name!r}")
            raise
        finally:
            call.is_over = True  # a task that the hook left behind has a context of its own, where it is still listed
            _calls.reset(token)

    def _copy_arguments(self, kwargs: Values) -> Values:
        return {name: self._copy_value(f"the argument {name!r}", value) for name, value in kwargs.items()}

    def _copy_value(self, label: str, value: object) -> object:
        try:
            return deepcopy(value)
        except Exception as error:  # of the value's own making
            raise HookError(
                f"hooks of {self.core} get copies, and {label}, a {type(value).__name__}, cannot be copied"
            ) from error


class ReplyHookMiddleware(HookMiddleware):
    """Hooks of reply. An `Agent`'s `inputs` go by the name `msg`, its `structured_schema` by `structured_model`."""

    core = "reply"

    def result_of(self, agent: HookedAgent) -> type | None:
        """Return `Msg`."""
        return Msg

    async def on_reply(
        self,
        agent: HookedAgent,
        input_kwargs: Values,
        next_handler: Callable[..., AsyncGenerator[AgentEvent | Msg, None]],
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        """Run the hooks around one whole reply."""
        names = _ARGUMENTS_OF_AGENT if agent.runs_reply_loop else {}
        kwargs = await self.before(agent, {names.get(key, key): value for key, value in input_kwargs.items()})
        keys = {name: key for key, name in names.items()}
        answer: Msg | None = None
        async for item in next_handler(**{keys.get(name, name): value for name, value in kwargs.items()}):
            if isinstance(item, Msg):
                answer = item
            else:
                yield item
        answer = await self.after(agent, kwargs, answer)
        if answer is not None:
            yield answer


class ObserveHookMiddleware(HookMiddleware):
    """Hooks of observe; it has no result."""

    core = "observe"

    async def on_observe(
        self, agent: HookedAgent, input_kwargs: Values, next_handler: Callable[..., Awaitable[None]]
    ) -> None:
        """Run the hooks around taking in messages."""
        kwargs = await self.before(agent, input_kwargs)
        await next_handler(**kwargs)
        await self.after(agent, kwargs, None)


class PrintHookMiddleware(HookMiddleware):
    """Hooks of print; it has no result."""

    core = "print"

    async def on_print(
        self, agent: HookedAgent, input_kwargs: Values, next_handler: Callable[..., Awaitable[None]]
    ) -> None:
        """Run the hooks around showing a message."""
        kwargs = await self.before(agent, input_kwargs)
        await next_handler(**kwargs)
        await self.after(agent, kwargs, None)


class ReasoningHookMiddleware(HookMiddleware):
    """Hooks of one round of asking the model; its result is the message of that round."""

    core = "reasoning"

    def result_of(self, agent: HookedAgent) -> type | None:
        """Return `Msg` for an `Agent`; the rounds of others may result in anything."""
        return Msg if agent.runs_reply_loop else None

    async def on_reasoning(
        self,
        agent: HookedAgent,
        input_kwargs: Values,
        next_handler: Callable[..., AsyncGenerator[AgentEvent | Msg, None]],
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        """Run the hooks around one round; an answer that a hook changes takes the place of what was streamed."""
        kwargs = await self.before(agent, input_kwargs)
        rebuilt = AssistantMsg(agent.name, [])  # a round that calls tools has no message of its own
        result = rebuilt
        async for item in next_handler(**kwargs):
            if not isinstance(item, AgentEvent):
                result = item
                continue
            if item.reply_id == agent.run.id:
                rebuilt.id = item.reply_id  # a message takes the events of its own reply
                rebuilt.append_event(item)
            yield item
        answer = await self.after(agent, kwargs, result)
        if result is not rebuilt or answer != rebuilt:
            yield answer


class ActingHookMiddleware(HookMiddleware):
    """Hooks of running one tool call; its result is the `ToolResponse`."""

    core = "acting"

    def result_of(self, agent: HookedAgent) -> type | None:
        """Return `ToolResponse` for an `Agent`; the tools of others may result in anything."""
        return ToolResponse if agent.runs_reply_loop else None

    async def on_acting(
        self,
        agent: HookedAgent,
        input_kwargs: Values,
        next_handler: Callable[..., AsyncGenerator[ToolChunk | ToolResponse, None]],
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        """Run the hooks around one tool call."""
        kwargs = await self.before(agent, input_kwargs)
        response: ToolResponse | None = None
        async for item in next_handler(**kwargs):
            if isinstance(item, ToolChunk):
                yield item
            else:
                response = item
        yield await self.after(agent, kwargs, response)


_LAYERS: Sequence[type[HookMiddleware]] = (
    ReplyHookMiddleware,
    ReasoningHookMiddleware,
    ActingHookMiddleware,
    ObserveHookMiddleware,
    PrintHookMiddleware,
)


def layers_for(hooks: HookTable) -> list[MiddlewareBase]:
    """Return the layers that run these hooks."""
    return [
        layer(hooks.get(f"pre_{layer.core}"), hooks.get(f"post_{layer.core}"))
        for layer in _LAYERS
        if f"pre_{layer.core}" in hooks or f"post_{layer.core}" in hooks
    ]
