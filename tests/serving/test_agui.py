"""AG-UI, by the client of the protocol's authors: text, tools, questions, dropped attempts, errors."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from agentrt import Agent, MiddlewareBase
from agentrt.errors import Transient
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.serving import Limits, create_app
from agentrt.tool import ToolContext
from tests.runner.conftest import approved_pay, make_agent
from tests.servers.node_packages import cache_folder, install
from tests.serving.conftest import Camera, run_server

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parent / "agui_client.mjs"
Play = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(cache_folder(request.config, tmp_path_factory), "@ag-ui/client")


@pytest.fixture
def play(modules: Path) -> Play:
    """Serve an agent, and have the client make runs of one thread."""

    def run(agent: Agent, *runs: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
        # Comments keep a connection alive, and a client has to skip them.
        with run_server(create_app(agent, limits=Limits(ping_seconds=0.01))) as url:
            spec = {"url": f"{url}/agui{query}", "thread": "t1", "runs": runs}
            finished = subprocess.run(
                ["node", CLIENT],
                input=json.dumps(spec),
                cwd=modules.parent,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert finished.returncode == 0, finished.stderr
        assert not finished.stderr
        seen: list[dict[str, Any]] = json.loads(finished.stdout)
        return seen

    return run


def says(text: str, number: int = 1) -> dict[str, Any]:
    return {"messages": [{"id": f"m{number}", "role": "user", "content": text}]}


def roles(run: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in run["messages"]]


def test_thinking_text_and_tool_become_messages(play):
    async def look(city: str) -> str:
        await anyio.sleep(0.1)
        return f"rain in {city}"

    first = ChatResponse(
        [ThinkingBlock("Where?"), TextBlock("I look."), ToolCallBlock("c1", "look", '{"city": "Oslo"}')],
        usage=ChatUsage(7, 5),
    )
    model = ScriptedChatModel([first, ChatResponse([TextBlock("It rains.")], usage=ChatUsage(9, 2))], stream=True)
    [run] = play(Agent("assistant", "", model, tools=[look]), says("Weather?"))
    assert run["error"] is None
    assert roles(run) == [
        ("user", "Weather?"),
        ("reasoning", "Where?"),
        ("assistant", "I look."),
        ("tool", "rain in Oslo"),
        ("assistant", "It rains."),
    ]
    [call] = run["messages"][2]["toolCalls"]
    assert (call["id"], call["function"]) == ("c1", {"name": "look", "arguments": '{"city": "Oslo"}'})
    assert run["finished"]["outcome"] == {"type": "success"}
    assert run["finished"]["usage"] == [{"inputTokens": 16, "outputTokens": 7}]
    assert (run["state"]["mine"], run["state"]["agentrt"]["status"]) == (1, "completed")


def test_question_is_an_interrupt_that_resume_answers(play):
    asked, resumed, denied, again = play(
        make_agent(approved_pay()),
        says("call pay"),
        {"decide": [{"approved": True}]},
        says("call pay", 2),
        {"decide": [None]},
    )
    [question] = asked["finished"]["outcome"]["interrupts"]
    assert (question["reason"], question["toolCallId"], question["metadata"]["name"]) == ("tool_approval", "1", "pay")
    assert asked["state"]["agentrt"]["status"] == "waiting"
    assert roles(resumed)[-2:] == [("tool", "paid"), ("assistant", "paid, as you said: call pay")]
    assert resumed["open"] == []
    assert len(denied["open"]) == 1
    assert again["error"] is None
    assert "paid" not in roles(again)[-1][1].partition(", as")[0]


def test_call_of_the_client_is_answered_by_its_message(play):
    result = {"id": "r1", "role": "tool", "toolCallId": "1", "content": "a cat"}
    asked, answered = play(make_agent(Camera()), says("call camera"), {"messages": [result]})
    assert asked["finished"]["outcome"] == {"type": "success", "pendingToolCallIds": ["1"]}
    assert roles(answered)[-1] == ("assistant", "a cat, as you said: call camera")


def test_dropped_attempt_is_corrected_by_a_snapshot(play):
    cut = [ChatResponse([TextBlock("It is wrong")], is_last=False), Transient("cut")]
    model = ScriptedChatModel([cut, "It is right."], stream=True)
    retry = RetryMiddleware(max_retries=2, initial_delay=0.001)
    [run] = play(Agent("assistant", "", model, middlewares=[retry]), says("Well?"))
    assert "MESSAGES_SNAPSHOT" in run["events"]
    assert roles(run) == [("user", "Well?"), ("assistant", "It is right.")]


def test_failure_ends_a_run_and_not_the_thread(play):
    model = ScriptedChatModel([RuntimeError("password hunter2"), "Now it works."], stream=True)
    failed, next_run = play(Agent("assistant", "", model), says("a"), says("b", 2))
    assert (failed["finished"]["type"], failed["finished"]["code"]) == ("RUN_ERROR", "RuntimeError")
    assert "hunter2" not in json.dumps(failed)
    assert roles(next_run)[-1] == ("assistant", "Now it works.")


def test_interrupted_reply_is_a_cancelled_run(play):
    async def stop(context: ToolContext) -> str:
        context.agent.interrupt()
        return "never"

    [run] = play(make_agent(stop), says("call stop"))
    assert run["error"] is None
    assert run["finished"]["outcome"] == {"type": "cancelled"}


def test_structured_output_of_a_layer_comes_in_pieces(play):
    class AskForTrip(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(structured_schema=Trip):
                yield item

    text = '{"city": "Rome", "days": 3}'
    pieces = [ToolCallBlock("1", "GenerateStructuredOutput", text[n : n + 5]) for n in range(0, len(text), 5)]
    model = ScriptedChatModel([[ChatResponse([piece], False) for piece in pieces]])
    [run] = play(Agent("assistant", "", model, middlewares=[AskForTrip()]), says("Plan."))

    assert run["events"].count("TOOL_CALL_ARGS") == len(pieces)
    [call] = [call for message in run["messages"] for call in message.get("toolCalls", [])]
    assert call["function"] == {"name": "GenerateStructuredOutput", "arguments": text}
    assert run["finished"]["result"] == {"city": "Rome", "days": 3}


def test_typed_answer_grows_in_the_state_of_the_client(play):
    trip = {
        "title": "Italy/~",
        "stops": [{"city": f"Town {n}", "why": "It is fine. " * 9} for n in range(9)],
        "ok": True,
    }
    first, text = '{"title": "Spain", "stops": [{"city": "Lugo"}], "ok": 7}', json.dumps(trip)
    said = [
        [ToolCallBlock(f"{number}", "GenerateStructuredOutput", answer[n : n + 3]) for n in range(0, len(answer), 3)]
        for number, answer in enumerate((first, text))
    ]
    model = ScriptedChatModel([[ChatResponse([piece], False) for piece in pieces] for pieces in said])
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}}
    [run] = play(Agent("a", "", model), {**says("Plan."), "forwardedProps": {"response_format": wanted}})

    assert run["finished"]["result"] == run["state"]["agentrt"]["structured_output"] == trip
    assert (run["state"]["mine"], run["states"][0]["type"]) == (1, "STATE_SNAPSHOT")
    # The patches alone, without the snapshot at the end, made the answer of the client.
    grown = [answer for answer in run["partial"][:-1] if answer.get("title") == trip["title"] and "ok" not in answer]
    assert grown[-1]["stops"][:7] == trip["stops"][:7]
    assert sum(len(json.dumps(event)) for event in run["states"]) < 17 * len(text)


def test_typed_answer_grows_as_the_list_that_a_layer_makes_it(play):
    class AskForCities(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(structured_schema=list[str]):
                yield item

    text = '{"value": ["Rome", "Oslo"]}'
    pieces = [ToolCallBlock("1", "GenerateStructuredOutput", text[n : n + 5]) for n in range(0, len(text), 5)]
    model = ScriptedChatModel([[ChatResponse([piece], False) for piece in pieces]])
    wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": {"type": "object"}}}
    agent = Agent("a", "", model, middlewares=[AskForCities()])
    [run] = play(agent, {**says("Plan."), "forwardedProps": {"response_format": wanted}})

    assert run["finished"]["result"] == run["state"]["agentrt"]["structured_output"] == ["Rome", "Oslo"]
    assert len(run["partial"]) > 2
    assert all(isinstance(answer, list) for answer in run["partial"])


class Trip(BaseModel):
    city: str
    days: int
