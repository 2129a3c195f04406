"""What all remote models share: errors, time limits, closing, many loops and conversations, and a key that stays in."""

import asyncio
import json
import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from pydantic import SecretStr

from agentrt import Agent, MiddlewareBase
from agentrt.agent.reasoning import _check_stream
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
)
from agentrt.message import UserMsg
from agentrt.model import OpenAIChatModel, Timeouts
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
async def test_a_status_is_told_as_an_error_of_the_tree(
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
async def test_every_providers_words_for_a_full_context_are_understood(words: str) -> None:
    assert type(await failure_of(error(400, words))) is ContextOverflow


@pytest.mark.parametrize(
    "body", [{"error": "Nope"}, {"message": "Nope", "code": "x"}, {"detail": "Nope"}, {"error": {"message": "Nope"}}]
)
async def test_the_providers_own_words_are_found_in_bodies_of_every_shape(body: Any) -> None:
    assert ": Nope" in str(await failure_of(json_of(body, 400)))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_it_is_told_when_to_come_back(headers: dict[str, str], seconds: float | None, status: int) -> None:
    assert (await failure_of(error(status, **headers))).retry_after == seconds


async def test_a_date_to_come_back_at_is_counted_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    assert 3000 < ((await failure_of(error(429, **{"retry-after": date}))).retry_after or 0) <= 3600


async def test_a_refused_request_is_raised_by_the_call_and_not_in_its_stream() -> None:
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
async def test_a_request_without_an_answer_is_told_with_the_remedy(
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


async def test_what_came_before_a_failure_is_seen_however_it_was_packed() -> None:
    model, _ = model_of(Answer([events(delta(content="Hel"), delta(content="lo"), {"error": {"code": 500}})]))
    seen = []

    with pytest.raises(Transient):
        async for piece in await model(HELLO):
            seen.append(piece.content[0].text)
    await model.aclose()
    assert seen == ["Hel", "lo"]


@pytest.mark.parametrize("end", [[], [HANG], [httpx2.ReadError("reset")], [DONE, HANG]])
async def test_an_answer_that_has_come_to_its_end_is_whole_whatever_follows(end: list[Any]) -> None:
    chunks = [events(delta(content="Hello"), delta("stop")), *end]
    model, server = model_of(Answer(chunks), timeouts=Timeouts(idle=SHORT))

    assert (await answer_of(model))[-1].is_last
    assert not server.open


@pytest.mark.parametrize(
    "chunks", [[HANG], [events(delta(content="Hel")), HANG], [events(delta(content="Hel")), PINGS]]
)
async def test_a_stream_that_stands_still_is_given_up_and_pings_are_no_progress(chunks: list[Any]) -> None:
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
async def test_a_stream_that_is_left_releases_its_connection_even_if_never_iterated(read: int) -> None:
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


async def test_a_stream_is_closed_although_the_closing_task_is_cancelled() -> None:
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


async def test_a_layer_that_passes_a_stream_on_is_not_blamed_for_its_failure() -> None:
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
]


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_key_gets_out_of_no_failure(
    answer: Callable[[], Any], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    failure = await failure_of(answer(), stream=stream, timeouts=Timeouts(idle=SHORT, total=SHORT))

    told = "".join(traceback.format_exception(failure))
    for each in (told, repr(failure), str(failure.args), caplog.text, pickle.dumps(failure.args).decode("latin-1")):
        assert KEY not in each
    assert failure.__context__ is None


async def test_the_key_gets_out_of_no_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model, server = model_of(says("ok"), extra_headers={"x-secret": "another-canary-0123456789"})
    await answer_of(model)

    told = f"{model!r} {model._provider!r} {model._key!r} {caplog.text}"
    assert KEY not in told
    assert "another-canary" not in told
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_secret_header_gets_out_of_no_failure() -> None:
    failure = await failure_of(
        error(403, "another-canary-0123456789"), extra_headers={"x": "another-canary-0123456789"}
    )

    assert "another-canary" not in str(failure)


def test_the_url_is_shown_without_what_is_secret_in_it() -> None:
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url="https://user:canary@host.invalid:8443/v1?token=canary")

    assert repr(model) == "OpenAIChatModel('gpt-test', base_url='https://host.invalid:8443/v1')"


@pytest.mark.parametrize("given", [f" {KEY}\n", SecretStr(KEY)])
async def test_a_key_is_taken_as_text_or_secret_without_the_space_around_it(given: Any) -> None:
    model, server = model_of(completion(content="ok"), api_key=given, stream=False)
    await answer_of(model)

    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_from_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)

    assert OpenAIChatModel("gpt-test", key_variable="OTHER_KEY")._key.get_secret_value() == KEY


@pytest.mark.parametrize("given", ["canary key", "canary\x00key", "schlüssel-canary"])
def test_a_key_that_can_be_none_is_refused_without_being_shown(given: str) -> None:
    with pytest.raises(ConfigError, match="characters") as caught:
        OpenAIChatModel("gpt-test", api_key=given)
    assert "canary" not in str(caught.value)


def test_a_missing_sdk_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)

    with pytest.raises(ConfigError, match=r'pip install "agentrt\[openai\]"'):
        OpenAIChatModel("gpt-test", api_key=KEY)


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="name of a model"):
        OpenAIChatModel("", api_key=KEY)


@pytest.mark.parametrize("wrong", [{"connect": 0}, {"idle": -1}, {"total": None}, {"total": float("nan")}])
def test_a_limit_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Timeouts.{next(iter(wrong))}="):
        Timeouts(**wrong)


async def test_without_limits_the_answer_comes_as_well() -> None:
    model, _ = model_of(says("ok"), timeouts=Timeouts(float("inf"), float("inf"), float("inf")))

    assert (await answer_of(model))[-1].is_last
