"""The request of an OpenAI API client, and the error for an unsupported one."""

from typing import Any, NamedTuple, Self

from agentrt import Msg
from agentrt._runtime.text import whole_characters
from agentrt.message import AssistantMsg
from agentrt.serving.bodies import read_response_format, read_user_message
from agentrt.serving.budget import take_in
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import check_new_id
from agentrt.types import JSONSchema

# What changes the form of an answer. Other settings, such as a temperature, are the agent's own affair and are ignored.
ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "tools": (None, []),
    "functions": (None, []),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
}
_TYPES_BY_STATUS = {401: "authentication_error", 429: "rate_limit_error"}
_SYSTEM_ROLES = ("system", "developer")


class ChatRequest(NamedTuple):
    """The body of a chat completion, as far as it is used here."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    session_id: str | None
    schema: JSONSchema | None

    @classmethod
    def read(cls, body: dict[str, Any]) -> Self:
        """Return the request; raises `ApiError` that names the parameter."""
        model, messages, session_id = body.get("model"), body.get("messages"), body.get("session_id")
        if not isinstance(model, str):
            raise wrong_parameter("model", "'model' must be the name of an agent: GET /v1/models lists them")
        if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
            raise wrong_parameter("messages", "'messages' must be a list of messages, with at least one")
        for name, values in ONLY_VALUES.items():
            if body.get(name) not in values:
                raise wrong_parameter(
                    name, f"this server does not take {name!r}: an agent has its own tools, and gives one answer"
                )
        stream, options = body.get("stream") or False, body.get("stream_options") or {}
        if not isinstance(stream, bool) or not isinstance(options, dict):
            raise wrong_parameter("stream", "'stream' must be true or false, and 'stream_options' an object")
        # Not of the API: clients send it beside its own fields.
        if session_id is not None:
            check_new_id(session_id, "'session_id'")
        try:
            schema = read_response_format(body.get("response_format"), "response_format")
        except ApiError as error:
            raise wrong_parameter("response_format", str(error)) from None
        return cls(model, messages, stream, options.get("include_usage") is True, session_id, schema)

    async def conversation(self, agent_name: str) -> tuple[list[Msg], list[Msg]]:
        """Return what was said before, and what the user says now: all behind the last answer."""
        first = len(self.messages)
        while first and self.messages[first - 1].get("role") in ("user", *_SYSTEM_ROLES):
            first -= 1
        taken = await take_in(self.messages, lambda number, item: self._read(agent_name, item, f"messages[{number}]"))
        if first == len(taken):
            raise wrong_parameter("messages", "'messages' must end with a message of the user")
        return taken[:first], taken[first:]

    def _read(self, agent_name: str, message: dict[str, Any], place: str) -> Msg:
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            return self._answer(agent_name, message, place)
        if role not in ("user", *_SYSTEM_ROLES):
            raise wrong_parameter(place, f"'{place}.role' must be 'user', 'assistant' or 'system'")
        item = {"role": "user", "content": content}
        # The agent has a system prompt of its own, and its instructions are not for clients to give: the agent reads
        # those of a client as something that the user says.
        if role in _SYSTEM_ROLES:
            item["name"] = "system"
        elif message.get("name") is not None:
            item["name"] = message["name"]
        try:
            return read_user_message(item, place)
        except ApiError as error:
            raise wrong_parameter(place, str(error)) from None

    def _answer(self, agent_name: str, message: dict[str, Any], place: str) -> Msg:
        content = message.get("content")
        # Clients may send back what they were sent as parts.
        if isinstance(content, list) and all(isinstance(part, dict) for part in content):
            content = "".join(str(part.get("text", "")) for part in content)
        # This server never sends any, so they are of another one.
        if message.get("tool_calls") or not isinstance(content, str):
            raise wrong_parameter(place, f"'{place}.content' must be the text of an answer, and without tool calls")
        return AssistantMsg(agent_name, whole_characters(content))


def wrong_parameter(name: str, message: str) -> ApiError:
    """Return the refusal of a parameter."""
    return ApiError(400, "invalid_parameter", message, details={"param": name})


def openai_error(error: ApiError) -> ApiError:
    """Return the same refusal in the form of OpenAI's."""
    values = error.body["error"]
    kind = _TYPES_BY_STATUS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    details = {name: value for name, value in values.items() if name not in ("code", "message")}
    headers = dict(error.headers)
    # The official clients send 409 again by themselves, which changes nothing; what passes says when to come back.
    if "Retry-After" not in headers:
        headers["x-should-retry"] = "false"
    return ApiError(
        error.status,
        values["code"],
        values["message"],
        details={"param": None, **details, "type": kind},
        headers=headers,
    )
