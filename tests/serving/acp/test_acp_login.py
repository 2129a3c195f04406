"""A login at an MCP server, from an editor."""

from typing import Any

import httpx2
import pytest

from agentrt import Agent
from agentrt.model import ScriptedChatModel
from agentrt.tool import MCPToolset, OAuth
from tests.serving.acp.editor import Editor, connected
from tests.serving.acp.test_acp import call, say
from tests.tool.mcp.test_login_listener import free_port


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which the SDK needs
async def test_a_user_logs_in_on_the_page_of_the_question(anyio_backend: str, login_server: str) -> None:
    class Browser(Editor):
        async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
            url = tool_call.content[0].content.text.partition(": open ")[2].partition(", and answer")[0]
            async with httpx2.AsyncClient(follow_redirects=True) as browser:
                assert "You are logged in" in (await browser.get(url)).text
            return await super().request_permission(session_id, tool_call, options)

    # A path that is long enough for a URL of more than 500 characters.
    login = OAuth(redirect_uri=f"http://127.0.0.1:{free_port()}/{'back' * 100}")
    model = ScriptedChatModel([call("mcp__s__log_in"), call("mcp__s__whoami", "{}", "c2"), "Done."])
    tools = MCPToolset("s", url=f"{login_server}/mcp", auth=login, ask=False, timeout=20)
    editor = Browser()
    async with connected(Agent("helper", "", model, tools=[tools]), editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Who am I?"))
    assert len(editor.asked) == 1
    assert "user-" in str(editor.shown("tool_call_update")[-1])
