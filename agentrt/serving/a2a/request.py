"""A checked request of an A2A client: the call, its message, and the names of tasks."""

import re
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from hashlib import sha256
from json import dumps
from mimetypes import guess_type
from typing import Any, NamedTuple, Self

from agentrt.message import Base64Source, DataBlock, URLSource
from agentrt.serving.a2a.failure import rpc_error
from agentrt.serving.bodies import is_reply_id, read_schema
from agentrt.serving.owners.sessions import check_new_id
from agentrt.types import JSONSchema

_LONGEST_ID = 500
_LONGEST_URL = 8_000
_PART_KINDS = ("text", "raw", "url", "data")
_URL = re.compile(r"https?://[^/?#]", re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+*-]{1,60}(;[\w.+= -]{1,60})?", re.ASCII)


class RpcCall(NamedTuple):
    """One call by JSON-RPC."""

    id: object
    method: str
    params: dict[str, Any]

    @classmethod
    def read(cls, body: dict[str, Any]) -> Self:
        """Return the call; raises `ApiError` for what is not one."""
        # Several calls in one body are a list, which this protocol does not have.
        method, params = body.get("method"), body.get("params", {})
        if body.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict):
            raise rpc_error("INVALID_REQUEST", "send {'jsonrpc': '2.0', 'id': ..., 'method': ..., 'params': {...}}")
        return cls(request_id(body), method, params)


def request_id(body: dict[str, Any]) -> object:
    """Return the id of a call, `None` for one that the answer cannot repeat."""
    value = body.get("id")
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else None


class TaskName(NamedTuple):
    """The name of a task: its session and its reply. The id has both, so that any process finds it in the store."""

    session_id: str
    reply_id: str

    def __str__(self) -> str:
        return f"{self.session_id}~{self.reply_id}"  # no id of a reply has this character, and no URL escapes it

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the name in an id; raises `ApiError` for an id that no task can have."""
        if not isinstance(value, str) or not value:
            raise rpc_error("INVALID_PARAMS", "the id of a task is missing")
        session_id, _, reply_id = value.rpartition("~")
        # An id of a wrong form is refused like that of an unknown task.
        if not session_id or not is_reply_id(reply_id):
            raise rpc_error("TASK_NOT_FOUND", "this task does not exist")
        return cls(session_id, reply_id)


class SentMessage(NamedTuple):
    """A message of the user. `context_id` and `task_id` are empty where it begins a context or a task."""

    id: str
    context_id: str
    task_id: str
    parts: list[dict[str, Any]]

    @classmethod
    def read(cls, params: dict[str, Any]) -> Self:
        """Return the message of a call; raises `ApiError` that names the field."""
        message = params.get("message")
        if not isinstance(message, dict):
            raise rpc_error("INVALID_PARAMS", "'message' must be an object")
        names = {name: read_field(message, name) for name in ("messageId", "contextId", "taskId")}
        for name, value in names.items():
            if not isinstance(value, (str, type(None))) or len(value or "") > _LONGEST_ID:
                raise rpc_error("INVALID_PARAMS", f"'message.{name}' must be text of at most {_LONGEST_ID} characters")
        if not names["messageId"]:
            raise rpc_error("INVALID_PARAMS", "'message.messageId' is missing: give each message an id of its own")
        # Else a client could write messages of the agent. The number is that of the role in protobuf.
        if message.get("role") not in ("ROLE_USER", 1):
            raise rpc_error("INVALID_PARAMS", "'message.role' must be 'ROLE_USER': only a task speaks for the agent")
        if names["contextId"]:
            check_new_id(names["contextId"], "'message.contextId'")
        parts = message.get("parts")
        if not isinstance(parts, list) or not parts:
            raise rpc_error("INVALID_PARAMS", "'message.parts' must be a list of parts, with at least one")
        checked = [_check_part(part, f"message.parts[{number}]") for number, part in enumerate(parts)]
        return cls(names["messageId"] or "", names["contextId"] or "", names["taskId"] or "", checked)

    @property
    def reply_id(self) -> str:
        """The id of the reply that this begins: the same for a message that is sent again, which then begins none."""
        return self.id if is_reply_id(self.id) else sha256(self.id.encode("utf-8", "replace")).hexdigest()[:32]

    @property
    def text(self) -> str:
        """The text of all its parts of text."""
        return "\n".join(part["text"] for part in self.parts if "text" in part).strip()

    def schema(self) -> JSONSchema | None:
        """Return the JSON schema in which the client asks for the answer, in the metadata of a part, `None` for words.

        Raises `ApiError` for one that cannot be used, and for several.
        """
        schemas = [(part["schema"], f"{part['place']}.metadata.schema") for part in self.parts if "schema" in part]
        if len(schemas) > 1:
            raise rpc_error("INVALID_PARAMS", "'message.parts' must have at most one 'metadata.schema'")
        return read_schema(*schemas[0]) if schemas else None

    def content(self) -> list[dict[str, Any] | DataBlock]:
        """Return its parts in the form of a message to an agent; raises `ApiError` if it has no text."""
        if not self.text:
            raise rpc_error("INVALID_PARAMS", "'message.parts' must have a part with 'text' that is not empty")
        return [_part_for_agent(part) for part in self.parts]


def read_field(values: dict[str, Any], name: str) -> Any:
    """Return a field by its name in JSON, or else by its name in protobuf, which clients may send as well."""
    return values.get(name, values.get("".join(f"_{c.lower()}" if c.isupper() else c for c in name)))


def _check_part(part: Any, place: str) -> dict[str, Any]:
    # Exactly one, since it would not be clear which of two is meant.
    kinds = [kind for kind in _PART_KINDS if kind in part] if isinstance(part, dict) else []
    if len(kinds) != 1 or (kinds[0] != "data" and not isinstance(part[kinds[0]], str)):
        raise rpc_error("INVALID_PARAMS", f"{place!r} must have one of 'text', 'raw', 'url' and 'data'")
    checked = {kinds[0]: part[kinds[0]], "place": place}
    metadata = part.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("schema"), dict):
        checked["schema"] = metadata["schema"]
    return checked if kinds[0] in ("text", "data") else {**checked, **_check_file(part, place)}


def _check_file(part: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the name and the media type of a file, which is guessed by its name if it is not given."""
    name, media_type, url = part.get("filename") or "", read_field(part, "mediaType") or "", part.get("url")
    if not isinstance(name, str) or len(name) > _LONGEST_ID or not name.isprintable():
        raise rpc_error("INVALID_PARAMS", f"'{place}.filename' must be text of at most {_LONGEST_ID} characters")
    # Nobody fetches it here: the provider of the model does.
    if url is not None and not (_URL.match(url) and len(url) <= _LONGEST_URL and url.isprintable()):
        raise rpc_error("INVALID_PARAMS", f"'{place}.url' must begin with 'https://' or 'http://'")
    media_type = media_type or guess_type(name or url or "")[0] or "application/octet-stream"
    if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):
        raise rpc_error("CONTENT_TYPE_NOT_SUPPORTED", f"'{place}.mediaType' must be a type, such as 'application/pdf'")
    return {"filename": name or None, "mediaType": media_type}


def _part_for_agent(part: dict[str, Any]) -> dict[str, Any] | DataBlock:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    # A model reads JSON as it reads text.
    if "data" in part:
        return {"type": "text", "text": dumps(part["data"], ensure_ascii=False)}
    if "url" in part:
        return DataBlock(URLSource(part["url"], part["mediaType"]), name=part["filename"])
    # Protobuf takes the alphabet for URLs too, and text without its padding.
    text = part["raw"].replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = b64encode(b64decode(text + "=" * (-len(text) % 4), validate=True)).decode()
    except (BinasciiError, ValueError):
        raise rpc_error("INVALID_PARAMS", f"'{part['place']}.raw' must be base64") from None
    return DataBlock(Base64Source(data, part["mediaType"]), name=part["filename"])


def check_output_modes(configuration: dict[str, Any]) -> None:
    """Raise `ApiError` for a client that does not accept text, in which agents answer."""
    modes = read_field(configuration, "acceptedOutputModes") or []
    if not isinstance(modes, list):
        raise rpc_error("INVALID_PARAMS", "'configuration.acceptedOutputModes' must be a list")
    if modes and not any(isinstance(mode, str) and mode.split("/")[0] in ("text", "*") for mode in modes):
        raise rpc_error("CONTENT_TYPE_NOT_SUPPORTED", "this agent answers in text/plain")


def read_history_length(values: dict[str, Any]) -> int | None:
    """Return how many messages of the history the client wants at most, `None` for all."""
    length = read_field(values, "historyLength")
    # By its type, since a bool is an int too.
    if length is not None and (type(length) is not int or length < 0):
        raise rpc_error("INVALID_PARAMS", "'historyLength' must be a whole number, 0 or more")
    return length
