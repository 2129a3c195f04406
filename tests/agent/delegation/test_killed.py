"""Processes with a tree of agents that are killed with SIGKILL, and others that finish what they left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_process.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is neither SIGKILL nor fork")


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "every"), [("asyncio", 1), ("trio", 3)])
def test_what_a_tree_does_is_done_once_wherever_it_is_killed(tmp_path: Path, backend: str, every: int) -> None:
    command = [sys.executable, "-W", "error", str(PROGRAM), str(tmp_path), backend, str(every)]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 50  # places
