"""Workspaces: the files that the tools of an agent may use, and no others."""

from agentrt.workspace.base import FileSystemBase
from agentrt.workspace.local import LocalWorkspace

__all__ = ["FileSystemBase", "LocalWorkspace"]
