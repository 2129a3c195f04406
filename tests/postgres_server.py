"""A PostgreSQL that the tests start."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import sleep

from tests.services import needs, unavailable

# As root the servers run as the user postgres, who may not enter each folder that root may.
SHARED_FOLDER = "/tmp" if os.geteuid() == 0 else None


class PostgresServer:
    """A PostgreSQL of our own, which may be stopped or killed; as root, it runs as the user `postgres`."""

    def __init__(self, programs: Path | None = None, *, connections: int = 50) -> None:
        if programs is None:
            needs("postgres", "postgres", "initdb")
        self._user = "postgres" if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="agentrt-postgres-", dir=SHARED_FOLDER))
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._programs = programs
        data = str(self._folder / "data")
        initialize = [self._program("initdb"), "-D", data, "-A", "trust", "-U", "agentrt", "-E", "UTF8"]
        initialize += ["--locale=C", "--no-sync"]
        subprocess.run(initialize, check=True, stdout=subprocess.DEVNULL, user=self._user, cwd="/")
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self.url = f"postgresql://agentrt@127.0.0.1:{self.port}/postgres"
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._folder}"]
        settings += ["-c", "shared_buffers=16MB", "-c", "fsync=off", "-c", f"max_connections={connections}"]
        self._command = [self._program("postgres"), "-D", data, "-p", str(self.port), *settings]
        self.start()

    def _program(self, name: str) -> str:
        return name if self._programs is None else str(self._programs / name)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, user=self._user, cwd="/")
        command = [self._program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(command, check=False).returncode:
            assert self._process.poll() is None, "postgres ended"
            sleep(0.02)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def close(self) -> None:
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self._folder)


@contextmanager
def server_with_vectors() -> Iterator[PostgresServer]:
    """Start a PostgreSQL that has the extension vector: that of the package pgserver."""
    package = find_spec("pgserver")
    if package is None or package.origin is None:
        unavailable("PostgreSQL with the extension vector", "the package pgserver is not installed")
    installed = Path(package.origin).parents[1]
    with tempfile.TemporaryDirectory(prefix="agentrt-pgserver-", dir=SHARED_FOLDER) as copied:
        if os.geteuid() == 0:
            for part in ("pgserver/pginstall", "pgserver.libs"):
                shutil.copytree(installed / part, Path(copied, part), ignore=shutil.ignore_patterns("include"))
            # A strict umask, here or when the package was installed, leaves files that only root may read.
            subprocess.run(["chmod", "--recursive", "a+rX", copied], check=True)
            installed = Path(copied)
        server = PostgresServer(installed / "pgserver" / "pginstall" / "bin")
        try:
            yield server
        finally:
            server.close()
