"""The chat server of the deploy page: its Dockerfile's steps, run in an environment, and a stop that loses nothing."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import dev

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="the server runs in a Linux container")]


@dataclass(frozen=True)
class Image:
    """What the Dockerfile makes: an environment with the packages, and the commands that run in it."""

    python: Path
    start: list[str]
    check_health: list[str]


def steps_of(dockerfile: str) -> list[tuple[str, str]]:
    """Return each instruction and what stands behind it."""
    lines = re.sub(r"\\\n\s*", "", dockerfile).splitlines()
    return [(first, rest) for first, _, rest in (line.partition(" ") for line in lines) if first.isupper()]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    (folder / "app").mkdir()
    steps = steps_of((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    places = {
        "/src": str(ROOT),
        "/wheels": str(folder / "wheels"),
        "requirements.txt": str(DEPLOY / "requirements.txt"),
    }
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = dev.program_in(folder / "venv", "python", windows=False)
    # The server compiles what it imports, which is a fraction of what is installed.
    environment = {**os.environ, "PIP_NO_COMPILE": "1", "PIP_PYTHON": str(python)}
    for instruction, arguments in steps:
        if instruction == "RUN" and arguments.startswith("pip "):
            command = [places.get(word, word) for word in shlex.split(arguments)]
            finished = subprocess.run(
                [sys.executable, "-m", *command], cwd=folder / "app", env=environment, capture_output=True, text=True
            )
            assert finished.returncode == 0, finished.stderr
    commands = {instruction: arguments[arguments.index("[") :] for instruction, arguments in steps if "[" in arguments}
    return Image(python, json.loads(commands["CMD"]), json.loads(commands["HEALTHCHECK"]))


class Provider(ThreadingHTTPServer):
    """Speaks OpenAI's API, and keeps a question waiting until the test lets it go."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.asked, self.may_answer = threading.Event(), threading.Event()
        self.questions: list[list[dict[str, Any]]] = []
        self.spans = b""


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            self.server.spans += body
            return self._answer({})
        self.server.questions.append(json.loads(body)["messages"])
        self.server.asked.set()
        self.server.may_answer.wait(60)
        delta = {"index": 0, "delta": {"role": "assistant", "content": "Tomorrow."}, "finish_reason": "stop"}
        return self._answer({"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [delta]})

    def _answer(self, value: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # an interrupted reply closes its connection
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(value)}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever)
        thread.start()
        yield provider
        provider.may_answer.set()
        provider.shutdown()
        thread.join()


class Server:
    """The container's program, with the health check that Docker runs."""

    def __init__(self, image: Image, provider: Provider, states: Path, grace: float) -> None:
        self._image = image
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        environment = {
            "AGENTRT_MODEL": "openai:m",
            "GRACE_SECONDS": str(grace),
            "NO_PROXY": "127.0.0.1",
            "OPENAI_API_KEY": "sk-secret",
            "OPENAI_BASE_URL": provider.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": provider.url.removesuffix("/v1"),
            "PATH": os.environ["PATH"],
            "PORT": str(self._port),
            "STATE_FOLDER": str(states),
        }
        self.process = subprocess.Popen(
            [image.python, *image.start[1:]], cwd=DEPLOY, env=environment, stderr=subprocess.PIPE, text=True
        )

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 60
        while not self._is_listening():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.02)
        command = [text.replace(":8000/", f":{self._port}/") for text in self._image.check_health]
        subprocess.run([self._image.python, *command[1:]], check=True)

    def _is_listening(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self._port), 10).close()
            return True
        return False

    def ask(self, **question: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/chat", json.dumps(question).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_until_closed(self) -> None:
        deadline = time.monotonic() + 60
        while self._is_listening() and time.monotonic() < deadline:
            time.sleep(0.02)

    def terminate(self) -> None:
        """Tell it to stop, as `docker stop` does."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> tuple[int, str]:
        """Tell it to stop; returns its exit code and its log."""
        self.terminate()
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


@contextlib.contextmanager
def running(image: Image, provider: Provider, states: Path, grace: float = 30) -> Iterator[Server]:
    server = Server(image, provider, states, grace)
    with server.process:
        try:
            server.wait_until_healthy()
            yield server
        finally:
            server.process.kill()


def test_a_conversation_outlives_the_server_and_the_spans_arrive(
    image: Image, provider: Provider, tmp_path: Path
) -> None:
    provider.may_answer.set()
    with running(image, provider, tmp_path) as server:
        assert server.ask(user="bob", text="When?") == (200, {"text": "Tomorrow.", "finished_reason": "completed"})
        code, log = server.stop()
    assert code in (0, -signal.SIGTERM), log
    assert b"invoke_agent assistant" in provider.spans
    assert "sk-secret" not in log
    with running(image, provider, tmp_path) as server:
        server.ask(user="bob", text="Really?", id="1")
        server.ask(user="bob", text="Really?", id="1")  # sent twice
        server.ask(user="ann", text="Hello?")
    texts = [
        [message["content"] for message in question if message["role"] == "user"] for question in provider.questions
    ]
    assert texts == [["When?"], ["When?", "Really?"], ["Hello?"]]


def test_a_stop_waits_for_the_reply_in_progress(image: Image, provider: Provider, tmp_path: Path) -> None:
    with running(image, provider, tmp_path) as server, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(server.ask, user="bob", text="When?")
        assert provider.asked.wait(60)
        assert server.ask(user="bob", text="Now?")[0] == 409
        server.terminate()
        server.wait_until_closed()
        provider.may_answer.set()
        assert asked.result() == (200, {"text": "Tomorrow.", "finished_reason": "completed"})
        code, log = server.stop()
    assert code in (0, -signal.SIGTERM), log


def test_a_reply_that_takes_too_long_is_interrupted_and_kept(image: Image, provider: Provider, tmp_path: Path) -> None:
    with running(image, provider, tmp_path, grace=0.5) as server, ThreadPoolExecutor(1) as thread:
        asked = thread.submit(server.ask, user="bob", text="When?")
        assert provider.asked.wait(60)
        code, log = server.stop()
        status, answer = asked.result()
    assert (status, answer["finished_reason"]) == (200, "interrupted"), log
    assert code in (0, -signal.SIGTERM), log
    assert b"invoke_agent assistant" in provider.spans
    provider.may_answer.set()
    with running(image, provider, tmp_path) as server:
        assert server.ask(user="bob", text="Are you back?")[0] == 200
    assert "When?" in str(provider.questions[-1])


def test_a_request_that_makes_no_sense_is_refused(image: Image, provider: Provider, tmp_path: Path) -> None:
    with running(image, provider, tmp_path) as server:
        status, answer = server.ask(user="bob")
    assert (status, answer["error"][0]["loc"]) == (422, ["text"])
