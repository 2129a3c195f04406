"""MCP servers behind a URL."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ToolError
from agentrt.tool import MCPToolset
from tests.tool.mcp.servers import agent_calling, results_of

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "servers" / "mcp_http_server.py"
SECRET = "a-token-that-nobody-sees"


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The server runs in a process of its own: its event loop is none of the test's."""
    with subprocess.Popen([sys.executable, PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def test_server_behind_a_url_is_used(address: str) -> None:
    async with agent_calling(MCPToolset("s", url=f"{address}/mcp", ask=False), "echo") as agent:
        await agent.reply("Go")
    assert results_of(agent) == [("success", "hi")]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("closed", "refused us with the status 401: give it a token with headers={...}"),
        ("missing", "answered with the status 404: is that the URL of its MCP endpoint?"),
        ("page", "/page refused us: Unexpected content type: text/plain"),
        ("huge", "/huge refused us: Unexpected content type: text/plain"),
        ("malformed", "/malformed answered with something that is not MCP"),
    ],
)
async def test_wrong_url_and_missing_token_say_what_to_do(
    path: str, says: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers: Any = {"X-Key": SECRET}
    caplog.set_level(0)
    with pytest.raises(ToolError, match=re.escape(says)) as caught:
        async with MCPToolset("s", url=f"{address}/{path}?key={SECRET}", headers=headers, timeout=20):
            pass
    assert SECRET not in str(caught.value)
    assert "Welcome" not in f"{caplog.text} {caught.value}"  # nor anything else of what the server said


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_call_that_did_not_reach_its_server_was_not_run() -> None:
    with subprocess.Popen([sys.executable, PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        tools = MCPToolset("s", url=url, ask=False)
        async with agent_calling(tools, "echo") as agent:
            process.kill()
            process.wait()
            await agent.reply("Go")
    [(state, text)] = results_of(agent)
    assert state == "error"
    assert "mcp__s__echo was not run" in text
    assert "cannot be reached (ConnectError)" in text
