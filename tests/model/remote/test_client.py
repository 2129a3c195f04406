"""What all remote models share: errors, time limits, closing, many loops and conversations, and a key that stays in."""

import asyncio
import copy
import json
import logging
import math
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain, repeat
from threading import Thread
from typing import Any

import anyio
import httpx2
import pytest
from pydantic import SecretStr

from agentrt import Agent, MiddlewareBase
from agentrt.errors import (
    ConfigError,
    ContextOverflow,
    Malformed,
    ModelError,
    RateLimited,
    Refused,
    Rejected,
    Timeout,
    Transient,
    UsageError,
)
from agentrt.loop.reasoning import _check_stream
from agentrt.message import UserMsg
from agentrt.model import AnthropicChatModel, OpenAIChatModel, Timeouts
from agentrt.model.remote.log_filter import keep_headers_out_of_logs
from agentrt.model.remote.provider_errors import _TAG, ProviderErrors
from tests.model.wire_openai import (
    DONE,
    HANG,
    HELLO,
    KEY,
    PINGS,
    URL,
    Answer,
    Server,
    answer_of,
    completion,
    delta,
    error,
    events,
    json_of,
    model_of,
    says,
    stream_of,
)

SHORT = 0.03
ECHO = f"Incorrect key {KEY} given"


async def failure_of(*answers: Any, **options: Any) -> ModelError:
    """Return the error of one call, which leaves nothing open."""
    model, server = model_of(*answers, **options)
    with pytest.raises(ModelError) as caught:
        await answer_of(model)
    assert not server.open
    return caught.value


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (error(400, "bad"), Rejected, "400.*bad"),
        (error(401, "no such key"), Rejected, "set OPENAI_API_KEY or give api_key"),
        (error(402, "Insufficient Balance"), Rejected, "topped up"),
        (error(403, "no"), Rejected, "rights"),
        (error(404, "no"), Rejected, "'gpt-test' and base_url='http://test.invalid/v1'"),
        (Answer([b"<html><body>nothing here</body></html>"], 404), Rejected, "404: nothing here;"),
        (error(422, "no"), Rejected, "422"),
        (error(408), Transient, "408"),
        (error(409), Transient, "409"),
        (error(500), Transient, "500"),
        (Answer([b"Bad gateway"], 502), Transient, "502: Bad gateway"),
        (error(503), Transient, "503"),
        (error(529, type="overloaded_error"), Transient, "529 .overloaded_error"),
        (error(429), RateLimited, "429"),
        (error(429, "You exceeded your current quota", "insufficient_quota"), Rejected, "insufficient_quota"),
        (error(400, "no", "content_filter"), Refused, "content_filter"),
        (error(400, "no", "DataInspectionFailed"), Refused, "datainspection"),
        (error(400, "no", "context_length_exceeded"), ContextOverflow, "context_length"),
        (error(413, "too large", type="request_too_large"), ContextOverflow, "413"),
        (Answer([], 500), Transient, "500"),
    ],
)
async def test_each_status_becomes_an_error_of_the_tree(
    answer: Answer, kind: type[ModelError], words: str, stream: bool
) -> None:
    failure = await failure_of(answer, stream=stream)

    assert type(failure) is kind
    assert failure.status_code == answer.status
    with pytest.raises(kind, match=rf"model 'gpt-test' at test.invalid answered.*{words}"):
        raise failure


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        "prompt is too long: 215000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "the request exceeds the available context size, try increasing it",
        "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
        "input length exceeds maximum context length",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
        "Please reduce the length of the messages or completion.",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    ],
)
async def test_each_providers_message_of_a_full_context_is_recognised(words: str) -> None:
    assert type(await failure_of(error(400, words))) is ContextOverflow


@pytest.mark.parametrize(
    "body", [{"error": "Nope"}, {"message": "Nope", "code": "x"}, {"detail": "Nope"}, {"error": {"message": "Nope"}}]
)
async def test_a_providers_message_is_found_in_bodies_of_every_shape(body: Any) -> None:
    assert ": Nope" in str(await failure_of(json_of(body, 400)))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "1e9"}, 86_400.0),
        ({"retry-after-ms": "1e300"}, 86_400.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400.0),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_the_header_for_the_time_to_retry_is_read(
    headers: dict[str, str], seconds: float | None, status: int
) -> None:
    assert (await failure_of(error(status, **headers))).retry_after == seconds


async def test_a_date_to_retry_at_is_counted_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    assert 3000 < ((await failure_of(error(429, **{"retry-after": date}))).retry_after or 0) <= 3600


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
        (httpx2.ConnectError("Connection refused"), Transient, "is the server running, is base_url='http://test"),
        (httpx2.ConnectTimeout(""), Timeout, r"within 10 s \(connect\).*Timeouts\(connect=...\)"),
        (httpx2.PoolTimeout("pool"), Timeout, "pool"),
        (httpx2.RemoteProtocolError("Server disconnected"), Transient, "did not answer .*disconnected"),
        (httpx2.DecodingError("bad gzip"), Malformed, "bad gzip"),
        (httpx2.UnsupportedProtocol("no http"), Rejected, "no http.*base_url="),
    ],
)
async def test_a_request_without_an_answer_names_the_remedy(
    raised: Exception, kind: type[ModelError], words: str
) -> None:
    failure = await failure_of(raised)

    assert type(failure) is kind
    assert failure.__cause__ is not None
    with pytest.raises(kind, match=words):
        raise failure


async def test_a_message_that_fits_into_no_request_is_rejected() -> None:
    model, _ = model_of(says("ok"))

    with pytest.raises(Rejected, match=r"could not be sent .*surrogates"):
        await answer_of(model, [UserMsg("user", "half a pair: \ud83d")])


@pytest.mark.parametrize("how", [httpx2.RemoteProtocolError("peer closed connection"), httpx2.ReadError("reset"), None])
async def test_a_cut_stream_says_how_much_came(how: Exception | None) -> None:
    begun = [events(delta(content="Hel"), delta(content="lo")), b'data: {"choi']
    failure = await failure_of(Answer(begun if how is None else [*begun, how]))

    assert type(failure) is Transient
    assert "was cut after 2 pieces with 5 characters" in str(failure)
    assert (failure.__cause__ is how) or "ended before the answer did" in str(failure)


async def test_pieces_before_a_failure_in_the_same_chunk_are_seen() -> None:
    model, _ = model_of(Answer([events(delta(content="Hel"), delta(content="lo"), {"error": {"code": 500}})]))
    seen = []

    with pytest.raises(Transient):
        async for piece in await model(HELLO):
            seen.append(piece.content[0].text)
    await model.aclose()
    assert seen == ["Hel", "lo"]


@pytest.mark.parametrize("end", [[], [HANG], [httpx2.ReadError("reset")], [DONE, HANG]])
async def test_a_complete_answer_is_whole_whatever_follows(end: list[Any]) -> None:
    chunks = [events(delta(content="Hello"), delta("stop")), *end]
    model, server = model_of(Answer(chunks), timeouts=Timeouts(idle=SHORT))

    assert (await answer_of(model))[-1].is_last
    assert not server.open


@pytest.mark.parametrize(
    "chunks", [[HANG], [events(delta(content="Hel")), HANG], [events(delta(content="Hel")), PINGS]]
)
async def test_a_stream_times_out_when_nothing_but_pings_comes(chunks: list[Any]) -> None:
    failure = await failure_of(Answer(chunks), timeouts=Timeouts(idle=SHORT))

    assert type(failure) is Timeout
    assert f"{SHORT:g} s (idle): to wait longer, give timeouts=Timeouts(idle=...)" in str(failure)


def endless() -> Any:
    while True:
        yield events(delta(content="and "))


@pytest.mark.parametrize(
    ("answer", "stream"), [(HANG, False), (lambda _: Answer(endless()), True), (HANG, True), (Answer([HANG]), False)]
)
async def test_an_answer_that_takes_too_long_is_given_up(answer: Any, stream: bool) -> None:
    failure = await failure_of(answer, stream=stream, timeouts=Timeouts(total=SHORT))

    assert type(failure) is Timeout
    assert f"{SHORT:g} s (total): to wait longer, give timeouts=Timeouts(total=...)" in str(failure)


async def test_a_slow_reader_of_a_stream_takes_nothing_from_the_limits() -> None:
    model, _ = model_of(Answer([*(events(delta(content="a")) for _ in range(3)), events(delta("stop")), DONE]))
    model.timeouts = Timeouts(idle=0.2, total=0.2)
    pieces = 0

    async for _ in await model(HELLO):
        pieces += 1
        await anyio.sleep(0.1)
    await model.aclose()
    assert pieces == 4


@pytest.mark.parametrize("chunks", [[HANG], [events(delta(content="Hel")), HANG]])
async def test_the_callers_own_time_limit_passes_through(chunks: list[Any]) -> None:
    model, server = model_of(Answer(chunks))

    with pytest.raises(TimeoutError) as caught, anyio.fail_after(SHORT):
        await answer_of(model)
    assert not isinstance(caught.value, ModelError)
    assert not server.open


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_time_limit_passes_through() -> None:
    model, server = model_of(Answer([events(delta(content="Hel")), HANG]))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT):
            await answer_of(model)
    assert not server.open


@pytest.mark.parametrize("answer", [HANG, Answer([HANG]), Answer([events(delta(content="Hel")), HANG])])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_leaves_nothing_open(answer: Any, stream: bool) -> None:
    model, server = model_of(answer, stream=stream)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Agent("tester", model=model).reply, "go")
        await server.hanging.wait()
        tasks.cancel_scope.cancel()
    assert not server.open
    await model.aclose()


@pytest.mark.parametrize("read", [0, 1])
async def test_a_closed_stream_releases_its_connection_even_if_unread(read: int) -> None:
    model, server = model_of(stream_of(*(delta(content="word ") for _ in range(9))))
    stream: Any = await model(HELLO)
    for _ in range(read):
        await anext(stream)
    assert server.open

    await stream.aclose()

    assert not server.open
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
    await model.aclose()


async def test_a_stream_is_closed_even_by_a_task_that_is_cancelled() -> None:
    model, server = model_of(stream_of(*(delta(content="word ") for _ in range(9))))
    stream: Any = await model(HELLO)
    await anext(stream)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()
    assert not server.open
    await model.aclose()


async def test_leaving_a_reply_in_the_middle_releases_the_connection() -> None:
    model, server = model_of(stream_of(*(delta(content="word ") for _ in range(9)), delta("stop")))

    async with Agent("tester", model=model).reply_stream("go") as reply:
        async for event in reply:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert not server.open
    await model.aclose()


async def test_a_stream_is_what_the_loop_takes_for_one() -> None:
    model, _ = model_of(says("ok"))
    stream: Any = await model(HELLO)

    _check_stream(stream, "gpt-test")
    await stream.aclose()
    await model.aclose()


class PassOn(MiddlewareBase):
    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        async def passed(stream: Any) -> Any:
            async for piece in stream:
                yield piece

        return passed(await next_handler())


async def test_a_layer_is_not_blamed_for_the_stream_that_it_passes_on() -> None:
    model, server = model_of(Answer([events(delta(content="Hel")), httpx2.ReadError("reset")]))

    with pytest.raises(Transient) as caught:
        await Agent("tester", model=model, middlewares=[PassOn()]).reply("go")
    assert not getattr(caught.value, "__notes__", [])
    assert not server.open
    await model.aclose()


async def test_a_further_attempt_closes_the_stream_of_the_one_before() -> None:
    class Twice(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            await next_handler()
            return await next_handler()

    model, server = model_of(says("Hello"))
    msg = await Agent("tester", model=model, middlewares=[Twice()]).reply("go")
    await model.aclose()

    assert (msg.get_text_content(), len(server.requests)) == ("Hello", 2)
    assert not server.open


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
    assert len(model._clients) == 1
    await model.aclose()


def test_one_model_serves_one_event_loop_after_the_other() -> None:
    model, _ = model_of(says("ok"))
    pieces = [anyio.run(answer_of, model, backend=each) for each in ("asyncio", "trio", "asyncio")]

    assert [each[-1].is_last for each in pieces] == [True, True, True]
    assert not model._clients


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


async def test_a_stream_in_use_refuses_to_be_read_or_closed_elsewhere() -> None:
    model, server = model_of(Answer([events(delta(content="Hel")), HANG]))
    stream: Any = await model(HELLO)
    await anext(stream)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, stream)
        await server.hanging.wait()
        for use in (stream.aclose, stream.__anext__):
            with pytest.raises(UsageError, match="another task"):
                await use()
        tasks.cancel_scope.cancel()
    assert not server.open
    await stream.aclose()
    await model.aclose()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("location", ["https://elsewhere.invalid/v1?token=canary", "/chat/completions", ""])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("auth", [None, ("user", "word")])
async def test_a_redirect_is_not_followed(auth: Any, status: int, location: str, stream: bool) -> None:
    server = Server(Answer([], status, {"location": location}))
    client = partial(httpx2.AsyncClient, transport=server, auth=auth, follow_redirects=True)
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL, stream=stream, http_client=client)

    with pytest.raises(Rejected, match=rf"answered {status}; it leads .*: check base_url='{URL}'") as caught:
        await answer_of(model)
    assert len(server.requests) == 1
    assert location.partition("?")[0] in str(caught.value)
    assert "canary" not in str(caught.value)


def endless_line() -> Any:
    while True:
        yield b"x" * 10_000


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunks", [endless_line, endless, lambda: chain([b"{"], endless_line())])
async def test_an_answer_without_end_is_given_up(chunks: Any, stream: bool) -> None:
    failure = await failure_of(lambda _: Answer(chunks()), stream=stream, max_bytes=200_000)

    assert type(failure) is Malformed
    assert "more than 200,000 bytes: to take more, give max_bytes=..." in str(failure)


async def test_an_answer_of_the_size_allowed_is_taken() -> None:
    played = completion(content="ok")
    size = sum(map(len, played.chunks))

    assert (await answer_of(model_of(played, stream=False, max_bytes=size)[0]))[-1].is_last
    assert type(await failure_of(played, stream=False, max_bytes=size - 1)) is Malformed


@pytest.mark.parametrize("size", [0, -1, None, "1 MB", float("nan")])
def test_a_wrong_max_bytes_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes="):
        OpenAIChatModel("gpt-test", api_key=KEY, max_bytes=size)


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


FAILURES: list[Callable[[], Any]] = [
    *(partial(error, status, ECHO, KEY) for status in (400, 401, 403, 404, 429, 500)),
    lambda: Answer([ECHO.encode()], 502),
    lambda: Answer([f"<p>{ECHO}</p>".encode()]),
    lambda: Answer([f"data: {ECHO}\n\n".encode()]),
    lambda: stream_of({"error": {"message": ECHO}}),
    lambda: stream_of(delta(content={"key": KEY})),
    lambda: stream_of(delta(refusal=ECHO), delta("stop")),
    lambda: Answer([events(delta(content="Hi")), httpx2.ReadError(ECHO)]),
    lambda: httpx2.ConnectError(ECHO),
    lambda: httpx2.ConnectTimeout(ECHO),
    lambda: httpx2.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'"),
    lambda: Answer([HANG]),
    lambda: Answer([("<br>" * (20_000 // 4 - 4) + KEY).encode()], 502),
    lambda: json_of([{"k": KEY}], 400),
    lambda: Answer([], 302, {"location": f"http://elsewhere.invalid/{KEY}"}),
    lambda: Answer([b"event: error\ndata: " + ECHO.encode() + b"\n\n"]),
    lambda: stream_of(delta(content=f"model 'gpt-test' at test.invalid {KEY}"), {"choices": KEY}),
    lambda: Answer([json.dumps(f"model 'gpt-test' at test.invalid {KEY}").encode()]),
]
LIMITS = (15, 80, 100, 150, 200, 300, 350, 450, 500, 20_000)
"""Near these places, something may be cut off."""


def padded(wrap: Callable[[str], Any], cut: int) -> Callable[[], Any]:
    return lambda: wrap("x" * (cut - len(KEY) // 2) + KEY + "y" * 300)


FAILURES += [
    padded(wrap, cut)
    for cut in LIMITS
    for wrap in (
        lambda text: Answer([text.encode()]),
        lambda text: Answer([text.encode()], 502),
        lambda text: Answer([f"<p>{text}</p>".encode()], 502),
        lambda text: Answer([f"data: {text}\n\n".encode()]),
        lambda text: error(400, text),
        lambda text: error(400, "no", text),
        lambda text: json_of({"choices": text}),
        lambda text: json_of({text: "no"}),
        lambda text: stream_of(delta(refusal=text), delta("stop")),
        lambda text: httpx2.ConnectError(text),
    )
]


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("stream", [True, False])
async def test_no_failure_shows_the_key(
    answer: Callable[[], Any], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    failure = await failure_of(answer(), stream=stream, timeouts=Timeouts(idle=SHORT, total=SHORT))

    told = "".join(traceback.format_exception(failure))
    for each in (told, repr(failure), str(failure.args), caplog.text, pickle.dumps(failure.args).decode("latin-1")):
        assert KEY[:10] not in each
        assert KEY[-10:] not in each
        assert KEY.lower() not in each.lower()
    assert len(str(failure)) < 1000
    assert failure.__context__ is None


async def test_no_repr_or_log_of_a_model_shows_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model, server = model_of(says("ok"), extra_headers={"x-secret": "another-canary-0123456789"})
    await answer_of(model)

    told = f"{model!r} {model._errors!r} {model._key!r} {vars(model)} {caplog.text}"
    assert KEY not in told
    assert "another-canary" not in told
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("answer", [error(401, code="sk-CANARY-0123"), httpx2.ReadError("via http://me:sk-canary@box")])
async def test_no_failure_shows_a_key_in_capitals_or_a_password(answer: Any) -> None:
    failure = await failure_of(answer, api_key="sk-CANARY-0123")

    assert "canary" not in "".join(traceback.format_exception(failure)).lower()


async def test_no_failure_shows_a_secret_header() -> None:
    failure = await failure_of(
        error(403, "another-canary-0123456789"), extra_headers={"x": "another-canary-0123456789"}
    )

    assert "another-canary" not in str(failure)


@pytest.mark.parametrize("extra", ["user:canary@", ":canary@", "canary@", "?token=canary", "#canary"])
def test_a_url_with_a_secret_is_refused_without_showing_it(extra: str) -> None:
    user, rest = (extra, "") if "@" in extra else ("", extra)
    with pytest.raises(ConfigError, match=r"'https://host.invalid:8443/v1'.*api_key=.*extra_headers=") as caught:
        OpenAIChatModel("gpt-test", api_key=KEY, base_url=f"https://{user}host.invalid:8443/v1{rest}")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("given", [f" {KEY}\n", SecretStr(KEY)])
async def test_a_key_is_a_str_or_a_secret_and_is_stripped(given: Any) -> None:
    model, server = model_of(completion(content="ok"), api_key=given, stream=False)
    await answer_of(model)

    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_from_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)

    assert OpenAIChatModel("gpt-test", key_variable="OTHER_KEY")._key.get_secret_value() == KEY


@pytest.mark.parametrize("given", ["canary key", "canary\x00key", "schlüssel-canary"])
def test_a_malformed_key_is_refused_without_being_shown(given: str) -> None:
    with pytest.raises(ConfigError, match="characters") as caught:
        OpenAIChatModel("gpt-test", api_key=given)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("given", [b"canary", 5, lambda: "canary"])
def test_a_key_of_another_type_is_refused_without_being_shown(given: Any) -> None:
    with pytest.raises(ConfigError, match="str or a SecretStr, not of type") as caught:
        OpenAIChatModel("gpt-test", api_key=given)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_a_copy_of_a_model_works_and_has_clients_of_its_own(copied: Any) -> None:
    model, server = model_of(says("ok"), extra_headers={"x-title": "mine"})
    result: Any = await model(HELLO)
    other = copied(model)
    assert (await answer_of(other))[-1].is_last

    assert [piece async for piece in result][-1].is_last
    assert len(model._clients) == 1
    assert server.requests[1].headers["x-title"] == "mine"
    await model.aclose()


def test_a_model_cannot_be_pickled_and_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="chat_model"):
        pickle.dumps(model_of()[0])


def test_a_missing_sdk_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)

    with pytest.raises(ConfigError, match=r'pip install "agentrt\[openai\]"'):
        OpenAIChatModel("gpt-test", api_key=KEY)


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "host.invalid", "http://", "http://[::1", "ftp://host/v1", "http://host:99999/v1"]
)
def test_a_url_that_leads_nowhere_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(ConfigError, match="write it in full, as in 'http://localhost:8000/v1'") as caught:
        OpenAIChatModel("gpt-test", api_key=KEY, base_url=url)
    assert url in str(caught.value)


def test_a_refused_url_is_shown_without_what_is_secret_in_it() -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIChatModel("gpt-test", api_key=KEY, base_url="user:canary@host.invalid/v1?token=canary")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("url", [" http://host.invalid/v1\n", "  "])
def test_space_around_a_url_is_stripped(url: str) -> None:
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=url)

    assert model.base_url == (url.strip() or "https://api.openai.com/v1")


async def test_a_header_that_is_not_a_str_raises_a_model_error() -> None:
    model, _ = model_of(error(500, "no"), extra_headers={"x-number": 3})
    with pytest.raises(ModelError):
        await answer_of(model)


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="name of a model"):
        OpenAIChatModel("", api_key=KEY)


@pytest.mark.parametrize("wrong", [{"connect": 0}, {"idle": -1}, {"total": None}, {"total": float("nan")}])
def test_a_wrong_time_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Timeouts.{next(iter(wrong))}="):
        Timeouts(**wrong)


async def test_without_limits_the_answer_comes_as_well() -> None:
    model, _ = model_of(says("ok"), timeouts=Timeouts(float("inf"), float("inf"), float("inf")))

    assert (await answer_of(model))[-1].is_last


class _Echo(BaseHTTPRequestHandler):
    """Answers with a cookie, and with the key that it was sent in a header."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(
            {
                "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
                "content": [{"type": "text", "text": "hi"}],
                "stop_reason": "end_turn",
            }
        ).encode()
        self.send_response(200)
        self.send_header("set-cookie", "session=canary-of-a-cookie")
        self.send_header("x-echo", self.headers.get("authorization") or self.headers["x-api-key"])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def echo_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("cls", [OpenAIChatModel, AnthropicChatModel])
async def test_no_log_of_a_client_library_holds_headers(
    cls: type[Any], echo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    model = cls("m", api_key=KEY, base_url=echo_url, stream=False, extra_headers={"x-secret": "canary-of-a-header"})
    with anyio.fail_after(10):
        await model(HELLO)
        await model.aclose()

    assert "receive_response_headers.complete" in caplog.text  # what was said goes on being said
    assert f"{echo_url}" in caplog.text
    for secret in (KEY, "canary-of-a-cookie", "canary-of-a-header", "set-cookie", "x-echo"):
        assert secret not in caplog.text


@pytest.mark.parametrize("cls", [OpenAIChatModel, AnthropicChatModel])
async def test_no_log_holds_a_header_that_cannot_be_sent(
    cls: type[Any], echo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    model = cls("m", api_key=KEY, base_url=echo_url, extra_headers={"x-secret": "canary-of-a-header\n"})
    with anyio.fail_after(10), pytest.raises(Rejected):
        await model(HELLO)
    await model.aclose()

    assert "send_request_headers.failed" in caplog.text
    assert "canary" not in caplog.text


def test_logged_options_and_header_tables_lose_their_headers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keep_headers_out_of_logs()
    keep_headers_out_of_logs()
    sdk = logging.getLogger("openai._base_client")
    sdk.debug("Request options: %s", {"method": "post", "extra_headers": {"authorization": KEY}})
    sdk.debug("%s", httpx2.Headers({"authorization": KEY}))
    logging.getLogger("hpack.hpack").debug("Adding %s", (b"authorization", KEY.encode()))

    assert "'method': 'post'" in caplog.text
    assert KEY not in caplog.text
    assert len(sdk.filters) == len({type(each) for each in sdk.filters})


SPLIT = f"{KEY[:9]}<b class='x'>{KEY[9:14]}</b><br/>{KEY[14:]}"


@pytest.mark.parametrize(
    "body",
    [
        f"<html><body>no such key {SPLIT}</body></html>".encode(),
        f"<html><body>no such key <script>x</script>{KEY[:9]}<style>{KEY[9:]}</style>{KEY[9:]}</body></html>".encode(),
        json.dumps({"error": {"message": f"no such key {SPLIT}"}}).encode(),
    ],
)
@pytest.mark.parametrize("status", [401, 200])
async def test_a_key_that_is_split_by_tags_is_masked_whole(body: bytes, status: int) -> None:
    told = str(await failure_of(Answer([body], status)))

    assert "no such key ***" in told
    assert not [part for part in (KEY[:9], KEY[9:14], KEY[14:]) if part in told]


def test_a_secret_is_masked_however_a_page_spells_it() -> None:
    errors = ProviderErrors("m", URL, secrets=("pass<word>&more",))
    failure = errors.error_for_status(401, {}, "<html>not pass&lt;word&gt;&amp;more</html>")
    assert str(failure).startswith("model 'm' at test.invalid answered 401: not ***;")


@pytest.mark.parametrize(
    "spelt",
    [
        "&#115;k-canary-0123456789",
        "sk%2Dcanary%2D0123456789",
        r"\u0073k-canary-0123456789",
        "sk-canary-\n  0123456789",
        "sk-canary-\u200b0123456789",
        "sk-ca<b>nary</b>&#45;<wbr>0123456789",
    ],
)
def test_a_key_is_masked_in_every_spelling(spelt: str) -> None:
    errors = ProviderErrors("m", URL, secrets=("sk-canary-0123456789",))
    for body in (f"no key {spelt}", f"<p>no key {spelt}</p>", {"error": {"message": f"no key {spelt}"}}):
        told = str(errors.error_for_status(401, {}, body))
        assert "no key ***" in told
        assert "0123" not in told


@pytest.mark.time_limit(20)
def test_a_secret_is_sought_in_linear_time() -> None:
    errors = ProviderErrors("m", URL, secrets=("Bearer sk-canary-0123456789",))
    assert errors.redact("Bearer \n sk-canary-0123456789") == "***"
    errors.redact(f"Bearer{' ' * 100_000}" + "B e a r e r " * 10_000)


@pytest.mark.parametrize("page", ["<a" * 30_000, "<style>" * 9_000, "<a>" * 20_000, "<" * 60_000])
def test_a_page_is_stripped_in_linear_time_and_cut(page: str) -> None:
    searched = Counted(_TAG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrt.model.remote.provider_errors._TAG", searched)
        failure = ProviderErrors("m", URL).error_for_status(502, {}, f"<p>Sorry.</p>{page}{'x' * 60_000}")
    assert "502: Sorry." in str(failure)
    assert len(str(failure)) < 600
    assert searched.looked_at <= 3 * len(page) + 200_000


class Counted:
    """A pattern that counts the characters that it looks at."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.looked_at = 0

    def search(self, text: str, start: int) -> re.Match[str] | None:
        match = self.pattern.search(text, start)
        self.looked_at += (match.end() if match else len(text)) - start
        return match


async def test_a_server_that_floods_pings_is_held_to_the_total() -> None:
    flood = b": ping\n\n" * 100_000
    with anyio.fail_after(30):
        failure = await failure_of(
            lambda _: Answer(repeat(flood)), timeouts=Timeouts(idle=math.inf, total=0.3), max_bytes=500_000_000
        )

    assert type(failure) is Timeout
    assert "(total)" in str(failure)


@pytest.mark.parametrize("option", ["extra_headers", "extra_body"])
@pytest.mark.parametrize("wrong", ["secret", [("authorization", "secret")], 5])
def test_a_wrong_mapping_is_refused_without_being_shown(option: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=rf"OpenAIChatModel\({option}=...\) is a dict, as in") as caught:
        OpenAIChatModel("gpt-test", api_key=KEY, **{option: wrong})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("wrong", [30, 0, False, {"total": 30}, httpx2.Timeout(5)])
def test_limits_of_another_type_are_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"OpenAIChatModel\(timeouts=...\) is a Timeouts, as in"):
        OpenAIChatModel("gpt-test", api_key=KEY, timeouts=wrong)
