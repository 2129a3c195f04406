"""Commands in namespaces of Linux, by the program bubblewrap."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from agentrt.errors import ConfigError, UsageError
from agentrt.workspace.sandbox.base import (
    SYSTEM_PATH,
    WORKSPACE,
    Launch,
    SandboxBase,
    SharedFolder,
    environment_of,
    open_data,
)
from agentrt.workspace.sandbox.bwrap import explain_failure, find_bwrap
from agentrt.workspace.sandbox.command import Command
from agentrt.workspace.sandbox.seccomp import make_filter
from agentrt.workspace.sandbox.threads import watch_threads

# Beside /usr, which is always there. They are links into /usr on most systems.
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Without them many programs do not start; none of them says anything about this machine's users.
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/ssl", "/etc/ca-certificates", "/etc/nsswitch.conf")
_RESERVED_TARGETS = ("/proc", "/dev", "/tmp", "/usr", WORKSPACE)
_NAMESPACES = ("user", "pid", "ipc", "uts", "cgroup-try")
# The folder is found by its path once more when it is mounted, and another command may have put a link there meanwhile.
# So the command starts only if what was mounted is the folder that was checked.
_SAME_FOLDER_SCRIPT = f"""
if [ "$(PATH={SYSTEM_PATH} stat -c %d:%i {WORKSPACE})" = "$1" ]; then shift; exec "$@"; fi
echo 'the folder of the workspace was replaced while the command started' >&2
exit 126
"""
_TRIAL_SECONDS = 30.0


class BubblewrapSandbox(SandboxBase):
    """Commands see the namespace at /workspace, `/usr` read-only, and a `/tmp` of their own, and nothing else.

    Each command has its own user, process, network, IPC and host namespaces, no capabilities, and an environment of
    three variables. It ends with all of its processes. `read_only` has further folders or files of this machine, by
    the absolute paths at which commands find them. Needs Linux, and bubblewrap 0.8 or newer: that of the system, or of
    the extra `sandbox`.
    """

    def __init__(
        self,
        *,
        network: bool = False,
        memory: int = 1_000_000_000,
        processes: int = 64,
        cpu: int = 60,
        file_size: int = 100_000_000,
        read_only: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        super().__init__(network=network, memory=memory, processes=processes, cpu=cpu, file_size=file_size)
        self.read_only = {
            _check_mount_point(target): os.path.realpath(path) for target, path in (read_only or {}).items()
        }
        self._program: str | None = None
        self._works = False

    async def check(self) -> None:
        """Raise `UsageError`, with the remedy, if this machine cannot run commands so; done once for each object."""
        if self._works:
            return
        self._program = find_bwrap()
        command = Command(("true",), timeout=_TRIAL_SECONDS)
        with tempfile.TemporaryDirectory(prefix="agentrt-") as folder:
            outcome = await self.run(command, SharedFolder(Path(folder)), max_output=10_000)
        if outcome.exit_code:
            raise UsageError(explain_failure(outcome.stderr.content().decode(errors="replace")))
        self._works = True

    @contextmanager
    def prepare(self, command: Command, folder: SharedFolder) -> Iterator[Launch]:
        """Return how to start the command."""
        with ExitStack() as stack:
            options = self._options(command, folder)
            descriptors = [open_data(stack, make_filter())]
            options += ["--seccomp", str(descriptors[0])]
            guard = None
            if os.geteuid() == 0:
                # The kernel's own limit of processes does not hold for root, also not in a user namespace.
                readable, writable = os.pipe()
                stack.callback(os.close, readable)
                stack.callback(os.close, writable)
                options += ["--info-fd", str(writable)]
                descriptors.append(writable)
                guard = partial(watch_threads, readable, self.processes)
            # Not in the command line, which every user of this machine can read, and which has a limited length.
            descriptors.append(open_data(stack, b"".join(f"{option}\0".encode() for option in options)))
            checked = ["/bin/sh", "-c", _SAME_FOLDER_SCRIPT, "sandbox", folder.identity] if folder.identity else []
            assert self._program is not None, "check() comes first"
            # The limits are set inside, so that the kernel counts the processes of this sandbox and no others.
            inner = [*self.limits(self.processes + 1), *checked, *command.argv]
            yield Launch(
                [self._program, "--args", str(descriptors[-1]), "--", *inner],
                {"PATH": os.defpath},
                # Not where this program works: commands see the environment of their first process, and PWD in it.
                cwd="/",
                descriptors=descriptors,
                guard=guard,
            )

    def _options(self, command: Command, folder: SharedFolder) -> list[str]:
        options = [f"--unshare-{name}" for name in _NAMESPACES]
        options += ["--disable-userns", "--hostname", "sandbox", "--die-with-parent", "--new-session"]
        options += ["--cap-drop", "ALL", "--clearenv"]
        options += [] if self.network else ["--unshare-net"]
        options += ["--ro-bind", "/usr", "/usr"]
        for name in _SYSTEM_FOLDERS:
            path = f"/{name}"
            if os.path.islink(path):
                options += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                options += ["--ro-bind", path, path]
        for path in (*_SYSTEM_FILES, *(_NETWORK_FILES if self.network else ())):
            options += ["--ro-bind-try", path, path]
        for target, source in {**self.read_only, **command.read_only}.items():
            options += ["--ro-bind", source, _check_mount_point(target)]
        # Settings of the kernel in /proc/sys are files of root, to which root may write here with no capability. One
        # of them names a program that the kernel runs outside.
        options += ["--proc", "/proc", "--remount-ro", "/proc"]
        size = str(self.memory)  # what is in these folders is in the memory
        options += ["--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        options += ["--size", size, "--tmpfs", "/tmp", "--bind", str(folder.path), WORKSPACE]
        if folder.has_internal:
            options += ["--tmpfs", f"{WORKSPACE}/internal", "--remount-ro", f"{WORKSPACE}/internal"]
        options += ["--remount-ro", "/", "--chdir", os.path.join(WORKSPACE, command.cwd).rstrip("/")]
        for name, value in environment_of(command).items():
            options += ["--setenv", name, value]
        return options


def _check_mount_point(target: object) -> str:
    path = target if isinstance(target, str) else ""
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/" or "\0" in path:
        raise ConfigError(
            f"a sandbox takes absolute paths as keys of read_only=, such as '/skills', not {target!r:.200}"
        )
    if any(path == taken or path.startswith(f"{taken}/") for taken in _RESERVED_TARGETS):
        raise ConfigError(
            f"a sandbox cannot put anything of read_only= at {path!r:.200}, which it has itself: "
            f"choose another path, such as '/data'"
        )
    return path
