"""An agent for the conformance suite of MCP, which starts it with the URL of a server and judges what it sends."""

import json
import os
import sys
from typing import Any

import anyio
import httpx2

from agentrt import Agent
from agentrt.event import ExternalExecutionResultEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import MCPToolset, OAuth, OAuthClient

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT: Any = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
METADATA_URL = "https://conformance-test.local/client-metadata.json"
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}


async def find_issuer(url: str) -> str:
    """Return what the administrator of a client that was registered by hand knows."""
    async with httpx2.AsyncClient() as http:
        origin, _, path = url.rpartition("/")
        metadata = await http.get(f"{origin}/.well-known/oauth-protected-resource/{path}")
    return str(metadata.json()["authorization_servers"][0])


async def make_login(url: str) -> OAuth:
    client: OAuthClient | str | None = METADATA_URL if SCENARIO == "auth/basic-cimd" else None
    if "client_secret" in CONTEXT:
        client = OAuthClient(CONTEXT["client_id"], CONTEXT["client_secret"], issuer=await find_issuer(url))
    return OAuth(
        client=client,
        grant="client_credentials" if "client-credentials" in SCENARIO else "authorization_code",
        redirect_uri=f"http://127.0.0.1:{os.environ.get('LOGIN_PORT', '8765')}/oauth/callback",
        allow_private=True,  # the suite runs here
    )


async def agree(url: str) -> None:
    """Do what a browser does with a user who agrees: open the page, and follow it back."""
    async with httpx2.AsyncClient() as http:
        page = await http.get(url)
        await http.get(page.headers["location"])


async def run_calls(tools: MCPToolset, names: list[str]) -> None:
    calls = [
        ChatResponse([ToolCallBlock(f"c{number}", name, json.dumps(ARGUMENTS.get(name.rpartition("__")[2], {})))])
        for number, name in enumerate(names)
    ]
    agent = Agent("a", "Help.", ScriptedChatModel([*calls, "done"]), tools=[tools])
    async with agent:
        await agent.reply("Go")
        while (question := agent.waiting()) is not None:
            if isinstance(question, RequireExternalExecutionEvent):
                answers = [ToolResultBlock(call.id, call.name, "{}") for call in question.tool_calls]
                await agent.reply(ExternalExecutionResultEvent(question.reply_id, answers))
                continue
            assert isinstance(question, RequireUserConfirmEvent)
            if question.url is not None:
                await agree(question.url)
            await agent.reply(question.approve())
    for result in agent.state.context[-1].get_content_blocks("tool_result"):
        sys.stdout.write(f"{result.name} {result.state} {result.output}\n")


async def main(url: str) -> None:
    login = await make_login(url) if SCENARIO.startswith("auth/") else None
    tools = MCPToolset("s", url=url, auth=login, ask=False, timeout=20)
    async with tools:
        if login is None:
            await run_calls(tools, [tool.name for tool in await tools.tools()])
            return
        async with login.listen():
            if [tool.name for tool in await tools.tools()] == ["mcp__s__log_in"]:
                await run_calls(tools, ["mcp__s__log_in"])
            await run_calls(tools, [tool.name for tool in await tools.tools()])


if __name__ == "__main__":
    anyio.run(main, sys.argv[-1])
