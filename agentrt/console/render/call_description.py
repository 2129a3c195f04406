"""Describes a tool call in one line, for the user who decides on it."""

import json
from typing import Any

from agentrt.errors import ToolError
from agentrt.message import ToolCallBlock
from agentrt.tool.arguments import parse_arguments

_MAX_VALUE = 200  # characters of one str, and of the tool's name
_MAX_INPUT = 4000
_WIDE_SPACE = "\u3000"  # common in Chinese and Japanese text
_BLANK_LETTERS = {*map(chr, range(0xFE00, 0xFE10)), *"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"}


def describe_call(call: ToolCallBlock) -> str:
    """Return the name and the input as canonical JSON in one line.

    Control characters, invisible ones and unusual spaces are escaped. A long text is cut in the middle, with the number
    of missing characters outside the quotes; so is a long input.
    """
    name = _shorten_middle(_escape_invisible(call.name), _MAX_VALUE)
    return f"{name} {_shorten_middle(_describe_input(call, _MAX_VALUE), _MAX_INPUT)}"


def full_input(call: ToolCallBlock) -> str:
    """Return the whole input as canonical JSON in one line, with the same escapes."""
    return _describe_input(call, None)


def _describe_input(call: ToolCallBlock, longest: int | None) -> str:
    try:
        return _escape_invisible(_to_json(parse_arguments(call.input), longest))
    except (ToolError, ValueError):  # ValueError: an integer of more digits than Python writes
        return _escape_invisible(f"(this is not a JSON object) {_to_json(str(call.input), longest)}")


def _to_json(value: Any, longest: int | None) -> str:
    if isinstance(value, dict):
        items = (f"{_to_json(key, longest)}: {_to_json(item, longest)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_to_json(item, longest) for item in value)}]"
    if isinstance(value, str) and longest is not None and len(value) > longest:
        half = longest // 2
        missing = f"... {len(value) - 2 * half:,} more characters ..."
        return f"{_to_json(value[:half], None)}{missing}{_to_json(value[-half:], None)}"
    return json.dumps(value, ensure_ascii=False)


def _shorten_middle(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} more characters ... {text[-half:]}"


def _escape_invisible(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    pieces: list[str] = []
    for char in text:
        if char == _WIDE_SPACE or (char.isprintable() and char not in _BLANK_LETTERS):
            pieces.append(char)
        else:
            # As JSON escapes it, in units of UTF-16; a character may have two.
            units = char.encode("utf-16-be", "surrogatepass")
            pieces += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(pieces)
