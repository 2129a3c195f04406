"""The user's agent at the command line: chat with it, explain it, and list its sessions."""

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrt.console.cli import main

APP = '''
from agentrt import Agent
from agentrt.agent import ReActAgent
from agentrt.message import ToolCallBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.state import AgentState, SQLiteStore
from agentrt.tool import FunctionTool


def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


def make(script, **options):
    return Agent("clerk", "", ScriptedChatModel(script), middlewares=[RetryMiddleware()], **options)


store = SQLiteStore("agent.db")
agent = make(["Hello.", "Again."], state=AgentState(session_id="ann"), state_store=store)
asking = make([[ToolCallBlock("1", "remove", '{"path": "a"}')], "Gone."], tools=[FunctionTool(remove, ask=True)])
talkative = ReActAgent("talker", "", ScriptedChatModel(["Only once."]))
runner = Runner(make(["From the runner."]), store)
'''


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "clerk_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "clerk_app", raising=False)
    yield
    sys.modules.pop("clerk_app", None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str, typed: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main(arguments)
        output = capsys.readouterr()
        return code, output.out + output.err

    return run


@pytest.mark.parametrize(
    ("name", "typed", "answer"),
    [
        ("agent", "Hi\n/explain\n", r"Hello\.\n.*RetryMiddleware"),
        ("asking", "Go\ny\n", r"may it run remove \{\"path\": \"a\"\}.*Gone\."),
        ("talkative", "Hi\n", r"^Only once\.\n\[tokens\] [^\n]*\n$"),
        ("runner", "Hi\n", r"From the runner\."),
    ],
)
def test_a_chat_takes_an_agent_with_its_layers(name, typed, answer, run):
    code, output = run("chat", f"clerk_app:{name}", typed=typed)

    assert code == 0
    assert re.search(answer, output, re.DOTALL), output
    assert "Offline" not in output


def test_a_session_file_continues_the_agent(run):
    first = run("chat", "clerk_app:agent", "--session", "talk.json", typed="Hi\n")
    second = run("chat", "clerk_app:agent", "--session", "talk.json", typed="And now?\n")

    assert (first[0], second[0]) == (0, 0)
    assert "Hello." in first[1]
    assert "Again." in second[1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["clerk_app:agent", "--model", "rules", "--mcp", "x"], "leave out --model and --mcp"),
        (["clerk_app:store"], "must name an Agent or a Runner"),
        (["clerk_app:agnt"], "has no 'agnt'"),
    ],
)
def test_an_agent_that_cannot_be_talked_to_is_refused(arguments, problem, run):
    code, output = run("chat", *arguments)

    assert code == 2
    assert problem in output


def test_chains_are_printed_and_compared_with_a_file(tmp_path, run):
    code, chains = run("explain", "clerk_app:agent")
    assert code == 0
    assert "RetryMiddleware" in chains

    (tmp_path / "chains.txt").write_text(chains, encoding="utf-8")
    assert run("explain", "clerk_app:agent", "--check", "chains.txt") == (0, "")
    code, output = run("explain", "clerk_app:talkative", "--check", "chains.txt")
    assert code == 1
    assert "\n+Agent 'talker'" in output
    code, output = run("explain", "clerk_app:agent", "--check", "missing.txt")
    assert code == 2
    assert "'missing.txt' cannot be read" in output


@pytest.mark.parametrize("source", [["--store", "sqlite:agent.db"], ["--agent", "clerk_app:agent"]])
def test_sessions_are_listed_shown_and_deleted(source, run):
    run("chat", "clerk_app:agent", typed="Hi\x1b[31m\n")

    code, output = run("sessions", "list", *source)
    assert code == 0
    assert re.fullmatch(r"\S+Z  idle         2  ann\n", output), output
    assert run("sessions", "list", *source, "--prefix", "bob") == (0, "")
    assert run("sessions", "show", "ann", *source) == (0, "user: Hi\\x1b[31m\nclerk: Hello.\n")
    assert run("sessions", "delete", "ann", *source) == (0, "deleted ann\n")
    assert run("sessions", "show", "ann", *source) == (1, "agentrt: the store has no session 'ann'\n")
    assert run("sessions", "list", *source) == (0, "")
