"""Commands in containers, by the command line of Docker."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from subprocess import DEVNULL, PIPE

import anyio

from agentrt._runtime.text import one_line
from agentrt.errors import ConfigError, UsageError
from agentrt.workspace.sandbox.base import WORKSPACE, Launch, SandboxBase, SharedFolder, environment_of
from agentrt.workspace.sandbox.command import Command

_DAEMON_SECONDS = 10.0


class DockerSandbox(SandboxBase):
    """Each command runs in a container of its own, made from `image`, with the namespace at /workspace.

    The rest of the image is read-only, `/tmp` is fresh, and there are no capabilities. Needs a running daemon, which
    has the image or may fetch it.
    """

    def __init__(
        self,
        image: str,
        *,
        network: bool = False,
        memory: int = 1_000_000_000,
        processes: int = 64,
        cpu: int = 60,
        file_size: int = 100_000_000,
    ) -> None:
        super().__init__(network=network, memory=memory, processes=processes, cpu=cpu, file_size=file_size)
        # A name that begins with a dash would be an option of Docker, such as one that shares all of the disk.
        name: object = image
        if not isinstance(name, str) or not name or name.startswith("-"):
            raise ConfigError(f"DockerSandbox(image) takes the name of an image, such as 'python:3', not {name!r:.200}")
        self.image = image

    async def check(self) -> None:
        """Raise `UsageError` unless a daemon answers."""
        problem = "it gave no answer"
        with anyio.move_on_after(_DAEMON_SECONDS):
            try:
                version = ["docker", "version", "--format", "{{.Server.Version}}"]
                answer = await anyio.run_process(version, check=False, stderr=PIPE)
            except OSError as error:
                problem = f"the program docker: {error.strerror}"
            else:
                if answer.returncode == 0:
                    return
                problem = one_line(answer.stderr.decode(errors="replace"), 300).strip()
        raise UsageError(
            f"DockerSandbox needs a Docker daemon, and has none here ({problem}): start it, or use "
            f"BubblewrapSandbox(), which needs none"
        )

    @contextmanager
    def prepare(self, command: Command, folder: SharedFolder) -> Iterator[Launch]:
        """Return how to start the command."""
        name = f"agentrt-{token_hex(8)}"
        # Those of the caller by name alone, since all users of this machine can read a command line: Docker takes the
        # values from its own environment.
        variables = [
            variable if variable in command.env else f"{variable}={value}"
            for variable, value in environment_of(command).items()
        ]
        options = [part for variable in variables for part in ("--env", variable)]
        options += [] if self.network else ["--network", "none"]
        options += ["--read-only", "--tmpfs", f"/tmp:size={self.memory}", "--cap-drop", "ALL", "--init"]
        options += ["--security-opt", "no-new-privileges", "--pids-limit", str(self.processes + 1)]
        options += ["--memory", str(self.memory), "--memory-swap", str(self.memory)]
        options += ["--ulimit", f"cpu={self.cpu}", "--ulimit", f"fsize={self.file_size}", "--ulimit", "core=0"]
        options += ["--user", f"{os.getuid()}:{os.getgid()}"]
        options += _mount(str(folder.path), WORKSPACE)
        for target, source in command.read_only.items():
            options += _mount(source, target, "readonly")
        if folder.has_internal:
            options += ["--tmpfs", f"{WORKSPACE}/internal:ro"]
        options += ["--workdir", f"{WORKSPACE}/{command.cwd}", "--entrypoint", ""]
        argv = ["docker", "run", "--rm", "--interactive", "--name", name, *options, self.image, *command.argv]
        # The container outlives the program that has started it.
        remove = partial(anyio.run_process, ["docker", "rm", "--force", name], check=False, stdout=DEVNULL)
        yield Launch(argv, {**os.environ, **command.env}, clean_up=remove)


def _mount(source: str, target: str, *flags: str) -> list[str]:
    # As a line of CSV: a plain comma in the name of a folder would begin another field, such as `source=`.
    fields = ["type=bind", f"source={source}", f"target={target}", *flags]
    quoted = ('"' + field.replace('"', '""') + '"' for field in fields)
    return ["--mount", ",".join(quoted)]
