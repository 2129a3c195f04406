"""`agentrt mcp`: messages on standard output and nothing else, and an end that leaves nothing behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentrt.console.cli import main
from tests.console.program import PATIENCE, ROOT, environment

APP = """
import os

import anyio

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel

print("the module prints")


async def make_noise() -> str:
    \"\"\"Print.\"\"\"
    print("the tool prints")
    os.system("echo its child prints")
    return "made noise"


async def wait() -> str:
    \"\"\"Wait.\"\"\"
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    await anyio.sleep(600)
    return "waited"


def answer(messages, tools):
    results = messages[-1].get_content_blocks("tool_result")
    words = messages[-1].get_text_content() or ""
    if results:
        return f"The result: {results[-1].state.value}."
    return [ToolCallBlock("1", words, "{}")] if words in ("make_noise", "wait") else f"You said: {words}"


agent = Agent("assistant", "", ScriptedChatModel([answer] * 100, stream=True), tools=[make_noise, wait])
"""


class Program:
    """The command, and a client that writes and reads lines."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._input, self._output = process, process.stdin, process.stdout
        self._number = 0

    def write(self, line: bytes) -> None:
        self._input.write(line + b"\n")
        self._input.flush()

    def read(self) -> Any:
        return json.loads(self._output.readline())

    def ask(self, method: str, **params: Any) -> None:
        self._number += 1
        self.write(json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}).encode())

    def open(self) -> None:
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"})
        assert self.read()["result"]["serverInfo"]["name"] == "agentrt"
        self.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    def call(self, **arguments: str) -> None:
        self.ask("tools/call", name="ask", arguments=arguments, _meta={"progressToken": 7})

    def told(self) -> str:
        """Return the next notice of progress."""
        message = self.read()
        assert message["method"] == "notifications/progress", message
        line: str = message["params"]["message"]
        return line

    def result(self) -> Any:
        while "method" in (message := self.read()):
            assert message["method"] == "notifications/progress"
        return message["result"]

    def end(self) -> tuple[bytes, bytes]:
        return self.process.communicate(timeout=PATIENCE)


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Program]:
    (folder / "mcp_app.py").write_text(APP)
    command = [sys.executable, "-W", "error", "-m", "agentrt", "mcp", "mcp_app:agent", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env=environment()) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def test_only_messages_are_written_and_the_end_of_input_ends_it(tmp_path):
    with started(tmp_path) as program:
        program.open()
        program.write(b'{"jsonrpc": "2.0", "id": 1, "params": "' + b"x" * 1_000_000 + b'"}')
        assert program.read()["error"] == {
            "code": -32600,
            "message": "a message may have 1,000,000 bytes, and this one has more",
        }
        program.write(b"not JSON")
        assert program.read()["error"]["code"] == -32700
        program.call(message="make_noise")
        assert program.result()["content"][0]["text"] == "The result: success."
        said, printed = program.end()
        assert not said
        assert sorted(printed.splitlines()) == [b"its child prints", b"the module prints", b"the tool prints"]
        assert program.process.returncode == 0


@pytest.mark.parametrize(
    ("end", "backend"),
    [
        (signal.SIGTERM, "trio"),
        pytest.param(signal.SIGTERM, "asyncio", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "asyncio", marks=pytest.mark.slow),
        pytest.param(None, "trio", marks=pytest.mark.slow),
    ],
)
def test_next_process_continues_what_one_left(end, backend, tmp_path):
    options = ("--store", "sqlite:agent.db", "--backend", backend)
    with started(tmp_path, *options) as program:
        program.open()
        program.call(message="wait")
        session_id = program.told().removeprefix("session_id ")
        assert program.told() == "calls wait"
        while not (tmp_path / "pid").exists():
            pass
        if end is None:
            program.end()
        else:
            program.process.send_signal(end)
            program.process.wait(PATIENCE)
        assert program.process.returncode == (-signal.SIGKILL if end == signal.SIGKILL else 0)
    with started(tmp_path, *options) as program:
        program.open()
        program.call(session_id=session_id)
        result = program.result()
        assert result["content"][0]["text"] == "The result: unknown."
        assert result["structuredContent"]["session_id"] == session_id


@pytest.mark.slow
def test_served_agent_stops_while_its_user_is_asked(tmp_path):
    """Neither the form nor the stream of notices, which has no end of its own, keeps the server from stopping."""
    app = "from tests.runner.conftest import approved_pay, make_agent\n\nagent = make_agent(approved_pay())\n"
    (tmp_path / "mcp_app.py").write_text(app)
    command = [sys.executable, "-W", "error", "-m", "agentrt", "serve", "mcp_app:agent", "--port", "0"]
    pipe, paths = subprocess.PIPE, environment(PYTHONPATH=f"{ROOT}:{environment()['PYTHONPATH']}")
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=tmp_path, env=paths, text=True) as process:
        try:
            url = process.stdout.readline().split()[3].rstrip(",")
            with httpx2.Client(base_url=url, timeout=PATIENCE) as http:
                hello = {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}}
                params = {**hello, "clientInfo": {"name": "t", "version": "1"}}
                headers = {"Accept": "application/json, text/event-stream"}
                first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
                opened = http.post("/mcp", json=first, headers=headers)
                headers |= {"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-06-18"}
                http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
                arguments = {"name": "ask", "arguments": {"message": "call pay"}}
                call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": arguments}
                with (
                    http.stream("GET", "/mcp", headers=headers) as notices,
                    http.stream("POST", "/mcp", json=call, headers=headers) as answer,
                ):
                    lines = answer.iter_lines()
                    while "elicitation/create" not in next(lines):
                        pass
                    process.send_signal(signal.SIGTERM)
                    assert '"code":"closed"' in "".join(lines)
                    assert list(notices.iter_lines()) == []
            assert process.communicate(timeout=PATIENCE) == ("", "")
            assert process.returncode == 0
        finally:
            process.kill()


def test_without_the_extra_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", "mcp_app:agent"]) == 2
    assert 'pip install "agentrt[mcp]"' in capsys.readouterr().err


@pytest.mark.slow
def test_wrong_agent_is_said_in_one_line(tmp_path):
    (tmp_path / "mcp_app.py").write_text(APP)
    command = [sys.executable, "-m", "agentrt", "mcp", "mcp_app:nothing"]
    finished = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, timeout=PATIENCE, check=False
    )
    assert (finished.returncode, finished.stdout) == (2, b"")
    assert b"'mcp_app' has no 'nothing'" in finished.stderr.splitlines()[-1]
