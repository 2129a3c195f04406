"""Checks what comes in from models, tools and callers, mends it where its meaning is plain, and otherwise refuses it.

What passes can be saved, loaded again and sent to every provider: texts are `str` without half surrogate pairs, every
block has an id, data is base64, and the rest has a JSON form.
"""

import binascii
import json
import re
from dataclasses import fields, replace
from math import isfinite
from typing import Any, TypeVar, get_args

from pydantic_core import from_json, to_json

from agentrt.block import (
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
from agentrt.message import Msg
from agentrt.text import lazy_pattern, repr_of, whole_characters
from agentrt.types import ChatUsage, FinishedReason, JSONObject

__all__ = [
    "DATA_URL",
    "is_base64",
    "is_plain_message",
    "is_plain_text",
    "json_problem",
    "json_size",
    "mend_block",
    "mend_message",
    "strict_json",
    "whole_characters",
]

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
    """Say whether it is a text block in which there is nothing to mend, as nearly always."""
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
    _refuse_unsavable_fields(message)
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
