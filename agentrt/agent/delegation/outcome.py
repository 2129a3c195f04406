"""The result of a delegation for the supervisor's model: the answer, or the reason for having no answer."""

import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from pydantic_core import to_json

from agentrt._runtime.block import DataBlock, JSONObject, TextBlock, ToolResultState
from agentrt.errors import SubAgentUnavailable
from agentrt.message import Msg
from agentrt.types import ToolResponse

FAILED = (ToolResultState.ERROR, ToolResultState.TIMEOUT)
_logger = logging.getLogger("agentrt")


@dataclass(slots=True)
class Outcomes:
    """Makes the result of one delegation to the agent of this name, whatever becomes of it; failures are logged."""

    name: str
    supervisor: str | None
    logger: logging.Logger = _logger
    _scope: anyio.CancelScope | None = None

    @property
    def _attribution(self) -> JSONObject:
        return {"subagent": self.name, "supervisor": self.supervisor}

    @property
    def is_late(self) -> bool:
        """Whether the time for the delegation is up."""
        return self._scope is not None and self._scope.cancel_called

    async def result_of(
        self,
        work: Awaitable[ToolResponse],
        seconds: float | None,
        is_raised: Callable[[BaseException], bool] = lambda error: False,
    ) -> ToolResponse:
        """Return the result of the sub-agent's work, or that of its failure or of its timeout.

        An error for which `is_raised` returns true is not the sub-agent's, and is raised.
        """
        try:
            if seconds is None:
                return await work
            # Here and not as the tool's own timeout, so that the result says whose time was up.
            with anyio.move_on_after(seconds) as self._scope:
                return await work
        except (Exception, SystemExit) as error:  # the boundary where a sub-agent's failure becomes a result
            if is_raised(error):
                raise
            return self.error(error)
        return self.failure("timeout", "TimeoutError")

    def answer(self, final: Msg, has_form: bool) -> ToolResponse:
        """Return the result of a delegation that is done: what the final message says, as JSON where it has a form."""
        if has_form:
            return ToolResponse([TextBlock(to_json(final.structured_output).decode())], metadata=self._attribution)
        # Its thoughts and calls are its own.
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
