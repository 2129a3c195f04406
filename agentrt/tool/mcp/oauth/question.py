"""The question that asks a user to log in: a call waits with it, and continues with the answer."""

import json

from agentrt._runtime.block import ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.event import ConfirmResult
from agentrt.tool.context import ToolContext
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.text import clean_text
from agentrt.tool.to_response import failure
from agentrt.types import OpenQuestion, ToolResponse

LOGIN = "mcp_login"
"""The name of the calls that stand for logins."""

_MAX_LOGINS = 3
_MAX_URL = 8_000


def owner_of_call(context: ToolContext) -> str:
    """Return the owner of a call: the label "owner" of the outermost conversation; "" without one."""
    agent = context.agent if context.run is None else context.run.root.agent
    return str(getattr(getattr(agent, "state", None), "labels", {}).get("owner", ""))


async def ask_to_log_in(context: ToolContext, server: str, tool: str, login: LoginNeeded) -> ToolResponse:
    """Return a response that waits until the user has logged in; a failure if that was asked too often."""
    kept = context.kept
    number = kept["logins"] = kept.get("logins", 0) + 1
    if number > _MAX_LOGINS:
        return failure(f"{tool} was not run: the MCP server {server!r} refuses the login of the user.")
    root = context.agent if context.run is None else context.run.root.agent
    question_id = f"login-{number}"
    session = getattr(getattr(root, "state", None), "session_id", "")
    url = clean_text(await login.begin({"session": session, "call": f"{context.tool_call.id}/{question_id}"}))
    message = f"The MCP server {server!r} asks you to log in at {clean_text(login.host, 300)}"
    question = {"server": server, "tool": tool, "message": message, "url": url[:_MAX_URL]}
    words = f"{message}: open {question['url']}, and answer yes when you have logged in"
    call = ToolCallBlock(question_id, LOGIN, json.dumps(question))
    kept["login"] = {"id": question_id, "input": call.input, "words": words}
    return _waiting(kept["login"])


def read_login_answer(context: ToolContext, server: str, tool: str) -> ToolResponse | None:
    """Return what ends the call, or keeps it waiting, after it asked for a login; `None` if it may continue."""
    login = context.kept.get("login")
    if login is None:
        return None
    answer: ConfirmResult | ToolResultBlock | None = context.answers.get(login["id"])
    if answer is None:
        return _waiting(login)
    if not isinstance(answer, ConfirmResult) or not answer.confirmed:
        return failure(
            f"{tool} was not run: the user did not log in at the MCP server {server!r}.", ToolResultState.DENIED
        )
    context.kept["login"] = None
    return None


def _waiting(login: dict[str, str]) -> ToolResponse:
    call = ToolCallBlock(login["id"], LOGIN, login["input"])
    return ToolResponse(waits=[OpenQuestion(call, "user", login["words"])])
