"""What all formatters say and look for: results of calls, media types, parts of text."""

import json
from collections.abc import Callable, Iterable

from pydantic_core import from_json

from agentrt.block import ContentBlock, DataBlock, JSONObject, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.text import lazy_pattern

__all__ = [
    "CONVERSATION_START",
    "UNANSWERED",
    "CallIds",
    "empty_result_text",
    "is_svg",
    "is_text_type",
    "object_in",
    "results_of_calls",
    "text_part",
]

CONVERSATION_START = "(The conversation starts here.)"
"""What the user says where an API wants a message of the user's, and there is none."""
UNANSWERED = "(no result: the call was never carried out, or its result was lost)"

# What is text although its media type does not begin with "text/".
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml")
_HUGE_NUMBER = lazy_pattern(r"\d{200}|[eE]\+?\d{3}")  # numbers that a float cannot hold are read as infinite


def results_of_calls(blocks: Iterable[ContentBlock]) -> dict[int, ToolResultBlock]:
    """Return the result of each call, by the identity of the call's block.

    Providers may give the same id again in a later reply, so a result belongs to the latest call with its id.
    """
    results: dict[int, ToolResultBlock] = {}
    unanswered: dict[str, ToolCallBlock] = {}
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            unanswered[block.id] = block
        elif isinstance(block, ToolResultBlock) and block.id in unanswered:
            results[id(unanswered.pop(block.id))] = block
    return results


class CallIds:
    """Gives calls the ids under which they go out; `shorten` makes of an id one that the API takes."""

    def __init__(self, shorten: Callable[[str], str]) -> None:
        self._shorten = shorten
        self._used: set[str] = set()

    def new(self, call: ToolCallBlock) -> str:
        """Return an id that no call before had: servers, or another reply, may have given it the same."""
        call_id, number = self._shorten(call.id), 1
        while call_id in self._used:
            number += 1
            call_id = self._shorten(f"{call.id}_{number}")
        self._used.add(call_id)
        return call_id


def empty_result_text(result: ToolResultBlock) -> str:
    """Return what is said of a result that holds nothing, which must not pass for a success when it is a failure."""
    has_run = result.state in (ToolResultState.SUCCESS, ToolResultState.RUNNING)
    return "(no output)" if has_run else f"({result.state})"


def is_svg(block: DataBlock) -> bool:
    """Say whether the block is an SVG: its media type is that of an image, but no provider accepts it as one."""
    return block.source.media_type.strip().lower().startswith("image/svg")


def is_text_type(media_type: str) -> bool:
    """Say whether a file of this type can be read as text."""
    return media_type.startswith("text/") or media_type in _TEXT_TYPES


def object_in(text: str) -> JSONObject | None:
    """Return the object that the JSON text holds, `None` for one that could not be sent again as JSON."""
    try:
        value = from_json(text, allow_inf_nan=False)
        if _HUGE_NUMBER.search(text):
            json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):  # TypeError: text with half a surrogate pair
        return None
    return value if isinstance(value, dict) else None


def text_part(text: str) -> JSONObject:
    """Return the text as a part of a message; the providers agree on that one."""
    return {"type": "text", "text": text}
