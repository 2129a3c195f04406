"""Calls that a tool makes, by `ToolContext.call`: each goes the way of a model's call, and joins the journal.

The journal is `ReplyContext.inner`. A tool that is entered again makes its calls again, and the journal answers those
that were made before: each runs once, whatever ends the process.

decide   in the order in which they come, one at a time
start    `begun` is saved first, where a second run could do harm
run      `complete_call` in `acting.py`, as for any call
finish   the result is in the journal before its events leave, and saved before its end leaves

A call that has to wait gives the tool its questions, which the tool returns; see `inner_calls.py`.
"""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import anyio
from pydantic_core import from_json, to_json

from agentrt._runtime.boundary import json_problem
from agentrt._runtime.concurrency.event_loop import run_shielded
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.open_calls import calls_of_round, entries_inside, questions_inside
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.block_events import events_of
from agentrt._runtime.loop.tool_calls.approval import Prepared, prepare_call
from agentrt._runtime.loop.tool_calls.side_by_side import SideBySide
from agentrt._runtime.loop.tool_calls.tool_results import TakenResult, Tell, TellResult, events_of_result
from agentrt._runtime.text import repr_of
from agentrt.errors import UsageError
from agentrt.event import AgentEvent, ToolResultStartEvent
from agentrt.message import ToolCallBlock, ToolCallState, ToolResultBlock, ToolResultState, copy_block
from agentrt.state import CallDecision, InnerCall, ReplyContext
from agentrt.tool import ToolBase, Toolkit, ToolTable
from agentrt.tool.call import PreparedCall, respond
from agentrt.tool.context import CallMemory, ToolContext
from agentrt.tool.table import ToolEntry
from agentrt.tool.to_response import failure
from agentrt.types import (
    STRUCTURED_OUTPUT,
    JSONObject,
    OpenQuestion,
    PermissionBehavior,
    ToolChunk,
    ToolOutput,
    ToolResponse,
)

_logger = logging.getLogger("agentrt")
_Complete = Callable[
    [ReplyingAgent, ReplyRun, ReplyContext, ToolCallBlock, Prepared, Tell, TellResult], Awaitable[None]
]
_SECONDS_TO_LEAVE = 10.0
# Bytes of JSON. All of it is saved each time, as what a call keeps.
_MAX_JOURNAL = 16_000_000
_DENIED = CallDecision(PermissionBehavior.DENY)


class InnerCaller:
    """Makes the calls of one entry of a tool call; made at the first of them."""

    def __init__(self, agent: ReplyingAgent, prepared: PreparedCall, complete: _Complete) -> None:
        context = agent.state.reply_context
        assert context is not None  # the call runs in it
        self._agent, self._run, self._context = agent, agent.live_conversation.run, context
        self._outer, self._tool = prepared.tool_call, prepared.tool
        self._complete = complete
        self._deciding = anyio.Lock()
        self._in_progress: dict[str, anyio.CancelScope] = {}
        self._all_left: anyio.Event | None = None
        self._size = sum(map(_journaled_size, entries_inside(context, self._outer.id).values()))
        self._has_tools = self._is_over = False
        self.failure: Exception | None = None
        if self._tool.is_hidden:
            raise UsageError(f"the hidden tool {self._tool.name!r} cannot make calls: no listener would see them")
        if self._run.side_by_side is None:
            self._run.side_by_side = SideBySide(self._run.calls_in_progress())
        self._run.side_by_side.leave(self._outer.id)

    async def call(self, name: str, arguments: JSONObject | None, call_id: str) -> ToolResponse:
        """Make the call, or return what the journal has of it; see `ToolContext.call`."""
        call = ToolCallBlock(f"{self._outer.id}/{call_id}", name, _arguments_as_json(name, arguments))
        known = self._look_up(call)
        if known is not None and known.result is not None:
            return _response_of(known.result)
        with anyio.CancelScope() as scope:
            self._in_progress[call.id] = scope
            try:
                return await self._make(call, known)
            except Exception as error:
                # Of a layer, a store, or a tool that raises: it leaves the reply, whatever the tool makes of it.
                self.failure = self.failure or error
                raise
            finally:
                del self._in_progress[call.id]
                if self._all_left is not None and not self._in_progress:
                    self._all_left.set()
        raise self._over()

    async def close(self) -> None:
        """Stop the calls that are still in progress: a tool that has ended gets no more results."""
        self._is_over = True
        if self._in_progress:
            self._all_left = anyio.Event()
            for scope in self._in_progress.values():
                scope.cancel()
            await run_shielded(_SECONDS_TO_LEAVE, self._all_left.wait)

    async def finish(self, response: ToolResponse) -> None:
        """Close with the result of the tool; raises what is to leave the reply."""
        await self.close()
        if self.failure is not None:
            raise self.failure
        if response.waits or response.state is not ToolResultState.SUCCESS:
            return
        for path, inner in questions_inside(self._context, self._outer.id).items():
            _logger.warning(
                "%s has a result, but its call %r of %s waited for an answer, and so was not run: a tool is to return "
                "what ToolContext.call() returned where that has waits",
                self._outer.name,
                path,
                inner.question.tool_call.name,
            )

    def _over(self) -> UsageError:
        return UsageError(
            f"the call {self._outer.id!r} of {self._outer.name!r} is over, so it makes no more calls: await each "
            f"ToolContext.call() before the tool returns"
        )

    def _look_up(self, call: ToolCallBlock) -> InnerCall | None:
        """Return what the journal has of the call; raises `UsageError` for one that cannot be made."""
        if self.failure is not None:
            raise self.failure
        if self._is_over or self._run.ended:
            raise self._over()
        if call.id in self._in_progress:
            raise UsageError(
                f"{self._outer.name} makes two calls under the id {call.id!r}: give each its own, "
                f"call(..., id=...), or leave the ids out"
            )
        known = self._context.inner.get(call.id)
        if known is None:
            return None
        before = known.question.tool_call
        if not known.is_call:
            raise UsageError(f"{self._outer.name} has asked a question under the id {call.id!r}: give the call another")
        if (before.name, before.input) != (call.name, call.input):
            raise UsageError(
                f"{self._outer.name} was entered again and made another call under the id {call.id!r}: "
                f"{before.name}({before.input:.200}) before, and now {call.name}({call.input:.200}). It was not run. "
                f"A tool that resumes must make the same calls again: what may differ belongs in ToolContext.kept"
            )
        return known

    async def _make(self, call: ToolCallBlock, known: InnerCall | None) -> ToolResponse:
        context = self._context
        if known is not None:
            call.state = known.question.tool_call.state  # running once the start of its result was told
            # An answer inside of it has woken it, though others may still be open.
            if known.decision.waits_for is not None:
                waits = self._questions_of(call.id)
                if waits:
                    return ToolResponse(state=ToolResultState.RUNNING, waits=waits)
                # It has made a call that asks, and its own tool did not pass the question on.
                known.decision = replace(known.decision, waits_for=None)
        async with self._deciding:
            prepared = await self._decide(call, known)
        if isinstance(prepared, ToolResponse):
            if call.state is not ToolCallState.RUNNING:
                await self._tell([ToolResultStartEvent(self._run.id, call.id, call.name)])
            await self._complete(self._agent, self._run, context, call, prepared, self._tell, self._tell_result)
        elif prepared is not None:
            await self._run_prepared(call, context.inner[call.id], prepared)
        journaled = context.inner[call.id]
        if journaled.result is None:
            return ToolResponse(state=ToolResultState.RUNNING, waits=self._questions_of(call.id))
        self._size += _journaled_size(journaled)
        return _response_of(journaled.result)

    async def _run_prepared(self, call: ToolCallBlock, journaled: InnerCall, prepared: PreparedCall) -> None:
        """Run the call until it has a result, or waits for an answer, as soon as those beside it let it."""
        is_safe = self._agent.react_config.parallel_tool_calls and prepared.tool.is_concurrency_safe
        await self._run.side_by_side.enter(call.id, is_safe)
        try:
            journaled.begun, journaled.question.tool_call.state = True, ToolCallState.RUNNING
            if not _is_safe_again(prepared.tool):
                await self._agent.save()  # before it may take effect
            if call.state is not ToolCallState.RUNNING:
                await self._tell([ToolResultStartEvent(self._run.id, call.id, call.name)])
            while journaled.result is None and journaled.decision.waits_for is None:
                await self._complete(
                    self._agent, self._run, self._context, call, prepared, self._tell, self._tell_result
                )
            # One that waits is entered again: a layer has asked before it ran, or the tool resumes.
            journaled.begun = journaled.result is not None
        finally:
            self._run.side_by_side.leave(call.id)

    async def _decide(self, call: ToolCallBlock, known: InnerCall | None) -> Prepared | None:
        """Check the call and decide on it, and put both on record; returns `None` for one that waits for an answer."""
        context = self._context
        if not self._has_tools:  # as they are when the first call is made
            self._has_tools, own = True, self._tool.inner_toolkit
            if isinstance(own, Toolkit) and own.has_toolsets:
                await own.refresh()
            toolkit = toolkit_of_calls(self._agent, self._tool)
            self._run.inner_toolkits = {**self._run.inner_toolkits, self._outer.id: toolkit}
        tool = self._run.toolkit_of(call.id).get(call.name)
        refusal: ToolResponse | None = None
        if known is None:
            refusal = self._refuse_at_limit(call)
            # One whose question the tool has not passed on was told before.
            if context.decisions.pop(call.id, None) is None:
                await self._tell(events_of(self._run.id, ToolCallBlock(call.id, call.name, call.input)))
            if refusal is None:
                context.tool_calls += 1
        elif known.begun and tool is not None and not _is_safe_again(tool):
            refusal = failure(
                "Unknown: this call was left before it was known to be done. It may have taken effect.",
                ToolResultState.UNKNOWN,
            )
        return refusal or await prepare_call(self._agent, context, call)

    def _refuse_at_limit(self, call: ToolCallBlock) -> ToolResponse | None:
        """Return the result of a call that is beyond a limit of its reply or of the journal."""
        limits, context = self._agent.react_config, self._context
        of_round = calls_of_round(context, context.blocks[context.round_start :])
        if context.tool_calls + len(of_round) >= limits.max_tool_calls:
            why = f"one reply may make {limits.max_tool_calls} tool calls, and they are used up"
        elif len(self._run.enclosing_replies) + call.id.count("/") > limits.max_depth:
            why = f"{limits.max_depth} calls inside of each other are the limit"
        elif self._size + len(call.input) > _MAX_JOURNAL:
            why = f"the calls of {self._outer.name} and their results hold more than {_MAX_JOURNAL:,} bytes"
        else:
            return None
        return failure(f"Not run: {why}.", ToolResultState.DENIED)

    def _questions_of(self, path: str) -> list[OpenQuestion]:
        """Return what the call asks, and what is asked inside of it, under the ids that the calling tool gives them."""
        inner = self._context.inner
        questions = questions_inside(self._context, path)
        own = inner.get(path)
        if own is not None and own.decision.waits_for in ("user", "external"):
            questions = {path: own}
        prefix = f"{self._outer.id}/"
        return [
            OpenQuestion(
                replace(item.question.tool_call, id=path.removeprefix(prefix)),
                "external" if item.decision.waits_for == "external" else "user",
                item.decision.message,
                list(item.decision.suggested_rules),
                list(item.question.inside),
            )
            for path, item in questions.items()
        ]

    async def _tell_result(self, call: ToolCallBlock, result: TakenResult, streamed: ToolOutput) -> None:
        keep_result(self._context, call, result)
        await self._tell(events_of_result(self._context, self._run, call, result, streamed))

    async def _tell(self, events: Sequence[AgentEvent]) -> None:
        mailbox = self._run.mailbox
        if mailbox.is_read:
            for event in events:
                await mailbox.put(event)  # its reader saves a result before it shows the end
            return
        # The tool runs in the reader's own task, which cannot make room before the tool is done.
        await self._agent.save()
        for event in events:
            mailbox.post(event)


async def respond_and_close(
    memory: CallMemory, prepared: PreparedCall, context: ToolContext | None
) -> ToolResponse | AsyncGenerator[ToolChunk | ToolResponse, None]:
    """Run a resumable call, as `respond` does, to the end of the calls that it makes; raises what these raised."""
    try:
        result = await respond(prepared, context)
    except BaseException:
        if memory.caller is not None:
            await memory.caller.close()
        raise
    if not isinstance(result, ToolResponse):
        return closing_calls(memory, result)
    if memory.caller is not None:
        await memory.caller.finish(result)
    return result


async def closing_calls(
    memory: CallMemory, stream: AsyncGenerator[ToolChunk | ToolResponse, None]
) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
    """Yield the output of a resumable call, and end the calls that it makes before its result."""
    try:
        async for item in stream:
            if isinstance(item, ToolResponse) and memory.caller is not None:
                await memory.caller.finish(item)
            yield item
    finally:
        await stream.aclose()
        if memory.caller is not None:
            await memory.caller.close()


def toolkit_of_calls(agent: ReplyingAgent, tool: ToolBase) -> Toolkit:
    """Return the tools that a tool may call: those of its own toolkit, if it has one, or else of the round."""
    own = tool.inner_toolkit
    if not isinstance(own, Toolkit):
        return agent.live_conversation.run.toolkit.without_names({tool.name, STRUCTURED_OUTPUT})
    if own.binds:
        own = own.bound_by(partial(agent.live_conversation.bindings.tool, agent))
    table = own.table
    names = [schema["function"]["name"] for schema in table.schemas()]
    # Offered at all times, since the groups that a conversation has chosen are those of its agent's toolkit.
    offered = {name: ToolEntry.of(table.entries[name].tool) for name in names if name != tool.name}
    return own.with_table(ToolTable.of_entries(offered, binds=False))


def keep_result(context: ReplyContext, call: ToolCallBlock, result: TakenResult) -> None:
    """Put the result of a call that a tool has made into the journal."""
    content, note, state, metadata = result
    if metadata:  # as it will come back from a saved state, so that the tool gets the same when it is entered again
        metadata = from_json(to_json(metadata))
    call_id = call.id.rpartition("/")[2]
    if call.id not in context.inner:  # refused before anything was decided
        context.record_decision(call, _DENIED)
    context.inner[call.id].result = ToolResultBlock(call_id, call.name, [*content, *note], state, metadata)


def without_answer(response: ToolResponse) -> ToolResponse:
    """Return the result of a call that a tool has made: it does not end the reply, whatever the called tool wants."""
    if "response_msg" not in response.metadata:
        return response
    metadata = {key: value for key, value in response.metadata.items() if key != "response_msg"}
    return replace(response, metadata=metadata)


def _response_of(result: ToolResultBlock) -> ToolResponse:
    own = copy_block(result)  # the tool may change what it gets, and the journal is saved
    assert isinstance(own, ToolResultBlock)
    assert isinstance(own.output, list)  # as `keep_result` has put it there
    return ToolResponse(own.output, own.state, own.metadata)


def _journaled_size(inner: InnerCall) -> int:
    return len(inner.question.tool_call.input) + (0 if inner.result is None else len(to_json(inner.result)))


def _is_safe_again(tool: ToolBase) -> bool:
    return tool.is_read_only or tool.is_idempotent or tool.is_resumable


def _arguments_as_json(name: object, arguments: object) -> str:
    """Return the arguments as JSON, with sorted keys, so that the same ones are known again."""
    if not isinstance(name, str) or json_problem(name) is not None:
        raise UsageError(f"ToolContext.call() takes the name of a tool, not {repr_of(name)}")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise UsageError(
            f"ToolContext.call({name!r:.100}) takes the arguments as a dict by their names, not {repr_of(arguments)}"
        )
    problem = json_problem(arguments)
    if problem is not None:
        raise UsageError(f"the arguments of ToolContext.call({name!r:.100}) have no JSON form: {problem}")
    # By way of pydantic, which can write more than `json`, such as dates.
    text = json.dumps(json.loads(to_json(arguments)), ensure_ascii=False, sort_keys=True)
    if len(text) > _MAX_JOURNAL:
        raise UsageError(
            f"the arguments of ToolContext.call({name!r:.100}) have {len(text):,} characters, and at most "
            f"{_MAX_JOURNAL:,} are allowed: put large data elsewhere, and pass its address"
        )
    return text
