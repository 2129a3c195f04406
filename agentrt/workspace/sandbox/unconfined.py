"""Commands without a sandbox."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrt.workspace.sandbox.base import Launch, SandboxBase, SharedFolder, environment_of, find_prlimit
from agentrt.workspace.sandbox.command import Command
from agentrt.workspace.sandbox.threads import count_threads


class NoSandbox(SandboxBase):
    """No isolation: a command is a plain child process, which can do all that this program can.

    The limits hold as in a `BubblewrapSandbox`, but `processes` leaves out the user root, and a process that leaves its
    group outlives the command. `network` changes nothing. Use it where the program itself runs in a sandbox.
    """

    async def check(self) -> None:
        """Raise `UsageError` if this machine cannot limit a process."""
        find_prlimit()

    @contextmanager
    def prepare(self, command: Command, folder: SharedFolder) -> Iterator[Launch]:
        """Return how to start the command."""
        # The kernel counts all processes of a user, so those that it has already are added; and none of root.
        user = os.geteuid()
        processes = self.processes + count_threads(Path("/proc"), user) if user else None
        yield Launch(
            [*self.limits(processes), *command.argv], environment_of(command), cwd=str(folder.path / command.cwd)
        )
