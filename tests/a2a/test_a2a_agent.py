"""An agent elsewhere as one of this program: both ends of the protocol, hostile agents, cancelling and resuming."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anyio.lowlevel
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentrt import Agent, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt.a2a import A2AAgent
from agentrt.errors import ConfigError, Malformed, ModelError, Refused, Rejected, Timeout, Transient
from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import HintBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ScriptedChatModel, Timeouts
from agentrt.pipeline import MsgHub, sequential_pipeline
from agentrt.serving import BearerTokens, create_app
from agentrt.state import InMemoryStateStore
from tests.a2a.reference_agent import ReferenceAgent, run_reference_agent
from tests.loop.helpers import saved_state
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import run_server

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.a2a.task._FIRST_WAIT", 0.01)


@pytest.fixture
def reference() -> Iterator[tuple[str, ReferenceAgent]]:
    with run_reference_agent() as served:
        yield served


def answer_to(agent: Any, text: str) -> ExternalExecutionResultEvent:
    question = agent.waiting()
    [call] = question.tool_calls
    return ExternalExecutionResultEvent(question.reply_id, [ToolResultBlock(call.id, call.name, text)])


def asked_by(agent: Any) -> str:
    return json.loads(agent.waiting().tool_calls[0].input)["question"]


async def follow_until_done(agent: Any, other: ReferenceAgent) -> Any:
    """Resume the reply; the other side goes on when it is followed, since it sends twice what it makes meanwhile."""
    stream = agent.reply_stream(None)
    async for event in stream:
        if event.type == "THINKING_BLOCK_DELTA":
            other.may_go_on.set()
    return stream.message


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # the other side is in another thread
        await anyio.sleep(0.01)


async def test_reference_agent_answers_streams_and_asks(reference):
    url, other = reference
    async with A2AAgent(url, name="weather") as agent:
        assert (await agent.reply("greet")).get_text_content() == "Hello."
        stream = agent.reply_stream("rain?")
        pieces = [piece async for piece in stream.text()]
        assert "".join(pieces) == "It rains (rain?)."
        assert stream.message.get_content_blocks("thinking")[0].thinking == "looking\n"
        await agent.reply("ask")
        assert asked_by(agent) == "Which city?"
        # Another process that has the state answers.
        state = saved_state(agent)
        elsewhere = A2AAgent(url, name="weather", state=state)
        async with elsewhere:
            done = await elsewhere.reply(answer_to(elsewhere, "Oslo"))
        assert done.get_text_content() == "It rains (Oslo)."
        assert other.heard[-1][1] == "Oslo"
        with pytest.raises(ModelError, match="ended its task as FAILED: no map"):
            await agent.with_state(AgentState()).reply("fail")


async def test_two_agents_of_one_name_know_their_own_answers(reference):
    url, other = reference
    async with A2AAgent(url) as first, A2AAgent(url) as second:
        answer = await sequential_pipeline([first, second], Msg("user", "rain?", "user"))
        # The second one gets the answer of the first as a message.
        assert other.heard[-1][1] == f"{first.name}: It rains (rain?)."
        assert answer.get_text_content() == f"It rains ({first.name}: It rains (rain?).)."


async def test_message_of_a_task_that_failed_is_sent_once(reference):
    url, other = reference
    async with A2AAgent(url) as agent:
        await agent.reply("greet")
        for _ in range(2):
            with pytest.raises(Refused, match="not mine"):
                await agent.reply("decline")
        await agent.reply("rain?")
        assert [text for _, text in other.heard[-4:]] == ["greet", "decline", "decline", "rain?"]
        # A message that did not arrive is sent with the next one.
        lost = A2AAgent("http://127.0.0.1:9", state=agent.state, name=agent.name)
        async with lost:
            with pytest.raises(Transient):
                await lost.reply("and snow?")
        await agent.reply("and hail?")
        assert other.heard[-1][1] == "and snow?\nand hail?"


async def test_message_of_a_failed_task_is_sent_once_beside_hints(reference):
    class Hints(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            *before, question = input_kwargs["messages"]
            return await next_handler(messages=[*before, UserMsg("user", [HintBlock("hint")]), question])

    url, other = reference
    async with A2AAgent(url, middlewares=[Hints()]) as agent:
        message = UserMsg("user", "decline")
        for _ in range(2):
            with pytest.raises(Refused):
                await agent.reply(message)
        await agent.reply("rain?")
    assert [text for _, text in other.heard[-3:]] == ["hint\ndecline", "hint\ndecline", "hint\nrain?"]


async def test_agent_that_does_not_stream_is_asked_until_it_is_done():
    with run_reference_agent(streaming=False) as (url, _):
        async with A2AAgent(url) as agent:
            assert (await agent.reply("rain?")).get_text_content() == "It rains (rain?)."
            await agent.reply("ask")
            done = await agent.reply(answer_to(agent, "Oslo"))
            assert done.get_text_content().endswith("It rains (Oslo).")


@pytest.mark.parametrize("how", ["interrupt", "cancel", "close"])
async def test_ending_the_reply_here_cancels_the_task_there(reference, how):
    url, other = reference
    other.canceled.clear()
    async with A2AAgent(url) as agent, anyio.create_task_group() as group:
        task_of = agent.state.middleware_data
        if how == "close":
            async with agent.reply_stream("wait") as events:
                async for event in events:
                    if event.type == "THINKING_BLOCK_DELTA":
                        break
        else:
            group.start_soon(agent.reply, "wait")
            await wait_until(lambda: bool(task_of.get("A2AAgent", {}).get("task_id")))
            if how == "cancel":
                group.cancel_scope.cancel()
            else:
                agent.interrupt()
    assert other.canceled == [task_of["A2AAgent"]["task_id"]]


async def test_handed_over_reply_follows_the_same_task_elsewhere():
    with run_reference_agent() as (url, other):
        store = InMemoryStateStore()
        async with A2AAgent(url, name="weather", state_store=store) as agent:
            stream = agent.reply_stream("wait")
            async for event in stream:
                if event.type == "THINKING_BLOCK_DELTA":
                    break
            await stream.hand_over()
        state = await store.load(agent.state.session_id)
        async with A2AAgent(url, name="weather", state_store=store, state=state) as elsewhere:
            done = await follow_until_done(elsewhere, other)
        assert done.get_text_content() == "It rains (wait)."
        assert (len(other.heard), other.canceled) == (1, [])


@pytest.mark.parametrize("is_taken", [True, False])
async def test_answer_that_was_sent_is_not_sent_again_elsewhere(is_taken):
    with run_reference_agent() as (url, other):
        store = InMemoryStateStore()
        async with A2AAgent(url, name="weather", state_store=store) as agent:
            await agent.reply("ask")
            stream = agent.reply_stream(answer_to(agent, "wait"))
            async for event in stream:
                if event.type == "THINKING_BLOCK_DELTA":
                    break
            await stream.hand_over()
        state = await store.load(agent.state.session_id)
        # As a process leaves it that dies before it hears of what it has sent.
        state.middleware_data["A2AAgent"]["is_taken"] = is_taken
        async with A2AAgent(url, name="weather", state_store=store, state=state) as elsewhere:
            done = await follow_until_done(elsewhere, other)
        assert done.get_text_content() == "It rains (wait)."
        assert ([text for _, text in other.heard], other.canceled) == (["ask", "wait"], [])


async def test_two_of_ours_ask_through_each_other():
    app = create_app(make_agent(approved_pay()), auth=BearerTokens({"t1": "ann"}))
    remote = A2AAgent(
        "http://localhost",
        name="bank",
        headers={"Authorization": "Bearer t1"},
        http_client=lambda: httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)),
    )
    call = ToolCallBlock("1", "bank", '{"query": "call pay"}')
    boss = Agent("boss", "", ScriptedChatModel([[call], "Done."]), tools=[remote.as_tool("Pays.")])
    async with app.router.lifespan_context(app), remote:
        await boss.reply("Pay")
        assert asked_by(boss).startswith("This needs your approval:\n- pay {}")
        assert (await boss.reply(answer_to(boss, '{"calls": {"1": true}}'))).get_text_content() == "Done."
        [result] = boss.state.context[-1].get_content_blocks("tool_result")
        assert result.text == "paid, as you said: call pay"
        assert "t1" not in repr(remote) + str(vars(remote)) + boss.state.model_dump_json()
        # In a hub it hears what others say, and is told who said it.
        speaker = Agent("ann", "", ScriptedChatModel(["I am Ann."]))
        async with MsgHub([speaker, remote]):
            await speaker("Who are you?")
            heard = await remote()
        assert heard.get_text_content() == "You said: ann: I am Ann."


async def test_remote_failure_is_a_result_and_the_reply_continues(reference):
    url, _ = reference
    call = ToolCallBlock("1", "weather", '{"query": "fail"}')
    async with A2AAgent(url, name="weather") as remote:
        boss = Agent("boss", "", ScriptedChatModel([[call], "It is down."]), tools=[remote.as_tool("Weather.")])
        assert (await boss.reply("Rain?")).get_text_content() == "It is down."
    [result] = boss.state.context[-1].get_content_blocks("tool_result")
    assert (result.state, result.text) == ("error", "[subagent_error] weather: ModelError")


def update(state: str, task: str = "t1", **message: Any) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": task, "contextId": "c1", "status": {"state": f"TASK_STATE_{state}", **message}}}


def task(state: str) -> dict[str, Any]:
    return {"task": {"id": "t1", "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}}}


def chunk(text: Any, **file: str) -> dict[str, Any]:
    artifact = {"artifactId": "a", "parts": [file or {"text": text}]}
    return {"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact, "append": True}}


SCRIPTS: dict[str, tuple[list[Any], type[Exception], str]] = {
    "after-end": ([task("WORKING"), update("COMPLETED"), update("WORKING")], Malformed, "after the end"),
    "backwards": ([task("WORKING"), update("SUBMITTED")], Malformed, "SUBMITTED after WORKING"),
    "unknown-state": ([task("DREAMING")], Malformed, "DREAMING"),
    "no-state": ([{"task": {"id": "t1"}}], Malformed, "state"),
    "other-task": ([task("WORKING"), update("COMPLETED", "t2")], Malformed, "another task"),
    "nothing-known": ([{"surprise": {}}], Malformed, "neither a task"),
    "bad-parts": ([{"message": {"parts": "x"}}], Malformed, "parts"),
    "not-json": ([b"data: <html>\n\n"], Malformed, "JSON"),
    "not-a-number": ([task("WORKING"), b'data: {"result": NaN}\n\n'], Malformed, "JSON"),
    "too-large": ([task("WORKING"), b'data: {"result": -1e999}\n\n'], Malformed, "JSON"),
    "bad-file": ([task("WORKING"), chunk("x", raw="?!")], Malformed, "base64"),
    "endless": ([task("WORKING"), ...], Malformed, "max_bytes"),
    "silent": ([task("WORKING"), None], Timeout, "idle"),
    "dropped": ([b""], Transient, "before the end"),
    "refuses": ([{"error": {"code": -32602, "message": "no\x1b[31m"}}], Rejected, "refuses the call"),
    "declines": ([task("REJECTED")], Refused, "declined"),
    "wants-login": ([task("AUTH_REQUIRED")], Rejected, "headers"),
}


QUIET: dict[str, list[Any]] = {
    "lost": [task("WORKING"), chunk("Half")],
    "says-nothing": [task("COMPLETED")],
    "only-thinks": [task("WORKING"), update("WORKING", message={"parts": [{"text": "Hm"}]}), update("COMPLETED")],
    "half-pair": [update("INPUT_REQUIRED", "t\ud800", message={"parts": [{"text": "Which?"}, {"data": "\ud800"}]})],
}
"""What agents play that break no rule."""


ELSEWHERE = {"leads-away": "http://elsewhere.example/rpc", "bad-url": "http://[elsewhere"}


class HostileAgents:
    """Agents that play the scripts, each below a path of its own; they note what they were asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.app = Starlette(
            routes=[
                Route("/{name}/.well-known/agent-card.json", self.card),
                Route("/{name}/rpc", self.answer, methods=["POST"]),
            ]
        )

    async def card(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "no-card":
            return Response(status_code=404)
        if name == "locked":
            return Response(status_code=401)
        url = ELSEWHERE.get(name, f"{request.url.scheme}://{request.url.netloc}/{name}/rpc")
        binding = "GRPC" if name == "other-binding" else "JSONRPC"
        interfaces = [{"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}]
        return JSONResponse({"capabilities": {"streaming": True}, "supportedInterfaces": interfaces})

    async def answer(self, request: Request) -> Response:
        name, method = request.path_params["name"], (await request.json())["method"]
        self.calls.append((name, method))
        if method == "CancelTask":
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": task("CANCELED")["task"]})
        if method == "GetTask":
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": task("COMPLETED")["task"]})
        if method == "SubscribeToTask":
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": -32004, "message": "it is over"}})
        script = QUIET[name] if name in QUIET else SCRIPTS[name][0]
        return StreamingResponse(self.play(script), media_type="text/event-stream")

    async def play(self, script: list[Any]) -> AsyncIterator[bytes]:
        for item in script:
            if item is None:
                await anyio.sleep_forever()
            while item is ...:
                yield self.encode(chunk("x" * 5_000))
                await anyio.lowlevel.checkpoint()
            yield item if isinstance(item, bytes) else self.encode(item)

    def encode(self, item: dict[str, Any]) -> bytes:
        body = item if "error" in item else {"result": item}
        return f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, **body})}\n\n".encode()


@pytest.fixture
def hostile() -> Iterator[tuple[str, HostileAgents]]:
    agents = HostileAgents()
    with run_server(agents.app) as url:
        yield url, agents


async def test_hostile_agent_gives_a_clear_error_and_is_left(hostile):
    url, agents = hostile
    for name, (_, kind, words) in SCRIPTS.items():
        patience = Timeouts(idle=0.2) if name == "silent" else None
        async with A2AAgent(f"{url}/{name}", max_bytes=50_000, timeouts=patience) as agent:
            with anyio.fail_after(PATIENCE), pytest.raises(kind, match=words) as caught:
                await agent.reply("Hi")
            assert "\x1b" not in str(caught.value)
            # It is not left working for nobody.
            names_task = any(isinstance(item, dict) and "task" in item for item in SCRIPTS[name][0])
            has_task = names_task and name not in ("after-end", "declines")
            assert ((name, "CancelTask") in agents.calls) is has_task, name
            assert agent.state.last_reply.finished_reason == "error"


async def test_card_that_cannot_be_used_says_what_to_do(hostile):
    url, _ = hostile
    cards = {
        "no-card": "no card at",
        "locked": "headers",
        "other-binding": "JSON-RPC",
        **dict.fromkeys(ELSEWHERE, "another server"),
    }
    for name, words in cards.items():
        for options in ({"headers": {"Authorization": "Bearer secret-42"}}, {"auth": lambda *_: {"x": "secret-42"}}):
            async with A2AAgent(f"{url}/{name}", **options) as agent:
                with pytest.raises(Rejected, match=words) as caught:
                    await agent.card()
                assert "secret-42" not in str(caught.value)


async def test_lost_stream_is_taken_up_again(hostile):
    url, agents = hostile
    async with A2AAgent("http://127.0.0.1:9", timeouts=Timeouts(connect=1)) as agent:
        with pytest.raises(Transient, match=r"the agent at http://127.0.0.1:9 could not be reached"):
            await agent.reply("Hi")
    # A stream that is lost is taken up again, and nothing is sent twice.
    async with A2AAgent(f"{url}/lost") as lost:
        assert (await lost.reply("Hi")).get_text_content() == "Half"
    assert [method for _, method in agents.calls] == ["SendStreamingMessage", "SubscribeToTask", "GetTask"]


@pytest.mark.parametrize("name", ["says-nothing", "only-thinks"])
async def test_task_that_ends_without_an_answer_is_sent_once(hostile, name):
    url, agents = hostile
    async with A2AAgent(f"{url}/{name}") as agent:
        assert (await agent.reply("Hi")).get_text_content() == "[The agent said nothing.]"
    assert [method for _, method in agents.calls] == ["SendStreamingMessage"]


async def test_half_of_a_character_leaves_a_state_that_can_be_saved(hostile):
    url, agents = hostile
    async with A2AAgent(f"{url}/half-pair", state_store=InMemoryStateStore()) as agent:
        await agent.reply("Hi\ud800")
        assert asked_by(agent) == "Which?"
    assert [method for _, method in agents.calls] == ["SendStreamingMessage"]


async def test_query_of_the_url_and_the_time_to_connect_hold():
    seen = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((str(request.url), request.extensions["timeout"]["connect"]))
        return httpx2.Response(404)

    def make_client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))

    agent = A2AAgent("http://a/b/?agent=second", timeouts=Timeouts(connect=3), http_client=make_client)
    async with agent:
        with pytest.raises(Rejected, match="no card"):
            await agent.card()
    assert seen == [("http://a/b/.well-known/agent-card.json?agent=second", 3)]


async def test_each_request_is_signed():
    signed = []

    async def sign(method: str, url: str, body: bytes) -> dict[str, str]:
        signed.append((method, url, bool(body)))
        return {"x-signature": str(len(signed))}

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["x-signature"] == str(len(signed))
        interfaces = [{"url": "http://a/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
        if request.method == "GET":
            return httpx2.Response(200, json={"supportedInterfaces": interfaces})
        return httpx2.Response(200, json={"result": {"message": {"parts": [{"text": "Hello"}]}}})

    client = partial(httpx2.AsyncClient, transport=httpx2.MockTransport(answer))
    async with A2AAgent("http://a", auth=sign, http_client=client) as agent:
        assert (await agent.reply("Hi")).get_text_content() == "Hello"
    assert signed == [("GET", "http://a/.well-known/agent-card.json", False), ("POST", "http://a/rpc", True)]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://a", {"auth": "a:b"}),
        ("localhost:8000", {}),
        (3, {}),
        ("http://[a", {}),
        ("http://a:b", {}),
        ("http://a", {"headers": [("a", "b")]}),
        ("http://a:b@c", {}),
        ("http://a", {"max_bytes": 0}),
        ("http://a", {"max_bytes": True}),
        ("http://a", {"timeouts": 5}),
        ("http://a", {"http_client": object()}),
        ("http://a", {"headers": {"a": 1}}),
    ],
)
def test_wrong_options_are_refused_without_showing_secrets(url, options):
    with pytest.raises(ConfigError) as caught:
        A2AAgent(url, **options)
    assert "a:b" not in str(caught.value)
