"""Reads the message that answers the question of a task: in words, or exactly, in a part with data."""

import re
from typing import Any

from agentrt._runtime.conversation.inputs import AnswerEvent
from agentrt.event import ExternalExecutionResultEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.message import ToolResultBlock, ToolResultState
from agentrt.serving.a2a.failure import rpc_error
from agentrt.serving.a2a.request import SentMessage
from agentrt.serving.bodies import confirm_calls, read_answer

_YES = {"yes", "y", "ok", "okay", "approve", "approved", "allow", "allowed", "confirm", "confirmed", "true"}
_NO = {"no", "n", "deny", "denied", "reject", "rejected", "refuse", "decline", "cancel", "false"}
_FIRST_WORD = re.compile(r"(\w+)[\s,.:;!-]*", re.UNICODE)


def read_message_answer(
    question: RequireUserConfirmEvent | RequireExternalExecutionEvent, message: SentMessage
) -> AnswerEvent | None:
    """Return the answer, `None` for words that are neither yes nor no; raises `ApiError` for an invalid answer."""
    data = [part["data"] for part in message.parts if "data" in part]
    if len(data) > 1:
        raise rpc_error("INVALID_PARAMS", "'message.parts' must have at most one part with 'data': it is the answer")
    # Data is exact, so the words beside it do not count.
    if data:
        return _exact_answer(question, data[0])
    if isinstance(question, RequireUserConfirmEvent):
        # A yes with more words may be one with a condition. A no stays a no, and the words after it say why.
        if message.text.strip(" .!").lower() in _YES:
            return question.approve()
        first = _FIRST_WORD.match(message.text)
        if first is None or first[1].lower() not in _NO:
            return None
        return question.deny(message.text[first.end() :].strip() or None)
    # Words cannot say which of several calls they are the result of.
    if len(question.tool_calls) > 1:
        raise rpc_error(
            "INVALID_PARAMS", "several results are asked for: send them as data, {'results': {ID: TEXT, ...}}"
        )
    return _results_event(question, {question.tool_calls[0].id: message.text})


def _exact_answer(question: RequireUserConfirmEvent | RequireExternalExecutionEvent, data: Any) -> AnswerEvent:
    if isinstance(data, dict) and isinstance(question, RequireExternalExecutionEvent) and "results" in data:
        results = data["results"]
        if not isinstance(results, dict) or not all(isinstance(text, str) for text in results.values()):
            raise rpc_error("INVALID_PARAMS", "'results' must have the text of the result for the id of each call")
        return _results_event(question, results)
    # The id of the task has that of the reply, so a client need not give it.
    answer = read_answer(data if not isinstance(data, dict) else {"reply_id": question.reply_id, **data})
    if answer is not None:
        return answer
    return confirm_calls(question, data.get("reply_id", question.reply_id), data["calls"])


def _results_event(question: RequireExternalExecutionEvent, results: dict[str, str]) -> ExternalExecutionResultEvent:
    names = {call.id: call.name for call in question.tool_calls}
    for call_id in results:
        if call_id not in names:
            raise rpc_error("INVALID_PARAMS", f"the task does not ask for the result of a call {call_id!r:.200}")
    blocks = [
        ToolResultBlock(call_id, names[call_id], text, ToolResultState.SUCCESS) for call_id, text in results.items()
    ]
    return ExternalExecutionResultEvent(question.reply_id, blocks)
