"""Running tool calls: the core of on_acting, and the way of each call through it.

decide   prepare_without_asking, or on_check_permission            approval.py
start    a ToolResultStartEvent for each call that may run or is denied
run      through on_acting to the tool: in the reader's task, or in the background where several calls run side by
         side or something may emit events while it waits
finish   the events of the result                                  tool_results.py
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from itertools import groupby

import anyio

from agentrt.chain.owned_stream import OwnedStream
from agentrt.concurrency.background_task import BackgroundTask, enclosing_replies, run_in_own_context
from agentrt.concurrency.interrupt import Interrupted
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.open_calls import begun_calls, forget_inner_calls, open_calls, waiting_calls
from agentrt.conversation.reply_run import ReplyRun
from agentrt.conversation.step import Act
from agentrt.decoding.base64_groups import DataPieces
from agentrt.errors import MissingTerminalError
from agentrt.event import AgentEvent, ToolResultStartEvent
from agentrt.loop.tool_calls.approval import Prepared, decide_call, denial, prepare_call, prepare_without_asking
from agentrt.loop.tool_calls.inner_calls import memory_of_call
from agentrt.loop.tool_calls.tool_results import (
    TakenResult,
    delta_events,
    events_of_result,
    lost_response,
    mended_content,
    only_text,
    result_events,
    take_result,
    whole_base64_groups,
)
from agentrt.message import (
    ContentBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    copy_block,
    new_tool_result,
)
from agentrt.state import ReplyContext
from agentrt.tool import ToolContext
from agentrt.tool.call import PreparedCall, is_real_cancellation, respond, run_call
from agentrt.tool.to_response import failure
from agentrt.types import STRUCTURED_OUTPUT, PermissionBehavior, ToolChunk, ToolOutput, ToolResponse

__all__ = ["act", "calls_of_round", "run_call_unseen", "run_calls", "save_result"]

_logger = logging.getLogger("agentrt")
_ENTERED_BEFORE, _CALL_IS_DONE = ToolCallState.RUNNING, ToolCallState.FINISHED
_CallOutput = AsyncGenerator[ToolChunk | ToolResponse, None]
_ResultEvents = AsyncGenerator[AgentEvent, None]
_CallToRun = tuple[ToolCallBlock, Prepared]


async def act(agent: ReplyingAgent, tool_call: ToolCallBlock) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
    """The core of on_acting: runs the call. One that a layer put in its place is checked like any other first."""
    run = agent.live_conversation.run
    # What was checked and decided before the chain was entered, if the call is still that one.
    known = run.progress.prepared.get(tool_call.id)
    if known is not None and known.is_for(tool_call):
        prepared: Prepared = known
    else:
        prepared = await _prepare_replaced_call(agent, tool_call)
    result = prepared if isinstance(prepared, ToolResponse) else await _run_tool(agent, run, prepared)
    if isinstance(result, ToolResponse):
        yield result
        return
    async with aclosing(result):
        async for item in result:
            yield item


async def _prepare_replaced_call(agent: ReplyingAgent, call: ToolCallBlock) -> Prepared:
    """Check and decide on a call that a layer put in the place of another; the user cannot be asked about it here."""
    prepared = agent.live_conversation.run.toolkit.prepare(call, agent.state.active_groups)
    if isinstance(prepared, ToolResponse):  # no such tool, or arguments that do not fit
        return prepared
    decision = await decide_call(agent, prepared, None)
    if decision.waits_for:
        return failure(
            f"{call.name} was not run: a layer put this call in the place of another one, and the user can no longer "
            f"be asked about it.",
            ToolResultState.DENIED,
        )
    return prepared if decision.behavior is PermissionBehavior.ALLOW else denial(decision)


async def _run_tool(agent: ReplyingAgent, run: ReplyRun, prepared: PreparedCall) -> ToolResponse | _CallOutput:
    """Run a checked call; returns its result, or, if the tool streams, its output."""
    context = None
    if prepared.plan.context_name is not None:
        state, memory = agent.state, None
        if prepared.tool.is_resumable and state.reply_context is not None:
            memory = memory_of_call(state.reply_context, prepared.tool_call, agent.save)
        context = ToolContext(
            prepared.tool_call,
            agent,
            agent.live_conversation.hook_run,
            active_groups=state.active_groups,
            on_active_groups=partial(setattr, state, "active_groups"),
            deps=run.deps,
            memory=memory,
        )
    if prepared.plan.is_streaming:
        return _mark_each_step(run, run_call(prepared, context))
    # So that an agent which the tool asks knows that it is inside of this reply, and does not wait for its end.
    token = enclosing_replies.set(run.enclosing_replies)
    try:
        result = await respond(prepared, context)
    finally:
        enclosing_replies.reset(token)
    return result if isinstance(result, ToolResponse) else _mark_each_step(run, result)


async def _mark_each_step(run: ReplyRun, stream: _CallOutput) -> _CallOutput:
    """Yield the items of the stream; at each of its steps the context says that it runs inside of this reply."""
    async with aclosing(stream):
        item: ToolChunk | ToolResponse | None
        while True:
            # For one step at a time, since our reader has the same context.
            token = enclosing_replies.set(run.enclosing_replies)
            try:
                item = await anext(stream, None)
            finally:
                enclosing_replies.reset(token)
            if item is None:
                return
            yield item


async def run_calls(agent: ReplyingAgent, context: ReplyContext, step: Act) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Decide on the calls of one answer and run those that may, in order; neighbours that may run side by side do.

    Yields the events of the calls and, when a tool ends the reply with an answer of its own, that message. Stops after
    neighbours if one of them has to wait for an answer. Calls beyond the limit of a reply are denied.
    """
    run = agent.live_conversation.run
    calls, beyond_limit = _part_at_limit(agent, context, step.calls)
    for batch in [calls] if len(calls) == 1 else _batches(agent, calls):
        prepared = prepare_without_asking(agent, run, context, batch)
        if prepared is None:
            prepared = []
            async with aclosing(_decide(agent, context, batch, prepared)) as events:
                async for event in events:
                    yield event
        if not prepared:
            return
        # All of them before any call runs, so that the order of the results in the message is that of the calls.
        for call, _ in prepared:
            # That of a call which is entered again has begun already.
            if call.state is not _ENTERED_BEFORE or call.id not in begun_calls(context):
                yield ToolResultStartEvent(run.id, call.id, call.name)
        call, only = prepared[0]
        result = (
            _run_in_background(agent, context, prepared)
            if _runs_in_background(agent, run, prepared)
            else await _run_call(agent, run, context, call, only)
        )
        if isinstance(result, ToolResponse):
            for event in result_events(context, run, call, result, []):
                yield event
        else:
            async with aclosing(result):
                async for event in result:
                    yield event
        # One of the batch waits for an answer, and the calls after it may depend on what it does.
        if len(prepared) < len(batch) or (context.inner and waiting_calls(context)):
            return
    # Last, so that a reply which waits above has denied none of them yet.
    for call in beyond_limit:
        yield ToolResultStartEvent(run.id, call.id, call.name)
        limit = agent.react_config.max_tool_calls
        denied = failure(
            f"Not run: one reply may make {limit} tool calls, and they are used up.", ToolResultState.DENIED
        )
        for event in result_events(context, run, call, denied, []):
            yield event
    # After all results: each call has one before the reply ends.
    if context.response is not None and not open_calls(context):
        yield _end_round_with(context, context.response)


def _runs_in_background(agent: ReplyingAgent, run: ReplyRun, calls: list[_CallToRun]) -> bool:
    """Say whether there are several calls, or one of which a reader is to see events while it waits."""
    if len(calls) > 1 or run.is_unseen:
        return len(calls) > 1
    prepared = calls[0][1]
    has_context = isinstance(prepared, PreparedCall) and prepared.plan.context_name is not None
    return has_context or "on_acting" in agent.live_conversation.emitting_hooks


async def run_call_unseen(
    agent: ReplyingAgent,
    run: ReplyRun,
    context: ReplyContext,
    calls: list[ToolCallBlock],
    take_item: Callable[[AgentEvent | Msg], Awaitable[None]],
) -> bool:
    """The same for the only call of a round where nobody sees its events: puts what they say into the message.

    Most results are one text; the events of any other one go to `take_item`. Returns `False`, with nothing done, where
    `run_calls` has to look. A property test compares the two.
    """
    if len(calls) != 1:
        return False
    call, blocks = calls[0], context.blocks
    room = agent.react_config.max_tool_calls - context.tool_calls
    if call.state is _ENTERED_BEFORE or len(blocks) - context.round_start > room:
        return False
    prepared = prepare_without_asking(agent, run, context, calls)
    if prepared is None:
        return False
    block = new_tool_result(call.id, call.name)
    blocks.append(block)
    run.progress.count_unseen(1)  # TOOL_RESULT_START
    response = await _run_call(agent, run, context, call, prepared[0][1])
    if isinstance(response, ToolResponse):
        result = take_result(context, run, call, response)
        if result is None:  # it waits
            return True
        text = only_text(result)
        if text is None:
            for event in events_of_result(context, run, call, result, []):
                await take_item(event)
        else:
            await _end_unseen(agent, run, context, call, block, text, result)
    else:
        async with aclosing(response):
            async for event in response:
                await take_item(event)
    if context.response is not None and not open_calls(context):
        await take_item(_end_round_with(context, context.response))
    return True


async def _end_unseen(
    agent: ReplyingAgent,
    run: ReplyRun,
    context: ReplyContext,
    call: ToolCallBlock,
    block: ToolResultBlock,
    text: TextBlock,
    taken: TakenResult,
) -> None:
    """Do what the events of a result of one text say; raises `Interrupted` where the reply is to stop after one."""
    progress, interruption = run.progress, run.interruption
    if run.mailbox.items:
        progress.count_emitted(run.mailbox)
    block.output = [text]
    progress.count_unseen(1)  # TOOL_RESULT_TEXT_DELTA
    if interruption.reason is None:
        _, _, block.state, block.metadata = taken
        call.state = _CALL_IS_DONE
        progress.events_recorded += 1  # TOOL_RESULT_END, which has no number until the result is saved
        if agent.state_store is not None or context.kept or context.inner:
            await save_result(agent, run, context, call.id)
        progress.sequence += 1
    if interruption.reason is not None:
        raise Interrupted


async def save_result(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext, call_id: str) -> None:
    """Save a result before its end is sent: no listener knows of one that a later process would not find."""
    if context.kept or context.inner:
        # Only now that the message has the result: a save of a neighbour must find the one or the other.
        forget_inner_calls(context, call_id)
    interruption = run.interruption
    interruption.task = None
    if agent.state_store is not None:
        interruption.suspend()  # what is being saved is not to be interrupted
        await agent.save()
    if interruption.has_pending_cancellation():
        await interruption.raise_pending_cancellation()
    if run.is_unseen:
        interruption.resume()


def calls_of_round(context: ReplyContext, blocks: list[ContentBlock]) -> list[ToolCallBlock]:
    """Return the calls of the model among the blocks of the current round, without the one that is the final answer."""
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    if context.hidden_calls is not None:  # the limits are for what the model does
        calls = [call for call in calls if not call.is_hidden]
    return calls if context.structured is None else [call for call in calls if call.name != STRUCTURED_OUTPUT]


def _end_round_with(context: ReplyContext, response: Msg) -> Msg:
    """End the round with what a tool gave as the answer of the reply."""
    context.tool_calls += len(calls_of_round(context, context.blocks[context.round_start :]))
    context.round_start = len(context.blocks)
    return response


def _part_at_limit(
    agent: ReplyingAgent, context: ReplyContext, calls: list[ToolCallBlock]
) -> tuple[list[ToolCallBlock], list[ToolCallBlock]]:
    """Return the calls that may run, and those beyond the limit of a reply."""
    room = agent.react_config.max_tool_calls - context.tool_calls
    if len(context.blocks) - context.round_start <= room:  # blocks of any kind: as good a bound, without counting calls
        return calls, []
    calls_so_far = calls_of_round(context, context.blocks[context.round_start :])
    beyond = {call.id for call in calls_so_far[max(room, 0) :]}
    return [call for call in calls if call.id not in beyond], [call for call in calls if call.id in beyond]


def _batches(agent: ReplyingAgent, calls: list[ToolCallBlock]) -> Iterator[list[ToolCallBlock]]:
    """Yield runs of calls that may run side by side, and the other calls one by one."""
    toolkit, is_parallel = agent.live_conversation.run.toolkit, agent.react_config.parallel_tool_calls

    def is_safe(call: ToolCallBlock) -> bool:
        tool = toolkit.get(call.name)
        return is_parallel and (tool is None or tool.is_concurrency_safe)

    for safe, group in groupby(calls, is_safe):
        if safe:
            yield list(group)
        else:
            yield from ([call] for call in group)


async def _decide(
    agent: ReplyingAgent, context: ReplyContext, batch: list[ToolCallBlock], prepared_calls: list[_CallToRun]
) -> AsyncGenerator[AgentEvent, None]:
    """Decide on the calls, and add those that need not wait to `prepared_calls`; yields what layers emit meanwhile."""

    async def decide_all() -> None:
        for call in batch:
            prepared = await prepare_call(agent, context, call)
            if prepared is not None:
                prepared_calls.append((call, prepared))

    run = agent.live_conversation.run
    if run.is_unseen or "on_check_permission" not in agent.live_conversation.emitting_hooks:
        await decide_all()
        return
    async with BackgroundTask(run, run.mailbox, decide_all) as task:
        async for event in task:
            yield event
        await task.outcome()


async def _run_call(
    agent: ReplyingAgent, run: ReplyRun, context: ReplyContext, call: ToolCallBlock, prepared: Prepared
) -> ToolResponse | _ResultEvents:
    """Run the call through on_acting; returns its result, or, if it comes in pieces, the events of these and of it.

    Without layers no chain is entered, and none for a hidden tool: what layers do about tools is not about theirs.
    """
    result: ToolResponse | _CallOutput
    if isinstance(prepared, ToolResponse):  # denied, or impossible to run: no layer of on_acting sees it
        return prepared
    if agent.chains.on_acting is act or prepared.tool.is_hidden:
        result = await _run_tool(agent, run, prepared)
        if isinstance(result, ToolResponse):
            return result
    else:
        run.progress.prepared[call.id] = prepared  # where `act` finds it: layers pass on the call alone
        result = agent.chains.on_acting(agent, tool_call=copy_block(call))
    try:
        item = await _next_output(result)
    except BaseException:
        await result.aclose()
        raise
    return item if isinstance(item, ToolResponse) else _output_events(agent, context, call, result, item)


async def _next_output(stream: _CallOutput | OwnedStream) -> ToolChunk | ToolResponse:
    """Return the next piece of output, or, once the stream has been read to its end, the result."""
    if not isinstance(stream, OwnedStream):  # of the tool itself, or of a method that overrides the runtime's
        item = await anext(stream)
        if isinstance(item, ToolResponse):
            await anext(stream, None)
        return item
    try:
        return await stream.next_or_last()  # type: ignore[return-value]  # the chain has checked it
    except MissingTerminalError as error:
        _logger.error("%s", error)
        return lost_response()


async def _output_events(
    agent: ReplyingAgent,
    context: ReplyContext,
    call: ToolCallBlock,
    stream: _CallOutput,
    item: ToolChunk | ToolResponse,
) -> AsyncGenerator[AgentEvent, None]:
    """Yield the events of a stream whose first piece of output has been read: those of the pieces and of the result."""
    run = agent.live_conversation.run
    streamed: ToolOutput = []
    pieces = DataPieces()
    failed: ToolResponse | None = None
    try:
        while not isinstance(item, ToolResponse):
            try:
                content = mended_content(item.content)
            except ValueError as error:
                failed = failed or failure(f"Failed: the output holds {error}.")
            if failed is None:
                streamed += content
                content = [whole_base64_groups(block, pieces) for block in content]
                for event in delta_events(run, call, content):
                    yield event
            item = await _next_output(stream)
    finally:
        await stream.aclose()
    for event in result_events(context, run, call, failed or item, streamed):
        yield event


async def _run_in_background(
    agent: ReplyingAgent, context: ReplyContext, calls: list[_CallToRun]
) -> AsyncGenerator[AgentEvent, None]:
    """Run the calls in the background, one after the other until one waits, and then side by side.

    Yields their events as they come.
    """
    run = agent.live_conversation.run
    mailbox = run.mailbox
    failures: dict[int, Exception] = {}
    finished: set[int] = set()
    left = deque(enumerate(calls))  # that no task has begun

    async def work() -> None:
        while left:
            index, (call, prepared) = left.popleft()
            try:
                # As with a task for each: a ContextVar that a call sets is not seen by its neighbours.
                await run_in_own_context(_run_and_put(agent, context, call, prepared))
            except Exception as error:  # noqa: BLE001  # its neighbours run to their ends; raised below
                failures[index] = error
            except anyio.get_cancelled_exc_class():
                if is_real_cancellation():
                    raise
            else:
                finished.add(index)

    async with BackgroundTask(run, mailbox, work, max_tasks=len(calls), has_more=left.__len__) as task:
        async for event in task:
            yield event
        await task.outcome()
    for index in sorted({*range(len(calls))} - finished - failures.keys()):
        # A layer raised a cancellation that nobody asked for.
        for event in result_events(context, run, calls[index][0], lost_response(), []):
            yield event
    if failures:
        # After the events of the others, whose results count.
        first, *others = (failures[index] for index in sorted(failures))
        for error in others:
            first.add_note(f"another tool call of the same answer failed as well: {type(error).__name__}")
        raise first


async def _run_and_put(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, prepared: Prepared) -> None:
    """Run the call, and put its events into the mailbox."""
    run = agent.live_conversation.run
    mailbox = run.mailbox
    result = await _run_call(agent, run, context, call, prepared)
    if isinstance(result, ToolResponse):
        for event in result_events(context, run, call, result, []):
            await mailbox.put(event)
        return
    async with aclosing(result):
        async for event in result:
            await mailbox.put(event)
