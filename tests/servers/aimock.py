"""aimock: a server by others that speaks the languages of several providers and plays back what `fixtures` says."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.node_packages import install

HERE = Path(__file__).parent
START_SECONDS = 30


class Aimock:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def requests(self, conversation: str) -> list[dict[str, Any]]:
        """Return what arrived with this `x-test-id`, in order, each with its `body` and `response`.

        Bodies are in OpenAI's shape, whatever was spoken; what aimock has no place for there is left out.
        """
        journal: list[dict[str, Any]] = self._get("/v1/_requests")
        return [entry for entry in journal if entry["headers"].get("x-test-id") == conversation]

    def forget_requests(self) -> None:
        """Drop all that has arrived, which each look at it would transfer again."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/v1/_requests", method="DELETE")) as answer:
            answer.read()

    def add_fixtures(self, fixtures: list[dict[str, Any]]) -> None:
        """Add fixtures behind those that are there."""
        body = json.dumps({"fixtures": fixtures}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/__aimock/fixtures", body)) as answer:
            answer.read()

    def is_up(self) -> bool:
        """Say whether it answers."""
        try:
            return self._get("/health")["status"] == "ok"
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return json.load(answer)


@contextlib.contextmanager
def aimock_server(folder: Path) -> Iterator[Aimock]:
    """Run the server as long as the context lasts; it is installed into `folder` when it is not there yet."""
    cli = install(folder, "aimock") / "@copilotkit" / "aimock" / "dist" / "cli.js"
    log = folder / "aimock.log"
    port = free_port()
    command = ["node", cli, "--port", str(port), "--fixtures", HERE / "fixtures"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--strict", "--validate-on-load", "--log-level", "warn", "--journal-max", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        server = Aimock(f"http://127.0.0.1:{port}")
        _wait_until_up(server, process, log)
        yield server
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(server: Aimock, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not server.is_up():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"aimock did not start:\n{log.read_text()}")
        time.sleep(0.02)
