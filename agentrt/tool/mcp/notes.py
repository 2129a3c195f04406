"""The notes of a server about a call that it works on, as events: its progress, and what it logs."""

import anyio
from mcp_types import LoggingMessageNotificationParams
from pydantic_core import to_json

from agentrt.event import CustomEvent
from agentrt.tool.context import ToolContext
from agentrt.tool.mcp.text import clean_text
from agentrt.types import JSONObject

_MAX_CALL_NOTES = 1_000
_SECONDS_BETWEEN_NOTES = 0.1
_MAX_PROGRESS_TEXT = 500
_MAX_LOG_TEXT = 2_000
_MAX_LOGGER_NAME = 100


class CallNotes:
    """Makes events of a limited number and size; no model reads them. A server may send any number, at any time."""

    def __init__(self, context: ToolContext, tool: str) -> None:
        self._context, self._tool = context, tool
        self._sent: dict[str, int] = {}
        self._next: dict[str, float] = {}

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Emit `mcp_progress`."""
        if self._takes("mcp_progress"):
            text = None if message is None else clean_text(message, _MAX_PROGRESS_TEXT)
            self._emit("mcp_progress", {"progress": progress, "total": total, "message": text})

    async def report_log(self, note: LoggingMessageNotificationParams) -> None:
        """Emit `mcp_log`."""
        if self._takes("mcp_log"):
            text = note.data if isinstance(note.data, str) else to_json(note.data).decode()
            logger = None if note.logger is None else clean_text(note.logger, _MAX_LOGGER_NAME)
            self._emit("mcp_log", {"level": note.level, "logger": logger, "message": clean_text(text, _MAX_LOG_TEXT)})

    def _takes(self, name: str) -> bool:
        """Count one more event of this name, unless there are too many, or nobody listens: the call is parked."""
        sent, now = self._sent.get(name, 0), anyio.current_time()
        if sent >= _MAX_CALL_NOTES or now < self._next.get(name, 0.0) or not self._context.kept.get("is_sent"):
            return False
        self._sent[name], self._next[name] = sent + 1, now + _SECONDS_BETWEEN_NOTES
        return True

    def _emit(self, name: str, value: JSONObject) -> None:
        call = {"tool_call_id": self._context.tool_call.id, "tool": self._tool}
        self._context.emit(CustomEvent(name=name, value={**call, **value}))
