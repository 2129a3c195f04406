"""What clients send, checked: bodies, messages, answers, and where a stream is to begin."""

import re
from collections.abc import Mapping
from json import dumps
from typing import Any

import anyio
from starlette.requests import Request

from agentrt import Agent, AgentState, Msg
from agentrt.boundary import strict_json
from agentrt.errors import InvalidInputError, UsageError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.serving.failure import ApiError
from agentrt.serving.limits import Limits

__all__ = [
    "SentAnswer",
    "confirm_calls",
    "decode_json",
    "is_reply_id",
    "read_after",
    "read_answer",
    "read_body",
    "read_idempotency_key",
    "read_json",
    "read_messages",
    "read_on_disconnect",
    "read_query_number",
]

SentAnswer = UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent
_ANSWER_TYPES = (UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent)
_IDEMPOTENCY_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_EVENT_NUMBER = 2**53 - 1
_MESSAGE_FIELDS = ("role", "content", "name")


async def read_json(request: Request, limits: Limits, fields: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the body, an object with no other than these fields, if any are named; raises `ApiError` for others."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A form of another page can send any other type without asking the browser.
    if content_type != "application/json":
        raise ApiError(415, "content_type", "send the body as Content-Type: application/json")
    value = decode_json(await read_body(request, limits))
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_body", "the body must be a JSON object")
    for name in value:
        if fields is not None and name not in fields:
            raise ApiError(400, "invalid_body", f"the body has an unknown field {name!r:.50}: it takes {_list(fields)}")
    return value


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body; raises `ApiError` for one that is too large, or does not come in time."""
    body = bytearray()
    try:
        with anyio.fail_after(limits.body_seconds):
            while (message := await request.receive())["type"] == "http.request":
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    raise ApiError(
                        413, "too_large", f"the body has more than {limits.body_bytes:,} bytes", headers=_CLOSE
                    )
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ApiError(408, "too_slow", "the body did not come in time", headers=_CLOSE) from None
    return bytes(body)


def decode_json(body: bytes) -> Any:
    """Return what is in a body; raises `ApiError` for what is not JSON, or can be read in two ways."""
    try:
        # Of a field that is there twice, another reader might take the other one: an approval must say one thing.
        return strict_json(body, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid_json", "the body is not JSON, or has a field twice") from None


_CLOSE = {"Connection": "close"}  # what is left of the body is not read


def _refuse_twice(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(fields)
    if len(values) < len(fields):
        raise ValueError("a field is there twice")
    return values


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))


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


def read_messages(agent: Agent, value: Any, place: str = "input") -> list[Msg]:
    """Return what the user says: text, a message, or a list of these; raises `ApiError` that names the place."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ApiError(400, "invalid_input", f"{place!r} is empty: send text, or messages")
    return [
        _read_message(agent, item, f"{place}[{number}]" if isinstance(value, list) else place)
        for number, item in enumerate(items)
    ]


def _read_message(agent: Agent, item: Any, place: str) -> Msg:
    if isinstance(item, str):
        item = {"role": "user", "content": item}
    if not isinstance(item, Mapping):
        raise ApiError(400, "invalid_input", f"{place!r} must be text, or a message with 'role' and 'content'")
    for name in item:
        if name not in _MESSAGE_FIELDS:
            raise ApiError(
                400, "invalid_input", f"{place!r} has an unknown field {name!r:.50}: it takes {_list(_MESSAGE_FIELDS)}"
            )
    # Else a client could put words into the mouth of the agent, or of the system.
    if item.get("role") != "user":
        raise ApiError(400, "invalid_input", f"'{place}.role' must be 'user': only a reply speaks for the agent")
    if not isinstance(item.get("name", ""), str):
        raise ApiError(400, "invalid_input", f"'{place}.name' must be text")
    try:
        # By a conversation of its own, since this looks at the message and not at the session.
        taken: Any = [dict(item)]
        [message] = agent.with_state(AgentState()).check_input(taken)  # type: ignore[misc]  # a list gives a list
    except InvalidInputError:
        raise ApiError(
            400,
            "invalid_input",
            f"'{place}.content' must be text that is not empty, or a list of parts of the types 'text' and 'image_url'",
        ) from None
    return message


def read_answer(value: Any) -> SentAnswer | None:
    """Return the answer; `None` if it is the short form, which only says yes or no to each call."""
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_answer", "'answer' must be an object")
    if "calls" in value:
        calls = value["calls"]
        if set(value) != {"reply_id", "calls"} or not isinstance(value["reply_id"], str):
            raise ApiError(400, "invalid_answer", "an 'answer' with 'calls' has 'reply_id', text, and nothing else")
        # No "yes" or 1: an approval is taken as nothing but what it is.
        if not isinstance(calls, dict) or not calls or not all(isinstance(yes, bool) for yes in calls.values()):
            raise ApiError(400, "invalid_answer", "'answer.calls' must say true or false for the id of each call")
        return None
    try:
        answer = AgentEvent.from_json(dumps(value))
    except (UsageError, ValueError):
        answer = None
    if not isinstance(answer, _ANSWER_TYPES):
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
        raise ApiError(409, "not_waiting", "the session does not wait for the user's approval")
    # The client may have looked at a question that was answered since.
    if question.reply_id != reply_id:
        raise ApiError(409, "mismatch", "another reply of this session waits for an answer")
    by_id = {call.id: call for call in question.tool_calls}
    for call_id in calls:
        if call_id not in by_id:
            raise ApiError(409, "unknown_call", f"the reply does not ask about a call {call_id!r:.200}")
    return UserConfirmResultEvent(reply_id, [ConfirmResult(yes, by_id[call_id]) for call_id, yes in calls.items()])
