"""`agentrt serve`: what it refuses, what it prints, and how it stops."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from agentrt.console.cli import main
from agentrt.console.serve import read_tokens
from tests.console.program import environment
from tests.serving.conftest import read_stream, rebuild

APP = """
import anyio

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel


async def wait() -> str:
    \"\"\"Wait.\"\"\"
    await anyio.sleep(600)
    return "waited"


async def nap() -> str:
    \"\"\"Wait for a moment.\"\"\"
    await anyio.sleep(0.5)
    return "awake"


def answer(messages, tools):
    words = messages[-1].get_text_content() or ""
    if words in ("wait", "nap"):
        return [ToolCallBlock("1", words, "{}")]
    return f"You said: {words}"


agent = Agent("assistant", "", ScriptedChatModel([answer] * 100, stream=True), tools=[wait, nap])
"""
TOKEN = "a-token-that-is-long-enough"


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served_app.py").write_text(APP)
    (tmp_path / "tokens").write_text(f"# ours\n\n{TOKEN} ann\nanother-token-of-bob bob\nthe-token-of-nobody\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "served_app", raising=False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["served_app:nothing"], "'served_app' has no 'nothing'"),
        (["served_app:Agent"], "must name an Agent or a Runner"),
        (["served_app:agent", "--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines in"),
        (["served_app:agent", "--host", ""], "lets other machines in"),
        (["served_app:agent", "--host", "nowhere.invalid"], "is not an address of this machine"),
        (["served_app:agent", "--host", "192.0.2.1", "--token-file", "tokens"], "cannot listen at http://192.0.2.1"),
        (["served_app:agent", "--port", "65536"], "--port must be a number from 0 to 65535"),
        (["served_app:agent", "--limit", "item=5"], "names no limit: write NAME=NUMBER, with one of head_seconds, "),
        (["served_app:agent", "--limit", "items=many"], "'items=many' must be NAME=NUMBER, such as items=100"),
        (["served_app:agent", "--limit", "items=0"], "Limits(items=...) must be a whole number of at least 1, not 0"),
        (["served_app:agent", "--token-file", "nothing"], "'nothing' cannot be read: No such file"),
        (["served_app:agent", "--token-file", "."], "'.' cannot be read: Is a directory"),
        (["served_app:agent", "--reports", "nothing"], "must be the path of an existing folder, not 'nothing'"),
        (["served_app:agent", "--reports", ".", "--token-file", "tokens"], "cannot be combined with auth"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments, problem, capsys):
    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert problem in line
    assert not said.out


def test_port_in_use_is_said_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["serve", "served_app:agent", "--port", str(other.getsockname()[1])]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "Address already in use; --port names another port" in line


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no token"),
        (b"# none\n", "has no token"),
        (b"short ann\n", "line 1 of the token file 'bad' must begin with a token of 16 or more ASCII characters"),
        (f"{TOKEN} ann\n{TOKEN} bob\n".encode(), "line 2 of the token file 'bad' has a token that another line has"),
        ("ein-schlüssel-mit-umlaut ann\n".encode(), "line 1"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_bad_token_file_is_named_without_its_tokens(content, problem, tmp_path, capsys):
    (tmp_path / "bad").write_bytes(content)
    assert main(["serve", "served_app:agent", "--token-file", "bad"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert problem in line
    assert TOKEN not in line


def test_owners_of_a_token_file():
    assert repr(read_tokens("tokens")) == "<BearerTokens of 3 owners>"


@contextmanager
def served(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Run the command at a free port, and return its process, its URL, and what else it says of itself."""
    command = [sys.executable, "-W", "error", "-m", "agentrt", "serve", "served_app:agent", "--port", "0", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment(), text=True) as process:
        try:
            line = process.stdout.readline()
            match = re.fullmatch(r"assistant is at (http://\S+:\d+), its sessions (.*)\n", line)
            assert match, line
            yield process, match[1], match[2]
        finally:
            process.kill()


@pytest.mark.slow
def test_reply_is_left_to_the_next_server_at_a_signal(tmp_path):
    arguments = ("--store", "sqlite:agent.db", "--drain-seconds", "0.1")
    path = "/api/sessions/s1/replies"
    accept = {"Accept": "text/event-stream", "Idempotency-Key": "k1"}
    with served(*arguments) as (process, url, place):
        assert place == f"in <SQLiteStore in {str(tmp_path / 'agent.db')!r}>"
        lines = []
        with httpx2.stream("POST", url + path, json={"input": "wait"}, headers=accept, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                if "TOOL_RESULT_START" in line:
                    process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.communicate() == ("", "")
        cut = read_stream("\n".join(lines))
        assert cut[-1][0] != "done"
    with served(*arguments) as (process, url, _):
        last = {"Last-Event-ID": cut[-1][0]}
        rest = read_stream(httpx2.get(f"{url}/api/replies/k1/events", headers=last, timeout=60).text)
        assert rest[-1] == ("done", {"reply_id": "k1", "status": "completed"})
        [result] = rebuild([*cut, *rest]).get_content_blocks("tool_result")
        assert result.state == "unknown"


@pytest.mark.slow
def test_reply_has_time_to_end_after_a_signal():
    with served() as (process, url, _):
        path, accept = f"{url}/api/sessions/s1/replies", {"Accept": "text/event-stream"}
        lines = []
        with httpx2.stream("POST", path, json={"input": "nap"}, headers=accept, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                if "TOOL_RESULT_START" in line:
                    process.send_signal(signal.SIGTERM)
        assert read_stream("\n".join(lines))[-1][1]["status"] == "completed"
        assert process.wait(60) == 0
        assert process.communicate() == ("", "")


@pytest.mark.slow
def test_second_signal_leaves_the_reply_without_a_word():
    with served() as (process, url, _):
        path, accept = f"{url}/api/sessions/s1/replies", {"Accept": "text/event-stream"}
        with httpx2.stream("POST", path, json={"input": "wait"}, headers=accept, timeout=60) as response:
            lines = response.iter_lines()
            assert any("TOOL_RESULT_START" in line for line in lines)
            process.send_signal(signal.SIGINT)
            # It takes no connections any more, so it has got the first signal.
            with pytest.raises(httpx2.ConnectError):
                while True:
                    httpx2.get(f"{url}/healthz", timeout=60)
            process.send_signal(signal.SIGINT)
            # The stream ends while the store is closed, or is cut where that takes no time.
            with suppress(httpx2.RemoteProtocolError):
                assert "REPLY_END" not in "".join(lines)
        assert process.wait(60) == 0
        assert process.communicate() == ("", "")


@pytest.mark.slow
def test_token_is_needed_and_never_written():
    with served("--host", "0.0.0.0", "--token-file", "tokens", "--no-studio") as (process, url, place):
        assert place == "in memory, until this process ends"
        with httpx2.Client(base_url=url.replace("0.0.0.0", "127.0.0.1"), timeout=60) as client:
            assert client.get("/api/sessions").status_code == 401
            for token in (TOKEN, TOKEN[:-1]):
                client.get(f"/api/sessions?token={token}", headers={"Authorization": f"Bearer {token}"})
            client.get("/api/sessions", headers={"Authorization": f"Bearer {TOKEN}"}).raise_for_status()
            assert client.get("/studio").status_code == 404
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 0
