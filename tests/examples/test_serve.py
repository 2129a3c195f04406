"""The agent that is served: by its file, as the demo does, and by hypercorn on trio."""

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

import dev
from agentrt.serving import create_app
from tests.console.program import environment
from tests.services import needs
from tests.serving.conftest import WORDS, halfway_agent, read_stream, run_server

SERVE = Path(dev.ROOT) / "examples" / "serve"

pytestmark = pytest.mark.slow


@contextmanager
def running(command: list[str], sign: str, cwd: Path) -> Iterator[str]:
    """Run a server until the block is left, and return the URL that it prints; it must end by itself at SIGTERM."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), cwd=cwd, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not (match := re.search(sign, "".join(lines))):
                lines.append(process.stdout.readline())
                assert lines[-1], lines
            yield match[1]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


def test_demo_asks_before_it_takes_a_note(tmp_path):
    command = [sys.executable, str(SERVE / "app.py"), "--port", "0"]
    with running(command, r"assistant is at (http://\S+:\d+), its sessions in memory", tmp_path) as url:
        path, accept = f"{url}/api/sessions/s1/replies", {"Accept": "text/event-stream"}
        body = {"input": 'Take a note: "buy milk"'}
        question = read_stream(httpx2.post(path, json=body, headers=accept, timeout=60).text)[-2][1]
        assert [call["name"] for call in question["tool_calls"]] == ["take_note"]
        answer = {"reply_id": question["reply_id"], "calls": {question["tool_calls"][0]["id"]: True}}
        rest = httpx2.post(path, json={"answer": answer}, headers=accept, timeout=60).text
        assert "buy milk" in rest
        assert read_stream(rest)[-1][1]["status"] == "completed"


@contextmanager
def cutting(url: str, size: int, on_connection: Callable[[int], object] = id) -> Iterator[str]:
    """Run a proxy that cuts each connection after so many bytes of the server, and return its URL."""
    host, port = url.removeprefix("http://").split(":")
    threads: list[threading.Thread] = []

    def pass_on(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(port))) as server:
            requests = threading.Thread(target=copy, args=[client, server, -1])
            requests.start()
            copy(server, client, size)
            requests.join()

    def copy(source: socket.socket, target: socket.socket, left: int) -> None:
        """Pass on so many bytes, or all of them, and end the connection on both sides."""
        with suppress(OSError):
            while left and (part := source.recv(left if left > 0 else 65536)):
                target.sendall(part)
                left -= len(part) if left > 0 else 0
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=pass_on, args=[client]))
                threads[-1].start()
                on_connection(len(threads))

    listener = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("program", ["client.py", "client.mjs"])
def test_client_approves_and_reads_on_where_it_was_cut(program, tmp_path):
    if program == "client.mjs":
        needs("node")
    interpreter = "node" if program == "client.mjs" else sys.executable
    command = [sys.executable, str(SERVE / "app.py"), "--port", "0", "--store", "sqlite:agent.db"]
    with running(command, r"assistant is at (http://\S+:\d+)", tmp_path) as url, cutting(url, 2000) as place:
        done = subprocess.run(
            [interpreter, SERVE / program, place, "ann/1", 'Take a note: "buy milk"'],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        session = httpx2.get(f"{url}/api/sessions/ann/1", timeout=60).json()
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == '[approved] take_note {"text": "buy milk"}'
    texts = [block["text"] for block in session["messages"][-1]["content"] if block["type"] == "text"]
    assert done.stdout.endswith(f"{texts[-1]}\n"), last


@pytest.mark.parametrize("program", ["client.py", "client.mjs"])
def test_client_reads_on_where_a_running_answer_was_cut(program):
    if program == "client.mjs":
        needs("node")
    agent, gate = halfway_agent()
    # The first half of the answer takes several connections.
    with run_server(create_app(agent)) as url, cutting(url, 2000, lambda n: n > 3 and gate.set()) as place:
        command = ["node" if program == "client.mjs" else sys.executable, SERVE / program, place, "ann/1", "Hi"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(WORDS) + "\n"


def test_application_runs_on_trio_by_hypercorn(tmp_path):
    (tmp_path / "web.py").write_text(
        "from agentrt import Agent\n"
        "from agentrt.serving import create_app\n\n"
        "app = create_app(Agent('assistant', '', 'rules'))\n"
    )
    command = [sys.executable, "-m", "hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "web:app"]
    with running(command, r"Running on (http://127.0.0.1:\d+)", tmp_path) as url:
        accept = {"Accept": "text/event-stream"}
        reply = httpx2.post(f"{url}/api/sessions/s1/replies", json={"input": "Hello"}, headers=accept, timeout=60)
        assert read_stream(reply.text)[-1][1]["status"] == "completed"
