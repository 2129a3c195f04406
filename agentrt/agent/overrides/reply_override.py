"""An `Agent` whose class writes its own `reply`: that method is the core of the reply, streamed or not.

It runs in a task beside the reader's, since it may hold a scope open around `await super().reply(...)`, the runtime's
own loop, whose events reach the reader meanwhile.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from agentrt._runtime.chain.spec import HookSpec
from agentrt._runtime.concurrency.background_task import BackgroundTask
from agentrt._runtime.concurrency.coroutine_reader import as_stream
from agentrt._runtime.concurrency.interrupt import Interrupted
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.final_message import check_final_message
from agentrt._runtime.conversation.open_calls import drain_and_close
from agentrt._runtime.loop.answer import mend_answer
from agentrt._runtime.loop.outcome import end_event, end_reply, message_when_interrupted
from agentrt._runtime.loop.reply import reply
from agentrt._runtime.loop.structured_output import form_of, with_instance
from agentrt.agent.overrides.overridden_method import HookMethod, OverriddenMethod
from agentrt.errors import ChainContractError, ConfigError, UsageError
from agentrt.event import AgentEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg

_read_reply = as_stream(reply)


class OverriddenLoopReply(OverriddenMethod):
    """The `reply` of a class that derives from `Agent`.

    Raises `ConfigError` for one that cannot be called with an input alone.
    """

    def __init__(self, cls: type, name: str, function: Callable[..., object], overridden: HookMethod) -> None:
        super().__init__(cls, name, function, overridden)
        try:
            self.signature.bind(None, None)
        except TypeError:
            raise ConfigError(
                f"{self.title} takes {self.signature}, but a reply of an Agent is given its input, and a schema where "
                f"there is one: write `async def reply(self, inputs=None, structured_schema=None)`"
            ) from None

    def adapt(self, spec: HookSpec) -> HookSpec:
        """Return the line of the hook table as it is, for this reply is given what an `Agent` is."""
        return spec

    def _make_entry(self) -> Callable[..., object]:
        @wraps(self.function)
        async def entry(agent: Any, /, *args: object, **kwargs: object) -> object:
            # By the names of `reply_stream`; those that it does not have are its own errors.
            values = {self.key_of(name): value for name, value in kwargs.items()}
            message = await agent.reply_stream(*args, **values, yield_final_msg=True).drain()
            return check_final_message(message, agent.react_config)

        return entry

    async def _core(
        self, agent: ReplyingAgent, inputs: ReplyInput, structured_schema: object
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        run = agent.live_conversation.run
        run.progress.passthrough = mailbox = Mailbox()
        # A method without a parameter for the schema works as long as no schema is given.
        arguments = (inputs,) if structured_schema is None else (inputs, structured_schema)
        values = self.values(agent, arguments, {})
        if run.deps is not None:
            values = self.with_deps(values, run.deps)
        final: object = None
        async with BackgroundTask(
            run, mailbox, partial(run.interruption.run_interruptible, partial(self, agent, values))
        ) as task:
            async for item in task:
                yield item
            with suppress(Interrupted):  # what an interrupted reply answers is found below
                final = await task.outcome()
        if final is None and run.interruption.reason is not None:
            if not run.ended:  # the loop may have ended by itself before
                for event in drain_and_close(agent, run):
                    yield event
                yield await end_reply(agent, run, end_event(agent, run, run.interruption.reason))
            final = await message_when_interrupted(agent, inputs, run.interruption.message)
        if not isinstance(final, Msg):
            raise ChainContractError(f"{self.title} must return a Msg, not {final!r:.200}")
        if final.structured_output is not None:  # an instance, from the loop
            final = mend_answer(final, None if structured_schema is None else form_of(run, structured_schema))
        yield final


async def reply_by_loop(agent: ReplyingAgent, inputs: ReplyInput, structured_schema: object, deps: object) -> Msg:
    """Reply by the runtime's own loop, inside an overridden `reply`; the loop's events go where that reply's go."""
    run = agent.live_conversation.reply
    if run is None or run.progress.passthrough is None:
        raise UsageError(f"super().reply() of {agent.name!r} was called outside of its own reply(): call agent.reply()")
    if run.ended or run.progress.is_parked:
        raise UsageError(
            f"super().reply() of {agent.name!r} was called again in one reply, after it had come to its end: to have "
            f"another round, call self.run.continue_with(hint) before that"
        )
    if deps is not None:
        run.deps = deps
    final: Msg | None = None
    # Made here, so that the loop's tool and the message below have one form, which knows the instance.
    form = None if structured_schema is None else form_of(run, structured_schema)
    run.interruption.bind_reader()  # this task, which is another one than that of the stream's reader
    stream = _read_reply(agent, inputs, form)
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
            run.interruption.rearm()  # the rest of the method runs outside of the loop, and can be interrupted too
    assert final is not None  # the loop ends with the message, or raises
    return with_instance(final, form)
