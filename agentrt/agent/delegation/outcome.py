"""What the supervisor's model learns of a delegation: the answer, or that there is none and of which kind that is."""

import logging

from pydantic_core import to_json

from agentrt.block import DataBlock, JSONObject, TextBlock, ToolResultState
from agentrt.message import Msg
from agentrt.types import ToolResponse

__all__ = ["answer_of", "denial_result", "failure_result", "unfinished_result"]

_logger = logging.getLogger("agentrt")


def answer_of(final: Msg, has_form: bool, attribution: JSONObject) -> ToolResponse:
    """Return the result of a delegation that is done: what the final message says, as JSON where it has a form."""
    if has_form:
        return ToolResponse([TextBlock(to_json(final.structured_output).decode())], metadata=attribution)
    blocks = final.get_content_blocks()
    content = [block for block in blocks if isinstance(block, (TextBlock, DataBlock))]
    return ToolResponse(content or [TextBlock("")], metadata=attribution)


def unfinished_result(name: str, reason: str, final: Msg | None, attribution: JSONObject) -> ToolResponse:
    """Return the result of a delegation whose reply ended before it was complete; what it said so far comes with it."""
    kind = reason.removeprefix("exceed_")
    response = failure_result(name, kind, "UnfinishedReply", attribution)
    if kind == "interrupted":
        response.state = ToolResultState.INTERRUPTED
    elif final is not None:
        response.content += [block for block in final.get_content_blocks() if isinstance(block, TextBlock)]
    return response


def failure_result(name: str, kind: str, type_name: str, attribution: JSONObject) -> ToolResponse:
    """Return the result of a delegation that failed, and log one warning: its type, and none of its words."""
    _logger.warning("sub-agent %r of %r failed (%s): %s", name, attribution.get("supervisor"), kind, type_name)
    metadata = {"unavailable": True, "error": type_name if kind == "error" else kind, **attribution}
    state = ToolResultState.TIMEOUT if kind == "timeout" else ToolResultState.ERROR
    return ToolResponse([TextBlock(f"[subagent_{kind}] {name}: {type_name}")], state, metadata)


def denial_result(name: str, why: str, attribution: JSONObject) -> ToolResponse:
    """Return the result of a delegation that was not begun, since a limit is reached."""
    metadata = {"unavailable": True, "error": "denied", **attribution}
    return ToolResponse([TextBlock(f"{name} was not asked: {why}.")], ToolResultState.DENIED, metadata)
