"""`agentrt acp`: messages on standard output and nothing else, and a session that outlives its process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import anyio
import pytest
from acp.exceptions import RequestError

from agentrt.console.cli import main
from tests.console.program import PATIENCE, environment
from tests.serving.acp.editor import Editor

APP = """
import os

import anyio

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.serving import acp_agent

print("the module prints")


async def make_noise() -> str:
    \"\"\"Print.\"\"\"
    print("the tool prints")
    os.system("echo its child prints")
    return "made noise"


async def wait() -> str:
    \"\"\"Wait.\"\"\"
    with open("begun", "w") as file:
        file.write("yes")
    await anyio.sleep(600)
    return "waited"


def answer(messages, tools):
    results = messages[-1].get_content_blocks("tool_result")
    words = messages[-1].get_text_content() or ""
    if results:
        return f"The result: {results[-1].state.value}."
    return [ToolCallBlock("1", words, "{}")] if words in ("make_noise", "wait") else f"You said: {words}"


agent = Agent("assistant", "", ScriptedChatModel([answer] * 100, stream=True), tools=[make_noise, wait])
editor = acp_agent(agent)
"""


def command(*options: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "agentrt", "acp", *options]


@asynccontextmanager
async def started(folder: Path, editor: Editor, *options: str) -> AsyncIterator[tuple[Any, Any]]:
    (folder / "acp_app.py").write_text(APP)
    program, *arguments = command(*options)
    async with acp.spawn_agent_process(editor, program, *arguments, cwd=folder, env=environment()) as (
        connection,
        process,
    ):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield connection, process


def test_only_messages_are_written_and_bad_lines_get_errors(tmp_path: Path) -> None:
    (tmp_path / "acp_app.py").write_text(APP)
    lines = [
        b"not JSON",
        b"[1]",
        b'{"jsonrpc": "2.0", "id": 1, "method": ["x"]}',
        b'{"jsonrpc": "2.0", "id": [1], "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "error": "refused"}',
        b'{"jsonrpc": "2.0", "id": 2, "params": "' + b"x" * 1_000_000 + b'"}',
        b'{"jsonrpc": "2.0", "id": 3, "method": "session/new", "params": {"cwd": 5}}',
        b'{"jsonrpc": "2.0", "id": 4, "method": "no/such"}',
        b'{"jsonrpc": "2.0", "id": 5, "method": "session/new", "params": {"cwd": "x", "mcpServers": []}}',
    ]
    pipe = subprocess.PIPE
    arguments = command("acp_app:editor")
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, cwd=tmp_path, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The end of its input ends it, and nothing that was asked before stays unanswered.
        said, printed = process.communicate(b"\n".join(lines) + b"\n", timeout=PATIENCE)
        answers = [json.loads(line) for line in said.splitlines()]
    codes = [(answer["id"], answer["error"]["code"]) for answer in answers]
    assert sorted(codes, key=str) == sorted(
        [(None, -32700), *[(None, -32600)] * 5, (3, -32602), (4, -32601), (5, -32602)], key=str
    )
    assert process.returncode == 0
    assert b"the module prints" in printed


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_session_goes_on_after_a_kill_in_mid_prompt(anyio_backend: str, tmp_path: Path) -> None:
    options = ("acp_app:agent", "--store", "sqlite:sessions.db")
    async with started(tmp_path, Editor(), *options) as (connection, process):
        session = await connection.new_session(cwd=str(tmp_path), mcp_servers=[])
        names = {"session_id": session.session_id}
        response = await connection.prompt(**names, prompt=[acp.text_block("make_noise")])
        assert response.stop_reason == "end_turn"
        async with anyio.create_task_group() as group:

            async def prompt() -> None:
                with pytest.raises(ConnectionError):
                    await connection.prompt(**names, prompt=[acp.text_block("wait")])

            group.start_soon(prompt)
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110  # another process writes it
                await anyio.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
    editor = Editor()
    async with started(tmp_path, editor, *options) as (connection, _):
        listed = await connection.list_sessions()
        assert [info.session_id for info in listed.sessions] == [session.session_id]
        await connection.load_session(cwd=str(tmp_path), mcp_servers=[], **names)
        said = [update["content"]["text"] for update in editor.shown("user_message_chunk")]
        assert said == ["make_noise", "wait"]
        await connection.set_session_mode(mode_id="explore", **names)
        response = await connection.prompt(**names, prompt=[acp.text_block("Go on.")])
        with pytest.raises(RequestError):
            await connection.load_session(cwd=str(tmp_path), session_id="unknown", mcp_servers=[])
    assert response.stop_reason == "end_turn"
    assert editor.text == "The result: success.The result: unknown.You said: Go on."


def test_a_missing_package_and_a_wrong_target_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentrt.console.cli.find_spec", lambda name: None)
    assert main(["acp", "acp_app:agent"]) == 2
    assert "agentrt[acp]" in capsys.readouterr().err
