"""Reads and checks what comes in from models, tools and callers: mends it where its meaning is plain, or refuses it.

What passes can be saved, loaded again and sent to every provider: texts are `str` without half surrogate pairs, every
block has an id, data is base64, and the rest has a JSON form.
"""

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import PurePosixPath
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic_core import from_json, to_json

from agentrt._runtime.block import (
    Base64Source,
    DataBlock,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    new_id,
)
from agentrt._runtime.text import lazy_pattern, repr_of, whole_characters
from agentrt.errors import InvalidInputError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import Msg, new_message
from agentrt.types import ChatUsage, FinishedReason, JSONObject

# Parameters begin with `;`: without it, searching a long URL that does not match would take quadratic time.
DATA_URL = lazy_pattern(r"data:(?P<media_type>[^;,]*)(?:;[^,]*)?;base64,(?P<data>.*)", re.DOTALL)
"""A URL that holds its data itself."""

_Block = TypeVar("_Block")

_TEXT_FIELDS: dict[type, tuple[str, ...]] = {
    TextBlock: ("id", "text"),
    ThinkingBlock: ("id", "thinking", "signature"),
    DataBlock: ("id", "name"),
    HintBlock: ("id", "hint", "source"),
    ToolCallBlock: ("id", "name", "input"),
    ToolResultBlock: ("id", "name"),
    ProviderBlock: ("id", "provider", "content"),
    Base64Source: ("data", "media_type"),
    URLSource: ("url", "media_type"),
}
_OPTIONAL_TEXTS = {(ThinkingBlock, "signature"), (DataBlock, "name"), (HintBlock, "source")}
_TYPE_OF_CLASS: dict[type, object] = {
    cls: field.default for cls in _TEXT_FIELDS for field in fields(cls) if field.name == "type"
}
_ALLOWED_REASONS = (None, *get_args(FinishedReason))
_STATE_DEPTH = 16  # more than the depth at which a state holds metadata


def is_base64(data: str) -> bool:
    """Say whether the text is base64, with its padding."""
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return False
    return True


def strict_json(text: str | bytes, **hooks: Any) -> Any:
    """Return the value of the text; raises `ValueError` for what is not JSON, or could not be written as JSON again.

    That is NaN, Infinity, and a number such as 1e999, which would be read as one; `hooks` are those of `json.loads`.
    """
    return json.loads(text, parse_constant=_finite_number, parse_float=_finite_number, **hooks)


def _finite_number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def json_problem(value: object) -> str | None:
    """Say why a value cannot be part of a saved state, `None` if it can."""
    return _json_size(value)[1]


def json_size(value: object) -> int:
    """Return how many bytes of JSON a value has in a saved state; raises `ValueError`, saying why, if it has none."""
    size, problem = _json_size(value)
    if problem is not None:
        raise ValueError(problem)
    return size


def _json_size(value: object) -> tuple[int, str | None]:
    try:
        # As constants, so that a number which is not finite is found below, and does not become `null`.
        text = to_json(value, inf_nan_mode="constants")
    except (ValueError, RecursionError) as error:
        return 0, f"{error!s:.200}"
    try:
        # Read at the depth that it will have in a state, since the parser has a limit.
        from_json(b"[" * _STATE_DEPTH + text + b"]" * _STATE_DEPTH, allow_inf_nan=False, cache_strings="none")
    except ValueError:
        return 0, "it holds a number that is not finite, or is nested too deep"
    return len(text), None


def mend_block(block: _Block, *, empty: bool = False) -> _Block:
    """Return a block whose fields are what they should be: the same one, or else a copy.

    Half surrogate pairs are replaced, an id that is a number becomes a `str`, and a missing id or type is filled in;
    with `empty`, text that is `None` becomes empty. Raises `ValueError`, saying what is wrong, for anything else.
    """
    if is_plain_text(block):
        return block
    changes = _mended_fields(block, empty)
    if isinstance(block, DataBlock):
        if not isinstance(block.source, (Base64Source, URLSource)):
            raise ValueError(
                f"a DataBlock whose source is {repr_of(block.source, 100)}: it must be a Base64Source or a URLSource, "
                f"as in DataBlock(URLSource(url, 'image/png'))"
            )
        source = block.source
        if source_changes := _mended_fields(source, empty):
            changes["source"] = source = replace(source, **source_changes)
        if isinstance(source, Base64Source) and not is_base64(source.data):
            data = "".join(source.data.split())  # it may have been encoded line by line
            if not is_base64(data):
                raise ValueError(
                    f"data that is not base64 ({repr_of(source.data, 50)}): encode it with base64.b64encode"
                )
            changes["source"] = replace(source, data=data)
    return replace(block, **changes) if changes else block  # type: ignore[type-var]  # a dataclass


def is_plain_text(block: object) -> bool:
    """Say whether it is a text block that needs no mending, as nearly all are."""
    if block.__class__ is not TextBlock:
        return False
    text, id = block.text, block.id
    if text.__class__ is not str or id.__class__ is not str or block.type != "text":
        return False
    return text.isascii() and id.isascii()


def _mended_fields(block: Any, empty: bool) -> JSONObject:
    cls = block.__class__
    if cls not in _TEXT_FIELDS:
        cls = next((base for base in cls.__mro__ if base in _TEXT_FIELDS), None)
        if cls is None:
            raise ValueError(f"{repr_of(block)}, which is not a block")
    changes: JSONObject = {}
    # Nearly every field is an ASCII `str`, which two quick tests tell; everything else may take longer.
    for name in _TEXT_FIELDS[cls]:
        value = getattr(block, name)
        if value.__class__ is not str:
            if value is None and (cls, name) in _OPTIONAL_TEXTS:
                continue
            changes[name] = _mend_text(cls, name, value, empty)
        elif not value.isascii() and (whole := whole_characters(value)) is not value:
            changes[name] = whole
    if block.type != _TYPE_OF_CLASS[cls]:
        changes["type"] = _TYPE_OF_CLASS[cls]
    return changes


def _mend_text(cls: type, name: str, value: object, empty: bool) -> str:
    if isinstance(value, str):
        return whole_characters(str(value))
    if name == "id" and cls is not ToolResultBlock:
        if isinstance(value, int):
            return str(int(value))
        if value is None:
            return "" if cls is ToolCallBlock else new_id()
    if value is None and empty:
        return ""
    remedy = ""
    if cls is Base64Source and name == "data":
        remedy = ", as base64.b64encode(data).decode() gives it"
    elif cls is ToolCallBlock and name == "input":
        remedy = ", as json.dumps(input) gives it"
    raise ValueError(f"a {cls.__name__} whose {name} is {repr_of(value, 100)}: it must be a str{remedy}")


def mend_message(message: Msg) -> Msg:
    """Return a message that can be kept: the same one, or else a copy. Raises `ValueError`, saying what is wrong."""
    if is_plain_message(message):
        return message
    _refuse_unsavable_fields(message)
    content = message.content
    changes: JSONObject = {}
    for name in ("name", "id", "error"):
        value = getattr(message, name)
        if not isinstance(value, str):
            if name == "error":
                continue  # `None`, as nearly always; anything else is refused below
            raise ValueError(f"its {name} is {repr_of(value, 100)}: it must be a str")
        if (whole := whole_characters(value)) is not value:
            changes[name] = whole
    if isinstance(content, str):
        if (whole := whole_characters(content)) is not content:
            changes["content"] = whole
    elif isinstance(content, list):
        try:
            blocks = [mend_block(block) for block in content]
        except ValueError as error:
            raise ValueError(f"it holds {error}") from None
        if any(new is not old for new, old in zip(blocks, content, strict=True)):
            changes["content"] = blocks
    else:
        raise ValueError(f"its content is {repr_of(content, 100)}: it must be a str or a list of blocks")
    if message.structured_output is not None:  # an instance of any type, which is kept as JSON
        if problem := json_problem(message.structured_output):
            raise ValueError(f"its structured_output cannot be saved: {problem}")
        output = from_json(to_json(message.structured_output))
        if output != message.structured_output:
            changes["structured_output"] = output
    return replace(message, **changes) if changes else message


def is_plain_message(message: Msg) -> bool:
    """Say whether its content is a `str` and all it has, in which there is nothing to mend, as nearly always."""
    content, name, id = message.content, message.name, message.id
    if content.__class__ is not str or name.__class__ is not str or id.__class__ is not str:
        return False
    if message.metadata or message.usage or message.finished_reason or message.error:
        return False
    if message.structured_output is not None:
        return False
    if message.metadata.__class__ is not dict or message.created_at.__class__ is not int:
        return False
    return content.isascii() and name.isascii() and id.isascii()


def _refuse_unsavable_fields(message: Msg) -> None:
    metadata: object = message.metadata
    if not isinstance(metadata, dict):
        raise ValueError(f"its metadata is {repr_of(metadata, 100)}: it must be a dict")
    if metadata and (problem := json_problem(metadata)):
        raise ValueError(f"its metadata cannot be saved: {problem}")
    usage = message.usage
    if usage is not None:
        if not isinstance(usage, ChatUsage):
            raise ValueError(f"its usage is {repr_of(usage, 100)}: it must be a ChatUsage")
        if problem := json_problem(usage):
            raise ValueError(f"its usage cannot be saved: {problem}")
    if message.finished_reason not in _ALLOWED_REASONS or not isinstance(message.error, str | None):
        reason, error = repr_of(message.finished_reason, 50), repr_of(message.error, 50)
        raise ValueError(f"its finished_reason is {reason}, its error {error}: leave them out")
    if not isinstance(message.created_at, int):
        raise ValueError(f"its created_at is {repr_of(message.created_at, 50)}: it must be nanoseconds since the epoch")


AnswerEvent = UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent
ANSWERS = (UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent)

_EXAMPLE = '{"role": "user", "content": "Hi"}'
_ANSWER_REMEDY = (
    ": answer with agent.reply(question.approve()), or question.deny(...), where question = agent.waiting()"
)
_ACCEPTED_ROLES = ("user", "assistant", "system")
_KEYS = ("role", "content", "name")
_ONLY_A_REPLY = (
    "calls of tools and their results are made by replies alone, so leave them out, or load the conversation with "
    "Agent(state=...)"
)
_ONLY_A_MSG = "write a Msg instead, or read what Msg.to_json() wrote with Msg.from_json(text)"
_REFUSED_KEYS = {
    **dict.fromkeys(("function_call", "tool_call_id", "tool_calls"), _ONLY_A_REPLY),
    **dict.fromkeys(("created_at", "id", "metadata", "usage"), _ONLY_A_MSG),
    "input": 'give the text by itself, or {"role": "user", "content": "Hi"}',
    "messages": "give the list by itself, as in agent.reply([...])",
    "reply_id": "read an event, such as the answer to a question, with AgentEvent.from_json(text)",
}
_REFUSED_ROLES = {
    "developer": "give Agent(system_prompt=...) instead, or send it with the role 'user'",
    "function": _ONLY_A_REPLY,
    "tool": _ONLY_A_REPLY,
}
# What other libraries say for ours.
_PEERS_KEYS = {"message": "content", "parts": "content", "sender": "name", "text": "content", "type": "role"}
_PEERS_ROLES = {"ai": "assistant", "human": "user", "model": "assistant"}
_IMAGE_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}


def read_messages(value: Any, taker: str = "an agent") -> list[Msg]:
    """Return the messages that a value stands for: none for `None`, else one, or those in a list."""
    if value is None:
        return []
    return [read_message(item, taker) for item in (value if isinstance(value, (list, tuple)) else [value])]


def read_message(value: Any, taker: str = "an agent") -> Msg:
    """Return the message that a `str`, a dict or a `Msg` stands for; raises `InvalidInputError` for anything else."""
    if isinstance(value, Msg):
        return value
    if isinstance(value, str):  # first, since `Mapping` is an abstract class, which is slow to ask
        return new_message("user", whole_characters(value), "user", new_id())
    if isinstance(value, Mapping):
        return _read_dict(value)
    if isinstance(value, ANSWERS):
        raise InvalidInputError(
            f"{value.type} came where {taker} takes messages: give it by itself, as in agent.reply(event)"
        )
    # An event is named by its kind: a layer or a listener most likely passed on what it read.
    what = f"an event, {type(value).__name__}" if isinstance(value, AgentEvent) else repr_of(value)
    remedy = _ANSWER_REMEDY if isinstance(value, (bool, ConfirmResult, RequireUserConfirmEvent)) else ""
    raise InvalidInputError(
        f"{taker} takes a str, a Msg, a dict such as {_EXAMPLE}, or a list of these, not {what}{remedy}"
    )


def _read_dict(values: Mapping[str, Any]) -> Msg:
    # OpenAI's own messages say `None` or [] of what they do not have.
    unknown = [key for key, value in values.items() if key not in _KEYS and value is not None and value != []]
    if unknown:
        telling = [key for key in unknown if key in _REFUSED_KEYS]  # which say what it is instead
        raise InvalidInputError(_unknown_key("a message", (telling or unknown)[0], _KEYS))
    for key in ("role", "content"):
        if values.get(key) is None:
            raise InvalidInputError(f"the message {dict(values)!r:.200} has no {key!r}: write {_EXAMPLE}")
    role, name = values["role"], values.get("name")
    if role not in _ACCEPTED_ROLES:
        word = str(role)
        remedy = _REFUSED_ROLES.get(word) or f"write {_PEERS_ROLES.get(word, 'user')!r}"
        raise InvalidInputError(f"the role of a message cannot be {role!r:.100}: {remedy}")
    if name is not None and not isinstance(name, str):
        raise InvalidInputError(f"the name in a message must be a str, not {name!r:.200}")
    content = values["content"]
    if not isinstance(content, (str, list, tuple)):
        raise InvalidInputError(f"the content of a message must be a str or a list of parts, not {content!r:.200}")
    if not isinstance(content, str):
        content = [part if isinstance(part, (TextBlock, DataBlock)) else _read_part(part) for part in content]
    return Msg(name or role, content, role)


def _unknown_key(owner: str, key: object, keys: Sequence[str]) -> str:
    name = str(key)
    if name in _REFUSED_KEYS:
        return f"{owner} cannot have {name!r}: {_REFUSED_KEYS[name]}"
    guesses = [_PEERS_KEYS[name]] if _PEERS_KEYS.get(name) in keys else get_close_matches(name, keys, 1)
    hint = f"did you mean {guesses[0]!r}? " if guesses else ""
    return f"{owner} has the unknown key {key!r:.100}: {hint}it takes {', '.join(keys)}"


def _read_part(part: Any) -> TextBlock | DataBlock:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        return TextBlock(_read_text(part, "text", "a part of the type 'text'", ("type", "text")))
    if kind != "image_url":
        raise InvalidInputError(
            f"the content of a message holds {part!r:.200}, which is not understood: write a part such as "
            f'{{"type": "text", "text": "Hi"}} or {{"type": "image_url", "image_url": {{"url": "https://..."}}}}, '
            f"or give a DataBlock"
        )
    for key in part:
        if key not in ("type", "image_url"):
            raise InvalidInputError(_unknown_key("a part of the type 'image_url'", key, ("type", "image_url")))
    image = part.get("image_url")
    url = _read_text(image, "url", "the image_url of a part", ("url", "detail"))
    if image.get("detail", "auto") != "auto":
        raise InvalidInputError(f"the detail of an image cannot be set, but is {image['detail']!r:.100}: leave it out")
    # Kept as data: a provider's formatter writes it in the form that its API takes.
    match = DATA_URL.fullmatch(url)
    if match is not None and match["media_type"] and match["data"]:
        return DataBlock(Base64Source(match["data"], match["media_type"]))
    if url.startswith("data:"):
        raise InvalidInputError(f"the image_url {url!r:.100} is not base64: write data:image/png;base64,...")
    # Nobody fetches it to look; providers that take an address find the type themselves.
    try:
        path = urlsplit(url).path
    except ValueError:  # such as an address of version 6 without its end
        raise InvalidInputError(f"the image_url {url!r:.100} is not a URL: write https://...") from None
    suffix = PurePosixPath(path).suffix.lower()
    return DataBlock(URLSource(url, _IMAGE_TYPES.get(suffix, "image/*")))


def _read_text(values: Any, key: str, owner: str, keys: Sequence[str]) -> str:
    """Return the text under a key of a dict that may have these keys; raises `InvalidInputError` for anything else."""
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{owner} must be a dict with {key!r}, not {values!r:.200}")
    unknown = [name for name in values if name not in keys]
    if unknown:
        raise InvalidInputError(_unknown_key(owner, unknown[0], keys))
    text = values.get(key)
    if not isinstance(text, str):
        raise InvalidInputError(f"{owner} must have a str as its {key!r}, not {text!r:.200}")
    return text
