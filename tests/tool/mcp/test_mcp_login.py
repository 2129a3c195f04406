"""Logins at an MCP server, with the authorization server of the SDK."""

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.shared.auth import OAuthToken

from agentrt import Agent, AgentState
from agentrt.errors import ConfigError, ToolError
from agentrt.event import RequireUserConfirmEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import MCPToolset, OAuth, OAuthClient, TokenStore
from agentrt.tool.mcp.oauth.provider import CodeProvider, MachineProvider
from tests.tool.mcp.servers import results_of

ROOT = Path(__file__).parents[3]
CANARY = "canary-"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def make_login(store: TokenStore | None = None, **options: Any) -> OAuth:
    return OAuth(store=store, redirect_uri=f"http://127.0.0.1:{free_port()}/back", **options)


def make_agent(login_server: str, login: OAuth, *names: str, owner: str = "", state: AgentState | None = None) -> Agent:
    tools = MCPToolset("s", url=f"{login_server}/mcp", auth=login, ask=False, timeout=20)
    calls = [ChatResponse([ToolCallBlock(f"c{number}", f"mcp__s__{name}", "{}")]) for number, name in enumerate(names)]
    state = state or AgentState(labels={"owner": owner} if owner else {})
    return Agent("a", "Help.", ScriptedChatModel([*calls, "done"]), tools=[tools], state=state)


async def agree(question: Any) -> str:
    """Open the page of the question as a user who agrees; returns the address that the browser is sent back to."""
    assert isinstance(question, RequireUserConfirmEvent)
    assert question.url is not None
    async with httpx2.AsyncClient() as browser:
        page = await browser.get(question.url)
    return str(page.headers["location"])


async def finish(login: OAuth, address: str, **options: Any) -> Any:
    return await login.finish(dict(httpx2.URL(address).params), **options)


async def log_in(agent: Agent, login: OAuth) -> None:
    question = agent.waiting()
    assert await finish(login, await agree(question)) is not None
    assert isinstance(question, RequireUserConfirmEvent)
    await agent.reply(question.approve())


async def counts(login_server: str, **control: str) -> dict[str, int]:
    async with httpx2.AsyncClient() as http:
        answer: dict[str, int] = (await http.get(f"{login_server}/control", params=control)).json()
        return answer


@pytest.fixture
def login() -> OAuth:
    return make_login()


async def test_login_is_a_question_of_the_call(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in", "whoami") as agent:
        assert agent.toolkit.names() == ["mcp__s__log_in"]
        await agent.reply("Who am I?")
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        assert "the MCP server 's' asks you to log in at 127.0.0.1" in question.questions[
            question.tool_calls[0].id
        ].message.replace("The", "the")
        async with login.listen(), httpx2.AsyncClient(follow_redirects=True) as browser:
            page = await browser.get(question.url or "")
        assert page.text == "You are logged in. You may close this page."
        await agent.reply(question.approve())
        assert agent.toolkit.names() == ["mcp__s__whoami"]
        [_, (state, text)] = results_of(agent)
        assert (state, text[:5]) == ("success", "user-")


async def test_declined_login_denies_the_call(login_server: str) -> None:
    async with make_agent(login_server, make_login(), "log_in") as agent:
        await agent.reply("Go")
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        await agent.reply(question.deny())
        [(state, text)] = results_of(agent)
    assert state == "denied"
    assert "the user did not log in" in text


async def test_yes_without_a_login_asks_again_and_gives_up(login_server: str) -> None:
    async with make_agent(login_server, make_login(), "log_in") as agent:
        await agent.reply("Go")
        urls = set()
        while isinstance(question := agent.waiting(), RequireUserConfirmEvent):
            urls.add(question.url)
            await agent.reply(question.approve())
        [(state, text)] = results_of(agent)
    assert len(urls) == 3
    assert (state, "refuses the login" in text) == ("error", True)


async def test_reply_resumes_elsewhere_with_stored_tokens(login_server: str) -> None:
    store = TokenStore()
    first = make_login(store)
    async with make_agent(login_server, first, "log_in") as agent:
        await agent.reply("Go")
        await log_in(agent, first)
    # A second process asks nobody, and knows the tools before anybody has called one.
    await counts(login_server, revoke="all")
    async with make_agent(login_server, first, "whoami") as agent:
        assert agent.toolkit.names() == ["mcp__s__whoami"]
        await agent.reply("Go")
        saved, address = agent.state.model_dump_json(), await agree(agent.waiting())
        question = agent.waiting()
    # The callback comes to a third one, and a fourth continues the reply.
    assert await finish(OAuth(store=store, redirect_uri=first.redirect_uri), address) is not None
    state = AgentState.model_validate_json(saved)
    async with make_agent(login_server, make_login(store), state=state) as agent:
        assert isinstance(question, RequireUserConfirmEvent)
        await agent.reply(question.approve())
        assert results_of(agent)[0][0] == "success"


async def test_refused_token_is_refreshed_without_a_question(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in", "whoami", "whoami") as agent:
        await agent.reply("Go")
        before = await counts(login_server)
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        await finish(login, await agree(question))
        await counts(login_server, revoke="access")
        await agent.reply(question.approve())
        assert [state for state, _ in results_of(agent)] == ["success", "success", "success"]
    after = await counts(login_server)
    assert (after["logins"], after["refreshes"]) == (before["logins"] + 1, before["refreshes"] + 1)


async def test_refused_login_is_dropped_and_asked_for_once(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in", "whoami") as agent:
        await agent.reply("Go")
        await log_in(agent, login)
        await counts(login_server, revoke="all")
    async with make_agent(login_server, login, "whoami") as agent:
        await agent.reply("Go")
        assert await login.store.get("login", "", f"{login_server}/mcp") is None
        await log_in(agent, login)
        assert agent.waiting() is None
        assert results_of(agent)[0][0] == "success"


async def test_drop_keeps_new_tokens_of_another_process() -> None:
    def provider_with(token: str) -> CodeProvider:
        provider = CodeProvider(OAuth(store=store), "ann", "https://crm.example/mcp")
        provider.context.current_tokens = OAuthToken(access_token=token, token_type="Bearer")
        return provider

    class OtherProcess(TokenStore):
        async def take(self, *key: str) -> Any:
            other = provider_with("new")
            await other.set_tokens(other.context.current_tokens)  # type: ignore[arg-type]
            return await super().take(*key)

    store = OtherProcess()
    refused = provider_with("old")
    await refused.set_tokens(refused.context.current_tokens)  # type: ignore[arg-type]
    await refused.drop()
    kept = await refused.get_tokens()
    assert kept.access_token == "new"


async def test_login_survives_a_bad_day_of_its_server(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in", "whoami") as agent:
        await agent.reply("Go")
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        await finish(login, await agree(question))
        await counts(login_server, revoke="access", down="1")
        await agent.reply(question.approve())
        [(state, text)] = results_of(agent)[:1]
        assert state == "error"
        assert "answered with the status 500: try again" in text
    await counts(login_server)
    async with make_agent(login_server, login, "log_in") as agent:
        await agent.reply("Go")
        assert agent.waiting() is None


async def test_owners_have_logins_of_their_own(login_server: str) -> None:
    login, seen = make_login(), {}
    async with make_agent(login_server, login, "log_in", owner="ann") as agent:
        await agent.reply("Go")
        await log_in(agent, login)
    tools = MCPToolset("s", url=f"{login_server}/mcp", auth=login, ask=False)
    async with tools:
        for owner in ("ann", "bob", "ann"):
            model = ScriptedChatModel([ChatResponse([ToolCallBlock("c", "mcp__s__whoami", "{}")]), "done"])
            agent = Agent("a", "Help.", model, tools=[tools], state=AgentState(labels={"owner": owner}))
            await agent.reply("Go")
            assert (agent.waiting() is not None) == (owner == "bob")
            if agent.waiting() is not None:
                await log_in(agent, login)
            seen.setdefault(owner, set()).add(results_of(agent)[0][1])
            [resource] = await tools.read_resource("users://me", owner=owner)
            assert {getattr(resource, "text", None)} == seen[owner]
        with pytest.raises(ToolError, match="wants a login"):
            await tools.resources(owner="carl")
    assert len(seen["ann"]) == len(seen["bob"]) == 1
    assert seen["ann"] != seen["bob"]


async def test_no_client_and_no_user_has_the_login_of_another() -> None:
    """Of one store and one server: each user, and each client that logs in by its secret, for the scopes it has."""

    def machine(client_id: str, *scopes: str) -> MachineProvider:
        client = OAuthClient(client_id, "hunter2", issuer="https://login.example")
        login = OAuth(grant="client_credentials", client=client, scopes=scopes, store=store)
        return MachineProvider(login, "https://crm.example/mcp")

    def user(owner: str) -> CodeProvider:
        return CodeProvider(OAuth(store=store), owner, "https://crm.example/mcp")

    store = TokenStore()
    makers: list[Callable[[], Any]] = [
        partial(machine, "admin", "write"),
        partial(machine, "admin"),
        partial(machine, "clerk"),
        partial(user, ""),
        partial(user, "ann"),
    ]
    for number, make in enumerate(makers):
        assert await make().get_tokens() is None
        await make().set_tokens(OAuthToken(access_token=f"token-{number}", token_type="Bearer"))
    for number, make in enumerate(makers):
        provider = make()
        assert (await provider.get_tokens()).access_token == f"token-{number}"
        assert await provider.oauth.forget(provider.server_url, provider.owner)
        assert await make().get_tokens() is None


async def test_users_are_not_shown_the_tools_of_a_client(login_server: str) -> None:
    users, url = make_login(), f"{login_server}/mcp"
    async with make_agent(login_server, users, "log_in") as agent:
        await agent.reply("Go")
        await log_in(agent, users)
    entry = await users.store.get("login", "", url)
    assert entry is not None
    login = OAuth(grant="client_credentials", client=OAuthClient("admin", "hunter2", issuer=login_server))
    await login.store.put(*login.key_of(url, ""), entry=entry, seconds=60)
    async with MCPToolset("s", url=url, auth=login) as tools:
        assert [tool.name for tool in await tools.list_tools()] == ["mcp__s__whoami"]
    async with make_agent(login_server, make_login(login.store)) as agent:
        assert agent.toolkit.names() == ["mcp__s__log_in"]


async def test_a_login_that_is_forgotten_is_used_no_longer(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in", owner="ann") as agent:
        await agent.reply("Go")
        await log_in(agent, login)
        assert await login.forget(f"{login_server}/mcp", "ann")
        model = ScriptedChatModel([ChatResponse([ToolCallBlock("c", "mcp__s__whoami", "{}")]), "done"])
        later = Agent("a", "Help.", model, tools=agent.toolkit.toolsets, state=AgentState(labels={"owner": "ann"}))
        await later.reply("Who am I?")
        assert isinstance(later.waiting(), RequireUserConfirmEvent)


async def test_callback_is_good_once_and_for_its_owner(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in", owner="ann") as agent:
        await agent.reply("Go")
        address = await agree(agent.waiting())
    assert await finish(login, address, server_url="https://other.example/mcp") is None
    with pytest.raises(ToolError, match="another user started"):
        await finish(login, address, owner="bob")
    finished = await finish(login, address, owner="ann")
    assert (finished.owner, finished.server_url) == ("ann", f"{login_server}/mcp")
    assert await finish(login, address, owner="ann") is None
    assert await login.finish({"code": "x", "state": "guessed"}) is None
    assert await login.finish({}) is None


async def test_refused_callback_stores_nothing(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in") as agent:
        await agent.reply("Go")
        address = httpx2.URL(await agree(agent.waiting()))
    parameters = {"state": address.params["state"], "error": "access_denied"}
    with pytest.raises(ToolError, match="the login was refused"):
        await login.finish(parameters)
    assert await login.store.get("login", "", f"{login_server}/mcp") is None


async def test_wrong_code_fails_without_quoting_the_server(login_server: str, login: OAuth) -> None:
    async with make_agent(login_server, login, "log_in") as agent:
        await agent.reply("Go")
        address = httpx2.URL(await agree(agent.waiting()))
    with pytest.raises(ToolError, match="the login failed: invalid_grant") as caught:
        await login.finish({"state": address.params["state"], "code": f"{CANARY}wrong"})
    assert CANARY not in str(caught.value)


async def test_no_secret_of_a_login_leaves_it(
    login_server: str, caplog: pytest.LogCaptureFixture, login: OAuth
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[Any] = []
    async with make_agent(login_server, login, "log_in", "whoami", "whoami") as agent:
        async with agent.reply_stream("Go") as events:
            told += [repr(event) async for event in events]
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        finished = await finish(login, await agree(question))
        await counts(login_server, revoke="access")
        async with agent.reply_stream(question.approve()) as events:
            told += [repr(event) async for event in events]
        requests = [call.messages for call in agent.model.calls]  # type: ignore[attr-defined]
        left = [told, agent.state.model_dump_json(), repr(requests), repr(finished), repr(login), agent.explain()]
    kept = await login.store.get("login", "", f"{login_server}/mcp")
    assert CANARY in json.dumps(kept)  # so that the test could find something
    assert CANARY not in repr(left)
    assert CANARY not in caplog.text
    assert not any(CANARY in repr(vars(record)) for record in caplog.records)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OAuth(scopes="read"), "OAuth(scopes=...) must be a list of names"),  # type: ignore[arg-type]
        (lambda: OAuth(client="http://app.example/client.json"), "must be the https:// URL of a document"),
        (lambda: OAuth(redirect_uri="http://app.example/back"), "OAuth(redirect_uri=...) must begin with https://"),
        (lambda: OAuth(grant="client_credentials"), "needs client=OAuthClient(client_id, secret, issuer=...)"),
        (lambda: OAuthClient("id", "secret"), "needs issuer=..., the URL of the authorization server"),
        (lambda: OAuthClient("id", ""), "is the variable set that it is read from?"),
        (lambda: MCPToolset("s", command=["x"], auth=OAuth()), "auth=OAuth(...)) is for a server behind a url="),
        (lambda: MCPToolset("s", url="http://a.example/mcp", auth=OAuth()), "would send tokens unencrypted"),
        (lambda: OAuth(redirect_uri="https://app.example/back").listen(), "OAuth.listen is for a redirect_uri of this"),
    ],
)
def test_wrong_options_say_what_to_write(make: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.slow
def test_program_of_the_page_logs_in(login_server: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    [source] = [block for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "login.listen()" in block]
    model = (
        "ScriptedChatModel([*(ChatResponse([ToolCallBlock('c', f'mcp__crm__{name}', '{}')]) "
        "for name in ('log_in', 'whoami')), "
        "lambda messages, tools: repr(messages[-1].get_content_blocks('tool_result')[-1].output)])"
    )
    imports = "from agentrt.message import ToolCallBlock\nfrom agentrt.model import ChatResponse, ScriptedChatModel\n"
    for words, replacement in (
        ('"openai:gpt-5-mini"', model),
        ("https://crm.example/mcp", f"{login_server}/mcp"),
        ('scopes=["read"]', f'scopes=["read"], redirect_uri="http://127.0.0.1:{free_port()}/back"'),
    ):
        assert words in source
        source = source.replace(words, replacement)
    (tmp_path / "program.py").write_text(imports + source)
    with subprocess.Popen(
        [sys.executable, "-u", tmp_path / "program.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        url = program.stdout.readline().removeprefix("Open ").strip()
        assert "logged in" in httpx2.get(url, follow_redirects=True).text
        said, _ = program.communicate("\n", timeout=60)
    assert program.returncode == 0
    assert "user-" in said
