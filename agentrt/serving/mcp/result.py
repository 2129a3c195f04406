"""The results of an agent's tool: text for a model, and the same as data for a program."""

from collections.abc import Sequence
from dataclasses import asdict
from json import dumps, loads
from typing import Any

from mcp.types import AudioContent, CallToolResult, ContentBlock, ImageContent, TextContent

from agentrt import Msg
from agentrt._runtime.text import whole_characters
from agentrt.message import Base64Source
from agentrt.runner import ReplyHandle
from agentrt.serving.failure import ApiError
from agentrt.serving.mcp.question import ReplyQuestion, how_to_answer, question_text
from agentrt.serving.sse import public_error

_INTEGER = {"type": "integer"}
_ERROR_FIELDS = ("code", "message", "limit")
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What the agent says."},
        "session_id": {"type": "string", "description": "The conversation: give it to the next call to continue it."},
        "reply_id": {"type": "string"},
        "finished_reason": {
            "type": "string",
            "description": "'completed', 'interrupted', ...; 'waiting' where the agent asks for something",
        },
        "usage": {
            "type": "object",
            "properties": dict.fromkeys(("input_tokens", "output_tokens", "cache_input_tokens"), _INTEGER),
        },
        "structured_output": {"type": "object"},
        "waiting": {
            "type": "array",
            "description": "The calls that the agent asks about.",
            "items": {"type": "object", "properties": {name: {"type": "string"} for name in ("id", "name", "input")}},
        },
        "error": {"type": "object", "properties": {name: {"type": "string"} for name in _ERROR_FIELDS}},
    },
}
_NEXT_STEPS = {
    "no_session": "Leave 'session_id' out to begin a new conversation.",
    "no_reply": "Send a 'message'.",
    "closed": "Call again with the session_id alone to read the answer.",
    "not_open": "Call again.",
    "queue_full": "Call again later.",
    "not_waiting": "Send a 'message', or the session_id alone to read what was said last.",
    "conflict": "Send the session_id alone to read on.",
    "internal": "The log of the server says where.",
}


def answer_result(handle: ReplyHandle, message: Msg) -> CallToolResult:
    """Return the answer of a reply that has ended; a reply that failed gives an error."""
    reason = message.finished_reason or "completed"
    values = _values(handle, message, reason)
    # The other ends, such as an interrupt, are results that a model can work with.
    if reason in ("error", "failed"):
        code = public_error(reason, message.error) or reason
        values["error"] = {"code": code, "message": f"the reply failed: {code}"}
        remedy = "Its tools may have run. Send a message to the same session_id to continue."
        return _result([f"The reply failed: {code}. {remedy}", _session_line(handle)], values, is_error=True)
    ended = "" if reason == "completed" else f"[The reply ended early: {reason}]"
    texts = [values["text"] or ended or "[The agent said nothing.]", values["text"] and ended, _session_line(handle)]
    return _result(texts, values, _media(message))


def waiting_result(handle: ReplyHandle, message: Msg, question: ReplyQuestion, *, has_form: bool) -> CallToolResult:
    """Return what was said so far, what is asked, and how to answer."""
    values = _values(handle, message, "waiting")
    values["waiting"] = [
        {name: whole_characters(getattr(call, name)) for name in ("id", "name", "input")}
        for call in question.tool_calls
    ]
    if has_form:
        how = "It was not answered. Call this tool again with the session_id alone to ask the user again."
    else:
        how = how_to_answer(question, handle.session_id)
    if question.reply_id != handle.reply_id:
        how = f"{how} Your message is kept, and answered after that."
    return _result([values["text"], question_text(question), how, _session_line(handle)], values, _media(message))


def error_result(error: ApiError, session_id: str | None, question: ReplyQuestion | None = None) -> CallToolResult:
    """Return a refusal, with the open question if that is its cause."""
    failure = error.body["error"]
    code, message = failure["code"], failure["message"]
    lines = [f"{code}: {message}.", _NEXT_STEPS.get(code, "")]
    if question is not None and session_id is not None:
        lines += [question_text(question), how_to_answer(question, session_id)]
    values: dict[str, Any] = {"error": {name: failure[name] for name in _ERROR_FIELDS if name in failure}}
    if session_id is not None:
        values["session_id"] = whole_characters(session_id)
    return _result(["\n".join(filter(None, lines))], values, is_error=True)


def _values(handle: ReplyHandle, message: Msg, reason: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "text": whole_characters(message.get_text_content() or ""),
        "session_id": handle.session_id,
        "reply_id": handle.reply_id,
        "finished_reason": reason,
    }
    if message.usage is not None:
        counts = asdict(message.usage)
        values["usage"] = {name: counts[name] for name in OUTPUT_SCHEMA["properties"]["usage"]["properties"]}
    # As JSON that every client can read: half of a surrogate pair has no UTF-8 form.
    if isinstance(message.structured_output, dict):
        values["structured_output"] = loads(whole_characters(dumps(message.structured_output, ensure_ascii=False)))
    return values


def _session_line(handle: ReplyHandle) -> str:
    # In the text as well: many clients show a model only the text, and it must know how to continue.
    return f"[session_id: {dumps(handle.session_id, ensure_ascii=False)}]"


def _media(message: Msg) -> list[ContentBlock]:
    blocks: list[ContentBlock] = []
    for block in message.get_content_blocks("data"):
        source = block.source
        # The protocol takes only data, and a URL that a model wrote may lead anywhere.
        if not isinstance(source, Base64Source):
            continue
        if source.media_type.startswith("image/"):
            blocks.append(ImageContent(data=source.data, mime_type=source.media_type))
        elif source.media_type.startswith("audio/"):
            blocks.append(AudioContent(data=source.data, mime_type=source.media_type))
    return blocks


def _result(
    texts: Sequence[str], values: dict[str, Any], media: Sequence[ContentBlock] = (), *, is_error: bool = False
) -> CallToolResult:
    blocks = [TextContent(text=whole_characters(text)) for text in texts if text]
    # What the agent says comes first, and the line about the session last.
    content = [*blocks[:-1], *media, blocks[-1]]
    return CallToolResult(content=content, structured_content=values, is_error=is_error)
