"""A reply's question, as a form that an MCP client shows to its user, or as text; and the answers to both."""

from collections.abc import Mapping
from hashlib import sha256
from json import dumps
from typing import Any

from agentrt._runtime.text import escape_controls
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
)
from agentrt.message import ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.serving.failure import ApiError

ReplyQuestion = RequireUserConfirmEvent | RequireExternalExecutionEvent
QuestionAnswer = UserConfirmResultEvent | ExternalExecutionResultEvent
_DECISION_WORDS = {"approve": True, "deny": False}


def question_text(question: ReplyQuestion) -> str:
    """Return the question as text, with all of the input of each call: nobody should approve what is not shown."""
    decisions = question.questions if isinstance(question, RequireUserConfirmEvent) else None
    lines = ["The agent waits for the results of:" if decisions is None else "The agent asks for approval of:"]
    for call in question.tool_calls:
        reason = decisions[call.id].message if decisions and call.id in decisions else ""
        agents = "".join(f"{name}: " for name in question.inside.get(call.id, ()))
        lines.append(f"- {agents}{call.name} {call.input}{reason and f' ({reason})'}")
    return escape_controls("\n".join(lines))


def how_to_answer(question: ReplyQuestion, session_id: str) -> str:
    """Return the text that says how to answer, for a client that has no forms."""
    asks = isinstance(question, RequireUserConfirmEvent)
    value = "approve" if asks else "the result, as text"
    arguments = {"session_id": session_id, "answer": {call.id: value for call in question.tool_calls}}
    choice = ', with "deny" for what must not run' if asks else ""
    return f"To answer, call this tool again with {dumps(arguments, ensure_ascii=False)}{choice}."


def digest_of(question: ReplyQuestion) -> str:
    """Return a digest of the calls that are asked about, with their inputs."""
    # The inputs too: a call may be asked about again, under the same id, with others.
    calls = [(call.id, call.name, call.input) for call in question.tool_calls]
    return sha256(dumps([question.reply_id, calls]).encode()).hexdigest()[:32]


def make_form(question: ReplyQuestion) -> dict[str, Any]:
    """Return the schema of the form: one field for each call, without defaults."""
    fields: dict[str, dict[str, Any]] = {}
    for name, call in _fields(question).items():
        title = escape_controls(call.name)
        # Without a default, which a user who only presses Enter would approve.
        if isinstance(question, RequireUserConfirmEvent):
            fields[name] = {"type": "boolean", "title": f"Approve {title}"}
        else:
            fields[name] = {"type": "string", "title": f"The result of {title}"}
    required = list(fields)  # not the feedback, which few users want to give
    if isinstance(question, RequireUserConfirmEvent):
        fields["feedback"] = {"type": "string", "title": "What to tell the agent if you do not approve"}
    return {"type": "object", "properties": fields, "required": required}


def read_form(question: ReplyQuestion, content: Mapping[str, Any]) -> QuestionAnswer | None:
    """Return the answer in a form, `None` if a field is missing or has a value of another type."""
    values = {call.id: content.get(name) for name, call in _fields(question).items()}
    if isinstance(question, RequireExternalExecutionEvent):
        texts = {call_id: text for call_id, text in values.items() if isinstance(text, str)}
        return _results(question, texts) if len(texts) == len(values) else None
    # Only `True` approves, and not "yes" or 1.
    if not all(isinstance(value, bool) for value in values.values()):
        return None
    feedback = content.get("feedback")
    words = feedback if isinstance(feedback, str) and feedback else None
    return _decisions(question, {call_id: value is True for call_id, value in values.items()}, words)


def decline(question: ReplyQuestion) -> QuestionAnswer:
    """Return the answer of a user who refuses."""
    if isinstance(question, RequireUserConfirmEvent):
        return _decisions(question, dict.fromkeys((call.id for call in question.tool_calls), False), None)
    text = "The user declined to give this result."
    return _results(question, dict.fromkeys((call.id for call in question.tool_calls), text), ToolResultState.ERROR)


def read_texts(question: ReplyQuestion | None, texts: Mapping[str, str]) -> QuestionAnswer:
    """Return the answer in the arguments of a call; raises `ApiError` for one that does not fit."""
    if question is None:
        raise ApiError(409, "not_waiting", "the session does not wait for an answer")
    call_ids = {call.id for call in question.tool_calls}
    for call_id in texts:
        # A model may mix up the ids of several questions, and must not answer one that it did not mean.
        if call_id not in call_ids:
            raise ApiError(409, "unknown_call", f"the reply does not ask about a call {call_id!r:.200}")
    if isinstance(question, RequireExternalExecutionEvent):
        return _results(question, texts)
    if not set(texts.values()) <= _DECISION_WORDS.keys():
        raise ApiError(400, "invalid_answer", '\'answer\' must say "approve" or "deny" for the id of each call')
    return _decisions(question, {call_id: _DECISION_WORDS[word] for call_id, word in texts.items()}, None)


def _fields(question: ReplyQuestion) -> dict[str, ToolCallBlock]:
    """Return the calls by the names of their fields, which clients may show: ids say nothing, and may be any text."""
    word = "approve" if isinstance(question, RequireUserConfirmEvent) else "result"
    if len(question.tool_calls) == 1:
        return {word: question.tool_calls[0]}
    return {f"{word}_{number}": call for number, call in enumerate(question.tool_calls, 1)}


def _decisions(question: RequireUserConfirmEvent, decided: Mapping[str, bool], words: str | None) -> QuestionAnswer:
    results = [
        ConfirmResult(decided[call.id], call, feedback=None if decided[call.id] else words)
        for call in question.tool_calls
        if call.id in decided
    ]
    return UserConfirmResultEvent(question.reply_id, results)


def _results(
    question: RequireExternalExecutionEvent, texts: Mapping[str, str], state: ToolResultState = ToolResultState.SUCCESS
) -> QuestionAnswer:
    results = [
        ToolResultBlock(call.id, call.name, texts[call.id], state) for call in question.tool_calls if call.id in texts
    ]
    return ExternalExecutionResultEvent(question.reply_id, results)
