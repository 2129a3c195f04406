"""Agents as tools of MCP, by the SDK's own client in memory, in both forms of the protocol."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import ElicitResult

from agentrt import Agent
from agentrt.errors import ConfigError, ModelError
from agentrt.event import ExternalExecutionResultEvent, RequireExternalExecutionEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.runner import Runner
from agentrt.serving import mcp_server
from agentrt.serving.mcp.server import Caller, make_server, tool_names
from agentrt.serving.owners.owner import Owner
from agentrt.state import InMemoryStateStore
from agentrt.tool import MCPToolset, ToolBase
from tests.runner.conftest import approved_pay, make_agent, work

PAY = {"message": "call pay"}


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@asynccontextmanager
async def connect(mode: Any, *agents: Agent, **options: Any) -> AsyncIterator[Client]:
    """Work the agents, and connect a client to a server of them."""
    async with AsyncExitStack() as stack:
        runners = {agent.name: Runner(agent, InMemoryStateStore()) for agent in agents}
        for runner in runners.values():
            await stack.enter_async_context(work(runner))
        yield await stack.enter_async_context(Client(make_server(Caller(Owner(None), runners)), mode=mode, **options))


def user_who(action: Any, content: Any) -> tuple[list[Any], Callable[..., Any]]:
    """Return a user who answers the forms so, and the forms that this user was shown."""
    seen: list[Any] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        seen.append(params)
        return ElicitResult(action=action, content=content)

    return seen, answer


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content]


def code_of(result: Any) -> str:
    assert result.is_error
    code: str = result.structured_content["error"]["code"]
    assert code in texts(result)[0]
    return code


async def test_answer_has_text_values_and_progress(mode):
    async def look() -> str:
        return "rain"

    told: list[tuple[float, str]] = []

    async def tell(number: float, _: float | None, line: str | None) -> None:
        told.append((number, line or ""))

    async with connect(mode, make_agent(look)) as client:
        [tool] = (await client.list_tools()).tools
        assert (tool.name, list(tool.input_schema["properties"])) == ("ask", ["message", "session_id", "answer"])
        first = await client.call_tool("ask", {"message": "call look"}, progress_callback=tell)
        values = first.structured_content
        session_id = values["session_id"]
        assert texts(first) == ["rain, as you said: call look", f'[session_id: "{session_id}"]']
        assert (values["text"], values["finished_reason"]) == ("rain, as you said: call look", "completed")
        assert values["usage"]["output_tokens"] > 0
        # Notices may overtake each other in a client, and their numbers say how they were sent.
        assert [line for _, line in sorted(told)] == [f"session_id {session_id}", "calls look", "look: success"]
        again = await client.call_tool("ask", {"message": "And?", "session_id": session_id})
        assert again.structured_content["session_id"] == session_id
        assert again.structured_content["reply_id"] != values["reply_id"]
        last = await client.call_tool("ask", {"session_id": session_id})
        assert last.structured_content == again.structured_content


@pytest.mark.parametrize(
    ("action", "content", "said"),
    [
        ("accept", {"approve": True}, "paid, as you said: call pay"),
        ("accept", {"approve": False, "feedback": "too much"}, "too much"),
        ("decline", None, "as you said: call pay"),
    ],
)
async def test_form_of_the_client_answers_a_question(mode, action, content, said):
    seen, answer = user_who(action, content)
    async with connect(mode, make_agent(approved_pay()), elicitation_callback=answer) as client:
        result = await client.call_tool("ask", PAY)
        assert result.structured_content["finished_reason"] == "completed"
        assert said in texts(result)[0]
        assert ("paid" in texts(result)[0]) == (content == {"approve": True})
        [form] = seen
        assert "pay {}" in form.message
        assert form.requested_schema["required"] == ["approve"]
        assert "default" not in form.requested_schema["properties"]["approve"]


@pytest.mark.parametrize(("action", "content"), [("cancel", None), ("accept", {}), ("accept", {"approve": "yes"})])
async def test_form_that_says_neither_leaves_the_question_open(mode, action, content):
    seen, answer = user_who(action, content)
    async with connect(mode, make_agent(approved_pay()), elicitation_callback=answer) as client:
        [tool] = (await client.list_tools()).tools
        assert "answer" not in tool.input_schema["properties"]  # else the model could answer in its user's place
        left = await client.call_tool("ask", PAY)
        assert (left.structured_content["finished_reason"], len(seen)) == ("waiting", 1)
        session = {"session_id": left.structured_content["session_id"]}
        assert code_of(await client.call_tool("ask", {**session, "answer": {"1": "approve"}})) == "invalid_arguments"
        assert code_of(await client.call_tool("ask", {**session, "message": "yes"})) == "pending"
        again = await client.call_tool("ask", session)
        assert (again.structured_content["finished_reason"], len(seen)) == ("waiting", 2)


async def test_client_without_forms_answers_by_another_call(mode):
    async with connect(mode, make_agent(approved_pay())) as client:
        asked = await client.call_tool("ask", PAY)
        assert not asked.is_error
        values = asked.structured_content
        assert values["finished_reason"] == "waiting"
        assert values["waiting"] == [{"id": "1", "name": "pay", "input": "{}"}]
        session = {"session_id": values["session_id"]}
        assert f'{{"session_id": "{values["session_id"]}", "answer": {{"1": "approve"}}}}' in texts(asked)[1]
        pending = await client.call_tool("ask", {**session, "message": "yes"})
        assert code_of(pending) == "pending"
        assert "pay {}" in texts(pending)[0]
        refused = [
            ({"1": "yes"}, "invalid_answer"),
            ({"2": "approve"}, "unknown_call"),
            ({"1": True}, "invalid_arguments"),
            ({}, "invalid_arguments"),
        ]
        for answer, code in refused:
            assert code_of(await client.call_tool("ask", {**session, "answer": answer})) == code
        done = await client.call_tool("ask", {**session, "answer": {"1": "approve"}})
        assert texts(done)[0] == "paid, as you said: call pay"
        late = await client.call_tool("ask", {**session, "answer": {"1": "deny"}})
        assert code_of(late) == "not_waiting"


async def test_call_that_the_client_runs_gets_its_result(mode):
    class LookUp(ToolBase):
        name = "look_up"
        description = "Look up."
        input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}
        is_external_tool = True

    ask = {"message": "call look_up"}
    _, answer = user_who("accept", {"result": "42"})
    async with connect(mode, make_agent(LookUp()), elicitation_callback=answer) as client:
        assert texts(await client.call_tool("ask", ask))[0] == "42, as you said: call look_up"
    async with connect(mode, make_agent(LookUp())) as client:
        asked = (await client.call_tool("ask", ask)).structured_content
        result = {"session_id": asked["session_id"], "answer": {"1": "43"}}
        assert texts(await client.call_tool("ask", result))[0] == "43, as you said: call look_up"


async def test_wrong_arguments_are_results_with_a_code(mode):
    async with connect(mode, make_agent()) as client:
        wrong = [
            ({}, "invalid_arguments"),
            ({"message": ""}, "invalid_input"),
            ({"message": 1}, "invalid_arguments"),
            ({"message": "Hi", "answer": {"1": "approve"}}, "invalid_arguments"),
            ({"message": "Hi", "other": 1}, "invalid_arguments"),
            ({"message": "Hi", "session_id": "made-up"}, "no_session"),
            ({"message": "Hi", "session_id": "a\nb"}, "no_session"),
            ({"session_id": ""}, "no_session"),
        ]
        for arguments, code in wrong:
            assert code_of(await client.call_tool("ask", arguments)) == code
        with pytest.raises(MCPError, match="no tool 'other'"):
            await client.call_tool("other", {"message": "Hi"})
        assert not (await client.call_tool("ask", {"message": "Hi", "session_id": None})).is_error


async def test_failure_says_its_class_and_not_its_words(mode):
    agent = make_agent(model=ScriptedChatModel([ModelError("key sk-secret is wrong"), "Fine."]))
    async with connect(mode, agent) as client:
        failed = await client.call_tool("ask", {"message": "Hi"})
        assert code_of(failed) == "ModelError"
        assert "secret" not in str(failed)
        session_id = failed.structured_content["session_id"]
        assert texts(await client.call_tool("ask", {"message": "Hi", "session_id": session_id}))[0] == "Fine."


async def test_cancelled_call_interrupts_the_reply():
    begun, stopped = anyio.Event(), anyio.Event()

    async def wait() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with connect("legacy", make_agent(wait)) as client:
        session_id = (await client.call_tool("ask", {"message": "Hi"})).structured_content["session_id"]
        call = partial(client.call_tool, "ask", {"message": "call wait", "session_id": session_id})
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await begun.wait()
            group.cancel_scope.cancel()
        await stopped.wait()
        result = await client.call_tool("ask", {"session_id": session_id})
        assert result.structured_content["finished_reason"] == "interrupted"


async def test_two_callers_of_one_session_are_answered_in_turn(mode, monkeypatch):
    """The second one is asked what the first one left open, and both are answered."""
    monkeypatch.setattr("agentrt.serving.mcp.call._HELD_LOOK_SECONDS", 0.05)
    async with connect(mode, make_agent(approved_pay())) as client:
        session = {"session_id": (await client.call_tool("ask", {"message": "Hi"})).structured_content["session_id"]}
        results: dict[str, Any] = {}

        async def call(message: str) -> None:
            results[message] = await client.call_tool("ask", {**session, "message": message})

        async with anyio.create_task_group() as group:
            for message in ("call pay", "one", "two"):
                group.start_soon(call, message)
        held = [message for message in ("one", "two") if results[message].structured_content.get("waiting")]
        assert results["call pay"].structured_content["finished_reason"] == "waiting"
        for message in held:
            assert "Your message is kept" in texts(results[message])[1]
        done = await client.call_tool("ask", {**session, "answer": {"1": "approve"}})
        assert texts(done)[0] == "paid, as you said: call pay"
        last = await client.call_tool("ask", {**session, "message": "three"})
        assert texts(last)[0] == "You said: three"


async def test_server_of_one_agent_serves_a_program(mode):
    async with (
        work(Runner(make_agent(description="Repeats what is said."), InMemoryStateStore())) as runner,
        Client(mcp_server(runner), mode=mode) as client,
    ):
        [tool] = (await client.list_tools()).tools
        assert (tool.description or "").startswith("Repeats what is said. ")
        assert texts(await client.call_tool("ask", {"message": "Hi"}))[0] == "You said: Hi"
    with pytest.raises(ConfigError, match="takes a Runner"):
        mcp_server(make_agent())  # type: ignore[arg-type]


@pytest.mark.parametrize(("answer", "said"), [({"approve": True}, "paid, as"), ({"approve": False}, "as you said")])
async def test_question_passes_through_an_agent_that_is_the_client(answer, said):
    """What the agent behind the server asks is asked by the one in front of it, and goes back as a form."""
    call = ChatResponse([ToolCallBlock("c1", "mcp__payer__ask", '{"message": "call pay"}')])
    model = ScriptedChatModel([call, lambda messages, _: messages[-1].get_content_blocks("tool_result")[-1].text])
    async with work(Runner(make_agent(approved_pay()), InMemoryStateStore())) as runner:
        tools = MCPToolset("payer", server=mcp_server(runner), ask=False)
        async with Agent("front", "", model, tools=[tools]) as agent:
            await agent.reply("Pay.")
            question = agent.waiting()
            assert isinstance(question, RequireExternalExecutionEvent)
            [form] = question.tool_calls
            assert "pay {}" in form.input
            result = ToolResultBlock(form.id, form.name, json.dumps(answer))
            done = await agent.reply(ExternalExecutionResultEvent(question.reply_id, [result]))
            text = done.get_text_content() or ""
            assert said in text
            assert ("paid" in text) == answer["approve"]


async def test_each_of_several_agents_is_a_tool_of_its_name(mode):
    agents = [Agent(name, "", ScriptedChatModel([f"I am {name}."])) for name in ("weather", "Pay & Co", "Pay @ Co")]
    async with connect(mode, *agents) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["weather", "Pay___Co", "Pay___Co_2"]
        assert texts(await client.call_tool("Pay___Co_2", {"message": "Hi"}))[0] == "I am Pay @ Co."
    long = tool_names(dict.fromkeys(["a" * 100, "a" * 101], None))
    assert [len(name) for name in long] == [64, 62]
