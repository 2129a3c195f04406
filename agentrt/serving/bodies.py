"""Messages, answers and parameters that clients send, checked."""

import re
from collections.abc import Mapping
from json import dumps
from typing import Any

from starlette.requests import Request

from agentrt import Msg
from agentrt._runtime.conversation.inputs import ANSWERS, AnswerEvent, as_messages, check_content
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt.errors import InvalidInputError, UsageError
from agentrt.event import AgentEvent, ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.serving.budget import take_in
from agentrt.serving.failure import ApiError
from agentrt.types import JSONSchema

_IDEMPOTENCY_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_EVENT_NUMBER = 2**53 - 1
_MAX_SCHEMA_SIZE = 100_000  # characters
_MESSAGE_FIELDS = ("role", "content", "name")


def read_idempotency_key(request: Request) -> str | None:
    """Return the id that the client gives the reply, in `Idempotency-Key`."""
    key = request.headers.get("idempotency-key")
    if key is not None and not is_reply_id(key):
        raise ApiError(400, "idempotency_key", "Idempotency-Key must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -")
    return key


def is_reply_id(text: str) -> bool:
    """Say whether a client may give a reply this id."""
    return _IDEMPOTENCY_KEY.fullmatch(text) is not None


def read_after(request: Request) -> int:
    """Return the number of the last event that the client has, 0 for none."""
    text = request.headers.get("last-event-id")
    if text is None:
        return read_query_number(request, "after", 0, _MAX_EVENT_NUMBER)
    number = _parse_number(text)
    if number is None:
        raise ApiError(400, "last_event_id", "Last-Event-ID must be the id of an event of this reply")
    return number


def read_on_disconnect(request: Request) -> str:
    """Return whether the reply is to "continue" when its reader leaves, or to be ended by an "interrupt"."""
    policy = request.query_params.get("on_disconnect", "continue")
    if policy not in ("continue", "interrupt"):
        raise ApiError(400, "on_disconnect", "?on_disconnect= must be 'continue' or 'interrupt'")
    return policy


def read_query_number(request: Request, name: str, default: int, highest: int) -> int:
    """Return a number of the query."""
    text = request.query_params.get(name)
    number = default if text is None else _parse_number(text)
    if number is None or number > highest:
        raise ApiError(400, name, f"?{name}= must be a number from 0 to {highest}")
    return number


def _parse_number(text: str) -> int | None:
    # int() takes signs, underscores and digits of other scripts too, and any length.
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        return None
    number = int(text)
    return number if number <= _MAX_EVENT_NUMBER else None


async def read_user_messages(value: Any, place: str = "input") -> list[Msg]:
    """Return the messages of the user: text, a message, or a list of these; raises `ApiError` that names the place."""
    if not isinstance(value, list):
        return [read_user_message(value, place)]
    if not value:
        raise ApiError(400, "invalid_input", f"{place!r} is empty: send text, or messages")
    return await take_in(value, lambda number, item: read_user_message(item, f"{place}[{number}]"))


def read_user_message(item: Any, place: str) -> Msg:
    """Return the message of the user; raises `ApiError` that names the place."""
    if isinstance(item, str):
        item = {"role": "user", "content": item}
    if not isinstance(item, Mapping):
        raise ApiError(400, "invalid_input", f"{place!r} must be text, or a message with 'role' and 'content'")
    for name in item:
        if name not in _MESSAGE_FIELDS:
            known = ", ".join(map(repr, _MESSAGE_FIELDS))
            raise ApiError(400, "invalid_input", f"{place!r} has an unknown field {name!r:.50}: it takes {known}")
    # Else a client could put words into the mouth of the agent, or of the system.
    if item.get("role") != "user":
        raise ApiError(400, "invalid_input", f"'{place}.role' must be 'user': only a reply speaks for the agent")
    if not isinstance(item.get("name", ""), str):
        raise ApiError(400, "invalid_input", f"'{place}.name' must be text")
    try:
        [message] = as_messages([dict(item)])
        check_content([message])
    except InvalidInputError:
        raise ApiError(
            400,
            "invalid_input",
            f"'{place}.content' must be non-empty text, or a list of parts of type 'text' or 'image_url'",
        ) from None
    return message


def read_response_format(value: Any, place: str) -> JSONSchema | None:
    """Return the JSON schema of the answer that the client asks for, `None` for text.

    It is in OpenAI's form, in all protocols. Raises `ApiError` that names the place.
    """
    if value is None or value == {"type": "text"}:
        return None
    json_schema = value.get("json_schema") if isinstance(value, dict) and value.get("type") == "json_schema" else None
    schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
    if not isinstance(schema, dict):
        raise ApiError(
            400,
            "invalid_input",
            f"{place!r} must be {{'type': 'text'}}, or {{'type': 'json_schema', 'json_schema': {{'name', 'schema'}}}} "
            f"with the JSON schema of an object",
        )
    return read_schema(schema, place)


def read_schema(schema: JSONSchema, place: str) -> JSONSchema:
    """Return the JSON schema of an answer; raises `ApiError` that names the place."""
    if len(dumps(schema)) > _MAX_SCHEMA_SIZE:
        raise ApiError(400, "invalid_input", f"{place!r} has a schema of more than {_MAX_SCHEMA_SIZE:,} characters")
    try:
        return AnswerForm(schema).schema
    except InvalidInputError as error:
        # Our own words about what the client sent.
        reason = str(error).replace("structured_schema", "its schema", 1)
        raise ApiError(400, "invalid_input", f"{place!r} cannot be used: {reason:.500}") from None


def read_answer(value: Any) -> AnswerEvent | None:
    """Return the answer; `None` if it is the short form, which only says yes or no to each call."""
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_answer", "'answer' must be an object")
    if "calls" in value:
        calls = value["calls"]
        if set(value) != {"reply_id", "calls"} or not isinstance(value["reply_id"], str):
            raise ApiError(400, "invalid_answer", "an 'answer' with 'calls' takes 'reply_id', text, and nothing else")
        # No "yes" or 1: an approval is taken as nothing but what it is.
        if not isinstance(calls, dict) or not calls or not all(isinstance(yes, bool) for yes in calls.values()):
            raise ApiError(400, "invalid_answer", "'answer.calls' must map the id of each call to true or false")
        return None
    try:
        answer = AgentEvent.from_json(dumps(value))
    except (UsageError, ValueError):
        answer = None
    if not isinstance(answer, ANSWERS):
        raise ApiError(
            400,
            "invalid_answer",
            "'answer' must be {'reply_id', 'calls'}, or an event of the type USER_CONFIRM_RESULT, "
            "EXTERNAL_EXECUTION_RESULT or USER_INTERRUPT with all its fields",
        )
    return answer


def confirm_calls(question: object, reply_id: str, calls: dict[str, bool]) -> UserConfirmResultEvent:
    """Return the whole answer for the short form, which is about what is asked now."""
    if not isinstance(question, RequireUserConfirmEvent):
        raise ApiError(409, "not_waiting", "the session is not waiting for the user's approval")
    # The client may have looked at a question that was answered since.
    if question.reply_id != reply_id:
        raise ApiError(409, "mismatch", "another reply of this session waits for an answer")
    by_id = {call.id: call for call in question.tool_calls}
    for call_id in calls:
        if call_id not in by_id:
            raise ApiError(409, "unknown_call", f"the reply does not ask about a call {call_id!r:.200}")
    return UserConfirmResultEvent(reply_id, [ConfirmResult(yes, by_id[call_id]) for call_id, yes in calls.items()])
