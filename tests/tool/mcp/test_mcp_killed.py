"""A process is killed while its MCP server works, and another one goes on with the conversation."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentrt.state import FileStateStore
from tests.tool.mcp.servers import agent_calling, is_alive, results_of, toolset, wait_for_line

PROGRAM = """
import sys
from pathlib import Path
import anyio
from agentrt import AgentState
from agentrt.state import FileStateStore
from tests.tool.mcp.servers import agent_calling, toolset

async def main():
    tools = toolset(*sys.argv[4:], log=Path(sys.argv[2]))
    agent = agent_calling(tools, "slow", state=AgentState(session_id="s"), state_store=FileStateStore(sys.argv[1]))
    async with agent:
        await agent.reply("go")

anyio.run(main, backend=sys.argv[3])
"""


pytestmark = pytest.mark.slow


async def test_a_killed_process_leaves_no_server_and_one_result(tmp_path: Path, anyio_backend_name: str) -> None:
    log, folder = tmp_path / "log", tmp_path / "states"
    command = [sys.executable, "-c", PROGRAM, str(folder), str(log), anyio_backend_name]
    process = subprocess.Popen(command)
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


async def test_server_that_ignores_the_end_of_its_input_is_ended(tmp_path: Path, anyio_backend_name: str) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "states"), str(log), anyio_backend_name, "stay"]
    process = subprocess.Popen(command)
    await wait_for_line(log, "call slow")
    # The group has the id of its leader, which is the server.
    [server] = [pid for pid in children_of(process.pid) if "mcp_server.py" in command_of(pid)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    while is_alive(server):  # noqa: ASYNC110  # the system has no event for it
        await anyio.sleep(0.01)


def children_of(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
