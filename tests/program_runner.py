"""Runs programs as `python -W error` would, but without importing agentrt anew for each.

As a script this file is the server: it imports what nearly every program of the tests imports, also in its first reply,
which takes longer than most of them run, and the modules that its arguments name. It forks for each request that it
reads from standard input. A program that needs a Python of its own (for a closed stream or an encoding) is not for it.
"""

import atexit
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO

import anyio.lowlevel

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 300  # seconds; only a failure waits that long


class RunningProgram:
    """A program that has been started, and that somebody has to wait for."""

    def __init__(self, pid: int, runner: "ProgramRunner") -> None:
        self.pid = pid
        self._runner = runner

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit code. Nobody else is served until then."""
        return self._runner.request(self.pid)


class ProgramRunner:
    """Runs programs, each in a process of its own that the server forks."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()

    def run(
        self,
        program: str | Path,
        *arguments: str,
        cwd: Path = ROOT,
        typed: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run source text, as `python -c` does, or a file.

        `typed` is its standard input. Without an environment it has that of the server.
        """
        with (
            tempfile.NamedTemporaryFile("w", encoding="utf-8") as keys,
            tempfile.NamedTemporaryFile("r", encoding="utf-8", newline="\n") as output,
            tempfile.NamedTemporaryFile("r", encoding="utf-8", newline="\n") as errors,
        ):
            keys.write(typed)
            keys.flush()
            streams = [keys.name, output.name, errors.name]
            exit_code = self._start(program, arguments, cwd, streams, environment, PATIENCE).wait()
            return subprocess.CompletedProcess([str(program), *arguments], exit_code, output.read(), errors.read())

    def start(
        self, program: str, *arguments: str, errors: Path, environment: Mapping[str, str] | None = None
    ) -> RunningProgram:
        """Start source text, and go on; what it writes to standard error is added to the file."""
        return self._start(program, arguments, ROOT, [os.devnull, os.devnull, str(errors)], environment, 0)

    def start_in_terminal(
        self, program: str, terminal: str, *, cwd: Path, environment: Mapping[str, str]
    ) -> RunningProgram:
        """Start source text, and go on; its streams are the terminal of that path, which it may take as its own."""
        return self._start(program, (), cwd, [terminal] * 3, environment, 0)

    def _start(
        self,
        program: str | Path,
        arguments: Sequence[str],
        cwd: Path,
        streams: Sequence[str],
        environment: Mapping[str, str] | None,
        patience: int,
    ) -> RunningProgram:
        place, source = (str(program), program.read_text("utf-8")) if isinstance(program, Path) else ("", program)
        request = [place, source, arguments, str(cwd), streams, environment and {**environment}, patience]
        return RunningProgram(self.request(request), self)

    def request(self, request: object) -> int:
        with self._lock:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            return int(self._answers.readline())


@contextmanager
def open_program_runner(*modules: str) -> Iterator[ProgramRunner]:
    """Start a server that has imported these modules too."""
    command = [sys.executable, "-W", "error", "-m", "tests.program_runner", *modules]
    pipe = subprocess.PIPE
    environment = {
        "AGENTRT_MODEL": "rules",  # without one, `default_model()` says so in each program
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "middleware")]),
        "PYTHONIOENCODING": "utf-8",
    }
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8", cwd=ROOT, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield ProgramRunner(server.stdin, server.stdout)


def main() -> None:
    """Serve requests; in a forked process, run the program and end as Python does.

    The answer to a program is the process that runs it, and the answer to the number of a process is its exit code.
    """
    import importlib.metadata  # noqa: F401

    import pydantic.main  # noqa: F401
    import shortuuid  # noqa: F401

    import agentrt.middleware
    import agentrt.testing  # noqa: F401

    anyio.run(anyio.lowlevel.checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of somebody else's modules
        for name in sys.argv[1:]:
            import_module(name)
    gc.collect()
    gc.freeze()  # what is imported here is garbage of no program

    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        elif (answer := os.fork()) == 0:
            place, source, arguments, cwd, streams, environment, patience = request
            signal.alarm(patience)
            _redirect(streams)
            os.chdir(cwd)
            if environment is not None:
                os.environ.clear()
                os.environ.update(environment)
            exit_code = 0
            try:
                _run_as_main(place, source, arguments)
            except SystemExit as error:
                if not isinstance(error.code, int | None):
                    raise
                exit_code = error.code or 0
            _end(exit_code)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _redirect(streams: Sequence[str]) -> None:
    for number, path in enumerate(streams):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)  # several programs may write into one file
        os.dup2(file, number)
        os.close(file)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # the server's has the next request in it
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # as Python begins; the server's is a pipe


def _run_as_main(place: str, source: str, arguments: Sequence[str]) -> None:
    sys.argv = [place or "-c", *arguments]
    sys.path[0] = os.path.dirname(place)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if place:
        module.__file__ = place
    exec(compile(source, place or "<string>", "exec"), vars(module))


def _end(exit_code: int) -> None:
    """End as Python does, but free only what the program made.

    To free all that is imported takes thirty times as long as most programs run.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, and ends those of executors
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    gc.collect()  # warns of what is still open
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
