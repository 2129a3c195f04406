"""The status of a task, with what it asks or how it ended, in words and as data."""

from typing import Any

from agentrt.event import ReplyEndEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.serving.a2a.request import TaskName
from agentrt.serving.sse import public_error

_OVER = {
    "completed": "TASK_STATE_COMPLETED",
    "interrupted": "TASK_STATE_CANCELED",
    "guardrail": "TASK_STATE_REJECTED",
}
"""The states of tasks by the `finished_reason` of their replies; any other reason is a failure."""
_TASK_FAILED = "TASK_STATE_FAILED"


def task_message(name: TaskName, message_id: str, role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message of the task."""
    names = {"messageId": message_id, "contextId": name.session_id, "taskId": str(name)}
    return {**names, "role": f"ROLE_{role}", "parts": parts}


def state_of_reason(reason: str) -> str:
    """Return the state of a task whose reply ended for this reason."""
    return _OVER.get(reason, _TASK_FAILED)


def end_status(name: TaskName, reason: str, end: ReplyEndEvent | None) -> dict[str, Any]:
    """Return the status of a task that is over."""
    # A failure is named by its class: the message of an exception may hold a secret.
    state = state_of_reason(reason)
    if state != _TASK_FAILED:
        return {"state": state}
    code = (end and public_error(reason, end.error)) or reason
    text = f"the reply failed: {code}" if reason in ("error", "failed") else f"the reply was stopped: {code}"
    return {"state": state, "message": task_message(name, f"{name.reply_id}-end", "AGENT", [{"text": text}])}


def question_status(
    name: TaskName, question: RequireUserConfirmEvent | RequireExternalExecutionEvent
) -> dict[str, Any]:
    """Return the status of a task that waits, with what it asks in words and as data."""
    asks = question.questions if isinstance(question, RequireUserConfirmEvent) else None
    calls = [
        {
            "id": call.id,
            "name": call.name,
            "input": call.input,
            "message": "" if asks is None or call.id not in asks else asks[call.id].message,
        }
        for call in question.tool_calls
    ]
    # With the reason, which has the values of a call that was written with handles.
    lines = [
        f"- {call['name']} {call['input']}" + (f" ({call['message']})" if call["message"] else "") for call in calls
    ]
    if asks is not None:
        text = "\n".join(["This needs your approval:", *lines, 'Answer "yes", or "no" and why.'])
    else:
        text = "\n".join(["This needs the result of:", *lines, "Answer with it."])
    # For programs, which answer by the ids of the calls.
    data = {"asks": "results" if asks is None else "approval", "calls": calls}
    message_id = f"{name.reply_id}-{question.seq}"
    parts: list[dict[str, Any]] = [{"text": text}, {"data": data}]
    return {"state": "TASK_STATE_INPUT_REQUIRED", "message": task_message(name, message_id, "AGENT", parts)}
