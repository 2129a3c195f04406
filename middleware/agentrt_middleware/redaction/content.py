"""Changing every text of messages, blocks, schemas and JSON; what holds nothing to change stays the same object."""

import json
import operator
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

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
from agentrt.types import JSONSchema

__all__ = ["ChangeText", "change_block", "change_json", "change_message", "change_schema", "change_value"]

ChangeText = Callable[[str], str]
"""Returns text as it is to be."""

_ValueType = TypeVar("_ValueType")
_BlockType = TypeVar("_BlockType", bound=ContentBlock)
# One that has no end reaches to the end of the text: to look for the end of each anew would take quadratic time.
_JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_JSON_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")
_JSON_SCALAR = re.compile(f"{_JSON_STRING.pattern}|{_JSON_NUMBER.pattern}", re.DOTALL)
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
    # A str by its characters, since one that is read anew is another object.
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
            fields = {"name": change(block.name), "output": _change_output(block, change)}
        case DataBlock():
            fields = {"source": _change_source(block, change), "name": block.name and change(block.name)}
        case ProviderBlock():
            fields = {"content": change_json(block.content, change)}
    changed = {name: value for name, value in fields.items() if not _is_unchanged(value, getattr(block, name))}
    return replace(block, **changed) if changed else block


def _change_output(block: ToolResultBlock, change: ChangeText) -> str | list[TextBlock | DataBlock]:
    if isinstance(block.output, str):
        return change(block.output)
    parts = [change_block(part, change) for part in block.output]
    return block.output if all(map(operator.is_, parts, block.output)) else parts


def _change_source(block: DataBlock, change: ChangeText) -> Any:
    """Return the source of data with its address changed, and its bytes if they are text."""
    source = block.source
    if not isinstance(source, Base64Source):
        # An address may be signed, or hold a password.
        url = change(source.url)
        return source if url == source.url else replace(source, url=url)
    if not (source.media_type.startswith("text/") or source.media_type.endswith(("json", "xml", "yaml"))):
        return source
    try:
        text = b64decode(source.data, validate=True).decode()
    except ValueError:  # neither base64 nor text: nobody can read it
        return source
    changed = change(text)
    return source if changed == text else replace(source, data=b64encode(changed.encode()).decode())


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
