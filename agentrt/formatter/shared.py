"""What all formatters say and look for."""

import re
from collections.abc import Iterable

from agentrt.block import ContentBlock, ToolCallBlock, ToolResultBlock, ToolResultState

__all__ = ["DATA_URL", "TEXTS", "UNANSWERED", "nothing_of", "results_of_calls"]

UNANSWERED = "(no result: the call was never carried out, or its result was lost)"
TEXTS = ("application/json", "application/xml", "application/yaml")
"""What is text although its media type does not begin with "text/"."""
DATA_URL = re.compile(r"data:(?P<media_type>[^;,]*)[^,]*;base64,(?P<data>.*)", re.DOTALL)


def results_of_calls(blocks: Iterable[ContentBlock]) -> dict[int, ToolResultBlock]:
    """Return the result of each call, by the identity of the call's block.

    Providers may give the same id again in a later reply, so a result belongs to the latest call with its id.
    """
    found: dict[int, ToolResultBlock] = {}
    unanswered: dict[str, ToolCallBlock] = {}
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            unanswered[block.id] = block
        elif isinstance(block, ToolResultBlock) and block.id in unanswered:
            found[id(unanswered.pop(block.id))] = block
    return found


def nothing_of(result: ToolResultBlock) -> str:
    """Return what is said of a result that holds nothing, which must not pass for a success when it is none."""
    has_run = result.state in (ToolResultState.SUCCESS, ToolResultState.RUNNING)
    return "(no output)" if has_run else f"({result.state})"
