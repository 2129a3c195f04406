"""Programs of Python that tests use, each in an environment of its own, since they need other versions than agentrt."""

import subprocess
import sys
from pathlib import Path

import dev
from tests.services import unavailable

__all__ = ["install"]


def install(folder: Path, service: str, *requirements: str) -> Path:
    """Return where the environment has its programs; it is made in this folder unless it is there."""
    environment = folder / "venv"
    python = dev.program_in(environment, "python", windows=False)
    stamp = environment / "stamp"
    content = "\n".join([sys.version, *requirements])
    with dev.hold_lock(folder / "lock"):
        if stamp.exists() and stamp.read_text() == content:
            return python.parent
        for command in (
            ["venv", "--quiet", "--clear", "--python", sys.executable, environment],
            ["pip", "install", "--quiet", "--python", python, *requirements],
        ):
            uv = [sys.executable, "-m", "uv", *map(str, command)]
            try:
                subprocess.run(uv, capture_output=True, text=True, check=True, timeout=600)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                unavailable(service, f"it cannot be installed: {error}: {str(error.stderr)[-500:]}")
        stamp.write_text(content)
    return python.parent
