"""The listener for logins on this machine, which any page in the user's browser can reach."""

import socket
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from agentrt.errors import StoreError
from agentrt.tool import OAuth
from agentrt.tool.mcp.oauth import callback
from agentrt.tool.mcp.oauth.settings import FinishedLogin


async def ask(port: int, line: bytes) -> bytes:
    """Return the status of the answer."""
    answer = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(line + b"\r\n\r\n")
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive()
    return answer.split()[1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_listener_survives_bad_requests_and_a_store_that_fails() -> None:
    class BrokenLogin(OAuth):
        async def finish(self, parameters: Mapping[str, str], **_: Any) -> FinishedLogin | None:
            if parameters.get("state") == "known":
                raise StoreError("the tokens in a database cannot be used: it is down")
            return None

    port = free_port()
    lines = [b"GET //[ HTTP/1.1", b"GET http://[/back HTTP/1.1", b"\xff\x00", b"GET /back?state=known HTTP/1.1"]
    async with BrokenLogin(redirect_uri=f"http://127.0.0.1:{port}/back").listen():
        assert [await ask(port, line) for line in lines] == [b"404", b"404", b"404", b"503"]
        assert await ask(port, b"GET /back?state=other HTTP/1.1") == b"400"


async def test_slow_exchange_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback, "_CALLBACK_SECONDS", 0.2)

    class SlowLogin(OAuth):
        async def finish(self, parameters: Mapping[str, str], **_: Any) -> FinishedLogin | None:
            await anyio.sleep(0.3)
            return FinishedLogin("", "https://crm.example/mcp", "session", "call")

    port = free_port()
    async with SlowLogin(redirect_uri=f"http://127.0.0.1:{port}/back").listen():
        assert await ask(port, b"GET /back?state=s&code=c HTTP/1.1") == b"200"
