"""Processes with a tree of agents that are killed with SIGKILL, and others that finish what they left."""

from pathlib import Path

import pytest

from tests.killed import needs_fork, output_of

PROGRAM = Path(__file__).with_name("killed_process.py")


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize(("backend", "every"), [("asyncio", 1), ("trio", 3)])
def test_what_a_tree_does_is_done_once_wherever_it_is_killed(tmp_path: Path, backend: str, every: int) -> None:
    assert int(output_of(PROGRAM, tmp_path, backend, every)) > 50
