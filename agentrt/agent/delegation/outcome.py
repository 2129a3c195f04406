"""The result of a delegation for the supervisor's model: the answer, or the reason for having no answer."""

import logging
import traceback
from dataclasses import dataclass

from pydantic_core import to_json

from agentrt._runtime.block import DataBlock, JSONObject, TextBlock, ToolResultState
from agentrt.errors import SubAgentUnavailable
from agentrt.message import Msg
from agentrt.types import ToolResponse

_logger = logging.getLogger("agentrt")


@dataclass(slots=True)
class Outcomes:
    """Makes the results of delegations to the agent of this name; failures are logged."""

    name: str
    supervisor: str | None
    logger: logging.Logger = _logger

    @property
    def _attribution(self) -> JSONObject:
        return {"subagent": self.name, "supervisor": self.supervisor}

    def answer(self, final: Msg, has_form: bool) -> ToolResponse:
        """Return the result of a delegation that is done: what the final message says, as JSON where it has a form."""
        if has_form:
            return ToolResponse([TextBlock(to_json(final.structured_output).decode())], metadata=self._attribution)
        # What it thought and called is its own.
        content = [block for block in final.get_content_blocks() if isinstance(block, (TextBlock, DataBlock))]
        return ToolResponse(content or [TextBlock("")], metadata=self._attribution)

    def unfinished_reply(self, reason: str, final: Msg | None) -> ToolResponse:
        """Return the result of a delegation whose reply ended before it was complete, with what it said so far."""
        kind = reason.removeprefix("exceed_")
        response = self.failure(kind, "UnfinishedReply")
        if kind == "interrupted":
            response.state = ToolResultState.INTERRUPTED
        elif final is not None:
            response.content += [block for block in final.get_content_blocks() if isinstance(block, TextBlock)]
        return response

    def error(self, error: Exception | SystemExit) -> ToolResponse:
        """Return the result of a delegation that raised an error; the log says where it was raised."""
        kind = "error"
        if isinstance(error, TimeoutError):  # of whatever limit: the supervisor may ask again, or ask for less
            kind = "timeout"
        elif isinstance(error, SubAgentUnavailable):
            kind = "unavailable"
        # Not the lines themselves, which a traceback has: they may hold what must not be logged.
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        location = "".join(f", raised at {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
        return self.failure(kind, type(error).__name__, location)

    def failure(self, kind: str, type_name: str, location: str = "") -> ToolResponse:
        """Return the result of a delegation that failed, and log one warning: its type, and none of its words."""
        self.logger.warning(
            "sub-agent %r of %r failed (%s): %s%s", self.name, self.supervisor, kind, type_name, location
        )
        metadata = {"unavailable": True, "error": type_name if kind == "error" else kind, **self._attribution}
        state = ToolResultState.TIMEOUT if kind == "timeout" else ToolResultState.ERROR
        return ToolResponse([TextBlock(f"[subagent_{kind}] {self.name}: {type_name}")], state, metadata)

    def denial(self, limit: str, why: str) -> ToolResponse:
        """Return the result of a delegation that is refused because of the limit of that name."""
        metadata = {"unavailable": True, "error": limit, **self._attribution}
        text = f"[subagent_{limit}] {self.name}: not run, since {why}."
        return ToolResponse([TextBlock(text)], ToolResultState.DENIED, metadata)
