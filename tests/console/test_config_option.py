"""`--config FILE` stands in place of MODULE:NAME."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from agentrt.console import serve, worker
from agentrt.console.cli import main
from agentrt.console.clients import mcp
from agentrt.runner.base import RunnerBase

FILE = """[agent]
name = "shop"
model = { ref = "shop_parts:model" }
state_store = "sqlite:shop.db"

[[layers]]
use = "shop_parts:Polite"
"""
PARTS = """
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel

model = ScriptedChatModel(["From the file."])


class Polite(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return current_prompt
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file in a folder that is neither the current one nor on the path."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "agentrt.toml").write_text(FILE, encoding="utf-8")
    (folder / "shop_parts.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "shop/agentrt.toml"
    sys.modules.pop("shop_parts", None)


def test_explain_prints_the_chains_of_a_file(file, capsys):
    assert main(["explain", "--config", file]) == 0
    assert "1. Polite  shop/shop_parts.py:" in capsys.readouterr().out


def test_explain_writes_the_file_again_and_compares_it(file, capsys):
    assert main(["explain", "--config", file, "--format", "toml"]) == 0
    assert capsys.readouterr().out == FILE
    assert main(["explain", "--config", file, "--format", "toml", "--check", file]) == 0
    assert capsys.readouterr().out == ""


def test_a_program_has_no_file_to_write(tmp_path, monkeypatch, capsys):
    (tmp_path / "plain_app.py").write_text(
        "from agentrt import Agent\n\nagent = Agent('a', model='rules')\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["explain", "plain_app:agent", "--format", "toml"]) == 2
    assert "is an agent of a program, not of a file: write --config FILE" in capsys.readouterr().err
    sys.modules.pop("plain_app")


def test_each_error_of_a_file_is_a_line(file, capsys):
    Path(file).write_text(FILE.replace("Polite", "Polit").replace("name", "nam"), encoding="utf-8")
    assert main(["explain", "--config", file]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].split(": ")[1] for line in lines] == ["agent.nam", "agent", "layers[0].use"]
    assert all(line.startswith(f"agentrt: {file}: ") for line in lines)


def test_a_chat_talks_to_the_agent_of_a_file(file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    assert main(["chat", "--config", file]) == 0
    assert capsys.readouterr().out.startswith("From the file.\n")


def test_a_chat_with_a_file_takes_no_other_model(file, capsys):
    assert main(["chat", "--config", file, "--model", "rules"]) == 2
    assert f"{file!r} already has a model" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "module"), [("serve", serve), ("worker", worker), ("mcp", mcp)])
def test_services_run_the_agent_of_a_file(command, module, file, monkeypatch, tmp_path):
    started: list[RunnerBase] = []

    def run(function: Callable[..., object], runner: RunnerBase, *rest: object, **options: object) -> None:
        started.append(runner)  # what would run until a signal

    monkeypatch.setattr(anyio, "run", run)
    if command == "mcp":
        monkeypatch.setattr(mcp, "take_stdio", lambda: io.BytesIO())
    assert main([command, "--config", file, *(["--port", "0"] if command == "serve" else [])]) == 0
    [runner] = started
    assert (runner.agent.name, type(runner.store).__name__) == ("shop", "SQLiteStore")


@pytest.mark.parametrize("arguments", [["explain"], ["worker", "app:agent", "--config", "a.toml"]])
def test_an_agent_is_named_once_and_in_one_way(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert "--config" in capsys.readouterr().err
