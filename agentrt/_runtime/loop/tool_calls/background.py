"""Background calls: a call that is let go, and what its result does to the conversation.

let_go    notes the task in the state and saves that, has the host store the conversation of the task, and returns the
          handle; entered again after a kill, it does no more than the second
answer    in the conversation of the task: the result of its call is the answer of its reply
wake      in the conversation that let go: the message with the result is taken in as the result of a tool is

A call is decided before it is let go, and goes through on_acting where it is made: once, in the task's own reply.
"""

import logging
from dataclasses import replace
from hashlib import sha256
from json import dumps
from typing import Any

import anyio

from agentrt._runtime.conversation.conversation import ReplyingAgent, TaskHost
from agentrt._runtime.conversation.inputs import incoming_content
from agentrt._runtime.conversation.open_calls import open_calls
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.flow.handles import share_held
from agentrt._runtime.flow.release import move_to, replace_in_message
from agentrt._runtime.loop.tool_calls.tool_results import Tell, receive_result
from agentrt.event import TaskStartedEvent
from agentrt.message import (
    AssistantMsg,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    new_reply_message,
)
from agentrt.state import AgentState, ReplyContext, TaskRecord
from agentrt.tool import ToolBase
from agentrt.tool.to_response import failure
from agentrt.types import PermissionBehavior, ToolResponse

_logger = logging.getLogger("agentrt")


def host_of(agent: ReplyingAgent, call: ToolCallBlock, tool: ToolBase) -> TaskHost | None:
    """Return who makes this call elsewhere; `None` for one that is awaited.

    Only the outermost reply of a runner has a host. What another call makes has a path as its id, and is awaited: the
    conversation that it could wake is that of a call which is over by then.
    """
    return agent.live_conversation.task_host if tool.is_background and "/" not in call.id else None


async def let_go(agent: ReplyingAgent, run: ReplyRun, call: ToolCallBlock, host: TaskHost, tell: Tell) -> ToolResponse:
    """Have the host make the call, and return its handle, or the refusal where too many are not over."""
    state, context = agent.state, agent.state.reply_context
    assert context is not None
    task_id = context.decisions[call.id].task_id or new_task_id(state.session_id, run.id, call.id)
    is_noted = task_id in state.tasks
    limit = agent.react_config.max_background
    if not is_noted and await _is_full(state, context, host, limit):
        return failure(
            f"Not run: {limit} background calls of this conversation are not over, and ReActConfig(max_background="
            f"{limit}) allows no more. Wait for their results.",
            ToolResultState.DENIED,
        )
    task = TaskRecord(task_id, call.name, call.id, state.session_id, run.id)
    # An interrupt comes before or after, so that nothing is noted that nobody runs.
    with anyio.CancelScope(shield=True):
        if not is_noted:
            # Before the next await: calls of one batch are let go side by side. What this saves says of all of them
            # that none has run here, so that a kill before their own save leaves no call in doubt.
            _note_ids(agent, run, context)
            state.tasks[task.id] = task
            await agent.save()
        await host.start(task, _seed_of(agent, context, task, call))
    await tell([TaskStartedEvent(run.id, call.id, task.id, task.session_id)])
    text = (
        f"{call.name} runs in the background as {task.id}. Its result will come in a message from 'task', so do not "
        f"call it again for this."
    )
    return ToolResponse([TextBlock(text)], metadata={"task_id": task.id})


def _note_ids(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext) -> None:
    """Note the id of the task of each open call that is to be let go."""
    for call in open_calls(context):
        tool, decision = run.toolkit_of(call.id).get(call.name), context.decisions.get(call.id)
        is_allowed = decision is not None and decision.behavior is PermissionBehavior.ALLOW and not decision.waits_for
        if decision is not None and is_allowed and tool is not None and tool.is_background:
            task_id = new_task_id(agent.state.session_id, run.id, call.id)
            context.decisions[call.id] = replace(decision, task_id=task_id)


def task_of(state: AgentState, call: ToolCallBlock) -> str:
    """Return the id of the task that makes the call, "" where it was not let go."""
    decision = None if state.reply_context is None else state.reply_context.decisions.get(call.id)
    return "" if decision is None else decision.task_id


def handle_without_host(call: ToolCallBlock, task_id: str) -> ToolResponse:
    """Return the result of a call that a runner has let go, in a reply that continues without one."""
    text = f"Unknown: {call.name} was left to a runner, as {task_id}. It may have taken effect."
    return ToolResponse([TextBlock(text)], ToolResultState.UNKNOWN, metadata={"task_id": task_id})


def new_task_id(session_id: str, reply_id: str, call_id: str) -> str:
    """Return the id of a task: the same for the same call, in any process."""
    return f"task:{sha256(dumps([session_id, reply_id, call_id]).encode()).hexdigest()[:16]}"


def note_answer_of_task(context: ReplyContext) -> None:
    """Note the answer of a task's reply, once there is one: the result of its call."""
    if context.response is not None or open_calls(context):
        return
    result = next((block for block in reversed(context.blocks) if isinstance(block, ToolResultBlock)), None)
    blocks = [] if result is None else result.blocks
    context.response = AssistantMsg(context.message.name, [replace(block) for block in blocks])


async def _is_full(state: AgentState, context: ReplyContext, host: TaskHost, limit: int) -> bool:
    """Say whether `limit` tasks of the conversation are not over, and forget those that were never started."""
    over: set[str] = set()
    # The answers of the last look hold until the next await, so concurrent background calls count each other.
    while len(state.tasks.keys() - over) >= limit:
        known_over = len(over)
        for task in [task for task in state.tasks.values() if task.id not in over]:
            standing = await host.state_of(task)
            decision = context.decisions.get(task.call_id)
            if standing == "over":
                over.add(task.id)
            elif standing is None and (decision is None or decision.task_id != task.id):
                # Its process died before it could submit it; one of this reply is about to be submitted.
                state.tasks.pop(task.id, None)
                over.add(task.id)
        if len(over) == known_over:
            return True
    return False


def _seed_of(agent: ReplyingAgent, context: ReplyContext, task: TaskRecord, call: ToolCallBlock) -> AgentState:
    """Return the conversation of a task: a reply that has made this one call, and was left before it ran.

    It has what the layers and the tool know of this reply, and nothing of the history. The host stores its JSON.
    """
    state = agent.state
    message = new_reply_message(agent.name, task.id)
    message.content = [ToolCallBlock(call.id, call.name, call.input)]
    reply = ReplyContext(
        task.id,
        message,
        context.max_iters,
        parked=True,  # so that the call is not in doubt: it was not started
        decisions={call.id: replace(context.decisions[call.id], task_id="")},
        identities=context.identities,
        middleware_data=context.middleware_data,
        conditions=context.conditions,
        is_task=True,
    )
    seed = AgentState(
        session_id=task.session_id,
        reply_context=reply,
        sequence=1,  # of what a follower is first shown: the call
        active_groups=state.active_groups,
        known_tools=state.known_tools,
        permission_context=state.permission_context,
        middleware_data=state.middleware_data,
        labels=state.labels,
        task=task,
    )
    share_held(seed, state)
    return seed


async def receive_wake(agent: ReplyingAgent, task: TaskRecord, message: Msg) -> Msg:
    """Return the message by which a task wakes its conversation, with the result as on_content leaves it.

    Its first block is the runtime's own; what follows has come out of a tool, and is taken for no more than that.
    """
    metadata = dict(message.metadata)
    held = metadata.pop("held", None)
    state_of_call = ToolResultState(metadata.pop("state", ToolResultState.UNKNOWN))
    if held is not None:
        # With the labels of what it read: the values move from the task's conversation, as those of a sub-agent do.
        moving = AgentState.model_validate_json(dumps({"held": held}))
        message = replace_in_message(moving, message, move_to(agent.state))
    head, *content = message.get_content_blocks(["text", "data"])
    if content and agent.chains.on_content is not incoming_content:
        call = ToolCallBlock(task.call_id, task.tool, "{}")
        output: Any = content
        try:
            response = await receive_result(agent, call, "tool_result", ToolResponse(output, state_of_call))
            content = [*response.content]
        except Exception as error:  # noqa: BLE001  # nobody would submit it again: the model hears of the end at least
            name = type(error).__name__
            _logger.warning("the result of %s is withheld from %.100r: %s", task.id, agent.state.session_id, name)
            content = [TextBlock(f"[withheld: a layer that looks at results failed ({name})]")]
    return replace(message, content=[head, *content], metadata=metadata)


def task_woken_by(state: AgentState, reply_id: str) -> TaskRecord | None:
    """Return the task whose result this reply begins with, `None` for other replies.

    By the id of the reply, which only the runtime gives, and not by what the message says of itself.
    """
    return next((task for task in state.tasks.values() if task.wake_id == reply_id), None)
