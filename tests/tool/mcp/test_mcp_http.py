"""MCP servers behind a URL."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import httpx2
import pytest

from agentrt.errors import ToolError
from agentrt.tool import MCPToolset, OAuth
from agentrt.tool.mcp.oauth.transport import send_for_login
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


async def test_server_of_2024_is_used_over_its_two_streams(address: str) -> None:
    tools = MCPToolset("s", url=f"{address}/old/sse?key={SECRET}", protocol="sse", ask=False)
    async with agent_calling(tools, "echo") as agent:
        await agent.reply("Go")
    assert results_of(agent) == [("success", "hi")]
    with pytest.raises(ToolError, match=re.escape("/old/see answered with the status 404")):
        async with MCPToolset("s", url=f"{address}/old/see", protocol="sse", timeout=20):
            pass


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[str]]]:
    """Run a proxy that refuses each request; gives its URL, and the requests."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.requestline)
            self.send_error(403)

        do_CONNECT = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()


async def test_proxy_of_the_environment_is_used_and_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_proxy() as (proxy, seen):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", "example.org,127.0.0.1")
        expected = re.escape(
            "(ProxyError): is it running, and is the URL right?; is the proxy in the environment's HTTPS_PROXY"
        )
        with pytest.raises(ToolError, match=expected):
            async with MCPToolset("s", url="https://mcp.example/mcp", timeout=20):
                pass
        with pytest.raises(ToolError, match="refused us with the status 403"):
            async with MCPToolset("s", url="http://mcp.example/mcp", timeout=20):
                pass
        async with agent_calling(MCPToolset("s", url=f"{address}/mcp", ask=False), "echo") as agent:
            await agent.reply("Go")
    assert results_of(agent) == [("success", "hi")]
    assert set(seen) == {"CONNECT mcp.example:443 HTTP/1.1", "POST http://mcp.example/mcp HTTP/1.1"}


async def test_proxy_gets_the_address_that_a_login_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_up(*_: object) -> list[Any]:
        return [(0, 0, 0, "", ("93.184.215.14", 443))]

    monkeypatch.setattr(anyio, "getaddrinfo", look_up)
    with refusing_proxy() as (proxy, seen):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        request = httpx2.Request("GET", "https://login.example/.well-known/oauth-authorization-server")
        with pytest.raises(httpx2.ProxyError):
            await send_for_login(OAuth(), "https://mcp.example/mcp", request)
    assert seen == ["CONNECT 93.184.215.14:443 HTTP/1.1"]


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
