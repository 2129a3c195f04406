"""The result of a delegation for the supervisor's model: the answer, or the reason for having no answer."""

import logging
import traceback

from pydantic_core import to_json

from agentrt._runtime.block import DataBlock, JSONObject, TextBlock, ToolResultState
from agentrt.errors import SubAgentUnavailable
from agentrt.message import Msg
from agentrt.types import ToolResponse

_logger = logging.getLogger("agentrt")


def answer_of(final: Msg, has_form: bool, attribution: JSONObject) -> ToolResponse:
    """Return the result of a delegation that is done: what the final message says, as JSON where it has a form."""
    if has_form:
        return ToolResponse([TextBlock(to_json(final.structured_output).decode())], metadata=attribution)
    # What it thought and called is its own.
    content = [block for block in final.get_content_blocks() if isinstance(block, (TextBlock, DataBlock))]
    return ToolResponse(content or [TextBlock("")], metadata=attribution)


def unfinished_result(
    name: str, reason: str, final: Msg | None, attribution: JSONObject, logger: logging.Logger = _logger
) -> ToolResponse:
    """Return the result of a delegation whose reply ended before it was complete; what it said so far comes with it."""
    kind = reason.removeprefix("exceed_")
    response = failure_result(name, kind, "UnfinishedReply", attribution, logger)
    if kind == "interrupted":
        response.state = ToolResultState.INTERRUPTED
    elif final is not None:
        response.content += [block for block in final.get_content_blocks() if isinstance(block, TextBlock)]
    return response


def result_of_error(
    name: str, error: Exception | SystemExit, attribution: JSONObject, logger: logging.Logger = _logger
) -> ToolResponse:
    """Return the result of a delegation that raised an error; the log says where it was raised."""
    kind = "error"
    if isinstance(error, TimeoutError):  # of whatever limit: the supervisor may ask again, or ask for less
        kind = "timeout"
    elif isinstance(error, SubAgentUnavailable):
        kind = "unavailable"
    # Not the lines themselves, which a traceback has: they may hold what must not be logged.
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    location = "".join(f", raised at {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return failure_result(name, kind, type(error).__name__, attribution, logger, location)


def failure_result(
    name: str, kind: str, type_name: str, attribution: JSONObject, logger: logging.Logger = _logger, location: str = ""
) -> ToolResponse:
    """Return the result of a delegation that failed, and log one warning: its type, and none of its words."""
    supervisor = attribution.get("supervisor")
    logger.warning("sub-agent %r of %r failed (%s): %s%s", name, supervisor, kind, type_name, location)
    metadata = {"unavailable": True, "error": type_name if kind == "error" else kind, **attribution}
    state = ToolResultState.TIMEOUT if kind == "timeout" else ToolResultState.ERROR
    return ToolResponse([TextBlock(f"[subagent_{kind}] {name}: {type_name}")], state, metadata)


def denial_result(name: str, limit: str, why: str, attribution: JSONObject) -> ToolResponse:
    """Return the result of a delegation that is refused because of the limit of that name."""
    metadata = {"unavailable": True, "error": limit, **attribution}
    text = f"[subagent_{limit}] {name}: not run, since {why}."
    return ToolResponse([TextBlock(text)], ToolResultState.DENIED, metadata)
