"""A process is killed while its MCP server works, and another one goes on with the conversation."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentrt.state import FileStateStore
from tests.tool.mcp.servers import agent_calling, results_of, toolset, wait_for_line

PROGRAM = """
import sys
from pathlib import Path
import anyio
from agentrt import AgentState
from agentrt.state import FileStateStore
from tests.tool.mcp.servers import agent_calling, toolset

async def main():
    tools = toolset(log=Path(sys.argv[2]))
    agent = agent_calling(tools, "slow", state=AgentState(session_id="s"), state_store=FileStateStore(sys.argv[1]))
    async with agent:
        await agent.reply("go")

anyio.run(main, backend=sys.argv[3])
"""


@pytest.mark.slow
async def test_a_killed_process_leaves_no_server_and_one_result(tmp_path: Path, anyio_backend_name: str) -> None:
    log, folder = tmp_path / "log", tmp_path / "states"
    command = [sys.executable, "-c", PROGRAM, str(folder), str(log), anyio_backend_name]
    process = subprocess.Popen(command)
    with anyio.fail_after(60):
        await wait_for_line(log, "call slow")
        process.send_signal(signal.SIGKILL)
        process.wait()
        await wait_for_line(log, "end of input")  # the last thing that the server does

    store = FileStateStore(folder)
    agent = agent_calling(toolset(log=log), state=await store.load("s"), state_store=store)
    async with agent:
        answer = await agent.reply(None)
    assert answer.get_text_content() == "done"
    [(state, text)] = results_of(agent)
    assert state == "unknown"
    assert text.startswith("Nobody knows whether mcp__s__slow took effect")
    assert log.read_text().count("call slow") == 1
