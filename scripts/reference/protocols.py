"""The page of the protocols of others: versions, methods that are served, and those that are refused."""

import json
from collections.abc import Mapping

from acp import PROTOCOL_VERSION
from acp.agent.router import build_agent_router
from acp.meta import AGENT_METHODS
from mcp_types import METHOD_NOT_FOUND
from mcp_types.methods import SPEC_CLIENT_METHODS
from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS

from agentrt import Agent
from agentrt.model import ScriptedChatModel
from agentrt.serving import acp_agent, create_app
from agentrt.serving.a2a.card import A2A_VERSION
from agentrt.serving.a2a.endpoint import MISSING_METHODS, A2ARoutes
from agentrt.serving.a2a.failure import ERROR_NUMBERS
from agentrt.serving.agui.events import AGUI_VERSION
from agentrt.serving.mcp.server import Caller, make_server
from agentrt.serving.openai.request import ONLY_VALUES
from agentrt.serving.owners.owner import Owner
from scripts.reference.markdown import GENERATED, table

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the text of the page by its file name."""
    agent = Agent("agent", "", ScriptedChatModel([]))
    paths = [str(getattr(route, "path", "")) for route in create_app(agent).routes]
    completions = [f"`{path.replace(':path', '')}`" for path in paths if path.startswith("/v1/")]
    versions = f"{SUPPORTED_PROTOCOL_VERSIONS[0]} to {SUPPORTED_PROTOCOL_VERSIONS[-1]}"
    summary = [
        ("[MCP](../mcp.md), as a client", versions, "a program, streamable HTTP, or HTTP with two streams"),
        ("[MCP](../mcp-server.md), as a server", versions, "standard input and output, `/mcp`"),
        ("[A2A](../a2a.md), both sides", A2A_VERSION, "JSON-RPC, `/a2a`"),
        ("[ACP](../acp.md), the agent's side", str(PROTOCOL_VERSION), "standard input and output"),
        ("[AG-UI](../serving.md#ag-ui), the agent's side", AGUI_VERSION, "`/agui`"),
        ("[OpenAI's API](../serving.md#openais-api), as a server", "v1", ", ".join(completions)),
    ]
    text = f"""# Protocols

{GENERATED}
The protocols by which agents and tools of other programs are used, and by which they use an agent: each with its
versions, and with the methods that are served and refused.

{table(("protocol", "version", "over"), *summary)}
## MCP, as a server

[What it does not offer](../mcp-server.md#what-it-does-not-offer) says why.

{_mcp_methods()}
## A2A

{_a2a_methods()}
Any other method is refused with {ERROR_NUMBERS["METHOD_NOT_FOUND"]}.

## ACP

A notification that is not served is ignored, since notifications have no answer. `session/list` needs a store that
lists.

{_acp_methods(agent)}
## OpenAI's API

These parameters change the form of an answer, so any other value is refused with the status 400. Settings of a model,
such as `temperature`, are ignored.

{_parameters()}"""
    return {"protocols.md": text}


def _mcp_methods() -> str:
    server = make_server(Caller(Owner(None), {}))
    # The SDK answers the first request of older versions itself.
    served = {name for name in SPEC_CLIENT_METHODS if server.get_request_handler(name)} | {"initialize"}
    return _methods({name: None if name in served else METHOD_NOT_FOUND for name in sorted(SPEC_CLIENT_METHODS)})


def _a2a_methods() -> str:
    answers: dict[str, int | None] = dict.fromkeys((*A2ARoutes.LONG_METHODS, *A2ARoutes.SHORT_METHODS))
    return _methods({**answers, **{name: ERROR_NUMBERS[reason] for name, (reason, _) in MISSING_METHODS.items()}})


def _acp_methods(agent: Agent) -> str:
    router = build_agent_router(acp_agent(agent))
    routes = {**router._requests, **router._notifications}  # the SDK has no other list
    served = {name for name, route in routes.items() if route.func is not None}
    return _methods({name: None if name in served else METHOD_NOT_FOUND for name in sorted(AGENT_METHODS.values())})


def _methods(answers: Mapping[str, int | None]) -> str:
    """Return a table of the methods by their answers: the code of a refusal, or `None`."""
    names: dict[int | None, list[str]] = {}
    for name, code in answers.items():
        names.setdefault(code, []).append(f"`{name}`")
    rows = [("served" if code is None else f"refused with {code}", ", ".join(names[code])) for code in names]
    return table(("answer", "methods"), *sorted(rows, reverse=True))


def _parameters() -> str:
    rows = [(f"`{name}`", f"`{json.dumps(taken)}`") for name, (_, taken) in ONLY_VALUES.items()]
    return table(("parameter", "the only value"), *rows)
