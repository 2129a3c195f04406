"""Processes with a tool that calls tools, killed with SIGKILL, and others that finish what they left."""

from pathlib import Path

import pytest

from tests.killed import needs_fork, output_of

PROGRAM = Path(__file__).with_name("killed_program.py")


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "where", "every", "at_least"),
    [("asyncio", "inside", 1, 40), ("trio", "inside", 7, 5), ("asyncio", "anywhere", 17, 10)],
)
def test_what_a_program_calls_runs_once_wherever_it_is_killed(
    tmp_path: Path, backend: str, where: str, every: int, at_least: int
) -> None:
    assert int(output_of(PROGRAM, tmp_path, backend, where, every)) >= at_least
