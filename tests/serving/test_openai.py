"""OpenAI's API, by the official client: streamed and not, usage, sessions, questions, errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns
from typing import Any

import anyio.lowlevel
import httpx2
import pytest
from pydantic import BaseModel

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.errors import ContextOverflow, RateLimited, Transient
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.serving import BearerTokens, Limits, create_app
from agentrt.state import EPHEMERAL, InMemoryStateStore
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import read_stream, run_server, serve

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@contextmanager
def serve_openai(agent: Any, *, key: str = "none", **options: Any) -> Iterator[tuple[Any, httpx2.Client]]:
    """Return the official client of a served agent, and a plain one."""
    import openai

    headers = {"Authorization": f"Bearer {key}"}
    with (
        # Comments keep a connection alive, and a client has to skip them.
        run_server(create_app(agent, limits=Limits(ping_seconds=0.01), **options)) as url,
        openai.OpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0) as client,
        httpx2.Client(base_url=url, headers=headers, timeout=30) as plain,
    ):
        yield client, plain


def weather_agent() -> Agent:
    async def look(city: str) -> str:
        await anyio.sleep(0.1)
        return f"rain in {city}"

    first = ChatResponse(
        [ThinkingBlock("Where?"), TextBlock("I look."), ToolCallBlock("c1", "look", '{"city": "Oslo"}')],
        usage=ChatUsage(7, 5, cache_input_tokens=3),
    )
    last = ChatResponse([TextBlock("It rains.")], usage=ChatUsage(9, 2))
    return Agent("weather", "", ScriptedChatModel([first, last], stream=True), tools=[look])


def test_answer_is_the_same_streamed_and_whole():
    with serve_openai(weather_agent()) as (client, plain):
        whole = client.chat.completions.create(model="weather", messages=HELLO)
        [choice] = whole.choices
        assert (choice.message.content, choice.finish_reason) == ("I look.\n\nIt rains.", "stop")
        assert choice.message.reasoning_content == "Where?"
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (16, 7, 23)
        assert whole.usage.prompt_tokens_details.cached_tokens == 3
        # Stateless: nothing is left.
        assert plain.get("/api/sessions").json()["sessions"] == []
    with serve_openai(weather_agent()) as (client, plain):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = client.chat.completions.create(model="weather", messages=HELLO, **options)
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "I look.\n\nIt rains."
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage == whole.usage
        assert plain.get("/api/sessions").json()["sessions"] == []


def test_history_of_the_client_is_the_conversation():
    model = ScriptedChatModel(["Hello Ann.", "Again."], stream=True)
    with serve_openai(Agent("assistant", "You help.", model)) as (client, _):
        messages = [
            {"role": "system", "content": "Be rude."},
            {"role": "user", "content": "I am Ann."},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
            {"role": "user", "content": "Who am I?"},
        ]
        client.chat.completions.create(model="assistant", messages=messages)
        shown = [(message.role, message.get_text_content()) for message in model.calls[0].messages]
        # The agent keeps its own prompt, and what the client says is said by the user.
        assert shown == [
            ("system", "You help."),
            ("user", "Be rude."),
            ("user", "I am Ann."),
            ("assistant", "Hello."),
            ("user", "Who am I?"),
        ]


def test_session_keeps_the_conversation_here():
    model = ScriptedChatModel([lambda messages, _: f"{len(messages)} messages"] * 3, stream=True)
    with serve_openai(Agent("assistant", "", model)) as (client, plain):
        for count in (1, 3):
            answer = client.chat.completions.create(
                model="assistant", messages=HELLO, extra_body={"session_id": "ann/1"}
            )
            assert answer.choices[0].message.content == f"{count} messages"
        assert plain.get("/api/sessions/ann/1").json()["messages_in_all"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_question_is_text_with_its_url(stream):
    import openai

    with serve_openai(make_agent(approved_pay())) as (client, plain):
        ask = {"model": "assistant", "messages": [{"role": "user", "content": "call pay"}], "stream": stream}
        answer = client.chat.completions.create(**ask)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" for chunk in answer])
        else:
            text = answer.choices[0].message.content
        place = f"{plain.base_url}/studio#agent=assistant&session=chat%2F"
        assert text.startswith(f"This needs your approval:\n- pay {{}} (pay asks before each call)\nAnswer at {place}")
        session = plain.get(f"/api/sessions/{text.rpartition('session=')[2]}").json()
        question = session["waiting"]
        path = f"/api/sessions/{session['session_id']}/replies"
        body = {"answer": {"reply_id": question["reply_id"], "calls": {"1": True}}}
        done = plain.post(path, json=body, headers={"Accept": "text/event-stream"})
        assert read_stream(done.text)[-1][1]["status"] == "completed"
        waiting = {"extra_body": {"session_id": "s2"}}
        client.chat.completions.create(**{**ask, "stream": False}, **waiting)
        with pytest.raises(openai.ConflictError) as caught:
            client.chat.completions.create(**{**ask, "stream": False}, **waiting)
        assert caught.value.code == "pending"


def test_dropped_attempt_is_followed_by_the_answer():
    cut = [ChatResponse([TextBlock("It is ")], is_last=False), Transient("cut")]
    other = [ChatResponse([TextBlock("No: ")], is_last=False), Transient("cut")]
    model = ScriptedChatModel([cut, "It is right.", other, "It is right."], stream=True)
    retry = RetryMiddleware(max_retries=2, initial_delay=0.001)
    with serve_openai(Agent("assistant", "", model, middlewares=[retry])) as (client, _):
        texts = []
        for _ in range(2):
            stream = client.chat.completions.create(model="assistant", messages=HELLO, stream=True)
            texts.append("".join([chunk.choices[0].delta.content or "" for chunk in stream]))
        # What was sent cannot be taken back; where the next attempt says the same, nothing comes twice.
        assert texts == ["It is right.", "No: \n\nIt is right."]


def test_a_model_that_is_busy_or_full_is_named_as_the_api_does():
    import openai

    model = ScriptedChatModel([RateLimited("secret"), ContextOverflow("secret"), ContextOverflow("secret")])
    with serve_openai(Agent("assistant", "", model)) as (client, _):
        with pytest.raises(openai.RateLimitError) as busy:
            client.chat.completions.create(model="assistant", messages=HELLO)
        assert busy.value.code == "rate_limit_exceeded"
        assert busy.value.response.headers["Retry-After"] == "10"
        with pytest.raises(openai.BadRequestError) as full:
            client.chat.completions.create(model="assistant", messages=HELLO)
        assert full.value.code == "context_length_exceeded"
        assert "secret" not in f"{busy.value} {full.value}"


def test_errors_have_the_form_of_the_api():
    import openai

    model = ScriptedChatModel([RuntimeError("password hunter2")] * 2, stream=True)
    owners = BearerTokens({"ann-token": "ann"})
    with serve_openai(Agent("assistant", "", model), auth=owners, key="ann-token") as (client, plain):
        create = client.chat.completions.create
        assert [model.id for model in client.models.list()] == ["assistant"]
        assert (client.models.retrieve("assistant")).id == "assistant"
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="gpt-5", messages=HELLO)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.AuthenticationError) as unknown:
            client.with_options(api_key="other").models.list()
        assert unknown.value.type == "authentication_error"
        with pytest.raises(openai.InternalServerError) as failed:
            create(model="assistant", messages=HELLO)
        with pytest.raises(openai.APIError) as cut:
            for _ in create(model="assistant", messages=HELLO, stream=True):
                pass
        assert failed.value.code == cut.value.code == "RuntimeError"
        # Sent again by the client itself, a reply would run its tools once more.
        assert failed.value.response.headers["x-should-retry"] == "false"
        assert "hunter2" not in f"{failed.value.body}{cut.value.body}"
        assert plain.get("/api/sessions").json()["sessions"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
        ({"messages": [*HELLO, {"role": "tool", "content": "a"}]}, "messages[1]"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}, *HELLO]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0]"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}}, "response_format"),
        ({"stream": "yes"}, "stream"),
        ({"model": None}, "model"),
    ],
)
async def test_parameter_that_cannot_be_used_is_named(fields, param):
    async with serve(make_agent()) as plain:
        body = {"model": "assistant", "messages": HELLO, **fields}
        response = await plain.post("/v1/chat/completions", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert (await plain.get("/api/sessions")).json()["sessions"] == []


async def test_session_for_one_answer_is_removed_after_a_kill(monkeypatch):
    store = InMemoryStateStore()
    chat = {"model": "assistant", "messages": [{"role": "user", "content": "call pay"}]}
    async with serve(make_agent(approved_pay()), store=store) as client:
        await client.post("/v1/chat/completions", json=chat)  # which leaves a question
        [info] = (await store.list(labels=EPHEMERAL)).sessions
    # As one that a server had in the middle of an answer.
    await store.save(AgentState(session_id="left", labels=info.labels))
    monkeypatch.setattr("agentrt.state.store.time_ns", lambda: time_ns() + 3_601 * 10**9)
    async with serve(make_agent(), store=store):
        while await store.load("left") is not None:
            await anyio.lowlevel.checkpoint()
    assert await store.load(info.session_id) is not None


class Trip(BaseModel):
    city: str
    days: int = 1


def answers(*texts: str) -> list[Any]:
    """Return what a model says that gives these answers, in pieces of five characters."""
    said: list[Any] = []
    for number, text in enumerate(texts):
        pieces = [text[n : n + 5] for n in range(0, len(text), 5)]
        blocks = [ToolCallBlock(f"a{number}", "GenerateStructuredOutput", piece) for piece in pieces]
        said.append([ChatResponse([block], is_last=False) for block in blocks])
    return said


def test_typed_answer_is_parsed_by_the_official_client():
    text = '{"city": "Rom\u00e9", "days": 3}'
    agent = Agent("assistant", "", ScriptedChatModel(answers(text, text)))
    with serve_openai(agent) as (client, plain):
        ask = {"model": "assistant", "messages": HELLO, "response_format": Trip}
        whole = client.chat.completions.parse(**ask).choices[0].message
        assert (whole.content, whole.parsed) == (text, Trip(city="Rom\u00e9", days=3))
        with client.chat.completions.stream(**ask) as stream:
            partial = [event.parsed for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion().choices[0].message
        assert {"city": "Rom\u00e9"} in partial
        assert (final.content, final.parsed) == (text, whole.parsed)
        assert plain.get("/api/sessions").json()["sessions"] == []


def test_typed_answer_that_does_not_fit_is_never_the_answer():
    import openai

    texts = ['{"city": "Oslo", "days": "x"}', '{"city": "Rome", "days": 1}']
    with serve_openai(Agent("assistant", "", ScriptedChatModel(answers(*texts, *texts)))) as (client, _):
        ask = {"model": "assistant", "messages": HELLO, "response_format": Trip}
        assert client.chat.completions.parse(**ask).choices[0].message.parsed == Trip(city="Rome")
        with pytest.raises(openai.APIError) as caught, client.chat.completions.stream(**ask) as stream:
            stream.until_done()
        assert caught.value.code == "answer_withdrawn"


def test_typed_answer_is_sent_as_the_list_that_a_layer_makes_it():
    class AskForCities(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for item in next_handler(structured_schema=list[str]):
                yield item

    written = '{"value": ["Rome", "Oslo"]}'
    agent = Agent("assistant", "", ScriptedChatModel(answers(written, written)), middlewares=[AskForCities()])
    with serve_openai(agent) as (client, _):
        schema = {"type": "json_schema", "json_schema": {"name": "trip", "schema": {"type": "object"}}}
        ask = {"model": "assistant", "messages": HELLO, "response_format": schema}
        whole = client.chat.completions.create(**ask).choices[0].message.content
        streamed = "".join(
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True)
        )
    assert whole == streamed == '["Rome", "Oslo"]'


@pytest.mark.parametrize("stream", [False, True])
def test_question_before_a_typed_answer_is_a_refusal(stream):
    model = ScriptedChatModel([[ToolCallBlock("1", "pay", "{}")]])
    with serve_openai(make_agent(approved_pay(), model=model)) as (client, _):
        ask = {"model": "assistant", "messages": HELLO, "response_format": Trip}
        if stream:
            with client.chat.completions.stream(**ask) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.parse(**ask).choices[0].message
        assert message.refusal.startswith("This needs your approval:")
        assert not message.content
        assert message.parsed is None
