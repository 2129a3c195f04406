"""What all formatters say and look for: results of calls, media types, parts of text."""

import re
from collections.abc import Iterable

from agentrt.block import ContentBlock, JSONObject, ToolCallBlock, ToolResultBlock, ToolResultState

__all__ = ["DATA_URL", "UNANSWERED", "empty_result_text", "is_text_type", "results_of_calls", "text_part"]

UNANSWERED = "(no result: the call was never carried out, or its result was lost)"
DATA_URL = re.compile(r"data:(?P<media_type>[^;,]*)[^,]*;base64,(?P<data>.*)", re.DOTALL)

# What is text although its media type does not begin with "text/".
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml")


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


def empty_result_text(result: ToolResultBlock) -> str:
    """Return what is said of a result that holds nothing, which must not pass for a success when it is a failure."""
    has_run = result.state in (ToolResultState.SUCCESS, ToolResultState.RUNNING)
    return "(no output)" if has_run else f"({result.state})"


def is_text_type(media_type: str) -> bool:
    """Say whether a file of this type can be read as text."""
    return media_type.startswith("text/") or media_type in _TEXT_TYPES


def text_part(text: str) -> JSONObject:
    """Return the text as a part of a message; the providers agree on that one."""
    return {"type": "text", "text": text}
