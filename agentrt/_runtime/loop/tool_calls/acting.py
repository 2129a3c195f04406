"""Running one tool call, of the model or of another tool: the core of on_acting, and the way through it.

decide   prepare_without_asking, or on_check_permission            approval.py
start    a ToolResultStartEvent for each call that may run or is denied
run      through on_acting to the tool, in a copy of the context
finish   the events of the result                                  tool_results.py

`batches.py` takes the calls of a model's answer along it, and `caller.py` those that a tool makes.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from agentrt._runtime.concurrency.background_task import enclosing_replies, run_in_own_context
from agentrt._runtime.concurrency.coroutine_reader import hand_out
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import incoming_content, mended_content
from agentrt._runtime.conversation.open_calls import close_inner_calls
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.base64_groups import DataPieces
from agentrt._runtime.loop.structured_output import keep_as_written
from agentrt._runtime.loop.tool_calls.approval import Prepared, decide_call, denial, prepare_released
from agentrt._runtime.loop.tool_calls.background import handle_without_host, host_of, let_go, task_of
from agentrt._runtime.loop.tool_calls.caller import InnerCaller, closing_calls, respond_and_close, without_answer
from agentrt._runtime.loop.tool_calls.inner_calls import memory_of_call, note_waiting
from agentrt._runtime.loop.tool_calls.round_tools import refusal_to_wait
from agentrt._runtime.loop.tool_calls.tool_results import (
    TakenResult,
    Tell,
    TellResult,
    delta_events,
    lost_response,
    receive_result,
    take_result,
    whole_base64_groups,
)
from agentrt.errors import MissingTerminalError
from agentrt.message import ToolCallBlock, ToolResultState, copy_block
from agentrt.state import ReplyContext
from agentrt.tool import ToolContext
from agentrt.tool.call import PreparedCall, respond
from agentrt.tool.call import run_call as stream_call
from agentrt.tool.to_response import failure
from agentrt.types import STRUCTURED_OUTPUT, ContentSource, PermissionBehavior, ToolChunk, ToolOutput, ToolResponse

_logger = logging.getLogger("agentrt")
_LATE_ITEM = "on_acting must end with its ToolResponse, but a %s came after it: it was dropped; its layers are %s"
_CallOutput = AsyncGenerator[ToolChunk | ToolResponse, None]


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
    prepared = prepare_released(agent, agent.live_conversation.run.toolkit_of(call.id), call)
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
    context, memory = None, None
    if prepared.plan.context_name is not None:
        state = agent.state
        if prepared.tool.is_resumable and state.reply_context is not None:
            memory = memory_of_call(state.reply_context, prepared.tool_call, agent.save)
            memory.open_caller = partial(InnerCaller, agent, prepared, complete_call)
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
        stream = stream_call(prepared, context)
        return stream if memory is None else closing_calls(memory, stream)
    result = await (respond(prepared, context) if memory is None else respond_and_close(memory, prepared, context))
    if prepared.name == STRUCTURED_OUTPUT and prepared.is_released:
        keep_as_written(agent.state.reply_context, prepared.written_input)
    return result


def caller_of(agent: ReplyingAgent, call: ToolCallBlock) -> InnerCaller | None:
    """Return a maker of the calls of a tool for a layer that stands in for it; `None` if its tool makes none."""
    known = agent.live_conversation.run.progress.prepared.get(call.id)
    if known is None or not known.is_for(call) or not known.tool.is_resumable:
        return None
    return InnerCaller(agent, known, complete_call)


async def complete_call(
    agent: ReplyingAgent,
    run: ReplyRun,
    context: ReplyContext,
    call: ToolCallBlock,
    prepared: Prepared,
    tell: Tell,
    tell_result: TellResult,
) -> None:
    """Run a call that was decided on and has started, and tell its result, unless it waits for an answer."""
    is_inner = "/" in call.id
    try:
        if run.side_by_side is not None and not is_inner:  # of an inner call, its caller has seen to that
            await run.side_by_side.enter(call.id, is_safe=True)
        response, streamed = await run_in_own_context(run_through_layers(agent, run, call, prepared, tell))
        if is_inner:
            response = without_answer(response)
        if response.waits or agent.chains.on_content is not incoming_content:
            result = await receive_outcome(agent, context, call, prepared, response)
            if result is None:
                return
        else:
            result = take_result(context, call, response)
        if context.inner:
            await tell(list(close_inner_calls(context, call.id, run.new_id)))
        await tell_result(call, result, streamed)
    finally:
        # To the very end, as `ReplyRun.calls_in_progress` has it.
        if run.side_by_side is not None and not is_inner:
            run.side_by_side.leave(call.id)


async def run_through_layers(
    agent: ReplyingAgent, run: ReplyRun, call: ToolCallBlock, prepared: Prepared, tell: Tell
) -> tuple[ToolResponse, ToolOutput]:
    """Run the call through on_acting, and tell what comes in pieces; returns its result, and these pieces.

    To be run in a copy of the context, since it sets what the tool sees. Without layers no chain is entered, and none
    for a hidden tool: what layers do about tools is not about theirs.
    """
    if not isinstance(prepared, PreparedCall):  # denied, or impossible to run: no layer of on_acting sees it
        return prepared, []
    if prepared.tool.is_background:
        host, task_id = host_of(agent, call, prepared.tool), task_of(agent.state, call)
        if host is not None:
            return await let_go(agent, run, call, host, tell), []
        if task_id:
            return handle_without_host(call, task_id), []
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
    return await _read_output(agent, run, call, stream, tell)


async def _read_output(
    agent: ReplyingAgent, run: ReplyRun, call: ToolCallBlock, stream: _CallOutput, tell: Tell
) -> tuple[ToolResponse, ToolOutput]:
    """Read the output of a call to its end, and tell what comes in pieces; returns its result, and these pieces."""
    chains = agent.chains
    # What is out cannot be taken back, so that nothing is announced before the whole has passed on_content.
    is_held = (
        chains.on_content is not incoming_content
        and not call.is_hidden
        and any(chains.terms.holds(agent, layer.middleware) for layer in chains.layers["on_content"])
    )
    streamed: ToolOutput = []
    pieces: DataPieces | None = None
    failed: ToolResponse | None = None
    response: ToolResponse | None = None  # which counts once the stream has been read to its end
    try:
        async for item in stream:
            if response is not None:
                layers = " > ".join(layer.name for layer in chains.layers["on_acting"])
                # Of its type alone, since this goes to the log.
                _logger.warning(_LATE_ITEM, type(item).__name__, layers)
            elif isinstance(item, ToolResponse):
                response = item
            else:
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
    except MissingTerminalError as error:
        if response is None:
            _logger.error("%s", error)
    except BaseException:  # at its end a stream closes itself
        await stream.aclose()
        raise
    return failed or response or lost_response(), streamed


async def receive_outcome(
    agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, prepared: Prepared, response: ToolResponse
) -> TakenResult | None:
    """Take in a result as on_content leaves it; `None` for a call that waits. `prepared` says whether the call ran."""
    if response.waits:
        run = agent.live_conversation.run
        refusal = refusal_to_wait(agent, call) or note_waiting(context, run, call, response)
        if refusal is None:
            return None
        response = refusal
    # The rules of layers about tools are not for the hidden tools of other layers.
    if agent.chains.on_content is not incoming_content and not call.is_hidden:
        # Nothing of a tool is in a handle.
        is_own = isinstance(prepared, ToolResponse) or host_of(agent, call, prepared.tool) is not None
        source: ContentSource = "not_run" if is_own else "tool_result"
        response = await receive_result(agent, call, source, response)
    return take_result(context, call, response)
