"""What all remote models share: one client per event loop, requests that fail, copies, redirects, proxies."""

import copy
import json
import logging
import pickle
import traceback
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest

from agentrt import Agent
from agentrt.errors import Malformed, ModelError, RateLimited, Rejected, Timeout, Transient, UsageError
from agentrt.message import UserMsg
from agentrt.model import OpenAIChatModel, Timeouts
from tests.model.wire_openai import (
    DONE,
    HANG,
    HELLO,
    KEY,
    URL,
    Answer,
    Server,
    answer_of,
    completion,
    delta,
    endless_line,
    error,
    events,
    failure_of,
    model_of,
    says,
    stream_of,
)
from tests.pairwise import pairwise


async def test_a_refused_request_is_raised_by_the_call_itself() -> None:
    model, _ = model_of(error(429))

    with pytest.raises(RateLimited):
        await model(HELLO)
    await model.aclose()


async def test_nothing_is_tried_again() -> None:
    model, server = model_of(error(500))

    with pytest.raises(Transient):
        await answer_of(model)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (httpx2.ConnectError("canary"), Transient, "is the server running, is base_url='http://test"),
        (httpx2.ConnectTimeout(""), Timeout, r"within 10 s \(connect\).*Timeouts\(connect=...\)"),
        (httpx2.PoolTimeout("canary"), Timeout, "too slow for its HTTP client .PoolTimeout"),
        (httpx2.RemoteProtocolError("canary"), Transient, "did not answer .RemoteProtocolError"),
        (httpx2.DecodingError("canary"), Malformed, "DecodingError"),
        (httpx2.UnsupportedProtocol("canary"), Rejected, "UnsupportedProtocol.*base_url="),
    ],
)
async def test_a_request_without_an_answer_names_the_remedy(
    raised: Exception, kind: type[ModelError], words: str
) -> None:
    failure = await failure_of(raised)

    assert type(failure) is kind
    assert "canary" not in "".join(traceback.format_exception(failure))
    with pytest.raises(kind, match=words):
        raise failure


async def test_a_message_that_fits_into_no_request_is_rejected() -> None:
    model, _ = model_of(says("ok"))

    with pytest.raises(Rejected, match=r"could not be sent .*surrogates"):
        await answer_of(model, [UserMsg("user", "half a pair: \ud83d")])


async def test_many_conversations_share_a_model() -> None:
    def echo(request: httpx2.Request) -> Answer:
        asked = json.loads(request.content)["messages"][-1]["content"]
        return stream_of(delta(content="You said "), delta(content=asked), delta("stop"))

    model, server = model_of(echo)
    agent = Agent("tester", model=model)
    answers: dict[int, Any] = {}

    async def converse(number: int) -> None:
        answers[number] = await agent.with_state(type(agent.state)()).reply(f"number {number}")

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(converse, number)
    assert {n: msg.get_text_content() for n, msg in answers.items()} == {n: f"You said number {n}" for n in range(50)}
    assert not server.open
    assert len(model._peer.clients) == 1
    await model.aclose()


def test_one_model_serves_one_event_loop_after_the_other() -> None:
    model, _ = model_of(says("ok"))
    pieces = [anyio.run(answer_of, model, backend=each) for each in ("asyncio", "trio", "asyncio")]

    assert [each[-1].is_last for each in pieces] == [True, True, True]
    assert not model._peer.clients


async def test_a_closed_model_can_be_used_again() -> None:
    made: list[Server] = []

    def client() -> httpx2.AsyncClient:
        made.append(Server(says("ok")))
        return httpx2.AsyncClient(transport=made[-1])

    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL, http_client=client)
    for _ in range(2):
        await answer_of(model)
    await model.aclose()

    assert len(made) == 2


END = events(delta("stop")) + DONE


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_a_model_lets_those_end_who_still_use_it(stream: bool) -> None:
    released = anyio.Event()
    made: list[httpx2.AsyncClient] = []
    whole = [b"".join(completion(content="slow").chunks)]
    slow = Answer([events(delta(content="slow")), released, END] if stream else [b" ", released, *whole])
    quick = says("quick") if stream else completion(content="quick")
    server = Server(lambda request: slow if b"dawdle" in request.content else quick)

    def client() -> httpx2.AsyncClient:
        made.append(httpx2.AsyncClient(transport=server))
        return made[-1]

    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL, stream=stream, http_client=client)
    answers: list[str | None] = []

    async def converse(word: str) -> None:
        async with Agent("tester", model=model) as agent:
            answers.append((await agent.reply(word)).get_text_content())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(converse, "dawdle")
        await server.hanging.wait()
        await converse("hurry")
        assert not made[0].is_closed
        await converse("hurry again")  # with a client of its own
        released.set()
    assert answers == ["quick", "quick", "slow"]
    assert [each.is_closed for each in made] == [True, True]
    assert not server.open


@pytest.mark.parametrize("slow", [HANG, Answer([HANG])])
async def test_a_given_up_client_closes_after_its_last_call(slow: Any) -> None:
    server = Server(slow)
    client = httpx2.AsyncClient(transport=server)
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL, stream=False, http_client=lambda: client)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(model, HELLO)
        await server.hanging.wait()
        await model.aclose()
        assert not client.is_closed
        tasks.cancel_scope.cancel()
    assert client.is_closed


@pytest.mark.parametrize(
    ("auth", "status", "location", "stream"),
    pairwise(
        [None, ("user", "word")],
        [301, 302, 307, 308],
        ["https://elsewhere.invalid/v1?token=canary", "/chat/completions", ""],
        [True, False],
    ),
)
async def test_a_redirect_is_not_followed(auth: Any, status: int, location: str, stream: bool) -> None:
    server = Server(Answer([], status, {"location": location}))
    client = partial(httpx2.AsyncClient, transport=server, auth=auth, follow_redirects=True)
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL, stream=stream, http_client=client)

    with pytest.raises(Rejected, match=rf"answered {status}; it leads .*: check base_url='{URL}'") as caught:
        await answer_of(model)
    assert len(server.requests) == 1
    assert location.partition("?")[0] in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "chunks",
    [[b'{"error": ', HANG], [b"well", httpx2.ReadError("reset")], [httpx2.DecodingError("gzip")], endless_line()],
)
@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, Transient), (401, Rejected)])
async def test_a_status_is_reported_even_if_its_body_never_comes(
    status: int, kind: type[ModelError], chunks: Any
) -> None:
    # Time enough for the status to come on a busy machine; a body that hangs is waited for that long.
    failure = await failure_of(Answer(chunks, status, {"retry-after": "7"}), timeouts=Timeouts(total=1.0))

    assert type(failure) is kind
    assert (failure.status_code, failure.retry_after) == (status, 7.0)


class Basic(httpx2.Auth):
    def auth_flow(self, request: httpx2.Request) -> Any:
        response = yield request
        if response.status_code == 401:
            request.headers["authorization"] = "Basic 1"
            yield request


async def test_an_http_client_may_sign_in_after_a_401() -> None:
    server = Server(error(401), says("ok"), error(503, "busy"))
    client = partial(httpx2.AsyncClient, transport=server, auth=Basic())
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL, http_client=client)

    assert (await answer_of(model))[-1].is_last
    with pytest.raises(Transient, match="503: busy"):
        await answer_of(model)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
@pytest.mark.parametrize("proxy", ["socks4://user:canary@127.0.0.1:1", "what://user:canary@127.0.0.1"])
async def test_a_proxy_that_cannot_be_used_is_named(proxy: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)
    monkeypatch.setenv(variable, proxy)
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL)

    with pytest.raises(Rejected, match=f"gpt-test.*is the proxy in the environment's {variable} right") as caught:
        await model(HELLO)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


async def test_a_proxy_that_is_not_there_is_named(free_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_tcp_port}")
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL)

    with pytest.raises(Transient, match="is the proxy in the environment's HTTP_PROXY right"):
        await answer_of(model)


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_no_repr_or_log_of_a_model_shows_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model, server = model_of(says("ok"), extra_headers={"x-secret": "another-canary-0123456789"})
    await answer_of(model)

    told = f"{model!r} {model._errors!r} {vars(model)} {vars(model._peer.credentials)} {caplog.text}"
    assert KEY not in told
    assert "another-canary" not in told
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_a_copy_of_a_model_works_and_has_clients_of_its_own(copied: Any) -> None:
    model, server = model_of(says("ok"), extra_headers={"x-title": "mine"})
    result: Any = await model(HELLO)
    other = copied(model)
    assert (await answer_of(other))[-1].is_last

    assert [piece async for piece in result][-1].is_last
    assert len(model._peer.clients) == 1
    assert server.requests[1].headers["x-title"] == "mine"
    await model.aclose()


def test_a_model_cannot_be_pickled_and_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="chat_model"):
        pickle.dumps(model_of()[0])
