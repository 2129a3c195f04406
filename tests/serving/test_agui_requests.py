"""What a run of AG-UI gets that cannot begin, and which messages of a client are new."""

import json
from typing import Any

import httpx2
import pytest

from agentrt import Agent
from agentrt._runtime.block import ToolCallBlock, new_id
from agentrt.model import ScriptedChatModel
from agentrt.serving import BearerTokens, create_app
from agentrt.serving.agui.events import RunTranslator
from agentrt.tool import FunctionTool, ToolContext, ToolResponse
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import PATIENCE, WORDS, Camera, halfway_agent, run_server, serve


def run_input(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"threadId": "t1", "runId": new_id(), "messages": messages, "tools": [], "context": [], **fields}


def says(text: str, name: str = "m1") -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text}


def read_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize(
    ("body", "expected", "words"),
    [
        ({"threadId": "t1", "messages": []}, (400, "invalid_body"), "'runId'"),
        ({**run_input(), "threadId": 5}, (400, "session_id"), "'threadId'"),
        ({**run_input(), "messages": "Hi"}, (400, "invalid_body"), "'messages'"),
        (run_input(), (400, "invalid_input"), "must end with a message of the user"),
        (run_input({"id": "a", "role": "assistant", "content": "a"}), (400, "invalid_input"), "must end with"),
        (run_input(says(" ")), (400, "invalid_input"), "'messages[0].content'"),
        (run_input({**says(""), "content": [{"type": "audio"}]}), (400, "invalid_input"), "'image'"),
        (run_input(resume=[{"interruptId": "x", "status": "resolved"}]), (409, "not_waiting"), "is not waiting"),
        (
            {**run_input(says("a")), "forwardedProps": {"response_format": "x"}},
            (400, "invalid_input"),
            "forwardedProps.",
        ),
    ],
)
async def test_bad_run_is_refused_and_named(body, expected, words):
    async with serve(make_agent()) as client:
        response = await client.post("/agui", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == expected
        assert words in error["message"]
        assert (await client.get("/api/sessions")).json()["sessions"] == []


async def test_answer_of_a_run_must_fit_the_question():
    async with serve(make_agent(approved_pay())) as client:
        asked = read_events((await client.post("/agui", json=run_input(says("call pay")))).text)
        [question] = asked[-1]["outcome"]["interrupts"]
        entry = {"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}
        wrong = [
            (run_input(says("And?", "m2")), "pending"),
            (run_input(resume=[{**entry, "interruptId": "other:1"}]), "unknown_call"),
            (run_input(resume=[{**entry, "payload": {"approved": "yes"}}]), "invalid_answer"),
            (run_input(resume=[{**entry, "payload": None}]), "invalid_answer"),
            (run_input(resume=[{**entry, "status": "open"}]), "invalid_answer"),
        ]
        for body, code in wrong:
            assert (await client.post("/agui", json=body)).json()["error"]["code"] == code
        session = (await client.get("/api/sessions/t1")).json()
        assert session["waiting"]["tool_calls"][0]["id"] == question["toolCallId"]


async def test_only_what_the_session_does_not_have_is_new():
    model = ScriptedChatModel([RuntimeError("away"), lambda messages, _: f"{len(messages)} messages"], stream=True)
    async with serve(make_agent(model=model)) as client:
        failed = read_events((await client.post("/agui", json=run_input(says("a")))).text)
        assert failed[-1]["type"] == "RUN_ERROR"
        # The client has no answer to the first message, so it sends both.
        await client.post("/agui", json=run_input(says("a"), says("b", "m2")))
        context = (await client.get("/api/sessions/t1")).json()["messages"]
        said = [message["content"] for message in context if message["role"] == "user"]
        assert said == ["a", "b"]


async def test_thread_belongs_to_its_owner():
    owners = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
    async with serve(make_agent(), auth=owners) as client:
        ann, bob = ({"Authorization": f"Bearer {name}-token"} for name in ("ann", "bob"))
        assert (await client.post("/agui", json=run_input(says("Hi")), headers=ann)).status_code == 200
        other = await client.post("/agui", json=run_input(says("Hi")), headers=bob)
        assert other.status_code == 200
        for headers in (ann, bob):
            assert len((await client.get("/api/sessions/t1", headers=headers)).json()["messages"]) == 2
        assert (await client.post("/agui", json=run_input(says("Hi")))).status_code == 401


def test_run_that_was_cut_is_told_again_while_it_runs():
    agent, gate = halfway_agent()
    body = run_input(says("Hi"))
    with run_server(create_app(agent)) as url, httpx2.Client(timeout=PATIENCE) as client:
        for count in (10, 20):
            with client.stream("POST", f"{url}/agui", json=body) as response:
                lines = (line for line in response.iter_lines() if line.startswith("data: "))
                events = [json.loads(line.removeprefix("data: ")) for line, _ in zip(lines, range(count), strict=False)]
            # A client sends what it has, a part of the answer too.
            started = next(event for event in events if event["type"] == "TEXT_MESSAGE_START")
            body["messages"] = [says("Hi"), {"id": started["messageId"], "role": "assistant", "content": "word0 wo"}]
        gate.set()
        events = read_events(client.post(f"{url}/agui", json=body).text)
        again = client.post(f"{url}/agui", json=run_input(*body["messages"]))
    assert [message["id"] for message in events[1]["messages"]] == ["m1"]
    assert "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT") == "".join(WORDS)
    assert events[-1]["outcome"] == {"type": "success"}
    assert again.json()["error"]["code"] == "invalid_input"  # another run, with nothing new


async def test_answer_that_was_cut_may_be_sent_again():
    async with serve(make_agent(approved_pay())) as client:
        asked = read_events((await client.post("/agui", json=run_input(says("call pay")))).text)
        [question] = asked[-1]["outcome"]["interrupts"]
        entry = {"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}
        body = run_input(says("call pay"), resume=[entry])
        first, again = [read_events((await client.post("/agui", json=body)).text) for _ in range(2)]
        assert again[-1]["outcome"] == first[-1]["outcome"] == {"type": "success"}
        assert [event["delta"] for event in again if event["type"] == "TEXT_MESSAGE_CONTENT"][-1] == "pay"
        contrary = {**entry, "payload": {"approved": False}}
        refused = await client.post("/agui", json=run_input(says("call pay"), resume=[contrary]))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


async def test_result_that_was_cut_may_be_sent_again():
    async with serve(make_agent(Camera())) as client:
        asked = read_events((await client.post("/agui", json=run_input(says("call camera")))).text)
        [call] = asked[-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "r1", "role": "tool", "toolCallId": call, "content": "a cat"}
        for _ in range(2):
            done = read_events((await client.post("/agui", json=run_input(says("call camera"), result))).text)
            assert done[-1]["outcome"] == {"type": "success"}
            assert "a cat" in "".join(event["delta"] for event in done if event["type"] == "TEXT_MESSAGE_CONTENT")


async def test_known_id_with_other_words_is_a_new_message():
    async with serve(make_agent()) as client:
        for text in ("One.", "Two."):
            events = read_events((await client.post("/agui", json=run_input(says(text, "same")))).text)
            assert events[-1]["type"] == "RUN_FINISHED"
            assert f"You said: {text}" in "".join(event.get("delta", "") for event in events)


@pytest.mark.parametrize("further", ["pay", "camera"])
async def test_answer_may_be_sent_again_while_a_further_question_waits(further):
    script = [[ToolCallBlock("a", "pay", "{}")], [ToolCallBlock("b", further, "{}")]]
    async with serve(make_agent(approved_pay(), Camera(), model=ScriptedChatModel(script, stream=True))) as client:
        asked = read_events((await client.post("/agui", json=run_input(says("go")))).text)
        [question] = asked[-1]["outcome"]["interrupts"]
        entry = {"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}
        body = run_input(says("go"), resume=[entry])
        first, again = [read_events((await client.post("/agui", json=body)).text) for _ in range(2)]
        assert again[-1] == first[-1]  # the question, and what this run used
        assert first[-1]["outcome"].get("interrupts") or first[-1]["outcome"]["pendingToolCallIds"] == ["b"]


async def rendered_runs(agent: Agent) -> list[dict[str, Any]]:
    """Return the events of the runs of a reply, each of which allows what the one before it asked."""
    rendered: list[dict[str, Any]] = []
    inputs: Any = "go"
    for run in ("r1", "r2"):
        context, translator = agent.state.reply_context, None
        before = None if context is None else context.message.copy()
        async for event in agent.reply_stream(inputs):
            translator = translator or RunTranslator(
                "t", run, event.reply_id, agent_name=agent.name, messages=[], state={}, said_before=before
            )
            rendered += translator.translate(event)
        question = agent.waiting()
        inputs = None if question is None else question.approve()
    return rendered


async def test_the_calls_of_a_tool_are_in_a_message_of_their_own() -> None:
    async def settle(context: ToolContext) -> ToolResponse | str:
        found = await context.call("find")
        paid = await context.call("pay", {"ids": found.text})
        return paid if paid.waits else paid.text

    async def find() -> str:
        return "17"

    async def pay(ids: str) -> str:
        return f"paid {ids}"

    model = ScriptedChatModel([[ToolCallBlock("c", "settle", "{}")], "Settled."])
    tools = [FunctionTool(settle, is_resumable=True), find, FunctionTool(pay, ask=True)]
    agent = Agent("clerk", model=model, tools=tools)
    rendered = await rendered_runs(agent)
    starts = [item for item in rendered if item["type"] == "TOOL_CALL_START"]
    inside = f"{agent.state.last_reply.reply_id}-inside-c"  # type: ignore[union-attr]  # it has ended
    assert [item["toolCallId"] for item in starts] == ["c", "c/1", "c/2"]
    assert [item["parentMessageId"] == inside for item in starts] == [False, True, True]
    results = [(item["toolCallId"], item["content"]) for item in rendered if item["type"] == "TOOL_CALL_RESULT"]
    assert results == [("c/1", "17"), ("c/2", "paid 17"), ("c", "paid 17")]
    [interrupt] = next(item for item in rendered if item["type"] == "RUN_FINISHED")["outcome"]["interrupts"]
    assert interrupt["toolCallId"] == "c/2"


async def test_a_call_of_an_earlier_run_has_its_result_in_this_one() -> None:
    async def settle(context: ToolContext) -> ToolResponse:
        return await context.call("pay_all")

    async def pay_all(context: ToolContext) -> ToolResponse:
        return await context.call("pay")

    async def pay() -> str:
        return "paid"

    model = ScriptedChatModel([[ToolCallBlock("c", "settle", "{}")], "Settled."])
    tools = [FunctionTool(settle, is_resumable=True), FunctionTool(pay_all, is_resumable=True)]
    agent = Agent("clerk", model=model, tools=[*tools, FunctionTool(pay, ask=True)])
    rendered = await rendered_runs(agent)
    results = [(item["toolCallId"], item["content"]) for item in rendered if item["type"] == "TOOL_CALL_RESULT"]
    assert results == [("c/1/1", "paid"), ("c/1", "paid"), ("c", "paid")]
