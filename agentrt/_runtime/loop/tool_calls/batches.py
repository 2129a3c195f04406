"""Running the tool calls of one answer, neighbours side by side where they may.

Each goes the way of `acting.py`: in the reader's task, or in the background where several calls run or something may
emit events while it waits.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import anyio

from agentrt._runtime.concurrency.background_task import BackgroundTask, run_in_own_context
from agentrt._runtime.concurrency.mailbox import EventSource
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import incoming_content
from agentrt._runtime.conversation.open_calls import (
    begun_calls,
    calls_of_round,
    close_inner_calls,
    open_calls,
    waiting_calls,
)
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.step import Act
from agentrt._runtime.loop.tool_calls.acting import complete_call, receive_outcome, run_through_layers
from agentrt._runtime.loop.tool_calls.approval import Prepared, prepare_call, prepare_without_asking
from agentrt._runtime.loop.tool_calls.background import note_answer_of_task
from agentrt._runtime.loop.tool_calls.tool_results import TakenResult, events_of_result, lost_response, take_result
from agentrt.event import AgentEvent
from agentrt.message import ToolCallBlock, ToolCallState, ToolResultState, new_tool_result
from agentrt.state import ReplyContext
from agentrt.tool.call import PreparedCall, is_real_cancellation
from agentrt.tool.to_response import failure
from agentrt.types import ToolOutput, ToolResponse

_ENTERED_BEFORE = ToolCallState.RUNNING
_HOOKS_OF_A_CALL = ("on_acting", "on_content")
_CallToRun = tuple[ToolCallBlock, Prepared]


@dataclass(slots=True, repr=False, eq=False)
class _UntoldResult(EventSource):
    """The result of a call that ran in the background; the outlet tells it like any other."""

    run: ReplyRun
    context: ReplyContext
    call: ToolCallBlock
    result: TakenResult
    streamed: ToolOutput

    def events(self) -> list[AgentEvent]:
        return events_of_result(self.context, self.run, self.call, self.result, self.streamed)


async def run_calls(agent: ReplyingAgent, context: ReplyContext, step: Act) -> None:
    """Decide on the calls of one answer and run those that may, in order; neighbours that may run side by side do.

    Tells the events of the calls and, when a tool ends the reply with an answer of its own, that message. Stops after
    neighbours if one of them has to wait for an answer. Calls beyond the limit of a reply are denied.
    """
    conversation = agent.live_conversation
    run = conversation.run
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
        emits = not conversation.emitting_hooks.isdisjoint(_HOOKS_OF_A_CALL)
        # Several calls, or one that may emit events while it waits.
        if len(prepared) > 1 or has_context or emits:
            await _run_in_background(agent, context, prepared)
        else:
            call = prepared[0][0]
            output = run_through_layers(agent, run, call, only, outlet.tell)
            response, streamed = await run_in_own_context(output)
            await _tell_result(agent, run, context, call, only, response, streamed)
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
        await _tell_result(agent, run, context, call, denied, denied, [])
    if context.is_task:
        note_answer_of_task(context)
    # After all results: each call has one before the reply ends.
    if context.response is not None and not open_calls(context):
        # The round ends with what a tool gave as the answer of the reply.
        context.tool_calls += len(calls_of_round(context, context.blocks[context.round_start :]))
        context.round_start = len(context.blocks)
        await outlet.tell_item(context.response)


async def _tell_result(
    agent: ReplyingAgent,
    run: ReplyRun,
    context: ReplyContext,
    call: ToolCallBlock,
    prepared: Prepared,
    response: ToolResponse,
    streamed: ToolOutput,
) -> None:
    """Tell the result of a call, unless it waits for an answer."""
    if response.waits or agent.chains.on_content is not incoming_content:
        result = await receive_outcome(agent, context, call, prepared, response)
        if result is None:
            return
    else:
        result = take_result(context, call, response)
    if context.inner:
        for event in close_inner_calls(context, call.id, run.new_id):
            await run.outlet.tell_item(event)
    await run.outlet.tell_result(context, call, result, streamed)


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


async def _run_in_background(agent: ReplyingAgent, context: ReplyContext, calls: list[_CallToRun]) -> None:
    """Run the calls in the background, one after the other until one waits, and then side by side.

    Tells their events as they come.
    """
    run = agent.live_conversation.run
    mailbox = run.mailbox
    failures: dict[int, Exception] = {}
    running: dict[int, str] = {}  # the ids of calls that have started, and have no result
    left = deque(enumerate(calls))  # that no task has started

    async def put_all(events: Sequence[AgentEvent]) -> None:
        for event in events:
            await mailbox.put(event)

    async def put_result(call: ToolCallBlock, result: TakenResult, streamed: ToolOutput) -> None:
        await mailbox.put(_UntoldResult(run, context, call, result, streamed))

    async def work() -> None:
        while left:
            index, (call, prepared) = left.popleft()
            running[index] = call.id
            try:
                # As with a task for each: a ContextVar that a call sets is not seen by its neighbours.
                await complete_call(agent, run, context, call, prepared, put_all, put_result)
            except Exception as error:  # noqa: BLE001  # its neighbours run to their ends; raised below
                failures[index] = error
            except anyio.get_cancelled_exc_class():
                if is_real_cancellation():
                    raise
                continue
            del running[index]

    run.calls_in_progress = running.values
    async with BackgroundTask(run, mailbox, work, max_tasks=len(calls), has_more=left.__len__) as task:
        async for item in task:
            if isinstance(item, _UntoldResult):
                await run.outlet.tell_result(context, item.call, item.result, item.streamed)
            else:
                await run.outlet.tell_item(item)
        await task.outcome()
    for index in sorted(running):
        # A layer raised a cancellation that nobody asked for.
        call, prepared = calls[index]
        await _tell_result(agent, run, context, call, prepared, lost_response(), [])
    if failures:
        # After the events of the others, whose results count.
        first, *others = (failures[index] for index in sorted(failures))
        for error in others:
            first.add_note(f"another tool call of the same answer failed as well: {type(error).__name__}")
        raise first
