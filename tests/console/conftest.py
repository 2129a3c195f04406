"""The console with a pipe, and at a terminal."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.console.program import environment
from tests.console.terminal import Terminal
from tests.program_runner import ProgramRunner

PROGRAM = "import sys; from agentrt.console.cli import main; sys.exit(main(sys.argv[1:]))"

# The new session takes the terminal as its own, so that the Ctrl-C typed there becomes a signal; it is heeded even if
# these tests run in the background of a shell.
AT_A_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in {blocked!r}:
    sys.modules[name] = None
from agentrt.console.cli import main
sys.exit(main({arguments!r}))
"""

Piped = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def piped(program_runner: ProgramRunner) -> Piped:
    """Run the program with these arguments, `said` as its input and no terminal, in a folder."""

    def run(arguments: Sequence[str], said: str, cwd: Path, **more: str) -> "subprocess.CompletedProcess[str]":
        return program_runner.run(PROGRAM, *arguments, cwd=cwd, typed=said, environment=environment(**more))

    return run


AtTerminal = Callable[..., Terminal]


@pytest.fixture
def at_terminal(program_runner: ProgramRunner) -> AtTerminal:
    """Run the program with these arguments in a folder, at a terminal, in a Python that may lack two modules."""

    def run(
        arguments: Sequence[str],
        cwd: Path,
        *,
        rich: bool = True,
        readline: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        blocked = [name for name, is_there in {"rich": rich, "readline": readline}.items() if not is_there]
        program = AT_A_TERMINAL.format(blocked=blocked, arguments=list(arguments))
        variables = environment(**(env or {}))
        return Terminal(lambda tty: program_runner.start_in_terminal(program, tty, cwd=cwd, environment=variables))

    return run
