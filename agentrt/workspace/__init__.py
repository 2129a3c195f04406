"""Workspaces: the files that the tools of an agent may use and no others, and the commands that may work on them."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords.moved_names import import_when_read
from agentrt.workspace.base import FileSystemBase
from agentrt.workspace.sandbox.command import Command, CommandResult

if TYPE_CHECKING:
    from agentrt.workspace.local import LocalWorkspace
    from agentrt.workspace.sandbox.base import SandboxBase
    from agentrt.workspace.sandbox.bubblewrap import BubblewrapSandbox
    from agentrt.workspace.sandbox.docker import DockerSandbox
    from agentrt.workspace.sandbox.unconfined import NoSandbox

__all__ = [
    "BubblewrapSandbox",
    "Command",
    "CommandResult",
    "DockerSandbox",
    "FileSystemBase",
    "LocalWorkspace",
    "NoSandbox",
    "SandboxBase",
]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = import_when_read(
        __name__,
        {
            "agentrt.workspace.local": ["LocalWorkspace"],
            "agentrt.workspace.sandbox.base": ["SandboxBase"],
            "agentrt.workspace.sandbox.bubblewrap": ["BubblewrapSandbox"],
            "agentrt.workspace.sandbox.docker": ["DockerSandbox"],
            "agentrt.workspace.sandbox.unconfined": ["NoSandbox"],
        },
    )
