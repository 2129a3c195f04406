"""The tools by which a model looks after its own background calls."""

from agentrt.tool.tasks.task_tools import task_tools

__all__ = ["task_tools"]
