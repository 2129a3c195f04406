"""Batches: submitted once, awaited, resumed elsewhere, and read line by line."""

import json
from contextlib import aclosing
from typing import Any

import anyio.lowlevel
import pytest

from agentrt.errors import (
    ConfigError,
    InvalidInputError,
    Malformed,
    ModelError,
    Rejected,
    Timeout,
    Transient,
    Unsupported,
)
from agentrt.message import SystemMsg, UserMsg
from agentrt.model import Batch, BatchRequest, RulesChatModel, chat_model
from tests.model.batch.batch_server import APIS, KEY, BatchServer, chat_answer, model_of, questions, texts_of

QUICK: dict[str, Any] = {"poll_seconds": 0.001}


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def submit(api: str, server: BatchServer, count: int = 3, **options: Any) -> Batch:
    return await model_of(api, server).batch(questions(count), **{**QUICK, **options})


@pytest.fixture
def server() -> BatchServer:
    return BatchServer()


async def test_results_are_in_the_order_of_the_requests_at_half_price() -> None:
    for api in APIS:
        server = BatchServer()
        results = await (await submit(api, server)).wait()

        assert texts_of(results) == ["answer 0", "answer 1", "answer 2"]
        assert [result.cost for result in results] == [(1000 * 2 + 100 * 10) / 1e6 / 2] * 3
        assert not server.open


async def test_each_failure_is_an_error_of_its_request(api: str) -> None:
    server = BatchServer({0: "error", 2: "expired", 3: "cancelled", 4: "nothing"})
    results = await (await submit(api, server, 6)).wait()

    expected = [Rejected, "answer 1", Timeout, ModelError, Malformed, "answer 5"]
    assert texts_of(results) == expected
    assert results[0].error is not None
    assert "bad request (***)" in str(results[0].error)


async def test_another_process_reads_the_results_by_the_id(api: str) -> None:
    server = BatchServer({1: "nothing"})
    id = (await submit(api, server)).id
    results = [result async for result in model_of(api, server).resume_batch(id, **QUICK)]

    assert [result.index for result in results] == [2, 0, 1]
    assert texts_of(results) == ["answer 2", "answer 0", Malformed]


@pytest.mark.parametrize(("state", "error"), [("expired", Timeout), ("cancelled", ModelError)])
async def test_requests_without_an_answer_say_why(api: str, state: str, error: type[ModelError]) -> None:
    results = await (await submit(api, BatchServer({0: "nothing"}, ends_as=state), 2)).wait()

    # Anthropic has no such state: its results name these requests.
    assert texts_of(results) == [Malformed if api == "anthropic" else error, "answer 1"]


@pytest.mark.parametrize("api", ["chat", "responses", "gemini"])
async def test_a_batch_that_was_refused_as_a_whole_is_an_error(api: str) -> None:
    with pytest.raises(Rejected, match=r"line 1 is not JSON \(\*\*\*\)"):
        await (await submit(api, BatchServer(ends_as="failed"))).wait()


async def test_a_cut_file_of_results_is_opened_again(server: BatchServer) -> None:
    batch = await submit("anthropic", server)
    whole = b""

    def cut(method: str, path: str) -> tuple[int, bytes] | None:
        nonlocal whole
        if not path.endswith("/results") or whole:
            return None
        whole = b"-"
        first = b'{"custom_id": "request-1", "result": {"type": "canceled"}}\n'
        return 200, first + b'{"custom_id": "requ<cut>'

    server.before = cut
    results = [result async for result in batch]
    assert [result.index for result in results] == [1, 2, 0]
    assert not server.open


async def test_a_name_keeps_a_batch_from_being_submitted_twice() -> None:
    for api in ("chat", "gemini"):
        server = BatchServer()
        first = await submit(api, server, name="nightly")
        for _ in range(3):  # fill the first page
            await submit(api, server)
        assert (await submit(api, server, name="nightly")).id == first.id
        assert (await submit(api, server, name="other")).id != first.id

        server.batches[first.id].state = "failed"
        assert (await submit(api, server, name="nightly")).id != first.id


async def test_a_name_is_refused_where_batches_have_none(server: BatchServer) -> None:
    with pytest.raises(Unsupported, match=r"leave out name=.*batch\.id"):
        await submit("anthropic", server, name="nightly")
    assert not server.asked


async def test_a_batch_can_be_cancelled(api: str) -> None:
    batch = await submit(api, BatchServer({1: "cancelled"}))
    assert (await batch.status()).state == "in_progress"
    await batch.cancel()

    status = await batch.status()
    assert status.state == ("completed" if api == "anthropic" else "cancelled")
    assert status.total == 3
    assert texts_of(await batch.wait())[0] == "answer 0"


async def test_the_wait_outlasts_failures_that_pass_but_not_all(server: BatchServer) -> None:
    batch = await submit("chat", server)
    failures = 10

    def fail(method: str, path: str) -> tuple[int, bytes] | None:
        nonlocal failures
        failures -= 1
        return (503, b"busy") if failures >= 0 else None

    server.before = fail
    assert len(await batch.wait()) == 3
    failures = 11
    with pytest.raises(Transient, match="busy"):
        await batch.wait()


async def test_the_wait_has_an_end() -> None:
    server = BatchServer(polls_to_end=10**9)
    batch = await submit("chat", server, max_wait=0.01)
    with pytest.raises(Timeout, match=r"has not ended within 0\.01 s: .*resume_batch\('batch_0'\)"):
        await batch.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # which warns of generators that are collected
async def test_a_reader_that_leaves_by_a_plain_break_closes_the_file(server: BatchServer) -> None:
    batch = await submit("chat", server)
    async for _ in batch:
        assert server.open
        break
    while server.open:
        await anyio.lowlevel.checkpoint()
    async with aclosing(aiter(batch)) as results:  # type: ignore[type-var]
        await anext(results)
        assert server.open
    assert not server.open
    assert len(await batch.wait()) == 3


async def test_no_other_server_gets_the_key(api: str) -> None:
    server = BatchServer(other_host="elsewhere.test")
    await (await submit(api, server)).wait()
    hosts = {address.partition("/")[0] for _, address in server.asked}
    assert len(hosts) == 1
    assert hosts != {"elsewhere.test"}


async def test_an_id_that_could_lead_elsewhere_is_refused() -> None:
    wrong: list[Any] = ["../files/x", "a/b/c", "", "batches/..", "b?x=1", 7]
    for model in [model_of(name, BatchServer()) for name in APIS]:
        for id in wrong:
            with pytest.raises(InvalidInputError, match="is not the id of a batch"):
                model.resume_batch(id)


async def test_requests_are_checked_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = BatchServer()
    model = model_of("chat", server, capabilities={"image"})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([], InvalidInputError, "no requests"),
        ("Hi", InvalidInputError, "takes a list of requests"),
        (["Hi"], InvalidInputError, "as request 0, not a list of messages"),
        (7, InvalidInputError, "takes a list of requests, not 7"),
        (questions(5), InvalidInputError, "at most 4 requests"),
        ([[UserMsg("user", "x" * 1000)]], InvalidInputError, "at most 900 bytes"),
        ([BatchRequest([UserMsg("user", "Hi")], tools)], Unsupported, "takes? no tools"),
    ]
    monkeypatch.setattr(type(model)._batch_api, "max_requests", 4)
    monkeypatch.setattr(type(model)._batch_api, "max_size", 900)
    for requests, error, problem in wrong:
        with pytest.raises(error, match=problem):
            await model.batch(requests)
    with pytest.raises(InvalidInputError, match="printable characters, not 7"):
        await model.batch(questions(1), name=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="poll_seconds"):
        await model.batch(questions(1), poll_seconds=0)
    assert not server.asked


def test_a_conversation_that_no_round_follows_is_not_cached() -> None:
    model = model_of("anthropic", BatchServer())
    body = model._batch_body(BatchRequest([SystemMsg("system", "Be brief."), UserMsg("user", "Hi")]))
    assert "cache_control" in body["system"][0]  # which other requests of the batch may have
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]


async def test_a_result_that_is_too_long_is_malformed(server: BatchServer) -> None:
    batch = await model_of("anthropic", server, max_bytes=700).batch(questions(1), **QUICK)
    server.before = lambda method, path: (200, b"x" * 2000) if path.endswith("/results") else None
    with pytest.raises(Malformed, match="more than 700 bytes"):
        await batch.wait()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"custom_id": "mine", "result": {}}', "the key 'mine'"),
        (b'{"custom_id": "request-2", "result": {"type": "canceled"}}', "has 2 requests, and a result of request 2"),
    ],
    ids=["another program's", "no request's"],
)
async def test_a_result_that_belongs_elsewhere_is_malformed(server: BatchServer, line: bytes, words: str) -> None:
    batch = await submit("anthropic", server, 2)
    server.before = lambda method, path: (200, line) if path.endswith("/results") else None
    with pytest.raises(Malformed, match=words):
        await batch.wait()


async def test_tokens_that_were_not_counted_cost_an_unknown_amount(server: BatchServer) -> None:
    batch = await submit("chat", server, 1)
    body = {name: value for name, value in chat_answer(0).items() if name != "usage"}
    line = json.dumps({"custom_id": "request-0", "response": {"status_code": 200, "body": body}}).encode()
    server.before = lambda method, path: (200, line) if path.endswith("/content") else None
    assert [result.cost for result in await batch.wait()] == [None]


async def test_models_without_batches_name_those_that_have_them() -> None:
    with pytest.raises(Unsupported, match=r"OpenAIChatModel, .*GeminiChatModel") as caught:
        await chat_model("rules").batch(questions(1))
    assert caught.value.capability == "batch"
    with pytest.raises(Unsupported, match="GeminiChatModel"):
        RulesChatModel().resume_batch("batch_1")
    vertex = "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google"
    with pytest.raises(Unsupported, match="on their providers' own servers"):
        await model_of("gemini", BatchServer(), base_url=vertex).batch(questions(1))

    server = BatchServer(before=lambda method, path: (404, b"no such route"))
    with pytest.raises(Unsupported, match=r"404.*a server without batches answers so.*GeminiChatModel") as refused:
        await submit("chat", server)
    assert refused.value.status_code == 404
    assert KEY not in str(refused.value)
    with pytest.raises(Rejected, match="no such route; check the model's name") as missing:
        await model_of("chat", server, base_url="https://api.openai.com/v1").batch(questions(1))
    assert "without batches" not in str(missing.value)
