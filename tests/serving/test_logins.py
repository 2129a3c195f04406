"""Logins at MCP servers that come back to an application, where each owner has tokens of their own."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from agentrt import Agent
from agentrt.errors import StoreError
from agentrt.message import ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.serving import BearerTokens, create_app
from agentrt.tool import MCPToolset, OAuth, TokenStore

CANARY = "canary-"


def make_agent(login_server: str) -> Agent:
    login = OAuth(redirect_uri="http://127.0.0.1/oauth/callback")
    tools = MCPToolset("s", url=f"{login_server}/mcp", auth=login, ask=False)
    calls = [ChatResponse([ToolCallBlock("c", f"mcp__s__{name}", "{}")]) for name in ("log_in", "whoami", "whoami")]
    return Agent("a", "Help.", ScriptedChatModel([calls[0], calls[1], "done", calls[2], "done"]), tools=[tools])


@asynccontextmanager
async def serve(agent: Agent, auth: Any) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(agent, auth=auth)
    transport = httpx2.ASGITransport(app=app)
    async with (
        agent,
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client


async def ask(client: httpx2.AsyncClient, session: str, owner: str) -> httpx2.Response:
    """Send a message, wait until its reply waits or has ended, and return the stream of its events."""
    headers = {"Authorization": f"Bearer token-of-{owner}", "Accept": "text/event-stream"}
    return await client.post(f"/api/sessions/{session}/replies", json={"input": "Who am I?"}, headers=headers)


async def read(client: httpx2.AsyncClient, path: str, owner: str) -> Any:
    return (await client.get(path, headers={"Authorization": f"Bearer token-of-{owner}"})).json()


async def page_of(client: httpx2.AsyncClient, session: str, owner: str) -> str:
    """Return where a user who agrees is sent back to."""
    waiting = (await read(client, f"/api/sessions/{session}", owner))["waiting"]
    [call] = waiting["tool_calls"]
    async with httpx2.AsyncClient() as browser:
        return str((await browser.get(json.loads(call["input"])["url"])).headers["location"])


TOKENS = BearerTokens({f"token-of-{owner}": owner for owner in ("ann", "bob")})


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_reply_continues_when_the_browser_comes_back(login_server: str) -> None:
    async with serve(make_agent(login_server), TOKENS) as client:
        first = await ask(client, "x", "ann")
        assert "REQUIRE_USER_CONFIRM" in first.text
        assert "mcp_login" in first.text
        page = await client.get(await page_of(client, "x", "ann"))
        assert (page.status_code, page.text) == (200, "You are logged in. You may close this page.")
        assert page.headers["referrer-policy"] == "no-referrer"
        rest = await client.get(first.headers["location"], headers={"Authorization": "Bearer token-of-ann"})
        assert "user-" in rest.text
        # Another owner has no login, and is asked.
        assert "REQUIRE_USER_CONFIRM" in (await ask(client, "y", "bob")).text
        session = await read(client, "/api/sessions/x", "ann")
        for text in (first.text, rest.text, repr(session)):
            assert CANARY not in text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_unknown_and_used_callbacks_are_refused(login_server: str) -> None:
    async with serve(make_agent(login_server), TOKENS) as client:
        await ask(client, "x", "ann")
        back = await page_of(client, "x", "ann")
        assert (await client.get("/oauth/callback?state=guessed&code=c")).status_code == 400
        assert (await client.get(back)).status_code == 200
        again = await client.get(back)
        assert again.status_code == 400
        assert "was already used" in again.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_browser_of_another_user_is_refused(login_server: str) -> None:
    async def authenticate(request: Request) -> str | None:
        return request.cookies.get("user") or await TOKENS(request)

    async with serve(make_agent(login_server), authenticate) as client:
        await ask(client, "x", "ann")
        back = await page_of(client, "x", "ann")
        refused = await client.get(back, headers={"Cookie": "user=bob"})
        assert refused.status_code == 400
        assert "another user started" in refused.text
        assert (await client.get(back, headers={"Cookie": "user=ann"})).status_code == 200


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_login_can_be_finished_after_its_store_failed(
    login_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: TokenStore, *key: str) -> None:
        raise StoreError("the tokens in a database cannot be used: canary-host is down")

    async with serve(make_agent(login_server), TOKENS) as client:
        await ask(client, "x", "ann")
        back = await page_of(client, "x", "ann")
        with monkeypatch.context() as patched:
            patched.setattr(TokenStore, "get", fail)
            failed = await client.get(back)
        assert (failed.status_code, CANARY in failed.text) == (503, False)
        assert (await client.get(back)).status_code == 200
