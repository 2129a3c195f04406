"""Runs programs as `python -W error -c PROGRAM` would, but without importing agentrt anew for each.

As a script this file is the server: it imports what nearly every program of the documentation imports, which takes
longer than most of them run, and forks for each request that it reads from standard input.
"""

import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]


class ProgramRunner:
    """Runs one program at a time, each in a process of its own that the server forks."""

    def __init__(self, requests: IO[str], exit_codes: IO[str]) -> None:
        self._requests = requests
        self._exit_codes = exit_codes

    def run(self, source: str) -> "subprocess.CompletedProcess[str]":
        with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
            self._requests.write(json.dumps([source, output.name, errors.name]) + "\n")
            self._requests.flush()
            exit_code = int(self._exit_codes.readline())
            return subprocess.CompletedProcess(source, exit_code, output.read(), errors.read())


@contextmanager
def open_program_runner() -> Iterator[ProgramRunner]:
    command = [sys.executable, "-W", "error", "-m", "tests.program_runner"]
    pipe = subprocess.PIPE
    environment = {"AGENTRT_MODEL": "rules", **os.environ}  # without one, `default_model()` says so in each program
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8", cwd=ROOT, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield ProgramRunner(server.stdin, server.stdout)


def main() -> None:
    """Serve requests; in a forked process, run the program and return, so that it ends as any Python process does."""
    import agentrt.middleware
    import agentrt.testing  # noqa: F401

    for line in sys.stdin:
        source, output, errors = json.loads(line)
        child = os.fork()
        if child == 0:
            _redirect(output, errors)
            _run_as_main(source)
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _redirect(output: str, errors: str) -> None:
    for number, path in ((0, os.devnull), (1, output), (2, errors)):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)


def _run_as_main(source: str) -> None:
    sys.argv = ["-c"]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(source, "<string>", "exec"), vars(module))


if __name__ == "__main__":
    main()
