"""Agents in a terminal: `show` renders a reply as it happens, and the `agentrt` command is a conversation."""

from agentrt.console.folder_tools import folder_tools
from agentrt.console.render.progress_bar import ProgressBar
from agentrt.console.render.show import show

__all__ = ["ProgressBar", "folder_tools", "show"]
