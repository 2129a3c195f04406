"""Programs that try to leave a sandbox; each prints `OUT` if it has."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

from agentrt.workspace import CommandResult, LocalWorkspace, SandboxBase


@dataclass
class Host:
    """The things of this machine that a command must not reach."""

    folder: Path
    words: dict[str, str]
    """What the programs of the attacks name in braces."""


@dataclass(frozen=True)
class Attack:
    """A program, and whether it has left the sandbox, by what it says or by what it has done to the host."""

    program: str
    needs_root: bool = False
    """Whether it needs the rights of root where nothing isolates it."""
    timeout: float = 20.0
    has_left: Callable[[Host, CommandResult], bool] = lambda host, result: "OUT" in result.stdout


def _host_has(name: str) -> Callable[[Host, CommandResult], bool]:
    return lambda host, result: Path(host.words["outside"], name).exists()


def _outlives(host: Host, result: CommandResult) -> bool:
    """Say whether a process that has left its group lives on; and end it."""
    # Where its first process was killed, those of a sandbox die a moment later.
    end = monotonic() + 1.0
    while (left := find_processes(host.words["token"])) and monotonic() < end:
        sleep(0.02)
    for process in left:
        os.kill(process, 9)
    return bool(left)


def find_processes(token: str) -> list[int]:
    """Return the processes of this machine that have the word in their command lines."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if token.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


# What the programs share: `call` makes a system call by its number on x86_64 or aarch64.
_PRELUDE = """
import ctypes, os, platform, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(x86_64, aarch64, *arguments):
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    return libc.syscall(number, *arguments)
"""
_LEAVE_A_PROCESS = """
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{token}"], start_new_session=True,
                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""

ATTACKS = {
    "read a file of the host": Attack("print('OUT' if '{secret}' in open('{outside}/secret').read() else '')"),
    "read a file by a link": Attack(
        "os.symlink('{outside}/secret', 'link')\nprint('OUT' if '{secret}' in open('link').read() else '')"
    ),
    "read a file by a hard link": Attack("os.link('{outside}/secret', 'hard')\nprint('OUT')"),
    "list the folders of the host": Attack("print('OUT' if os.listdir('{outside}') else '')"),
    "write outside": Attack("open('{outside}/written', 'w').write('x')", has_left=_host_has("written")),
    "write outside by a link": Attack(
        "os.symlink('{outside}', 'folder')\nopen('folder/linked', 'w').write('x')", has_left=_host_has("linked")
    ),
    "climb out by dots": Attack(
        "os.chdir('/')\nos.chdir('/workspace' if os.path.isdir('/workspace') else '{root}')\n"
        "print('OUT' if 'outside' in os.listdir('..') else '')"
    ),
    "read the shared memory of the host": Attack(
        "print('OUT' if '{secret}' in open('/dev/shm/{token}').read() else '')"
    ),
    "connect to a port of the host": Attack("socket.create_connection(('127.0.0.1', {port}), 5)\nprint('OUT')"),
    "connect to a socket in a folder": Attack(
        "client = socket.socket(socket.AF_UNIX)\nclient.connect('{outside}/socket')\nprint('OUT')"
    ),
    "connect to an abstract socket": Attack(
        "client = socket.socket(socket.AF_UNIX)\nclient.connect('\\0{token}')\nprint('OUT')"
    ),
    "connect to the host of a virtual machine": Attack(  # where there is none, nothing refuses it but the sandbox
        "number = libc.socket(40, 1, 0)\nprint('' if number < 0 and ctypes.get_errno() == 1 else 'OUT')"
    ),
    "find another network": Attack("print('OUT' if len(socket.if_nameindex()) > 1 else '')"),
    "read the environments of other processes": Attack(
        "for name in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n        text = open(f'/proc/{{name}}/environ').read()\n"
        "    except OSError: continue\n"
        "    if 'SECRET_OF_HOST={secret}' in text: print('OUT')"
    ),
    "see the processes of the host": Attack("print('OUT' if '{pid}' in os.listdir('/proc') else '')"),
    "signal a process of the host": Attack("os.kill({pid}, 0)\nprint('OUT')"),
    "leave a process when it ends": Attack(_LEAVE_A_PROCESS, has_left=_outlives),
    "leave a process when its time is up": Attack(_LEAVE_A_PROCESS + "time.sleep(60)", timeout=0.7, has_left=_outlives),
    "have capabilities": Attack(
        "text = open('/proc/self/status').read()\n"
        "print('OUT' if int(text.partition('CapEff:')[2].split()[0], 16) else '')",
        needs_root=True,
    ),
    "gain capabilities by a setuid file": Attack(
        "print('OUT' if 'NoNewPrivs:\\t0' in open('/proc/self/status').read() else '')"
    ),
    "make a user namespace": Attack("print('OUT' if call(272, 97, 0x10000000) == 0 else '')"),
    "mount": Attack(
        "os.mkdir('mount')\nprint('OUT' if libc.mount(b'none', b'mount', b'tmpfs', 0, None) == 0 else '')\n"
        "libc.umount(b'mount')",
        needs_root=True,
    ),
    "change the system": Attack("print('OUT' if os.access('/usr/bin', os.W_OK) else '')", needs_root=True),
    "change settings of the kernel": Attack(
        "open('/proc/sys/kernel/core_pattern', 'r+')\nprint('OUT')", needs_root=True
    ),
    "reach a device": Attack("open('/dev/kmsg', 'w')\nprint('OUT')", needs_root=True),
    "make a device": Attack("os.mknod('device', 0o020600, os.makedev(1, 1))\nprint('OUT')", needs_root=True),
    "search the keys of the host": Attack(
        "call(250, 219, 1, None)\nprint('OUT' if call(248, 217, b'user', b'{token}', b'x', 1, -3) > 0 else '')"
    ),
    "trace a process": Attack("print('OUT' if libc.ptrace(0, 0, 0, 0) == 0 else '')"),
    "read the program's own folder": Attack("print('OUT' if '{secret}' in open('internal/secret').read() else '')"),
    "replace the program's own folder": Attack("os.rename('internal', 'moved')\nprint('OUT')"),
}


@contextmanager
def open_host() -> Iterator[Host]:
    """Make what the attacks look for, in a folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="agentrt-host-", dir="/tmp") as name:
        folder, secret, token = Path(name), uuid4().hex, f"agentrt-{uuid4().hex}"
        folder.chmod(0o777)
        for part in ("outside", "root", "root/internal"):
            (folder / part).mkdir()
        for path in ("outside/secret", "root/internal/secret"):
            (folder / path).write_text(secret)
        shared = Path("/dev/shm", token)
        shared.write_text(secret)
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.socket(socket.AF_UNIX) as in_folder,
            socket.socket(socket.AF_UNIX) as abstract,
            subprocess.Popen(["sleep", "60"], env={"SECRET_OF_HOST": secret}) as other,
        ):
            for server, address in ((in_folder, str(folder / "outside" / "socket")), (abstract, f"\0{token}")):
                server.bind(address)
                server.listen()
            words = {"secret": secret, "token": token, "pid": str(other.pid), "root": str(folder / "root")}
            words |= {"outside": str(folder / "outside"), "port": str(listener.getsockname()[1])}
            try:
                yield Host(folder, words)
            finally:
                other.kill()
                shared.unlink()


async def leaves(name: str, sandbox: SandboxBase) -> bool:
    """Say whether the attack leaves the sandbox."""
    attack = ATTACKS[name]
    with open_host() as host:
        workspace = LocalWorkspace(host.folder / "root", sandbox=sandbox)
        program = _PRELUDE + attack.program.format_map(host.words)
        result = await workspace.run(["python3", "-c", program], timeout=attack.timeout)
        return attack.has_left(host, result)
