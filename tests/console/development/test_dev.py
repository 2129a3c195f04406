"""`agentrt dev`: what it refuses, what it records, and how a change of a file reaches the page."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from agentrt.console.cli import main
from tests.console.program import PATIENCE, environment
from tests.serving.conftest import read_stream, rebuild

APP = """
import os

import anyio

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel

VERSION = "one"


async def wait() -> str:
    \"\"\"Wait.\"\"\"
    await anyio.sleep(600)
    return "waited"


def answer(messages, tools):
    words = messages[-1].get_text_content() or ""
    if words == "wait":
        return [ToolCallBlock("1", "wait", "{}")]
    return f"version {VERSION} in process {os.getpid()}"


agent = Agent("assistant", "", ScriptedChatModel([answer] * 100, stream=True), tools=[wait])
"""
RUNNER = """
from agentrt.runner import Runner
from agentrt.state import InMemoryStateStore

agent = Runner(agent, InMemoryStateStore())
"""
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "developed_app.py"
    path.write_text(APP)
    monkeypatch.chdir(tmp_path)
    return path


class Development:
    """A running `agentrt dev`, whose lines a test waits for."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)  # all processes that write there have ended

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Return the match of the next line with this pattern."""
        while (line := self._next()) is not None:
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no line has {pattern!r}: {''.join(self._seen)}")

    def wait_for_end(self) -> str:
        """Return what it writes until all its processes have ended."""
        lines = []
        while (line := self._next()) is not None:
            lines.append(line)
        return "".join(lines)

    def _next(self) -> str | None:
        try:
            line = self._lines.get(timeout=3 * PATIENCE)
        except queue.Empty:
            raise AssertionError(f"it writes nothing more: {''.join(self._seen)}") from None
        self._seen.append(line or "")
        return line

    def wait_for_server(self) -> str:
        """Return the URL of the version that begins to serve."""
        return self.wait_for(r"assistant is at (http://\S+:\d+)/studio, its sessions in ")[1]


@contextmanager
def development(*arguments: str) -> Iterator[Development]:
    command = [sys.executable, "-m", "agentrt", "dev", *arguments, "--port", "0"]
    variables = environment(PYTHONWARNINGS="error", PYTHONUNBUFFERED="1")
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=out, env=variables, text=True) as process:
        try:
            yield Development(process)
        finally:
            process.kill()


def ask(url: str, words: str) -> str:
    """Return the answer of the agent that serves there."""
    response = httpx2.post(f"{url}/api/sessions/s1/replies", json={"input": words}, headers=EVENTS, timeout=PATIENCE)
    return rebuild(read_stream(response.text)).get_text_content() or ""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "name the agent: agentrt dev app:agent"),
        (["developed_app:agent", "--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines in, and the studio may"),
        (["developed_app:agent", "--port", "65536"], "--port must be a number from 0 to 65535"),
    ],
)
def test_what_cannot_be_developed_is_said_in_one_line(arguments: list[str], problem: str, capsys):
    assert main(["dev", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert problem in line


def test_port_in_use_is_said_before_anything_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["dev", "developed_app:agent", "--port", str(other.getsockname()[1])]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "Address already in use; --port names another port" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("agent = None", "'developed_app:agent' must name an Agent or a Runner, not None"),
        (APP + RUNNER, "the agent of runner 'developed_app:agent' has no RunRecorder: add RunRecorder"),
        ("import sys\nsys.exit()", r"ends the program \(at .*developed_app.py:2\): write what is to run below"),
        ("import os\nos._exit(3)", "loading the agent ended its process with the exit code 3"),
        ("x = (", r"SyntaxError: '\(' was never closed \(at .*developed_app.py:1\)"),
        ("x = 1\nimport no_such_module", r"No module named 'no_such_module'\"\) \(at .*developed_app.py:2\)"),
    ],
)
def test_first_version_that_fails_ends_the_command(
    content: str, problem: str, app: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    app.write_text(content)
    assert main(["dev", "developed_app:agent", "--port", "0"]) == 2
    text = "".join(capfd.readouterr())
    assert re.search(problem, text), text
    assert text.count("\n") == 1, text


@pytest.mark.slow
def test_reply_continues_in_the_version_after_a_change(app: Path):
    with development("developed_app:agent", "--drain-seconds", "0") as running:
        url = running.wait_for_server()
        path, headers = f"{url}/api/sessions/s1/replies", {**EVENTS, "Idempotency-Key": "k1"}
        lines = []
        with httpx2.stream("POST", path, json={"input": "wait"}, headers=headers, timeout=PATIENCE) as response:
            for line in response.iter_lines():
                lines.append(line)
                if "TOOL_RESULT_START" in line:
                    app.write_text(APP.replace('"one"', '"two"'))
        cut = read_stream("\n".join(lines))
        assert cut[-1][0] != "done"
        running.wait_for("developed_app.py changed: loading the agent again")
        # The port is never closed, so a page that comes back waits for the next version.
        last = {"Last-Event-ID": cut[-1][0]}
        rest = read_stream(httpx2.get(f"{url}/api/replies/k1/events", headers=last, timeout=PATIENCE).text)
        assert rest[-1] == ("done", {"reply_id": "k1", "status": "completed"})
        message = rebuild([*cut, *rest])
        assert [result.state for result in message.get_content_blocks("tool_result")] == ["unknown"]
        assert "version two" in (message.get_text_content() or "")
        assert running.wait_for_server() == url
        running.process.send_signal(signal.SIGINT)
        assert running.wait_for_end() == ""
        assert running.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_file_that_cannot_be_imported_changes_nothing(app: Path, tmp_path: Path):
    with development("developed_app:agent") as running:
        url = running.wait_for_server()
        app.write_text(APP.replace("VERSION =", "VERSION ("))
        running.wait_for("importing 'developed_app' failed: SyntaxError")
        running.wait_for("the previous version is served until a file changes")
        assert "version one" in ask(url, "Hello")
        app.write_text(APP.replace('VERSION = "one"', "from developed_words import VERSION"))
        running.wait_for("No module named 'developed_words'")
        running.wait_for("the previous version is served until a file changes")
        (tmp_path / "developed_words.py").write_text("import os\nVERSION = os.VERSION\n")
        running.wait_for(r"has no attribute 'VERSION'\"\) \(at .*developed_words.py:2\)")
        running.wait_for("the previous version is served until a file changes")
        (tmp_path / "developed_words.py").write_text("VERSION = 'two'\n")
        running.wait_for_server()
        assert "version two" in ask(url, "Hello")
        # A module that is imported only now is watched as well.
        (tmp_path / "developed_words.py").write_text("VERSION = 'new'\n")
        running.wait_for_server()
        assert "version new" in ask(url, "Hello")


@pytest.mark.slow
def test_server_that_was_killed_starts_again_at_a_change(app: Path):
    with development("developed_app:agent") as running:
        url = running.wait_for_server()
        process = int(ask(url, "Hello").split()[-1])
        os.kill(process, signal.SIGKILL)
        running.wait_for("the server has ended by SIGKILL: it starts again when a file changes")
        app.touch()
        running.wait_for_server()
        assert int(ask(url, "Hello").split()[-1]) != process


@pytest.mark.slow
def test_server_ends_when_the_process_that_watches_is_killed():
    with development("developed_app:agent") as running:
        running.wait_for_server()
        running.process.kill()
        assert running.wait_for_end() == ""


@pytest.mark.slow
def test_change_while_a_version_hangs_loads_the_next_one(app: Path):
    with development("developed_app:agent") as running:
        url = running.wait_for_server()
        app.write_text("import time\nprint('it hangs', flush=True)\ntime.sleep(600)\n")
        running.wait_for("it hangs")
        assert "version one" in ask(url, "Hello")
        app.write_text(APP.replace('"one"', '"two"'))
        running.wait_for_server()
        assert "version two" in ask(url, "Hello")


@pytest.mark.slow
def test_runs_and_reports_are_where_no_version_control_looks(tmp_path: Path, capsys):
    reports = tmp_path / ".agentrt" / "reports"
    reports.mkdir(parents=True)
    (reports / "orders.json").write_text("{}")
    with development("developed_app:agent") as running:
        url = running.wait_for_server()
        assert "version one" in ask(url, "Hello")
        [report] = httpx2.get(f"{url}/api/reports", timeout=PATIENCE).json()["reports"]
        assert report["name"] == "orders.json"
        running.process.send_signal(signal.SIGTERM)
        assert running.wait_for_end() == ""
        assert running.process.wait(PATIENCE) == 0
    store = f"sqlite:{tmp_path / '.agentrt' / 'dev.db'}"
    assert main(["runs", "list", "--store", store]) == 0
    assert re.search(r"completed .* s1 .* Hello\n", capsys.readouterr().out)
    assert (tmp_path / ".agentrt" / ".gitignore").read_text() == "*\n"
