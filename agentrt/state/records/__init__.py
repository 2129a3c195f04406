"""The rows of recorded runs, as the stores keep them; `agentrt.runs` writes and reads what they hold."""

from agentrt.state.records.files import FileRunRows
from agentrt.state.records.memory import MemoryRunRows
from agentrt.state.records.rows import RunQuery, RunRow, RunRows, RunWrite

__all__ = ["FileRunRows", "MemoryRunRows", "RunQuery", "RunRow", "RunRows", "RunWrite"]
