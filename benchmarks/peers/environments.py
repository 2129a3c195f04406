"""A virtual environment for each peer, made once and kept."""

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

__all__ = ["PEERS", "NotInstalledError", "Requirement", "adapter_of", "child_environment", "prepare"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Requirement:
    """What is installed for a peer."""

    packages: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    """Dependencies that may have any version, whatever the peer asks for."""
    rebuilt: bool = False
    """Whether it changes between runs, so that it is installed each time."""


# Some packages ask for a list of certificates not older than a certain day, which a mirror may not have. No run opens
# a connection, so any will do; the table has a note where it is too old.
CERTIFICATES = ("certifi",)

PEERS = {
    "floor": Requirement(),
    "rich-floor": Requirement(("pydantic>=2.11,<3",)),
    "agentrt": Requirement((str(ROOT),), rebuilt=True),
    "agentscope": Requirement(("agentscope==2.0.11",), unbound=CERTIFICATES),
    "langchain": Requirement(("langchain==1.5.0",), unbound=CERTIFICATES),
    "pydantic-ai": Requirement(("pydantic-ai-slim==2.68.0",)),
    "openai-agents": Requirement(("openai-agents==0.24.0",)),
    "google-adk": Requirement(("google-adk==2.13.0",)),
    "strands": Requirement(("strands-agents==1.62.0",)),
    "agent-framework": Requirement(("agent-framework-core==1.23.0",)),
}

TELEMETRY_OFF = {
    "ENABLE_INSTRUMENTATION": "false",  # Agent Framework
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}


class NotInstalledError(Exception):
    """A peer cannot be installed or imported; the message says why."""


def prepare(name: str, requirement: Requirement, folder: Path) -> tuple[Path, str]:
    """Return the interpreter of this peer's environment, made if need be, and a note on what does not fit in it."""
    environment = folder / name
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = environment / "stamp"
    expected = f"{sys.version}\n{requirement}\n"
    if not (python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == expected):
        # Without pip where uv is there: an environment is to hold what the peer needs.
        run(sys.executable, "-m", "venv", "--clear", *(["--without-pip"] if has_uv() else []), str(environment))
        install(python, requirement)
        stamp.write_text(expected, encoding="utf-8")
    elif requirement.rebuilt:
        install(python, requirement)
    # Once before the rounds, so that each of them finds the bytecode written.
    run(str(python), "-c", f"import {adapter_of(name)}")
    return python, find_misfit(python) if requirement.unbound else ""


def adapter_of(name: str) -> str:
    return f"benchmarks.peers.adapters.{name.replace('-', '_')}"


def has_uv() -> bool:
    return find_spec("uv") is not None


def install(python: Path, requirement: Requirement) -> None:
    if not requirement.packages:
        return
    if not has_uv():
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        run(*pip, *requirement.packages)
        if requirement.rebuilt:
            run(*pip, "--force-reinstall", "--no-deps", *requirement.packages)
        return
    overrides = python.parents[1] / "overrides.txt"
    overrides.write_text("".join(f"{package}\n" for package in requirement.unbound), encoding="utf-8")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    rebuild = ["--reinstall-package", "agentrt"] if requirement.rebuilt else []
    run(*uv, "--override", str(overrides), *rebuild, *requirement.packages)


def find_misfit(python: Path) -> str:
    """Return what the installer says about packages that do not fit each other, empty if they do."""
    uv = [sys.executable, "-m", "uv", "pip", "check", "--python", str(python)]
    pip = [str(python), "-m", "pip", "check"]
    result = subprocess.run(uv if has_uv() else pip, capture_output=True, text=True, check=False)
    lines = [line for line in (result.stdout + result.stderr).splitlines() if " requires " in line]
    return "; ".join(lines) if result.returncode else ""


def run(*command: str) -> None:
    """Run a command; when it fails, what it printed says why the peer is skipped."""
    try:
        subprocess.run(command, cwd=ROOT, env=child_environment(), capture_output=True, text=True, check=True)
    except OSError as error:
        raise NotInstalledError(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise NotInstalledError(shorten(error.stderr) or f"exit code {error.returncode}") from error


def child_environment() -> dict[str, str]:
    """Return ours without what would slow down or misdirect the import of a peer, and with telemetry off."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(ROOT), str(ROOT / "middleware")])
    return {**inherited, **TELEMETRY_OFF, "PYTHONPATH": path}


def shorten(text: str, length: int = 300) -> str:
    """Return the end of what a program printed, in one line: the reason comes last."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"...{line[-length:]}"
