"""Recorded runs at the command line: list, show, export, delete and verify."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.__main__ import main
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import SQLiteStore

KEY = b"a key of sixteen bytes"


class Polite(MiddlewareBase):
    inherited = False

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} Be polite."


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with two runs of the session "ann"."""

    async def record() -> None:
        async with SQLiteStore(tmp_path / "agent.db") as store:
            recorder = RunRecorder(store, sign=KEY, prices={"scripted": (1.0, 1.0)})
            model = ScriptedChatModel(["Hello.", "Goodbye."])
            state = AgentState(session_id="ann")
            agent = Agent("clerk", "Help.", model, middlewares=[Polite(), recorder], state=state, state_store=store)
            await agent.reply("Hi\x1b[31m", reply_id="r1")
            await agent.reply("Bye", reply_id="r2")

    anyio.run(record)
    return tmp_path / "agent.db"


def test_runs_are_listed_shown_exported_and_deleted(database: Path, capsys: Any):
    store = ["--store", f"sqlite:{database}"]

    def run(*arguments: str) -> tuple[int, str]:
        code = main(list(arguments))
        output = capsys.readouterr()
        return code, output.out + output.err

    code, output = run("runs", "list", *store)
    assert code == 0
    assert [line.split()[-2:] for line in output.splitlines()] == [["r2", "Bye"], ["r1", "Hi\\x1b[31m"]]
    assert run("runs", "list", *store, "--text", "bye")[1].count("\n") == 1
    code, output = run("runs", "show", "ann", "r1", *store)
    assert code == 0
    first, *rest = output.splitlines()
    assert first.startswith("clerk: completed, 1 calls, ")
    assert rest == [
        "  user: Hi\\x1b[31m",
        "  [request] scripted, 2 messages",
        "    [changed] current_prompt by Polite",
        "  clerk: Hello.",
    ]
    code, output = run("runs", "export", "ann", "r1", *store)
    assert [json.loads(line)["n"] for line in output.splitlines()][:3] == [1, 2, 3]
    assert run("audit", "verify", *store)[0] == 0
    assert run("runs", "delete", "ann", "r1", *store) == (0, "deleted 1 runs of ann\n")
    assert run("runs", "show", "ann", "r1", *store) == (1, "agentrt: session 'ann' has no run 'r1' in this store\n")
    assert run("runs", "show", "bob", *store) == (1, "agentrt: session 'bob' has no run in this store\n")
    assert run("audit", "verify", *store)[0] == 0


def test_audit_names_the_first_wrong_line(database: Path, tmp_path: Path, capsys: Any):
    store = ["--store", f"sqlite:{database}"]
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    assert main(["audit", "verify", *store, "--key-file", str(key)]) == 0
    assert capsys.readouterr().out.endswith("lines of 1 sessions: all as written\n")
    key.write_bytes(b"another key, which is wrong")
    assert main(["audit", "verify", "ann", *store, "--key-file", str(key)]) == 1
    assert "the signature is not of this key" in capsys.readouterr().out
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE run_lines SET line = replace(line, 'seq', 'sEq') WHERE n = 4 AND run = 1")
    assert main(["audit", "verify", *store]) == 1
    assert "ann, run r1, line 4: the line is not the one that was written here\n" in capsys.readouterr().out
    assert main(["audit", "verify", *store, "--key-file", str(tmp_path / "none")]) == 2
