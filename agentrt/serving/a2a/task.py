"""A task as the store has it: the status of a reply, what the agent has said, and what it asks."""

from contextlib import aclosing
from typing import Any

from agentrt import Msg
from agentrt.a2a.content import file_part
from agentrt.event import ReplyEndEvent
from agentrt.message import DataBlock, TextBlock
from agentrt.serving.a2a.failure import rpc_error
from agentrt.serving.a2a.request import TaskName
from agentrt.serving.a2a.status import end_status, question_status, task_message
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import OwnerSessions

_PARAGRAPH = "\n\n"
"""Between what an agent says before a tool call and after it."""


async def read_task(sessions: OwnerSessions, name: TaskName, history_length: int | None = None) -> dict[str, Any]:
    """Return the task in its current state; raises `ApiError` if the owner has no task of that name."""
    # Loaded for the owner, so that a task of another owner is refused as one that is not there.
    try:
        state = await sessions.load(name.session_id)
        status = await sessions.status(name.session_id, name.reply_id)
        # Loaded again, since the question may be newer than the first state.
        state = await sessions.load(name.session_id) if status == "waiting" else state
    except ApiError as error:
        raise rpc_error("TASK_NOT_FOUND", "this task does not exist") from error
    if status is None:
        raise rpc_error("TASK_NOT_FOUND", "this task does not exist")
    messages = state.context
    position = len(messages)
    if state.reply_context is None or state.reply_context.reply_id != name.reply_id:
        position = next((number for number, message in enumerate(messages) if message.id == name.reply_id), 0)
    # The messages of the user that began the task are right before its message, if the session still has them.
    first = position
    while (
        first and messages[first - 1].role == "user" and (history_length is None or position - first < history_length)
    ):
        first -= 1
    history = [task_message(name, message.id, "USER", message_parts(message)) for message in messages[first:position]]
    if status not in ("running", "waiting"):
        message, end = await _read_finished_reply(sessions, name)
        return task_json(name, end_status(name, status, end), message_parts(message, end), history)
    context = state.reply_context
    parts = [] if context is None or context.reply_id != name.reply_id else message_parts(context.message)
    # The question may have been answered since the status was read.
    question = sessions.agent.with_state(state).waiting() if status == "waiting" else None
    if question is None or question.reply_id != name.reply_id:
        return task_json(name, working(), parts, history)
    return task_json(name, question_status(name, question), parts, history)


async def _read_finished_reply(sessions: OwnerSessions, name: TaskName) -> tuple[Msg, ReplyEndEvent | None]:
    """Return what a reply said, and its end; both from its events, since an interrupt changes its message."""
    message, end = Msg(sessions.agent.name, [], "assistant", id=name.reply_id), None
    events = sessions.events(name.session_id, name.reply_id)
    async with aclosing(events):
        async for event in events:
            # Sub-agents have replies of their own, whose answers are results of calls of this one.
            if event.reply_id == name.reply_id:
                message.append_event(event)
                end = event if isinstance(event, ReplyEndEvent) else end
    return message, end


def task_json(
    name: TaskName, status: dict[str, Any], parts: list[dict[str, Any]], history: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a task as JSON; `parts` are those of its only artifact, which is left out if there are none."""
    artifacts = [answer_artifact(parts)] if parts else []
    task = {"id": str(name), "contextId": name.session_id, "status": status, "artifacts": artifacts, "history": history}
    # Clients read a list that is missing as an empty one.
    return {key: value for key, value in task.items() if value != []}


def answer_artifact(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"artifactId": "answer", "name": "answer", "parts": parts}


def working() -> dict[str, Any]:
    return {"state": "TASK_STATE_WORKING"}


def message_parts(message: Msg, end: ReplyEndEvent | None = None) -> list[dict[str, Any]]:
    """Return the text and the files of a message as parts; thinking and tool calls are left out."""
    parts: list[dict[str, Any]] = []
    for block in message.get_content_blocks():
        if isinstance(block, TextBlock) and block.text:
            if parts and "text" in parts[-1]:
                parts[-1]["text"] += _PARAGRAPH + block.text
            else:
                parts.append({"text": block.text})
        elif isinstance(block, DataBlock):
            parts.append(file_part(block))
    if end is not None and end.structured_output is not None:
        parts.append({"data": end.structured_output})
    return parts
