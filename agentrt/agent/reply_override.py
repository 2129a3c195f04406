"""An `Agent` whose class writes its own `reply`: that method is the core of the reply, streamed or not.

It runs in a task beside the reader's, since it may hold a scope open around `await super().reply(...)`, the runtime's
own loop, whose events go on to the reader meanwhile.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, cast

from agentrt.agent.overrides import OverriddenMethod
from agentrt.concurrency.background_task import BackgroundTask
from agentrt.concurrency.interrupt import Interrupted
from agentrt.concurrency.mailbox import Mailbox
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.errors import ChainContractError, ConfigError, UsageError
from agentrt.event import AgentEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.outcome import drain_and_close, end, end_event, said_when_interrupted
from agentrt.loop.reply import reply
from agentrt.message import Msg

__all__ = ["check_parameters", "core_of", "entry_of", "reply_of_the_loop"]


def check_parameters(method: OverriddenMethod) -> None:
    """Raise `ConfigError` for a `reply` that cannot be called with an input alone."""
    try:
        method.signature.bind(None, None)
    except TypeError:
        raise ConfigError(
            f"{method.title} takes {method.signature}, but a reply of an Agent is given its input, and a schema where "
            f"there is one: write `async def reply(self, inputs=None, structured_schema=None)`"
        ) from None


def entry_of(method: OverriddenMethod) -> Callable[..., Any]:
    """Return what takes the place of the method on each instance."""

    @wraps(method.function)
    async def entry(agent: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = {method.key_of(name): value for name, value in kwargs.items()}
        return await agent.reply_stream(*args, **given, yield_final_msg=True).drain()

    return entry


def core_of(method: OverriddenMethod) -> Callable[..., AsyncGenerator[AgentEvent | Msg, None]]:
    """Return the core of on_reply for agents of a class that writes this `reply`."""

    async def core(
        agent: ReplyingAgent, inputs: ReplyInput, structured_schema: Any
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        run = agent.run
        run.progress.passthrough = mailbox = Mailbox()
        given = (inputs,) if structured_schema is None else (inputs, structured_schema)
        values = method.values(agent, given, {})
        final: Any = None
        async with BackgroundTask(
            run.claim, mailbox, partial(run.interruption.run_interruptible, partial(method, agent, values))
        ) as task:
            async for item in task:
                yield item
            with suppress(Interrupted):
                final = await task.outcome()
        if final is None and run.interruption.reason is not None:
            if not run.ended:  # the loop may have ended by itself before
                for event in drain_and_close(agent, run):
                    yield event
                yield await end(agent, run, end_event(agent, run, run.interruption.reason))
            final = await said_when_interrupted(agent, inputs, run.interruption.message)
        if not isinstance(final, Msg):
            raise ChainContractError(f"{method.title} must return a Msg, not {final!r:.200}")
        yield final

    return core


async def reply_of_the_loop(agent: ReplyingAgent, inputs: ReplyInput, structured_schema: Any) -> Msg:
    """Reply by the runtime's own loop, inside of a class's own `reply`; its events go where that one's go."""
    run = agent.conversation.run
    if run is None or run.progress.passthrough is None:
        raise UsageError(f"super().reply() of {agent.name!r} was called outside of its own reply(): call agent.reply()")
    if run.ended or run.progress.is_parked:
        raise UsageError(
            f"super().reply() of {agent.name!r} was called again in one reply, after it had come to its end: to have "
            f"another round, call self.run.continue_with(hint) before that"
        )
    final: Any = None
    stream = reply(agent, inputs, structured_schema)
    try:
        async for item in stream:
            if isinstance(item, Msg):
                final = item
            else:
                await run.progress.passthrough.put(item)
    finally:
        try:
            await stream.aclose()
        finally:
            run.interruption.rearm()
    return cast(Msg, final)
