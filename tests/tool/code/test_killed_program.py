"""Processes that run programs, killed with SIGKILL, and others that finish what they left."""

from pathlib import Path

import pytest

from tests.killed import needs_fork, output_of

PROGRAM = Path(__file__).with_name("killed_program.py")


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_call_of_a_program_runs_once_wherever_it_is_killed(tmp_path: Path, backend: str) -> None:
    assert int(output_of(PROGRAM, tmp_path, backend)) == 12
