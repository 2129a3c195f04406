"""The small server of the tests, and agents that use its tools."""

import os
import sys
from pathlib import Path
from typing import Any

import anyio

from agentrt import Agent, AgentState
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import MCPToolset

__all__ = ["SECRET", "agent_calling", "is_alive", "results_of", "toolset", "wait_for_line"]

PROGRAM = Path(__file__).parents[2] / "servers" / "mcp_server.py"
SECRET = "a-key-that-nobody-sees"


def toolset(mode: str = "", *, log: Path | None = None, **options: Any) -> MCPToolset:
    """Return the tools of the small server, which misbehaves as `mode` says."""
    env = {"MCP_TEST_KEY": SECRET} | ({} if log is None else {"MCP_TEST_LOG": str(log)})
    command = [sys.executable, str(PROGRAM), *([mode] if mode else [])]
    return MCPToolset("s", **{"command": command, "env": env, "ask": False, **options})


def agent_calling(tools: MCPToolset, *names: str, state: AgentState | None = None, **options: Any) -> Agent:
    """Return an agent whose model calls these tools of the server, one a round."""
    calls = [
        ChatResponse([ToolCallBlock(f"c{number}", f"mcp__s__{name}", '{"text": "hi"}')])
        for number, name in enumerate(names)
    ]
    return Agent("a", "Help.", ScriptedChatModel([*calls, "done"]), tools=[tools], state=state, **options)


def results_of(agent: Agent) -> list[tuple[str, str]]:
    """Return the state and the text of each result in the last message."""
    blocks: list[ToolResultBlock] = agent.state.context[-1].get_content_blocks("tool_result")
    return [(block.state, block.output if isinstance(block.output, str) else text_of(block)) for block in blocks]


def text_of(block: ToolResultBlock) -> str:
    return "\n".join(getattr(part, "text", "") for part in block.output)


async def wait_for_line(log: Path, line: str) -> None:
    """Wait until the server has written this line."""
    while not log.exists() or line not in log.read_text():  # noqa: ASYNC110  # another process writes it
        await anyio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Say whether the process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
