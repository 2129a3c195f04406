"""The console with a pipe in the place of a terminal."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.console.program import environment
from tests.program_runner import ProgramRunner

PROGRAM = "import sys; from agentrt.console.cli import main; sys.exit(main(sys.argv[1:]))"

Piped = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def piped(program_runner: ProgramRunner) -> Piped:
    """Run the program with these arguments, `said` as its input and no terminal, in a folder."""

    def run(arguments: Sequence[str], said: str, cwd: Path, **more: str) -> "subprocess.CompletedProcess[str]":
        return program_runner.run(PROGRAM, *arguments, cwd=cwd, typed=said, environment=environment(**more))

    return run
