"""One entry of a call into a sub-agent: starts or resumes its conversation, relays its events, reads its outcome.

What the sub-agent asks leaves as the `waits` of the call's result (`_wait`), and the answers come in as
`ToolContext.answers` when the call is entered again (`_next_answer`). Between the two nothing is in memory: the
sub-agent's conversation is in `ToolContext.kept`, and so in the supervisor's state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Protocol

import anyio

from agentrt._runtime.block import JSONObject, ToolCallBlock, ToolResultBlock, ToolResultState, new_name
from agentrt._runtime.conversation.open_calls import asked_calls
from agentrt._runtime.flow.handles import holds, label_shown, mark_as_shown
from agentrt._runtime.flow.release import hold_answer, move_to, replace_in_json, replace_in_message, replace_words
from agentrt._runtime.representation import never_raises
from agentrt.agent.base import AgentBase
from agentrt.agent.delegation.inherit import Child
from agentrt.agent.delegation.isolation import (
    StoreInCall,
    config_of_delegate,
    config_of_root,
    count_delegation,
    renew_permissions,
    session_id_of,
)
from agentrt.agent.delegation.outcome import FAILED, Outcomes
from agentrt.errors import ResumeError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    SubagentEndEvent,
    SubagentStartEvent,
    UserConfirmResultEvent,
)
from agentrt.message import Msg
from agentrt.state import AgentState, CallDecision
from agentrt.tool import ToolContext
from agentrt.types import OpenQuestion, ToolResponse
from agentrt.workspace import FileSystemBase

_SETTINGS = ("system_prompt", "model", "react_config", "context_config", "when_busy", "workspace")
# They are asked again under the supervisor's reply, which is the one that can be answered.
_ASKED_ABOVE = (RequireUserConfirmEvent, RequireExternalExecutionEvent)


class Delegate(Child, Protocol):
    """The part of a called agent that a tool uses."""

    description: str
    state: AgentState

    def with_state(self, state: AgentState) -> Any: ...


class DelegatingTool(Protocol):
    """The part of its tool that a delegation uses."""

    name: str
    agent: Delegate
    template: Delegate
    output: Any
    stream: bool
    seconds: float | None
    workspace: FileSystemBase | None

    def inputs_of(self, context: ToolContext, task: Any, arguments: JSONObject) -> list[str | Msg]: ...


class DelegatedCall:
    """A call that another agent answers, in the reply of its `supervisor`, the agent that asked.

    The other agent, of this name, may be one that writes its own reply. `outcomes` makes the results of the call.
    """

    def __init__(self, context: ToolContext, name: str) -> None:
        self.call_id = context.tool_call.id
        # A tool may be called outside of any agent.
        self.supervisor: AgentBase | None = context.agent if isinstance(context.agent, AgentBase) else None
        self.outcomes = Outcomes(name, None if self.supervisor is None else self.supervisor.name)
        self._context = context

    @property
    def name(self) -> str:
        return self.outcomes.name

    def count(self) -> ToolResponse | None:
        """Count this call in the root's reply; returns its result if a limit of that reply is reached."""
        reached = count_delegation(self._context)
        # A result and not an error: the agent that delegated can still answer by itself.
        return None if reached is None else self.outcomes.denial(*reached)

    @contextmanager
    def announced(
        self, child_reply_id: str, child_session_id: str, resumed: bool = False
    ) -> Iterator[SubagentEndEvent]:
        """Emit the event of the start, and at the end that of the end, which is to be given its state and usage."""
        identity = (self.call_id, self.name, child_reply_id, child_session_id, resumed)
        if self._is_seen:
            self._context.emit(SubagentStartEvent("", *identity))
        end = SubagentEndEvent("", *identity, ToolResultState.ERROR)
        try:
            yield end
        except anyio.get_cancelled_exc_class():
            end.state = ToolResultState.TIMEOUT if self.outcomes.is_late else ToolResultState.INTERRUPTED
            raise
        finally:
            self._emit(end)

    def _emit(self, event: AgentEvent) -> None:
        """Emit into the supervisor's reply, unless that has ended; one that nobody reads still counts the usage."""
        run = self._context.run
        if run is None or not run.ended:
            self._context.emit(event)

    @property
    def _is_seen(self) -> bool:
        """Whether the events of the supervisor's reply have a reader; a tool that is called by itself keeps them."""
        return self._context.run is None or self._context.run.is_seen


class Delegation(DelegatedCall):
    """One call of an agent that is a tool; `child` is its conversation."""

    def __init__(self, tool: DelegatingTool, context: ToolContext) -> None:
        super().__init__(context, tool.agent.name)
        self.tool = tool
        self.child: Any = None
        self._store = StoreInCall(context)
        self._is_interrupted = False
        state = getattr(self.supervisor, "state", None)
        # Of a supervisor without a loop, no handle is known.
        self._state_above: AgentState | None = state if isinstance(state, AgentState) else None

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the call {self.call_id!r} of {self.tool.name!r}>"

    @property
    def was_entered(self) -> bool:
        """Whether this call was entered before."""
        return self._store.was_begun

    def start_over_after_failure(self) -> None:
        """Start over, if this call has already failed in this reply: a layer retries it.

        In a process that resumes the reply a call is entered again, and not made again: there, its failure stands.
        """
        if self._failures.pop(self.call_id, False):
            self._store.start_over()

    @property
    def _failures(self) -> dict[str, bool]:
        """The calls of the reply that have failed, for as long as it is in progress."""
        run = self._context.run
        return {} if run is None else run.scratch(self.tool)

    def interrupt(self, reason: str | None = None) -> None:
        """End this call alone: its sub-agent stops, and the result says that it was interrupted.

        Callable from any task or thread.
        """
        self._is_interrupted = True
        if self.child is not None:
            self.child.interrupt(reason)

    async def run(self, task: Any, arguments: JSONObject) -> ToolResponse:
        """Enter the sub-agent, and return the result of the call, or what it waits for."""
        work = self._enter(task, arguments)
        response = await self.outcomes.result_of(work, self.tool.seconds, self._is_of_supervisor)
        if response.state in FAILED:
            self._failures[self.call_id] = True
        return response

    def _is_of_supervisor(self, error: BaseException) -> bool:
        """Say whether the supervisor's state cannot be saved, or a limit of its reply, or of one above it, is used up.

        An error of a limit names that reply in its `reply_id`.
        """
        if error is self._store.failure:
            return True
        reply_id = getattr(error, "reply_id", None)
        run = self._context.run
        while reply_id is not None and run is not None:
            if run.id == reply_id:
                return True
            run = run.parent
        return False

    async def _enter(self, task: Any, arguments: JSONObject) -> ToolResponse:
        resumed = self.was_entered
        if self._store.is_lost:
            response = self.outcomes.failure("unknown", "StateLost")
            response.state = ToolResultState.UNKNOWN
            return response
        state = await self._store.load("") or AgentState(session_id=session_id_of(self._context))
        child = self.child = self._isolate(state)
        reply = state.reply_context
        if reply is not None:
            reply_id = reply.reply_id
        else:
            run = self._context.run
            new_id = new_name() if run is None else run.begin_child(self.call_id, state)
            reply_id = new_id if state.last_reply is None else state.last_reply.reply_id
        with self.announced(reply_id, state.session_id, resumed) as end:
            self._store.begin(state, is_saved=child.state_store is not None)
            try:
                response = await self._converse(child, reply_id, task, arguments)
                end.state = response.state
            finally:
                context = child.state.reply_context
                messages = child.state.context if context is None else [context.message]
                end.usage = messages[-1].usage if messages else None
        return response

    def _isolate(self, state: AgentState) -> Any:
        """Return the agent over the conversation of this call, with what it gets from its supervisor."""
        template, supervisor = self.tool.agent, self.supervisor
        renew_permissions(
            state.permission_context,
            self.tool.template.state.permission_context,
            None if supervisor is None else supervisor.state.permission_context,
            "" if supervisor is None else supervisor.name,
        )
        child = template.with_state(state)
        for name in _SETTINGS:  # which may be assigned to the agent that the tool was made of, at any time
            setattr(child, name, getattr(self.tool.template, name))
        child.live_conversation.audience = child.live_conversation.audience.silenced()
        if self._state_above is not None:
            child.live_conversation.replacement = move_to(self._state_above)
        # Never one of its own: after a crash, two stores would tell of two moments. Only an `Agent` has one.
        child.state_store = self._store if getattr(supervisor, "state_store", None) is not None else None
        child.react_config = config_of_delegate(child.react_config, config_of_root(self._context))
        files = self._context.workspace
        if self.tool.workspace is not None:
            child.workspace = self.tool.workspace
        elif files is not None:
            child.workspace = files.namespace(f"subagents/{self.tool.name}")
        return child

    async def _converse(self, child: Any, reply_id: str, task: Any, arguments: JSONObject) -> ToolResponse:
        state: AgentState = child.state
        final: Msg | None = None
        if self._is_interrupted:
            return self.outcomes.unfinished_reply("interrupted", None)
        if state.reply_context is None:
            # The one that has ended is repeated, where only its result was lost.
            inputs = self._inputs(state, task, arguments) if state.last_reply is None else None
            final = await self._drain(child, inputs, reply_id)
        elif not state.reply_context.parked:
            final = await self._drain(child, None)
        while (answer := self._next_answer(state)) is not None:
            try:
                final = await self._drain(child, answer)
            except ResumeError:
                if state.reply_context is None or not state.reply_context.parked:
                    raise
                # The supervisor does not know the sub-agent's tools, such as how much one may return. Nothing of the
                # answer was taken, so the same is asked again.
                break
        if state.reply_context is not None:
            return self._wait(state)
        reason = "completed" if state.last_reply is None else state.last_reply.finished_reason
        if reason == "error" and state.last_reply is not None:  # it was over before this entry
            type_name = (state.last_reply.error or "error").partition(":")[0]  # its words may follow
            return self.outcomes.failure("error", type_name)
        if reason != "completed" or final is None:
            response = self.outcomes.unfinished_reply(reason, final)
        else:
            response = self.outcomes.answer(final, self.tool.output is not None)
        label = label_shown(state)
        if label is not None and self._state_above is not None:  # its words may be those of what it was shown
            response.content = [*hold_answer(self._state_above, response.content, label)]
        return response

    def _inputs(self, state: AgentState, task: Any, arguments: JSONObject) -> list[str | Msg]:
        """Return the messages of the task, with the sub-agent's own handles in the place of its supervisor's."""
        inputs = self.tool.inputs_of(self._context, task, arguments)
        above = self._state_above
        if above is None or not holds(above):
            return inputs
        # A model that was shown held text may have written the task by it.
        label = label_shown(above)
        if label is not None:
            mark_as_shown(state, label)
        # A prompt function of the user's may have put them anywhere.
        own = move_to(state)
        return [
            replace_in_message(above, message, own) if isinstance(message, Msg) else replace_words(above, message, own)
            for message in inputs
        ]

    async def _drain(self, child: Any, inputs: Any, reply_id: str | None = None) -> Msg | None:
        """Take the sub-agent's reply to its end, or to its next question; returns its message."""
        options = {"structured_schema": self.tool.output, "reply_id": reply_id, "deps": self._context.deps}
        # Where nobody reads, the sub-agent makes no events either, which is half the price of a short reply.
        if not (self.tool.stream and self._is_seen):
            return await child.reply(inputs, **options)  # type: ignore[no-any-return]  # of a subclass of Agent
        final: Msg | None = None
        stream = child.reply_stream(inputs, yield_final_msg=True, **options)
        try:
            async with stream as items:
                async for item in items:
                    if isinstance(item, Msg):
                        final = item
                    elif not isinstance(item, _ASKED_ABOVE):
                        await self._context.relay(item)
        finally:
            for event in stream.closing_events:
                self._emit(event)
        return final

    def _next_answer(self, state: AgentState) -> UserConfirmResultEvent | ExternalExecutionResultEvent | None:
        """Return the answers that came for what the sub-agent asks, those of the user first."""
        reply = state.reply_context
        if reply is None or not reply.parked:
            return None
        new = {call_id: answer for call_id, answer in self._context.answers.items() if call_id not in self._store.used}
        due = [call.id for call, _, _ in asked_calls(reply) if call.id in new]
        confirmed = {call_id: answer for call_id in due if isinstance(answer := new[call_id], ConfirmResult)}
        if confirmed:
            self._store.used |= confirmed.keys()
            return UserConfirmResultEvent(reply.reply_id, [*map(copy, confirmed.values())])
        results = {call_id: answer for call_id in due if isinstance(answer := new[call_id], ToolResultBlock)}
        self._store.used |= results.keys()
        return ExternalExecutionResultEvent(reply.reply_id, [*map(copy, results.values())]) if results else None

    def _input_asked(self, state: AgentState, text: str, decision: CallDecision) -> str:
        """Return the input of a call that is asked about: a program outside gets what the supervisor can release.

        The user is asked about it as it was written, since the answer repeats it.
        """
        above = self._state_above
        if decision.waits_for != "external" or above is None:
            return text
        return replace_in_json(state, text, move_to(above))

    def _wait(self, state: AgentState) -> ToolResponse:
        """Keep the conversation as it is, and return what the sub-agent asks, which is now asked by this call."""
        assert state.reply_context is not None
        # What is asked once more under an id that was answered needs another answer.
        self._store.used -= {call.id for call, _, _ in asked_calls(state.reply_context)}
        self._store.keep(state)
        questions = [
            OpenQuestion(
                ToolCallBlock(call.id, call.name, self._input_asked(state, call.input, decision)),
                "external" if decision.waits_for == "external" else "user",
                decision.message,
                list(decision.suggested_rules),
                [self.name, *inside],
            )
            for call, decision, inside in asked_calls(state.reply_context)
        ]
        return ToolResponse(state=ToolResultState.RUNNING, waits=questions)
