"""The layer that answers models and tools from a record."""

import builtins
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
from pydantic_core import from_json

from agentrt import errors
from agentrt._runtime.block import new_name
from agentrt._runtime.flow.handles import take_tag
from agentrt._runtime.loop.tool_calls.acting import caller_of
from agentrt.agent import Agent, AgentTool
from agentrt.errors import ModelError
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
)
from agentrt.hooks import (
    ActingValues,
    CheckPermissionValues,
    LayerRecord,
    MiddlewareBase,
    ModelCallValues,
    NextActing,
    NextCheckPermission,
    NextModelCall,
)
from agentrt.message import TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.model import ChatModelBase, ModelResult
from agentrt.model.scripted import stream_response
from agentrt.runs.fork import ForkedEffects, call_key
from agentrt.runs.inner_calls import RecordedInnerCall
from agentrt.runs.parts import ModelRequest
from agentrt.runs.replay.differences import request_differences
from agentrt.runs.replay.record import answered_requests, feedback_on, recorded_calls, result_at, runs_below
from agentrt.runs.run import After, Run
from agentrt.state import AgentState
from agentrt.types import STRUCTURED_OUTPUT, OpenQuestion, PermissionDecision, ToolChunk, ToolResponse

_SUCCESS = ToolResultState.SUCCESS
_KEPT_BY_NO_CACHE: dict[str, Any] = {"no_store": True}
"""The metadata of recorded answers and results: other conversations must not get them, nor those of another prompt."""


class RecordedAnswers(MiddlewareBase):
    """Answers models and tools from a record, as the innermost layer of an agent and its sub-agents.

    `is_left` says that the replay ended before its agent did, and `is_at_end` that it reached the end of the record.
    """

    inherited = True
    position = "innermost"

    def __init__(self, run: Run, after: After) -> None:
        self.conversation: Agent | None = None
        self.is_left = self.is_at_end = False
        self._run = run
        self._after = after
        self._has_diverged = False
        self._by_session: dict[str, deque[_RecordedReply]] = defaultdict(deque)
        for one in runs_below(run):
            self._by_session[one.session_id].append(_RecordedReply(one))
        self._guard = ForkedEffects()

    def describe(self, agent: Any) -> Sequence[str]:
        return ("a replay: models and tools are answered from a record",)

    def on_layer(self, agent: Any, record: LayerRecord) -> None:
        # Set before the first layer of a reply can ask for the time.
        reply = agent.live_conversation.reply
        if reply is not None and "now" not in vars(reply):
            recorded = self._reply_of(agent)
            if recorded is not None:
                reply.now, reply.begin_child = recorded.now, recorded.begin_child
        if reply is not None:
            reply.is_replay = self._after != "ask"  # which may call the model

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        recorded = self._reply_of(agent)
        is_known = recorded is not None and recorded.result_of(input_kwargs["tool_call"]) is not None
        if is_known or not self._has_diverged or self._after != "ask":
            return await next_handler()
        return await self._guard.on_check_permission(agent, input_kwargs, next_handler)

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        recorded = self._reply_of(agent)
        request = None if recorded is None else recorded.next_request(agent.run.purpose)
        if request is None or any(request_differences(request, input_kwargs)):
            self._has_diverged = True
        if self._has_diverged and self._after == "ask":
            return await next_handler()
        has_answer = request is not None and (request.answer is not None or request.error is not None)
        # As the model, so that the request is recorded like any other.
        is_over = not has_answer or (self._has_diverged and self._after == "stop")
        model = _RecordedModel(input_kwargs["current_model"], request, self._leave if is_over else None)
        return await next_handler(current_model=model)

    async def on_acting(
        self, agent: Agent, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call, recorded = input_kwargs["tool_call"], self._reply_of(agent)
        found = None if recorded is None else recorded.result_of(call)
        tool = agent.run.tool_of(call)
        # A sub-agent runs with its own recorded answers, and structured output is accepted.
        is_internal = isinstance(tool, AgentTool) or call.name == STRUCTURED_OUTPUT
        self._has_diverged |= recorded is None or not recorded.is_known(call)
        if self._has_diverged and self._after == "stop":
            await self._leave()
        if is_internal or (found is None and self._after == "ask"):
            async for item in next_handler():
                yield item
            return
        waits = await self._make_inner_calls(agent, call, recorded)
        if waits:
            yield ToolResponse(waits=waits)
            return
        if found is not None and found.state is ToolResultState.RUNNING:
            await self._leave()  # the record ends inside of it
        if tool is not None and tool.changes_conversation and found is not None and found.state is _SUCCESS:
            async for _ in next_handler():  # for what it does; its result is that of the record
                pass
        if found is None:
            yield ToolResponse([TextBlock("This call is not in the record.")], ToolResultState.ERROR)
        else:
            yield replace(found, metadata={**found.metadata, **_KEPT_BY_NO_CACHE})

    async def _make_inner_calls(
        self, agent: Agent, call: ToolCallBlock, recorded: "_RecordedReply | None"
    ) -> list[OpenQuestion]:
        """Make the calls that the tool has made, so that layers see them; returns the questions of those that ask."""
        calls = [] if recorded is None else recorded.inner_calls(call.id)
        caller = caller_of(agent, call) if calls else None
        if caller is None:
            return []
        waits: list[OpenQuestion] = []
        asked_at = 0
        try:
            for inner in calls:
                # The tool made the later ones when it had the answers.
                if waits and inner.questions_before > asked_at:
                    break
                call_id = inner.call.id.rpartition("/")[2]
                response = await caller.call(inner.call.name, from_json(inner.call.input), call_id)
                if response.waits:
                    waits += response.waits
                    asked_at = inner.questions_before
        finally:
            await caller.close()
        if caller.failure is not None:
            raise caller.failure
        return waits

    def answer_to(
        self, question: RequireUserConfirmEvent | RequireExternalExecutionEvent
    ) -> UserConfirmResultEvent | ExternalExecutionResultEvent | None:
        """Return the recorded answer, derived from the results; `None` if the record still waits."""
        found = [(call, result_at(self._run, call.id)) for call in question.tool_calls]
        known = [(call, *result) for call, result in found if result is not None]
        if len(known) < len(found):
            self.is_left, self.is_at_end = True, not self._has_diverged
            return None
        if isinstance(question, RequireExternalExecutionEvent):
            return ExternalExecutionResultEvent(
                question.reply_id,
                [
                    ToolResultBlock(call.id, call.name, [*result.content], result.state, result.metadata)
                    for call, _, result in known
                ],
            )
        return UserConfirmResultEvent(
            question.reply_id,
            [
                # The user may have edited the arguments.
                ConfirmResult(
                    result.state is not ToolResultState.DENIED,
                    replace(call, input=written.input),
                    feedback=feedback_on(self._run, call.id),
                )
                for call, written, result in known
            ],
        )

    def _reply_of(self, agent: Any) -> "_RecordedReply | None":
        notes = agent.run.scratch(self)
        if "record" not in notes:
            # The session id of a sub-agent contains the call id; each reply in it gets the next recorded one.
            recorded = self._by_session.get(agent.state.session_id, deque())
            if recorded and recorded[0].reply_id not in (None, agent.run.id):
                recorded.popleft()
            if recorded:
                recorded[0].reply_id = agent.run.id
            notes["record"] = recorded[0] if recorded else None
        found: _RecordedReply | None = notes["record"]
        return found

    async def _leave(self) -> None:
        """End the outermost reply here, even if layers around this one catch errors."""
        assert self.conversation is not None
        self.is_left, self.is_at_end = True, not self._has_diverged
        _ = self.conversation.interrupt()
        await anyio.sleep_forever()


class _RecordedReply:
    """The answers and results of one recorded run."""

    def __init__(self, run: Run) -> None:
        self.reply_id: str | None = None
        self._requests: dict[str | None, deque[ModelRequest]] = defaultdict(deque)
        requests = answered_requests(run)
        for _, request in requests:
            self._requests[request.purpose].append(request)
        # The time of the line before each request.
        times: dict[int, int] = {line["n"]: line["t"] for line in run.lines}
        self._times = [times.get(line["n"] - 1, run.begun_at) for line, _ in requests] or [run.begun_at]
        self._count = 0
        self._calls = recorded_calls(run)
        self._inner_calls: dict[str, list[RecordedInnerCall]] = defaultdict(list)
        for inner in run.inner_calls:
            self._inner_calls[inner.outer_id].append(inner)
        self._children: dict[str | None, deque[Run]] = defaultdict(deque)
        for child in run.children:
            self._children[None if child.parent is None else child.parent[2]].append(child)

    def now(self) -> int:
        """Return the time of the record before its next request."""
        return self._times[min(self._count, len(self._times) - 1)]

    def begin_child(self, call_id: str, state: AgentState) -> str:
        """Return the id of the recorded reply of this call's sub-agent, or a new one; its handles are the recorded."""
        recorded = self._children[call_id]
        if not recorded:
            return new_name()
        child = recorded.popleft()
        take_tag(state, (child.state_at(step.number) for step in child.steps))
        return child.reply_id

    def inner_calls(self, call_id: str) -> list[RecordedInnerCall]:
        """Return the calls that the tool of this call made."""
        return self._inner_calls.get(call_id, [])

    def next_request(self, purpose: str | None) -> ModelRequest | None:
        """Return the next request for this purpose, `None` if there are no more."""
        self._count += 1
        requests = self._requests[purpose]
        return requests.popleft() if requests else None

    def result_of(self, call: ToolCallBlock) -> ToolResponse | None:
        """Return the result of the same call with the same arguments."""
        return self._calls[call.id].response if self.is_known(call) else None

    def is_known(self, call: ToolCallBlock) -> bool:
        """Say whether the record has this call with these arguments."""
        found = self._calls.get(call.id)
        return found is not None and call_key(call) == call_key(found.reached)


class _RecordedModel(ChatModelBase):
    """A model that gives a recorded answer, or ends the replay."""

    def __init__(
        self, model: ChatModelBase, request: ModelRequest | None, leave: Callable[[], Awaitable[None]] | None
    ) -> None:
        super().__init__(
            model=model.model, stream=model.stream, context_size=model.context_size, capabilities=model.capabilities
        )
        self._request = request
        self._leave = leave

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> ModelResult:
        request = self._request
        if self._leave is not None or request is None:
            assert self._leave is not None
            await self._leave()
            raise ModelError("not reached: the reply was left")
        if request.error is not None:
            raise _error_named(request.error)
        assert request.answer is not None
        # Marked as replayed, so that no layer counts these tokens again.
        usage = None if request.usage is None else replace(request.usage, replayed=True)
        content = [replace(block) for block in request.answer.content]
        answer = replace(request.answer, usage=usage, content=content, metadata={**_KEPT_BY_NO_CACHE})
        return stream_response(answer) if self.stream and answer.is_last else answer


def _error_named(name: str) -> Exception:
    """Return an error of the type with this name: of a model, or one of Python, such as `ConnectionError`."""
    kind = getattr(errors, name, getattr(builtins, name, None))
    if not isinstance(kind, type) or not issubclass(kind, ModelError | OSError):
        return ModelError("recorded")
    error: ModelError | OSError = kind("recorded")
    if isinstance(error, ModelError):
        error.retry_after = 0.0
    return error
