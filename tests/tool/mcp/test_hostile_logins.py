"""Servers that misuse a login: nothing of them reaches another address, and no secret reaches them."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from agentrt.errors import ToolError
from agentrt.event import RequireUserConfirmEvent
from agentrt.tool import MCPToolset, OAuth, OAuthClient
from tests.tool.mcp.test_mcp_login import make_agent

Answer = tuple[int, dict[str, str], bytes]


class Site:
    """An HTTP server of the test: `answers` by path; `seen` has the paths of all requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                site.seen.append(self.path)
                status, headers, body = site.answers.get(self.path, (404, {}, b"{}"))
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def give(self, path: str, body: Any, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[path] = status, {name.replace("_", "-"): value for name, value in headers.items()}, content

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    """The server with the tools; whatever it says points to `victim`."""
    made = Site()
    yield made
    made.close()


@pytest.fixture
def victim() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


RESOURCE, METADATA = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"


def set_up(site: Site, **metadata: str) -> None:
    """Have the site answer as its own authorization server, but for what `metadata` says."""
    site.give("/mcp", {}, 401, WWW_Authenticate="Bearer")
    site.give(RESOURCE, {"resource": f"{site.origin}/mcp", "authorization_servers": [site.origin]})
    endpoints = {f"{name}_endpoint": f"{site.origin}/{name}" for name in ("authorization", "token", "registration")}
    site.give(METADATA, {"issuer": site.origin, **endpoints, **metadata})


async def refusal_of(site: Site, **options: Any) -> str:
    tools = MCPToolset("s", url=f"{site.origin}/mcp", auth=OAuth(**options), timeout=20)
    with pytest.raises(ToolError) as caught:
        async with tools:
            pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("http://127.0.0.1:{port}/x", "leads to an address without https: give OAuth(allow_private=True)"),
        ("http://169.254.169.254/latest/meta-data", "leads to an address without https"),
        ("https://127.0.0.1:{port}/x", "leads to an address in a private network"),
        ("https://localhost:{port}/x", "leads to an address in a private network"),
        ("https://[::1]:{port}/x", "leads to an address in a private network"),
        ("https://[::ffff:10.0.0.1]/x", "leads to an address in a private network"),
        ("https://[::127.0.0.1]:{port}/x", "leads to an address in a private network"),
        ("https://[64:ff9b::a00:1]/x", "leads to an address in a private network"),
        ("https://[2002:a00:1::1]/x", "leads to an address in a private network"),
        ("https://169.254.169.254/x", "leads to an address in a private network"),
        ("https://0.0.0.0:{port}/x", "leads to an address in a private network"),
    ],
)
async def test_discovery_reaches_no_private_address(place: str, says: str, site: Site, victim: Site) -> None:
    place = place.format(port=victim.server.server_port)
    set_up(site)
    site.give("/mcp", {}, 401, WWW_Authenticate=f'Bearer resource_metadata="{place}"')
    assert says in await refusal_of(site)
    assert victim.seen == []


async def test_other_servers_of_the_metadata_are_not_reached(site: Site, victim: Site) -> None:
    set_up(site)
    site.give(RESOURCE, {"resource": f"{site.origin}/mcp", "authorization_servers": [victim.origin]})
    assert "without https" in await refusal_of(site)
    set_up(site, registration_endpoint=f"{victim.origin}/register")
    assert "without https" in await refusal_of(site)
    assert victim.seen == []


async def test_redirects_are_not_followed(site: Site, victim: Site) -> None:
    set_up(site)
    for path in (RESOURCE, METADATA, "/registration"):
        set_up(site)
        site.give(path, {}, 307, Location=f"{victim.origin}/x")
        await refusal_of(site)
    site.give("/mcp", {}, 307, Location=f"{victim.origin}/mcp")
    await refusal_of(site)
    assert victim.seen == []


@pytest.mark.parametrize(
    ("resource", "metadata", "says"),
    [
        ("https://bank.example/mcp", {}, "its metadata is for another resource"),
        (None, {"issuer": "https://login.example"}, "its authorization server says that it is another one"),
    ],
)
async def test_resource_and_issuer_are_compared(
    resource: str | None, metadata: dict[str, str], says: str, site: Site
) -> None:
    set_up(site, **metadata)
    if resource is not None:
        site.give(RESOURCE, {"resource": resource, "authorization_servers": [site.origin]})
    assert says in await refusal_of(site)
    assert "/registration" not in site.seen


async def test_secret_goes_to_its_issuer_alone(site: Site) -> None:
    set_up(site)
    client = OAuthClient("id", "canary-secret", issuer="https://login.example")
    for grant in ("client_credentials", "authorization_code"):
        says = await refusal_of(site, client=client, grant=grant)
        assert "canary" not in says
    assert "/token" not in site.seen


async def test_registration_that_is_refused_says_what_to_do(site: Site) -> None:
    set_up(site)
    site.give("/registration", {"error": "canary"}, 403)
    says = await refusal_of(site)
    assert "register one, and give OAuth(client=...)" in says
    assert "canary" not in says


@pytest.mark.parametrize("path", [RESOURCE, METADATA])
async def test_endless_answers_are_bounded(path: str, site: Site) -> None:
    set_up(site)
    site.give(path, b" " * 3_000_000)
    assert "RefusedBody" in await refusal_of(site)


async def test_question_names_the_host_and_no_user_name(site: Site) -> None:
    set_up(site, authorization_endpoint="https://bank.example:x@evil.example/authorize")
    site.give("/registration", {"client_id": "id", "redirect_uris": ["http://127.0.0.1:8765/oauth/callback"]}, 201)
    async with make_agent(site.origin, OAuth(), "log_in") as agent:
        await agent.reply("Go")
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        assert "asks you to log in at evil.example" in question.tool_calls[0].input


async def test_code_goes_to_no_other_token_endpoint(site: Site, victim: Site) -> None:
    set_up(site, token_endpoint=f"{victim.origin}/token")
    site.give("/registration", {"client_id": "id", "redirect_uris": ["http://127.0.0.1:8765/oauth/callback"]}, 201)
    login = OAuth()
    async with make_agent(site.origin, login, "log_in") as agent:
        await agent.reply("Go")
        question = agent.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    assert question.url is not None
    state = dict(parse_qsl(urlsplit(question.url).query))["state"]
    with pytest.raises(ToolError, match="without https"):
        await login.finish({"state": state, "code": "canary-code"})
    assert victim.seen == []
