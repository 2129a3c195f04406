"""A2A, by the official client: tasks streamed and whole, questions, cancelling, restarts, owners and refusals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict, ParseDict

from agentrt import Agent
from agentrt.errors import Transient
from agentrt.message import Base64Source, DataBlock, TextBlock, ToolCallBlock, URLSource
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.serving import BearerTokens, Limits, create_app
from agentrt.state import SQLiteStore
from agentrt.tool import FunctionTool, ToolBase
from agentrt.types import STRUCTURED_OUTPUT
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import serve

COMPLETED, INPUT_REQUIRED, CANCELED = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_INPUT_REQUIRED,
    TaskState.TASK_STATE_CANCELED,
)
HEADERS = {"A2A-Version": "1.0"}
# On trio the official client leaves a generator behind when a stream is refused, and so does httpx2 when a body is.
refused_on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@asynccontextmanager
async def open_sdk_client(app: Any, *, token: str = "none", streaming: bool = True) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        factory = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming))
        yield await factory.create_from_url("http://localhost")


@asynccontextmanager
async def serve_sdk(agent: Any, *, streaming: bool = True, **options: Any) -> AsyncIterator[Client]:
    app = create_app(agent, **options)
    async with app.router.lifespan_context(app), open_sdk_client(app, streaming=streaming) as client:
        yield client


def message(text: str, *, task: Task | None = None, **fields: Any) -> SendMessageRequest:
    names = {} if task is None else {"task_id": task.id, "context_id": task.context_id}
    return SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER, **names), **fields)


async def stream(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [response async for response in client.send_message(request)]


async def ask(client: Client, text: str, task: Task | None = None) -> Task:
    """Send a message, and return the task as it is then."""
    [first, *_] = await stream(client, message(text, task=task))
    return await client.get_task(GetTaskRequest(id=first.task.id))


async def test_a_typed_answer_is_data_whether_streamed_or_read_later():
    schema = {"type": "object", "properties": {"city": {"type": "string", "minLength": 1}}, "required": ["city"]}
    answer = [ToolCallBlock("c1", STRUCTURED_OUTPUT, '{"city": "Oslo"}')]
    async with serve_sdk(Agent("weather", "", ScriptedChatModel([answer]))) as client:
        request = message("Where is it cold?")
        ParseDict({"mediaType": "application/json", "schema": schema}, request.message.parts[0].metadata)
        responses = await stream(client, request)
        updates = [response.artifact_update for response in responses if response.HasField("artifact_update")]
        [sent] = [part for update in updates for part in update.artifact.parts if part.HasField("data")]
        [kept] = (await client.get_task(GetTaskRequest(id=responses[0].task.id))).artifacts[0].parts
        assert MessageToDict(sent) == MessageToDict(kept) == {"data": {"city": "Oslo"}}


class Measure(ToolBase):
    name = "measure"
    description = "Measures."
    input_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}
    is_external_tool = True


def text_of(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


async def test_stream_builds_the_task_that_is_kept():
    async def look(city: str) -> str:
        return f"rain in {city}"

    first = ChatResponse([TextBlock("I look."), ToolCallBlock("c1", "look", '{"city": "Oslo"}')])
    picture = DataBlock(Base64Source("aGk=", "image/png"))
    model = ScriptedChatModel([first, [TextBlock("It rains."), picture], "And stays so."], stream=True)
    async with serve_sdk(Agent("weather", "", model, tools=[look])) as client:
        responses = await stream(client, message("How is it?"))
        task = responses[0].task
        assert responses[-1].status_update.status.state == COMPLETED
        updates = [response.artifact_update for response in responses if response.HasField("artifact_update")]
        assert [update.append for update in updates] == [False] + [True] * (len(updates) - 1)
        assert "".join(part.text for update in updates for part in update.artifact.parts) == "I look.\n\nIt rains."
        kept = await client.get_task(GetTaskRequest(id=task.id))
        assert (kept.status.state, text_of(kept)) == (COMPLETED, "I look.\n\nIt rains.")
        assert kept.artifacts[0].parts[1].raw == b"hi"
        assert [part.text for part in kept.history[0].parts] == ["How is it?"]
        assert not (await client.get_task(GetTaskRequest(id=task.id, history_length=0))).history
        # The next message of the context is a task of its own, in the same conversation.
        again = message("And tomorrow?")
        again.message.context_id = task.context_id
        [second, *_] = await stream(client, again)
        assert (second.task.context_id, second.task.id == task.id) == (task.context_id, False)
        assert [m.get_text_content() for m in model.calls[-1].messages][-1] == "And tomorrow?"
        assert text_of(await client.get_task(GetTaskRequest(id=task.id))) == "I look.\n\nIt rains."


async def test_whole_answer_comes_when_the_task_is_over_or_at_once():
    async with serve_sdk(make_agent(), streaming=False) as client:
        [done] = await stream(client, message("Hello"))
        assert (done.task.status.state, text_of(done.task)) == (COMPLETED, "You said: Hello")
        # The same message, sent once more, begins nothing.
        same = message("Hello again")
        same.message.context_id = done.task.context_id
        first, second = [(await stream(client, same))[0].task for _ in range(2)]
        assert first == second
        other = message("Another")
        other.message.CopyFrom(same.message)
        other.message.parts[0].text = "Other words"
        with pytest.raises(InvalidParamsError, match="messageId"):
            await stream(client, other)
    begun = anyio.Event()
    may_end = anyio.Event()

    async def wait() -> str:
        begun.set()
        await may_end.wait()
        return "done"

    async with serve_sdk(make_agent(wait), streaming=False) as client:
        at_once = SendMessageConfiguration(return_immediately=True)
        [early] = await stream(client, message("call wait", configuration=at_once))
        assert early.task.status.state == TaskState.TASK_STATE_WORKING
        with pytest.raises(UnsupportedOperationError, match="does not wait"):
            await stream(client, message("Hurry", task=early.task))
        may_end.set()


@refused_on_asyncio
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Yes.", "paid, as you said: call pay"),
        ("refuse, it is too much", "it is too much"),
        ({"calls": {"1": True}}, "paid, as you said: call pay"),
        ({"calls": {"1": False}}, "as you said: call pay"),
    ],
)
async def test_question_is_answered_by_the_next_message(words, said):
    async with serve_sdk(make_agent(approved_pay())) as client:
        asked = await ask(client, "call pay")
        assert asked.status.state == INPUT_REQUIRED
        text, data = asked.status.message.parts
        assert (
            text.text
            == 'This needs your approval:\n- pay {} (pay asks before each call)\nAnswer "yes", or "no" and why.'
        )
        assert data.data.struct_value["asks"] == "approval"
        # What is neither yes nor no, or a yes with a condition, decides nothing: the task asks again.
        for unclear in ("Perhaps", "yes, but only 5"):
            again = await ask(client, unclear, asked)
            assert again.status == asked.status
        answer = message("", task=asked)
        if isinstance(words, dict):
            answer.message.parts[0].CopyFrom(ParseDict({"data": words}, Part()))
        else:
            answer.message.parts[0].text = words
        responses = await stream(client, answer)
        assert responses[-1].status_update.status.state == COMPLETED
        assert said in text_of(await client.get_task(GetTaskRequest(id=asked.id)))
        # It is over now, and takes no further message.
        with pytest.raises(UnsupportedOperationError, match="without 'taskId'"):
            await stream(client, message("yes", task=asked))


async def test_result_that_the_client_makes_is_its_next_message():
    async with serve_sdk(make_agent(Measure())) as client:
        asked = await ask(client, "call measure")
        assert asked.status.message.parts[0].text == "This needs the result of:\n- measure {}\nAnswer with it."
        done = await ask(client, "12 metres", asked)
        assert text_of(done) == "12 metres, as you said: call measure"


@refused_on_asyncio
async def test_waiting_context_takes_no_other_task():
    async with serve_sdk(make_agent(approved_pay())) as client:
        asked = await ask(client, "call pay")
        other = message("Something else")
        other.message.context_id = asked.context_id
        with pytest.raises(UnsupportedOperationError, match=asked.id):
            await stream(client, other)
        wrong = message("yes", task=asked)
        wrong.message.context_id = "other"
        with pytest.raises(InvalidParamsError, match="contextId"):
            await stream(client, wrong)
        canceled = await client.cancel_task(CancelTaskRequest(id=asked.id))
        assert canceled.status.state == CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=asked.id))


async def test_cancelling_stops_what_runs_and_followers_see_it():
    begun, stopped = anyio.Event(), anyio.Event()

    async def wait() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    async with serve_sdk(make_agent(wait)) as client, anyio.create_task_group() as group:
        at_once = SendMessageConfiguration(return_immediately=True)
        followed: list[StreamResponse] = []

        async def follow(task_id: str) -> None:
            followed.extend([response async for response in client.subscribe(SubscribeToTaskRequest(id=task_id))])

        request = message("call wait", configuration=at_once)
        request.message.context_id = "ann/1"
        group.start_soon(stream, client, request)
        await begun.wait()
        task_id = f"ann/1~{request.message.message_id}"
        group.start_soon(follow, task_id)
        await anyio.wait_all_tasks_blocked()
        canceled = await client.cancel_task(CancelTaskRequest(id=task_id))
        await stopped.wait()
        assert canceled.status.state == CANCELED
    assert followed[0].task.id == task_id
    assert followed[-1].status_update.status.state == CANCELED


@refused_on_asyncio
async def test_task_is_found_and_answered_after_a_restart(tmp_path):
    def open_store() -> SQLiteStore:
        return SQLiteStore(tmp_path / "agent.db", durability="process")

    async with open_store() as store, serve_sdk(make_agent(approved_pay()), store=store) as client:
        done = await ask(client, "Hello")
        asked = await ask(client, "call pay")
    async with open_store() as store, serve_sdk(make_agent(approved_pay()), store=store) as client:
        assert await client.get_task(GetTaskRequest(id=done.id)) == done
        assert await client.get_task(GetTaskRequest(id=asked.id)) == asked
        seen = [response async for response in client.subscribe(SubscribeToTaskRequest(id=asked.id))]
        assert seen[-1].status_update.status == asked.status
        assert text_of(await ask(client, "yes", asked)) == "paid, as you said: call pay"
        with pytest.raises(UnsupportedOperationError, match="GetTask"):
            [response async for response in client.subscribe(SubscribeToTaskRequest(id=asked.id))]


async def test_given_up_attempt_is_replaced():
    failing = [ChatResponse([TextBlock("Hal")], is_last=False), Transient("cut")]
    model = ScriptedChatModel([failing, "Hello."], stream=True)
    agent = Agent("assistant", "", model, middlewares=[RetryMiddleware(initial_delay=0)])
    async with serve_sdk(agent) as client:
        updates = [r.artifact_update for r in await stream(client, message("Hi")) if r.HasField("artifact_update")]
        shown = ""
        for update in updates:
            text = "".join(part.text for part in update.artifact.parts)
            shown = shown + text if update.append else text
        assert shown == "Hello."


async def test_failed_reply_is_a_failed_task_without_its_words():
    model = ScriptedChatModel([RuntimeError("secret-42")], stream=True)
    async with serve_sdk(Agent("assistant", "", model)) as client:
        task = await ask(client, "Hi")
        assert task.status.state == TaskState.TASK_STATE_FAILED
        assert task.status.message.parts[0].text == "the reply failed: RuntimeError"


@refused_on_asyncio
async def test_tasks_of_another_owner_are_not_there():
    app = create_app(make_agent(approved_pay()), auth=BearerTokens({"t1": "ann", "t2": "bob"}))
    async with (
        app.router.lifespan_context(app),
        open_sdk_client(app, token="t1") as ann,
        open_sdk_client(app, token="t2") as bob,
    ):
        asked = await ask(ann, "call pay")
        for call in (
            bob.get_task(GetTaskRequest(id=asked.id)),
            bob.cancel_task(CancelTaskRequest(id=asked.id)),
            stream(bob, message("yes", task=asked)),
        ):
            with pytest.raises(TaskNotFoundError, match="this task does not exist"):
                await call
        with pytest.raises(TaskNotFoundError):
            await bob.get_task(GetTaskRequest(id="nothing~here"))
        # The context of that id is his own.
        mine = message("Hello")
        mine.message.context_id = asked.context_id
        await stream(bob, mine)
        assert await ann.get_task(GetTaskRequest(id=asked.id)) == asked


async def test_tasks_of_an_owner_are_listed_page_by_page():
    app = create_app(make_agent(approved_pay()), auth=BearerTokens({"t1": "ann", "t2": "bob"}))
    async with app.router.lifespan_context(app), open_sdk_client(app, token="t1") as client:
        hello = await ask(client, "Hi")
        again = await ask(client, "Hi again", Task(context_id=hello.context_id))
        paying = await ask(client, "call pay")
        everything = await client.list_tasks(ListTasksRequest())
        assert [task.id for task in everything.tasks] == [paying.id, again.id, hello.id]
        assert (everything.total_size, everything.page_size, everything.next_page_token) == (3, 50, "")
        assert [task.status.state for task in everything.tasks] == [INPUT_REQUIRED, COMPLETED, COMPLETED]
        assert not any(task.artifacts for task in everything.tasks)
        assert everything.tasks[2].history[0].parts[0].text == "Hi"
        first = await client.list_tasks(ListTasksRequest(page_size=2, include_artifacts=True))
        assert text_of(first.tasks[1]) == "You said: Hi again"
        second = await client.list_tasks(ListTasksRequest(page_size=2, page_token=first.next_page_token))
        assert ([task.id for task in second.tasks], second.next_page_token) == ([hello.id], "")
        waiting = ListTasksRequest(status=INPUT_REQUIRED)
        assert [task.id for task in (await client.list_tasks(waiting)).tasks] == [paying.id]
        of_context = await client.list_tasks(ListTasksRequest(context_id=hello.context_id))
        assert [task.id for task in of_context.tasks] == [again.id, hello.id]
        newer = ListTasksRequest(status_timestamp_after=everything.tasks[1].status.timestamp)
        assert [task.id for task in (await client.list_tasks(newer)).tasks] == [paying.id]
        async with open_sdk_client(app, token="t2") as other:
            assert (await other.list_tasks(ListTasksRequest(context_id=hello.context_id))).total_size == 0


async def test_files_go_in_and_out_by_reference():
    report = DataBlock(URLSource("https://files.example/report.pdf", "application/pdf"), name="report.pdf")
    model = ScriptedChatModel([[TextBlock("Read this."), report]])
    async with serve_sdk(Agent("reader", "", model)) as client:
        request = message("Look.")
        request.message.parts.append(Part(url="https://files.example/b?n=1", filename="b.pdf"))
        request.message.parts.append(Part(raw=b"\x00", media_type="audio/wav"))
        [first, *_] = await stream(client, request)
        task = await client.get_task(GetTaskRequest(id=first.task.id))
    _, letter, sound = model.calls[0].messages[-1].get_content_blocks()
    assert (letter.name, letter.source) == ("b.pdf", URLSource("https://files.example/b?n=1", "application/pdf"))
    assert sound.source == Base64Source("AA==", "audio/wav")
    assert task.history[0].parts[1].url == "https://files.example/b?n=1"
    sent = task.artifacts[0].parts[1]
    assert (sent.url, sent.media_type, sent.filename) == (report.source.url, "application/pdf", "report.pdf")


async def test_running_and_queued_tasks_are_listed():
    started, done = anyio.Event(), anyio.Event()

    async def pay() -> str:
        started.set()
        await done.wait()
        return "paid"

    now = SendMessageConfiguration(return_immediately=True)
    async with serve_sdk(make_agent(FunctionTool(pay)), streaming=False) as client:
        [first] = await stream(client, message("call pay", configuration=now))
        await started.wait()
        [second] = await stream(client, message("Hi", task=Task(context_id=first.task.context_id), configuration=now))
        listed = await client.list_tasks(ListTasksRequest())
        done.set()
    assert {task.id for task in listed.tasks} == {first.task.id, second.task.id}
    assert [task.status.state for task in listed.tasks] == [TaskState.TASK_STATE_WORKING] * 2


async def test_card_says_how_to_come_in_and_names_no_other_agent():
    model = ScriptedChatModel(["Hi."])
    agents = [
        Agent("first", "secret", model, description="Greets. "),
        Agent("second", "secret", model, description=" "),
    ]
    async with serve(agents, auth=BearerTokens({"t1": "ann"})) as client:
        card = (await client.get("/.well-known/agent-card.json")).json()
        assert (card["name"], card["supportedInterfaces"][0]["url"]) == ("first", "http://localhost/a2a")
        assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
        assert (card["description"], card["skills"][0]["description"]) == ("Greets.", "Greets.")
        assert "second" not in str(card)
        assert "secret" not in str(card)
        path = "/.well-known/agent-card.json?agent=second"
        assert (await client.get(path)).status_code == 401
        named = (await client.get(path, headers={"Authorization": "Bearer t1"})).json()
        assert named["supportedInterfaces"][0]["url"] == "http://localhost/a2a?agent=second"
        assert named["description"].startswith("The agent second, which ")
        refused = await client.post("/a2a", json={}, headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, -32600)


def send(**fields: Any) -> dict[str, Any]:
    own = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hi"}], **fields}
    return {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": {"message": own}}


REFUSED: list[tuple[Any, int, str]] = [
    ([], -32600, "object"),
    ({"id": 7}, -32600, "jsonrpc"),
    ({**send(), "method": "message/send"}, -32601, "1.0"),
    ({**send(), "method": "ListTasks", "params": {"pageSize": 101}}, -32602, "pageSize"),
    ({**send(), "method": "ListTasks", "params": {"pageToken": "x"}}, -32602, "pageToken"),
    ({**send(), "method": "ListTasks", "params": {"status": "COMPLETED"}}, -32602, "status"),
    ({**send(), "method": "ListTasks", "params": {"statusTimestampAfter": "now"}}, -32602, "statusTimestampAfter"),
    ({**send(), "method": "CreateTaskPushNotificationConfig"}, -32003, "SubscribeToTask"),
    (
        {
            **send(),
            "params": {**send()["params"], "configuration": {"taskPushNotificationConfig": {"url": "http://a"}}},
        },
        -32003,
        "SubscribeToTask",
    ),
    ({**send(), "method": "GetTask", "params": {}}, -32602, "missing"),
    ({**send(), "method": "GetTask", "params": {"id": "x"}}, -32001, "does not exist"),
    ({**send(), "params": {"message": 3}}, -32602, "'message'"),
    (send(messageId=""), -32602, "messageId"),
    (send(role="ROLE_AGENT"), -32602, "role"),
    (send(parts=[]), -32602, "parts"),
    (send(parts=[{"text": "a", "data": {}}]), -32602, "parts[0]"),
    (send(parts=[{"text": "a", "metadata": {"schema": {"type": "array"}}}]), -32602, "parts[0].metadata.schema"),
    (send(parts=[{"text": "a", "metadata": {"schema": {"type": "object"}}}] * 2), -32602, "at most one"),
    (send(parts=[{"text": " "}]), -32602, "not empty"),
    (send(parts=[{"data": {"a": 1}}]), -32602, "not empty"),
    (send(parts=[{"text": "a"}, {"raw": "aGk=", "mediaType": "video"}]), -32005, "application/pdf"),
    (send(parts=[{"text": "a"}, {"url": "file:///etc/passwd"}]), -32602, "https://"),
    (send(parts=[{"text": "a"}, {"raw": "?", "mediaType": "image/png"}]), -32602, "base64"),
    (send(taskId="nothing~here"), -32001, "does not exist"),
    (send(contextId="a\x00b"), -32602, "contextId"),
]


async def test_refusal_has_the_code_of_the_protocol():
    async with serve(make_agent()) as client:
        for body, code, words in REFUSED:
            answer = await client.post("/a2a", json=body, headers=HEADERS)
            error = answer.json()["error"]
            assert (error["code"], answer.status_code) == (code, 200), body
            assert words in error["message"]
        assert (await client.get("/api/sessions")).json()["sessions"] == []


@refused_on_asyncio
async def test_limits_hold_for_bodies_versions_and_streams():
    limits = Limits(body_bytes=300, streams_per_owner=1)
    async with serve(make_agent(), limits=limits, auth=BearerTokens({"t1": "ann"})) as client:
        client.headers.update({**HEADERS, "Authorization": "Bearer t1"})
        large = await client.post("/a2a", json=send(parts=[{"text": "x" * 300}]))
        assert (large.status_code, large.json()["error"]["code"]) == (413, -32600)
        old = await client.post("/a2a", json=send(), headers={"A2A-Version": "0.3"})
        assert old.json()["error"] == {**old.json()["error"], "code": -32009}
        # A refused call gives its place back.
        for number in range(3):
            await client.post("/a2a", json=send(parts=[]))
            done = await client.post("/a2a", json=send(messageId=f"m{number}"))
            assert done.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        # Names of protobuf count as well.
        snake = {"message_id": "s1", "role": 1, "parts": [{"text": "Hi"}], "messageId": "s1"}
        snake.pop("messageId")
        named = await client.post("/a2a", json={**send(), "params": {"message": snake}})
        assert "result" in named.json()
