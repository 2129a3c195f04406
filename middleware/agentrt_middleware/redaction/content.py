"""Changing every text of messages, blocks, schemas and JSON; what holds nothing to change stays the same object."""

import codecs
import json
import operator
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes

from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.types import JSONSchema, OpenQuestion, ToolResponse

ChangeText = Callable[[str], str]
"""Returns text as it is to be."""

_ValueType = TypeVar("_ValueType")
_BlockType = TypeVar("_BlockType", bound=ContentBlock)
# One without an end extends to the end of the text: searching for each end again would take quadratic time.
_JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_JSON_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")
_JSON_SCALAR = re.compile(f"{_JSON_STRING.pattern}|{_JSON_NUMBER.pattern}", re.DOTALL)
_DATA_URL = re.compile(r"data:([^,]*?)(;\s*base64)?,", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE)
_TEXT_ENDINGS = ("json", "xml", "yaml")
_TYPES_WITHOUT_TEXT = ("image/", "audio/", "video/", "font/")
# What a model's answer is checked against, so that it must stay.
_NAMES_IN_SCHEMA = frozenset({"name", "type", "required", "$ref", "pattern", "format"})


def change_message(message: Msg, change: ChangeText, *, results: bool = True, others: bool = True) -> Msg:
    """Return the message with its texts changed: those of the results of tools, and all others."""
    fields: dict[str, Any] = {}
    if isinstance(message.content, str):
        fields["content"] = change(message.content) if others else message.content
    else:
        # A block that is to stay stays the same object.
        blocks = [
            change_block(block, change, results=results) if others or isinstance(block, ToolResultBlock) else block
            for block in message.content
        ]
        is_same = all(map(operator.is_, blocks, message.content))
        fields["content"] = message.content if is_same else blocks
    if others:
        # Some providers are sent the name, and users sign with addresses.
        fields["name"] = change(message.name)
        fields["metadata"] = change_value(message.metadata, change)
        fields["structured_output"] = change_value(message.structured_output, change)
    changed = {name: value for name, value in fields.items() if not _is_unchanged(value, getattr(message, name))}
    # Replaced and never changed in place: the message belongs to the caller, or to the history.
    return replace(message, **changed) if changed else message


def _is_unchanged(value: object, before: object) -> bool:
    # A str by its characters, since a reloaded one is another object.
    return value == before if isinstance(value, str) else value is before


def change_block(block: _BlockType, change: ChangeText, *, results: bool = True) -> _BlockType:
    """Return the block with its texts changed."""
    fields: dict[str, Any] = {}
    match block:
        case TextBlock():
            fields = {"text": change(block.text)}
        case ThinkingBlock():
            thinking = change(block.thinking)
            # The signature of other words would be refused, and may hold them.
            fields = {"thinking": thinking, "signature": block.signature if thinking == block.thinking else None}
        case HintBlock():
            fields = {"hint": change(block.hint)}
        case ToolCallBlock():
            fields = {"name": change(block.name), "input": change_json(block.input, change)}
        case ToolResultBlock() if results:
            fields = {"name": change(block.name)}
            if isinstance(block.output, str):
                fields["output"] = change(block.output)
            else:
                parts = [change_block(part, change) for part in block.output]
                fields["output"] = block.output if all(map(operator.is_, parts, block.output)) else parts
        case DataBlock():
            fields = {"source": _change_source(block, change), "name": block.name and change(block.name)}
        case ProviderBlock():
            fields = {"content": change_json(block.content, change)}
    changed = {name: value for name, value in fields.items() if not _is_unchanged(value, getattr(block, name))}
    return replace(block, **changed) if changed else block


def _change_source(block: DataBlock, change: ChangeText) -> Any:
    """Return the source of data with its address changed, and its bytes if they are text."""
    source = block.source
    if not isinstance(source, Base64Source):
        url = change_url(source.url, change)
        return source if url == source.url else replace(source, url=url)
    data = change_data(source.data, source.media_type, change)
    return source if data == source.data else replace(source, data=data)


def change_url(url: str, change: ChangeText) -> str:
    """Return an address changed, which may be signed, or hold a password; of a `data:` URL, what it holds."""
    match = _DATA_URL.match(url)
    if match is None:
        return change(url)
    media_type, payload = match[1] or "text/plain", unquote_to_bytes(url[match.end() :])
    if match[2]:
        data = payload.decode("latin-1")
        changed = change_data(data, media_type, change)
        return url if changed == data else f"{match[0]}{changed}"
    content = change_content(payload, media_type, change)
    return url if content == payload else f"{match[0]}{quote(content)}"


def change_data(data: str, media_type: str, change: ChangeText) -> str:
    """Return data in base64 with the text in it changed."""
    if not may_hold_text(media_type):
        return data
    try:
        content = b64decode(data)
    except ValueError:  # nobody can read it
        return data
    changed = change_content(content, media_type, change)
    return data if changed == content else b64encode(changed).decode()


def may_hold_text(media_type: str) -> bool:
    return _is_text(media_type) or not media_type.strip().lower().startswith(_TYPES_WITHOUT_TEXT)


def _is_text(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind.endswith(_TEXT_ENDINGS)


def change_content(content: bytes, media_type: str, change: ChangeText) -> bytes:
    """Return the bytes of a file with the text in them changed, the same bytes if nothing in it changes."""
    # What does not call itself text is read as such only if it is UTF-8.
    for encoding in _encodings(content, media_type) if _is_text(media_type) else ["utf-8"]:
        with suppress(LookupError, ValueError):
            text = content.decode(encoding)
            break
    else:
        return content
    changed = change(text)
    return content if changed == text else changed.encode(encoding, "replace")


def _encodings(content: bytes, media_type: str) -> Iterator[str]:
    """Yield the encodings that the bytes may have, the likeliest first; the last one reads anything."""
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        yield "utf-32"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield "utf-16"
    declared = _CHARSET.search(media_type)
    if declared is not None:
        yield declared[1]
    # Most characters of most texts have a byte that is zero there.
    for encoding, start in (("utf-16-be", 0), ("utf-16-le", 1)):
        if 4 * content[start::2].count(0) > len(content):
            yield encoding
    yield from ("utf-8", "latin-1")


def change_json(text: str, change: ChangeText) -> str:
    """Return JSON text with its strings changed, those of keys as well, and numbers that would change as strings.

    All else stays as it is written. What is not JSON is text like any other, but strings of JSON in it
    are read too.
    """

    def change_part(match: re.Match[str]) -> str:
        part = match[0]
        if part[0] != '"':
            changed = change(part)
            return part if changed == part else json.dumps(changed, ensure_ascii=False)
        is_closed = len(part) > 1 and part[-1] == '"'
        try:
            value = json.loads(part if is_closed else f'{part}"')
        except ValueError:
            return part
        changed = change(value)
        if changed == value:
            return part
        return json.dumps(changed, ensure_ascii=False)[: None if is_closed else -1]

    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return change(_JSON_STRING.sub(change_part, text))
    return _JSON_SCALAR.sub(change_part, text)


def change_value(value: _ValueType, change: ChangeText) -> _ValueType:
    """Return a JSON value with its texts changed, those of keys and numbers too; the same one if none changes."""
    new: Any = value
    if isinstance(value, str):
        new = change(value)
    elif isinstance(value, Msg):
        new = change_message(value, change)
    elif isinstance(value, int) and not isinstance(value, bool):  # a card's number may well come as one
        changed = change(str(value))
        new = value if changed == str(value) else changed
    elif isinstance(value, Mapping):
        items = [(key, change_value(key, change), item, change_value(item, change)) for key, item in value.items()]
        if any(new_key != key or new_item is not item for key, new_key, item, new_item in items):
            new = {}
            for _, key, _, item in items:
                number, free_key = 2, key  # two addresses have one placeholder
                while free_key in new:
                    free_key, number = f"{key} ({number})", number + 1
                new[free_key] = item
    elif isinstance(value, (list, tuple)):
        changed_items = [change_value(item, change) for item in value]
        if any(changed is not item for changed, item in zip(changed_items, value, strict=True)):
            new = changed_items if isinstance(value, list) else tuple(changed_items)
    return value if new == value else new


def change_schema(schema: JSONSchema, change: ChangeText) -> JSONSchema:
    """Return the schema of a tool with its texts changed, except for the names that calls use."""
    return _change_schema_value(schema, change)  # type: ignore[no-any-return]  # of the same kind


def _change_schema_value(value: Any, change: ChangeText) -> Any:
    if isinstance(value, str):
        changed = change(value)
        return value if changed == value else changed
    if isinstance(value, Mapping):
        new = {
            key: item
            if key in _NAMES_IN_SCHEMA and not isinstance(item, Mapping)
            else _change_schema_value(item, change)
            for key, item in value.items()
        }
        return new if any(new[key] is not item for key, item in value.items()) else value
    if isinstance(value, list):
        items = [_change_schema_value(item, change) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def redact_response(response: ToolResponse, change: ChangeText) -> ToolResponse:
    """Return the result as it may leave, with what it asks."""
    content = response.content
    # A layer may give anything; the runtime refuses by name what is not content.
    if isinstance(content, (list, tuple)):
        content = [change_block(block, change) for block in content]
    else:
        content = change_value(content, change)
    response = replace(response, content=content, metadata=change_value(response.metadata, change))
    if isinstance(response.waits, (list, tuple)) and response.waits:
        # As it may be kept: the answer is compared with that. The runtime refuses by name what is not a question.
        response.waits = [
            replace(
                question,
                tool_call=change_block(question.tool_call, change),
                message=change_value(question.message, change),
            )
            if isinstance(question, OpenQuestion)
            else question
            for question in response.waits
        ]
    return response
