"""A served agent with a tool, a sub-agent and a layer that shortens, whose replies are recorded."""

import json
from typing import Any

import httpx2

from agentrt import Agent, MiddlewareBase
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.serving import BearerTokens
from agentrt.state import InMemoryStateStore
from tests.runs.conftest import call, find

SSE = {"Accept": "text/event-stream"}
ANN = {"Authorization": "Bearer ann-token"}
BOB = {"Authorization": "Bearer bob-token"}
OWNERS = BearerTokens({"ann-token": "ann", "bob-token": "bob"})


class Shorten(MiddlewareBase):
    rewrites = ("history",)
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages = [message.copy() for message in input_kwargs["messages"]]
        for message in messages:
            for block in message.get_content_blocks("tool_result"):
                block.output = block.text[:5]
        return await next_handler(messages=messages)


def answer(messages: Any, tools: Any) -> Any:
    """Ask for a tool or for the sub-agent, as the user wishes, and then answer."""
    last = messages[-1]
    if last.get_content_blocks("tool_result"):
        return "It is there."
    name, _, query = (last.get_text_content() or "").partition(" ")
    if name == "find":
        return [call("c1", "find", json.dumps({"name": query}))]
    return [call("c1", "helper", '{"query": "find it"}')] if name == "help" else f"You said: {name}"


def make_recorded(*layers: Any, name: str = "finder", store: Any = None, **options: Any) -> Agent:
    """Return an agent whose replies are recorded in its store."""
    store = store or InMemoryStateStore()
    helper = Agent("helper", "You help.", ScriptedChatModel([answer] * 99), [find])
    return Agent(
        name,
        "You find things.",
        ScriptedChatModel([answer] * 99, stream=True),
        [find, helper.as_tool("Helps.")],
        [*layers, RunRecorder(store, **options)],
        state_store=store,
    )


async def ask(client: httpx2.AsyncClient, text: str, *, session: str = "main", key: str = "r1", **options: Any) -> Any:
    """Have a reply run to its end, and return how it ended."""
    headers = {**options.pop("headers", {}), **SSE, "Idempotency-Key": key}
    response = await client.post(f"/api/sessions/{session}/replies", json={"input": text}, headers=headers, **options)
    assert response.status_code == 200, response.text
    return response.text


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]
