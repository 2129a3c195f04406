"""Shared by all formatters: results of calls, media types, parts of text."""

import json
from collections.abc import Callable, Iterable

from pydantic_core import from_json

from agentrt._runtime.block import ContentBlock, DataBlock, JSONObject, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt._runtime.text import lazy_pattern

CONVERSATION_START = "(The conversation starts here.)"
"""The user's message where an API requires one and the conversation has none."""
UNANSWERED = "(no result: the call was never carried out, or its result was lost)"

# Text types whose media type does not begin with "text/".
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
    """Assigns the ids of calls in a request; `shorten` turns an id into one that the API accepts."""

    def __init__(self, shorten: Callable[[str], str]) -> None:
        self._shorten = shorten
        self._used: set[str] = set()

    def new(self, call: ToolCallBlock) -> str:
        """Return an id that no earlier call has: servers, or another reply, may have reused one."""
        call_id, number = self._shorten(call.id), 1
        while call_id in self._used:
            number += 1
            call_id = self._shorten(f"{call.id}_{number}")
        self._used.add(call_id)
        return call_id


def empty_result_text(result: ToolResultBlock) -> str:
    """Return the text for an empty result; a failure must not pass for a success."""
    has_run = result.state in (ToolResultState.SUCCESS, ToolResultState.RUNNING)
    return "(no output)" if has_run else f"({result.state})"


def is_svg(block: DataBlock) -> bool:
    """Say whether the block is an SVG: its media type is that of an image, but no provider accepts it as one."""
    return block.source.media_type.strip().lower().startswith("image/svg")


def is_text_type(media_type: str) -> bool:
    """Say whether a file of this type can be read as text."""
    return media_type.startswith("text/") or media_type in _TEXT_TYPES


def object_in(text: str) -> JSONObject | None:
    """Return the object in the JSON text, `None` for one that cannot be sent as JSON again."""
    try:
        value = from_json(text, allow_inf_nan=False)
        if _HUGE_NUMBER.search(text):
            json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):  # TypeError: text with half a surrogate pair
        return None
    return value if isinstance(value, dict) else None


def text_part(text: str) -> JSONObject:
    """Return the text as a part of a message, in the format that all providers share."""
    return {"type": "text", "text": text}
