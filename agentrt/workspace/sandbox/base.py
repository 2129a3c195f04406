"""The base class of sandboxes, and what each of them tells the process runner."""

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from agentrt._runtime.options import check_bool, check_whole
from agentrt._runtime.representation import never_raises
from agentrt.errors import UsageError
from agentrt.workspace.sandbox.command import Command, Outcome

WORKSPACE = "/workspace"
"""Where commands find the files of their namespace."""

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where commands find programs."""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder of a namespace, which its commands may change."""

    path: Path
    identity: str = ""
    """Device and inode, as `stat -c %d:%i` prints them, if another program may have replaced the folder meanwhile."""
    has_internal: bool = False
    """Whether it is the root of the workspace, where `internal` is the program's own."""


@dataclass(slots=True)
class Launch:
    """How to start one command: a program of this machine, and what it inherits."""

    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    descriptors: list[int] = field(default_factory=list)
    guard: Callable[[], Awaitable[str]] | None = None
    """Returns, while the command runs, the limit that it has exceeded, by which it ends; else waits for ever."""
    clean_up: Callable[[], Awaitable[object]] | None = None
    """Ends what the death of the process would leave behind."""


class SandboxBase:
    """Where commands of a workspace run: a subclass says with which program they start, and what that isolates.

    `memory` (bytes of address space) and `cpu` (seconds) are limits of each process, `file_size` (bytes) of each file,
    and `processes` of all that run at a time. A sandbox may be shared by workspaces.
    """

    def __init__(
        self,
        *,
        network: bool = False,
        memory: int = 1_000_000_000,
        processes: int = 64,
        cpu: int = 60,
        file_size: int = 100_000_000,
    ) -> None:
        name = type(self).__name__
        check_bool(f"{name}(network=...)", network)
        self.network = network
        self.memory = check_whole(f"{name}(memory=...)", memory, least=10_000_000)
        self.processes = check_whole(f"{name}(processes=...)", processes)
        self.cpu = check_whole(f"{name}(cpu=...)", cpu)
        self.file_size = check_whole(f"{name}(file_size=...)", file_size)

    @never_raises
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(network={self.network}, memory={self.memory}, processes={self.processes}, "
            f"cpu={self.cpu}, file_size={self.file_size})"
        )

    async def check(self) -> None:
        """Raise `UsageError`, with the remedy, if this machine cannot run commands so."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `check`")

    async def run(self, command: Command, folder: SharedFolder, max_output: int) -> Outcome:
        """Run the command; of each stream this keeps at most `max_output` bytes."""
        from agentrt.workspace.sandbox.process import run_process  # loaded with the first command

        with self.prepare(command, folder) as launch:
            return await run_process(launch, command, max_output)

    def prepare(self, command: Command, folder: SharedFolder) -> AbstractContextManager[Launch]:
        """Return how to start the command; what the launch needs is open inside of the `with`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `prepare`")

    def limits(self, processes: int | None) -> list[str]:
        """Return the beginning of a command line that sets the limits, and then becomes the command."""
        count = [] if processes is None else [f"--nproc={processes}"]
        # By its whole path: a command may be given another PATH, and could have put a program of that name there.
        return [
            find_prlimit(),
            f"--as={self.memory}",
            f"--cpu={self.cpu}",
            f"--fsize={self.file_size}",
            "--core=0",
            *count,
            "--",
        ]


def find_prlimit() -> str:
    """Return the path of the program that sets limits; raises `UsageError` where it is not installed."""
    program = shutil.which("prlimit", path=SYSTEM_PATH)
    if program is None:
        raise UsageError(
            f"commands are limited by `prlimit` of util-linux, which was not found in {SYSTEM_PATH}: commands run on "
            f"Linux, and there `apt install util-linux` brings it"
        )
    return program


def environment_of(command: Command) -> dict[str, str]:
    """Return all that the command finds in its environment: nothing of this program's."""
    return {"PATH": SYSTEM_PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **command.env}


def open_data(stack: ExitStack, data: bytes) -> int:
    """Return the descriptor of a file without a name that has this content, until the stack is closed."""
    file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack is one
    file.write(data)
    file.seek(0)  # which writes what is in the buffer, too
    return file.fileno()
