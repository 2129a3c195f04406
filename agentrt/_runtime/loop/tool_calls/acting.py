"""Running tool calls: the core of on_acting, and the way of each call through it.

decide   prepare_without_asking, or on_check_permission            approval.py
start    a ToolResultStartEvent for each call that may run or is denied
run      through on_acting to the tool, in a copy of the context: in the reader's task, or in the background where
         several calls run side by side or something may emit events while it waits
finish   the events of the result                                  tool_results.py
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import groupby

import anyio

from agentrt._runtime.chain.owned_stream import OwnedStream
from agentrt._runtime.concurrency.background_task import BackgroundTask, enclosing_replies, run_in_own_context
from agentrt._runtime.concurrency.coroutine_reader import hand_out
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import incoming_content, mended_content
from agentrt._runtime.conversation.open_calls import begun_calls, open_calls, waiting_calls
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.step import Act
from agentrt._runtime.decoding.base64_groups import DataPieces
from agentrt._runtime.loop.outlet import Outlet
from agentrt._runtime.loop.structured_output import keep_as_written
from agentrt._runtime.loop.tool_calls.approval import (
    Prepared,
    decide_call,
    denial,
    prepare_call,
    prepare_released,
    prepare_without_asking,
)
from agentrt._runtime.loop.tool_calls.inner_calls import memory_of_call, note_waiting
from agentrt._runtime.loop.tool_calls.round_tools import refusal_to_wait
from agentrt._runtime.loop.tool_calls.tool_results import (
    TakenResult,
    delta_events,
    events_of_result,
    lost_response,
    receive_result,
    take_result,
    whole_base64_groups,
)
from agentrt.errors import MissingTerminalError
from agentrt.event import AgentEvent
from agentrt.message import (
    ContentBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultState,
    copy_block,
    new_tool_result,
)
from agentrt.state import ReplyContext
from agentrt.tool import ToolContext
from agentrt.tool.call import PreparedCall, is_real_cancellation, respond, run_call
from agentrt.tool.to_response import failure
from agentrt.types import STRUCTURED_OUTPUT, ContentSource, PermissionBehavior, ToolChunk, ToolOutput, ToolResponse

_logger = logging.getLogger("agentrt")
_ENTERED_BEFORE = ToolCallState.RUNNING
_CallOutput = AsyncGenerator[ToolChunk | ToolResponse, None]
_Tell = Callable[[Sequence[AgentEvent]], Awaitable[None]]
_HOOKS_OF_A_CALL = ("on_acting", "on_content")
_CallToRun = tuple[ToolCallBlock, Prepared]


async def act(agent: ReplyingAgent, tool_call: ToolCallBlock) -> ToolResponse:
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
        return result
    async with aclosing(result):
        async for item in result:
            if isinstance(item, ToolResponse):
                return item
            await hand_out(item)
    return lost_response()  # not reached: the output of a tool ends with its result


async def _prepare_replaced_call(agent: ReplyingAgent, call: ToolCallBlock) -> Prepared:
    """Check and decide on a call that a layer put in the place of another; the user cannot be asked about it here."""
    prepared = prepare_released(agent, agent.live_conversation.run.toolkit, call)
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
        return run_call(prepared, context)
    result = await respond(prepared, context)
    if prepared.is_released and prepared.name == STRUCTURED_OUTPUT:
        keep_as_written(agent.state.reply_context, prepared.written_input)
    return result


async def run_calls(agent: ReplyingAgent, context: ReplyContext, step: Act) -> None:
    """Decide on the calls of one answer and run those that may, in order; neighbours that may run side by side do.

    Tells the events of the calls and, when a tool ends the reply with an answer of its own, that message. Stops after
    neighbours if one of them has to wait for an answer. Calls beyond the limit of a reply are denied.
    """
    run = agent.live_conversation.run
    outlet = run.outlet
    calls, beyond_limit = _part_at_limit(agent, context, step.calls)
    for batch in [calls] if len(calls) == 1 else _batches(agent, calls):
        prepared = prepare_without_asking(agent, run, context, batch)
        if prepared is None:
            prepared = await _decide(agent, context, batch)
        if not prepared:
            return
        # All of them before any call runs, so that the order of the results in the message is that of the calls.
        for call, _ in prepared:
            # A call that is entered again has one already.
            if call.state is not _ENTERED_BEFORE or call.id not in begun_calls(context):
                await outlet.tell_block(new_tool_result(call.id, call.name))
        only = prepared[0][1]
        has_context = isinstance(only, PreparedCall) and only.plan.context_name is not None
        emits = not agent.live_conversation.emitting_hooks.isdisjoint(_HOOKS_OF_A_CALL)
        # Several calls, or one that may emit events while it waits.
        if len(prepared) > 1 or has_context or emits:
            await _run_in_background(agent, context, prepared)
        else:
            call = prepared[0][0]
            response, streamed = await _run_call(agent, run, call, only, outlet.tell)
            await _tell_result(agent, context, call, only, response, streamed)
        # One of the batch waits for an answer, and the calls after it may depend on what it does.
        if len(prepared) < len(batch) or (context.inner and waiting_calls(context)):
            return
    # Last, so that a reply which waits above has denied none of them yet.
    for call in beyond_limit:
        await outlet.tell_block(new_tool_result(call.id, call.name))
        limit = agent.react_config.max_tool_calls
        denied = failure(
            f"Not run: one reply may make {limit} tool calls, and they are used up.", ToolResultState.DENIED
        )
        await _tell_result(agent, context, call, denied, denied, [])
    # After all results: each call has one before the reply ends.
    if context.response is not None and not open_calls(context):
        # The round ends with what a tool gave as the answer of the reply.
        context.tool_calls += len(calls_of_round(context, context.blocks[context.round_start :]))
        context.round_start = len(context.blocks)
        await outlet.tell_item(context.response)


def _tell_result(
    agent: ReplyingAgent,
    context: ReplyContext,
    call: ToolCallBlock,
    prepared: Prepared,
    response: ToolResponse,
    streamed: ToolOutput,
) -> Awaitable[None]:
    """Tell the result of a call, unless it waits for an answer."""
    if response.waits or agent.chains.on_content is not incoming_content:
        return _receive_and_tell(agent, context, call, prepared, response, streamed)
    outlet: Outlet = agent.live_conversation.run.outlet
    return outlet.tell_result(context, call, take_result(context, call, response), streamed)


async def _receive_and_tell(
    agent: ReplyingAgent,
    context: ReplyContext,
    call: ToolCallBlock,
    prepared: Prepared,
    response: ToolResponse,
    streamed: ToolOutput,
) -> None:
    result = await _receive_result(agent, context, call, prepared, response)
    if result is not None:
        await agent.live_conversation.run.outlet.tell_result(context, call, result, streamed)


async def _receive_result(
    agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, prepared: Prepared, response: ToolResponse
) -> TakenResult | None:
    """Take in a result as on_content leaves it; `None` for a call that waits. `prepared` says whether the call ran."""
    if response.waits:
        run = agent.live_conversation.run
        refusal = refusal_to_wait(agent, call) or note_waiting(context, run, call, response)
        if refusal is None:
            return None
        response = refusal
    # What layers do about tools is not about those of other layers.
    if agent.chains.on_content is not incoming_content and not call.is_hidden:
        source: ContentSource = "not_run" if isinstance(prepared, ToolResponse) else "tool_result"
        response = await receive_result(agent, call, source, response)
    return take_result(context, call, response)


def calls_of_round(context: ReplyContext, blocks: list[ContentBlock]) -> list[ToolCallBlock]:
    """Return the calls of the model among the blocks of the current round, without the one that is the final answer."""
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    if context.hidden_calls is not None:  # the limits are for what the model does
        calls = [call for call in calls if not call.is_hidden]
    return calls if context.structured is None else [call for call in calls if call.name != STRUCTURED_OUTPUT]


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


async def _decide(agent: ReplyingAgent, context: ReplyContext, batch: list[ToolCallBlock]) -> list[_CallToRun]:
    """Decide on the calls; returns those that need not wait."""
    prepared_calls: list[_CallToRun] = []

    async def decide_all() -> None:
        for call in batch:
            prepared = await prepare_call(agent, context, call)
            if prepared is not None:
                prepared_calls.append((call, prepared))

    run = agent.live_conversation.run
    if "on_check_permission" not in agent.live_conversation.emitting_hooks:
        await decide_all()
        return prepared_calls
    async with BackgroundTask(run, run.mailbox, decide_all) as task:
        async for event in task:
            await run.outlet.tell_item(event)
        await task.outcome()
    return prepared_calls


def _run_call(
    agent: ReplyingAgent, run: ReplyRun, call: ToolCallBlock, prepared: Prepared, tell: _Tell
) -> Awaitable[tuple[ToolResponse, ToolOutput]]:
    """Run the call in a copy of the context, and tell what comes in pieces; returns its result, and these pieces."""
    return run_in_own_context(_run_prepared_call(agent, run, call, prepared, tell))


async def _run_prepared_call(
    agent: ReplyingAgent, run: ReplyRun, call: ToolCallBlock, prepared: Prepared, tell: _Tell
) -> tuple[ToolResponse, ToolOutput]:
    """Run the call through on_acting.

    Without layers no chain is entered, and none for a hidden tool: what layers do about tools is not about theirs.
    """
    if isinstance(prepared, ToolResponse):  # denied, or impossible to run: no layer of on_acting sees it
        return prepared, []
    # So that an agent which the tool asks knows that it is inside of this reply, and does not wait for its end. The
    # context is that of this call alone, and ends with it.
    enclosing_replies.set(run.enclosing_replies)
    stream: _CallOutput
    chains = agent.chains
    if chains.on_acting is act or prepared.tool.is_hidden:
        result = await _run_tool(agent, run, prepared)
        if isinstance(result, ToolResponse):
            return result, []
        stream = result
    else:
        run.progress.prepared[call.id] = prepared  # where `act` finds it: layers pass on the call alone
        stream = chains.on_acting(agent, tool_call=copy_block(call))
    # What is out cannot be taken back, so that nothing is announced before the whole has passed on_content.
    is_held = (
        chains.on_content is not incoming_content
        and not call.is_hidden
        and any(chains.terms.holds(agent, layer.middleware) for layer in chains.layers["on_content"])
    )
    streamed: ToolOutput = []
    pieces: DataPieces | None = None
    failed: ToolResponse | None = None
    try:
        while not isinstance(item := await _next_output(stream), ToolResponse):
            try:
                content = mended_content(item.content)
            except ValueError as error:
                failed = failed or failure(f"Failed: the output holds {error}.")
            if failed is None and not is_held:
                pieces = pieces or DataPieces()
                streamed += content
                events = delta_events(run, call, [whole_base64_groups(block, pieces) for block in content])
                if events:
                    await tell(events)
    finally:
        await stream.aclose()
    return failed or item, streamed


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


async def _run_in_background(agent: ReplyingAgent, context: ReplyContext, calls: list[_CallToRun]) -> None:
    """Run the calls in the background, one after the other until one waits, and then side by side.

    Tells their events as they come.
    """
    run = agent.live_conversation.run
    mailbox = run.mailbox
    failures: dict[int, Exception] = {}
    finished: set[int] = set()
    left = deque(enumerate(calls))  # that no task has started

    async def put_all(events: Sequence[AgentEvent]) -> None:
        for event in events:
            await mailbox.put(event)

    async def work() -> None:
        while left:
            index, (call, prepared) = left.popleft()
            try:
                # As with a task for each: a ContextVar that a call sets is not seen by its neighbours.
                response, streamed = await _run_call(agent, run, call, prepared, put_all)
                result = await _receive_result(agent, context, call, prepared, response)
                if result is not None:
                    await put_all(events_of_result(context, run, call, result, streamed))
            except Exception as error:  # noqa: BLE001  # its neighbours run to their ends; raised below
                failures[index] = error
            except anyio.get_cancelled_exc_class():
                if is_real_cancellation():
                    raise
            else:
                finished.add(index)

    async with BackgroundTask(run, mailbox, work, max_tasks=len(calls), has_more=left.__len__) as task:
        async for event in task:
            await run.outlet.tell_item(event)
        await task.outcome()
    for index in sorted({*range(len(calls))} - finished - failures.keys()):
        # A layer raised a cancellation that nobody asked for.
        call, prepared = calls[index]
        await _tell_result(agent, context, call, prepared, lost_response(), [])
    if failures:
        # After the events of the others, whose results count.
        first, *others = (failures[index] for index in sorted(failures))
        for error in others:
            first.add_note(f"another tool call of the same answer failed as well: {type(error).__name__}")
        raise first
