"""A server in a process of its own, and what it takes of the machine."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from benchmarks.processes import ROOT

__all__ = ["Server", "serve"]

_STOP_SECONDS = 60


class Server:
    """A process that serves at `port`; `start_seconds` went by until it said so."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, start_seconds: float) -> None:
        self.process, self.port, self.start_seconds = process, port, start_seconds

    @property
    def megabytes(self) -> float:
        """The memory that it has now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    @property
    def descriptors(self) -> int:
        """The files and connections that it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def cpu_seconds(self) -> float:
        """The time of a core that it has taken so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serve(
    folder: Path, store: str | None = None, *options: str, words: int = 20, pause: float = 0.0, port: int = 0
) -> Iterator[Server]:
    """Serve the agent of `app.py` over that store, or its runner, until the block is left."""
    port = port or _free_port()
    chosen = ["benchmarks.load.app:runner"] if store is None else ["benchmarks.load.app:agent", "--store", store]
    command = [sys.executable, "-m", "agentrt", "serve", *chosen, "--port", str(port), *options]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware")])
    environment = {**os.environ, "PYTHONPATH": paths, "WORDS": str(words), "PAUSE": str(pause)}
    began_at = perf_counter()
    with (folder / f"server-{port}.log").open("a") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=folder,
            text=True,
        )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the server did not start: {(folder / f'server-{port}.log').read_text()[-2000:]}")
        yield Server(process, port, perf_counter() - began_at)
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SECONDS)
    finally:
        process.kill()
        process.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
