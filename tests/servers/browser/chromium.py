"""Chromium, as a package of npm has it, which needs no package of the system."""

import os
import shutil
import subprocess
from pathlib import Path

import dev
from tests.servers.node_packages import install
from tests.services import unavailable

__all__ = ["Chromium", "install_chromium"]

HERE = Path(__file__).parent
# With this variable the package unpacks libraries too that a system may not have.
_UNPACK = (
    {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs20.x"},
    "import chromium from '@sparticuz/chromium'; await chromium.executablePath();",
)


class Chromium:
    """The program, the environment that it needs, and the folder of the packages that drive it."""

    def __init__(self, program: Path, environment: dict[str, str], packages: Path) -> None:
        self.program = program
        self.environment = environment
        self.packages = packages


def install_chromium(folder: Path) -> Chromium:
    """Return the browser, installed into this folder unless it is there."""
    modules = install(folder, "chromium", HERE)
    unpacked = folder / "unpacked"
    with dev.hold_lock(folder / "unpack-lock"):
        done = unpacked / "done"
        version = (folder / "stamp").read_text()
        if not done.exists() or done.read_text() != version:
            # The package unpacks into the folder for temporary files, and trusts what is there.
            shutil.rmtree(unpacked, ignore_errors=True)
            unpacked.mkdir()
            variables, script = _UNPACK
            subprocess.run(
                ["node", "--input-type=module", "-e", script],
                cwd=folder,
                env={**os.environ, **variables, "TMPDIR": str(unpacked)},
                check=True,
                capture_output=True,
                timeout=600,
            )
            done.write_text(version)
    program = unpacked / "chromium"
    problem = ""
    # Its own libraries and fonts only where the system lacks libraries: the system's fit each other.
    own = {"LD_LIBRARY_PATH": str(unpacked / "al2023" / "lib"), "FONTCONFIG_PATH": str(unpacked / "fonts")}
    for environment in ({}, own):
        try:
            started = subprocess.run(
                [program, "--version"],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        except OSError as error:  # of another processor
            unavailable("chromium", str(error))
        if started.returncode == 0:
            return Chromium(program, environment, modules.parent)
        problem = started.stderr
    return unavailable("chromium", problem[-500:])
