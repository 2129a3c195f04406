"""The agent card, which tells clients what an agent is, and where and how to reach it."""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from agentrt import Agent, __version__

A2A_VERSION = "1.0"
CARD_PATH = "/.well-known/agent-card.json"
_INPUT_MODES = ["text/plain", "application/json", "image/*", "audio/*", "application/pdf", "text/*"]
_OUTPUT_MODES = ["text/plain", "application/json"]


def agent_card(request: Request, agent: Agent, *, is_first: bool, needs_token: bool) -> dict[str, Any]:
    """Return the card of the agent, without its prompt, its model and its tools."""
    name = agent.name
    # Not `base_url`, which is that of the outermost application even if this one is mounted in it.
    root = request.url.replace(path=quote(request.scope.get("root_path", "")), query="")
    url = f"{root}/a2a" if is_first else f"{root}/a2a?agent={quote(name, safe='')}"
    description = agent.description or f"The agent {name}, which answers messages and asks where it needs an answer."
    card: dict[str, Any] = {
        "name": name,
        "description": description,
        "version": __version__,
        "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": A2A_VERSION}],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": _INPUT_MODES,
        "defaultOutputModes": _OUTPUT_MODES,
        "skills": [{"id": "reply", "name": name, "description": description, "tags": ["agent"]}],
    }
    if needs_token:
        card["securitySchemes"] = {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
    return card
