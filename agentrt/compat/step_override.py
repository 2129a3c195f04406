"""A `_reasoning` or `_acting` that a subclass of `ReActAgent` writes: the innermost layer of its hook.

It runs in a task beside the reader's, since the events of `await super()._reasoning(...)`, the runtime's own step,
reach the reader while the method waits.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from agentrt._runtime.chain.spec import HookSpec
from agentrt._runtime.concurrency.background_task import BackgroundTask
from agentrt._runtime.concurrency.coroutine_reader import as_stream
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.loop.reasoning import forget_attempt, reason
from agentrt._runtime.loop.tool_calls.acting import act
from agentrt.agent.overrides.overridden_method import HookMethod, OverriddenMethod
from agentrt.errors import ChainContractError, ConfigError, UsageError
from agentrt.event import AgentEvent
from agentrt.message import Msg, ToolCallBlock, new_reply_message
from agentrt.types import ToolChoice, ToolResponse

AS_GIVEN: Any = object()
"""The default that stands for the value which the step was entered with."""


@dataclass(slots=True, eq=False)
class _Step:
    """One step in progress, whose events go to the reader through the mailbox.

    `result` is what the runtime's own step resulted in, `result_copy` a copy that the method cannot change, and
    `message` the one that the runtime's step ended with, if it did.
    """

    agent: ReplyingAgent
    name: str
    value: object
    mailbox: Mailbox
    result: Msg | ToolResponse | None = None
    result_copy: Msg | None = None
    message: Msg | None = None


_read_reason, _read_act = as_stream(reason), as_stream(act)
_step: ContextVar[_Step | None] = ContextVar("agentrt_step_in_progress", default=None)


class OverriddenLoopStep(OverriddenMethod):
    """A `_reasoning` or `_acting` of a class that derives from `ReActAgent`.

    Raises `ConfigError` for a method that cannot be called as the runtime does it.
    """

    def __init__(self, cls: type, name: str, function: Callable[..., object], overridden: HookMethod) -> None:
        super().__init__(cls, name, function, overridden)
        self.entry = function  # the runtime calls it through the chain, and nobody else calls it
        self._accepts_value = self._accepts(None)
        if not self._accepts_value and (name == "_acting" or not self._accepts()):
            parameter = "tool_choice=None" if name == "_reasoning" else "tool_call"
            raise ConfigError(f"{self.title} takes {self.signature}: write `async def {name}(self, {parameter})`")

    def adapt(self, spec: HookSpec) -> HookSpec:
        """Return the line of the hook table as it is, for this step is given what the runtime's own is."""
        return spec

    async def _core(self, agent: ReplyingAgent, **values: object) -> AsyncGenerator[object, None]:
        (value,) = values.values()  # the tool choice, or the call
        step = _Step(agent, self.name, value, Mailbox())
        arguments = self.values(agent, (value,) if self._accepts_value else (), {})
        async with BackgroundTask(
            agent.live_conversation.run, step.mailbox, partial(self._run, step, arguments)
        ) as task:
            async for item in task:
                yield item
            result = await task.outcome()
        finish = self._end_round if self.name == "_reasoning" else self._end_call
        for item in finish(step, result):
            yield item

    def _end_round(self, step: _Step, result: object) -> Sequence[AgentEvent | Msg]:
        """Return what ends the round: nothing, unless the method's answer differs from the model's."""
        answer = step.result if result is None else result
        if not isinstance(answer, Msg):
            raise ChainContractError(
                f"{self.title} must return a Msg, as super()._reasoning() does, not {answer!r:.200}"
            )
        if step.result is None:  # the model was not asked, so nothing has been sent
            return [answer]
        if answer == step.result_copy:  # its events have been sent, and say the same
            return [] if step.message is None else [step.message]
        run = step.agent.live_conversation.run
        return [*forget_attempt(run), answer]

    def _end_call(self, step: _Step, result: object) -> Sequence[ToolResponse]:
        """Return the result of the call; a `Msg` in its place ends the reply with that message."""
        response = step.result if result is None else result
        if isinstance(response, Msg):
            result = step.result or ToolResponse()
            response = replace(result, metadata={**result.metadata, "response_msg": response})
        if not isinstance(response, ToolResponse):
            raise ChainContractError(
                f"{self.title} must return a ToolResponse, as super()._acting() does, not {response!r:.200}"
            )
        return [response]

    async def _run(self, step: _Step, arguments: dict[str, object]) -> object:
        _step.set(step)  # for this task, and those that it starts
        return await self(step.agent, arguments)

    def _accepts(self, *values: object) -> bool:
        try:
            self.signature.bind(None, *values)
        except TypeError:
            return False
        return True


def _step_in_progress(agent: ReplyingAgent, name: str) -> _Step:
    step = _step.get()
    if step is None or step.agent is not agent or step.name != name:
        raise UsageError(
            f"super().{name}() of {agent.name!r} was called outside of its own {name}(), which the runtime calls: "
            f"call agent.reply()"
        )
    return step


async def reason_by_loop(agent: ReplyingAgent, tool_choice: ToolChoice | str | None) -> Msg:
    """Ask the model, inside an overridden `_reasoning`; returns its answer, whose events are on their way."""
    step = _step_in_progress(agent, "_reasoning")
    choice = cast("ToolChoice | None", step.value) if tool_choice is AS_GIVEN else tool_choice
    answer = new_reply_message(agent.name, agent.live_conversation.run.id)
    stream = _read_reason(agent, ToolChoice(choice) if isinstance(choice, str) else choice)
    try:
        async for item in stream:
            if isinstance(item, Msg):
                step.message = answer = item
            else:
                answer.append_event(item)
                await step.mailbox.put(item)
    finally:
        await stream.aclose()
    step.result, step.result_copy = answer, answer.copy()
    return answer


async def act_by_loop(agent: ReplyingAgent, tool_call: ToolCallBlock) -> ToolResponse:
    """Run the call, inside an overridden `_acting`; returns its result, whose pieces are on their way."""
    step = _step_in_progress(agent, "_acting")
    response = ToolResponse()
    stream = _read_act(agent, tool_call)
    try:
        async for item in stream:
            if isinstance(item, ToolResponse):
                response = item
            else:
                await step.mailbox.put(item)
    finally:
        await stream.aclose()
    step.result = response
    return response
