"""Embedding models: what they are given, what they give, and what is wrong with it."""

import socket
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import anyio
import httpx2
import pytest

from agentrt.embedding import (
    BedrockEmbedding,
    EmbeddingModelBase,
    EmbeddingResponse,
    EmbeddingUsage,
    GeminiEmbedding,
    OpenAIEmbedding,
    WordLlamaEmbedding,
)
from agentrt.errors import ConfigError, Malformed, RateLimited, Timeout, Transient, UnknownKeywordError, UsageError
from agentrt.model.remote.settings import Timeouts
from agentrt.testing import HashingEmbedding
from tests.model.wire_bedrock import SERVICE
from tests.model.wire_openai import HANG, KEY, URL, Answer, Server, error, json_of


class Gives(EmbeddingModelBase):
    max_seconds = 0.05

    def __init__(self, answer: Callable[[list[str]], Any]) -> None:
        super().__init__(model="gives", dimensions=2, batch_size=2)
        self.answer = answer

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        answer = self.answer(texts)
        if answer is HANG:
            await anyio.sleep_forever()
        return answer  # type: ignore[no-any-return]


async def test_texts_are_embedded_in_batches_in_their_order() -> None:
    model = HashingEmbedding(batch_size=2)
    response = await model(["a", "b", "a", "c", "b"])
    assert model.calls == [["a", "b"], ["a", "c"], ["b"]]
    first = response.embeddings
    assert (first[0], first[1]) == (first[2], first[4])
    assert response.usage == EmbeddingUsage(5)


async def test_a_batch_holds_no_more_tokens_than_it_may() -> None:
    class Small(HashingEmbedding):
        max_batch_tokens = 10

    model = Small(batch_size=3)
    long, short = "x" * 60, "y" * 16
    await model([short, short, short, long, "a", "b", "c", "d"])
    assert model.calls == [[short, short], [short], [long], ["a", "b", "c"], ["d"]]
    await model([long, "v" * 20, "w" * 20])
    assert model.calls[-2:] == [[long], ["v" * 20, "w" * 20]]


async def test_no_texts_ask_nothing() -> None:
    model = HashingEmbedding()
    assert (await model([])).embeddings == []
    assert model.calls == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0], "must return an EmbeddingResponse"),
        (EmbeddingResponse([]), "'gives' returned 0 vectors for 1 texts"),
        (EmbeddingResponse([[1.0]]), "a vector of 1 numbers in place of 2"),
        (EmbeddingResponse([[1.0, float("nan")]]), "not finite"),
        (EmbeddingResponse(["ab"]), "not a vector of numbers"),  # type: ignore[list-item]
        (EmbeddingResponse([None]), "not a vector of numbers"),  # type: ignore[list-item]
    ],
    ids=str,
)
async def test_what_is_not_a_vector_for_each_text_is_malformed(answer: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        await Gives(lambda texts: answer)(["x"])


async def test_a_model_that_hangs_times_out() -> None:
    with pytest.raises(Timeout, match=r"the embedding model 'gives' gave no answer for 0.05 seconds"):
        await Gives(lambda texts: HANG)(["x"])


@pytest.mark.parametrize("texts", ["a text", None, [1], {"a": 1}])
async def test_what_is_not_a_list_of_str_is_refused(texts: Any) -> None:
    with pytest.raises(UsageError, match="takes a list of str"):
        await HashingEmbedding()(texts)


@pytest.mark.parametrize("options", [{"dimensions": 0}, {"dimensions": True}, {"batch_size": 5000}, {"model": ""}])
def test_options_that_fit_no_model_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match=f"HashingEmbedding.{next(iter(options))}=..."):
        HashingEmbedding(**options)


@pytest.mark.parametrize("options", [{"dimensions": 1, "batch_size": 1}, {"dimensions": 16_000, "batch_size": 2_048}])
def test_the_least_and_the_most_fit(options: Any) -> None:
    model = HashingEmbedding(**options)
    assert (model.dimensions, model.batch_size) == (options["dimensions"], options["batch_size"])


# OpenAI's API.


def openai_of(*answers: Any, model: str = "embedder", **options: Any) -> tuple[OpenAIEmbedding, Server]:
    server = Server(*answers)
    settings: dict[str, Any] = {"dimensions": 2, "api_key": KEY, "base_url": URL, **options}
    return OpenAIEmbedding(model, http_client=lambda: httpx2.AsyncClient(transport=server), **settings), server


def vectors(*values: list[float], **fields: Any) -> Answer:
    data = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    return json_of({"object": "list", "data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}, **fields})


async def test_a_request_says_what_the_api_asks_for() -> None:
    model, server = openai_of(vectors([1, 0], [0, 1]), vectors([1, 1]), batch_size=2)
    response = await model(["a", "b", "c"])
    await model.aclose()
    assert (response.embeddings, response.usage) == ([[1, 0], [0, 1], [1, 1]], EmbeddingUsage(14))
    assert [str(request.url) for request in server.requests] == [f"{URL}/embeddings"] * 2
    assert server.bodies[0] == {"model": "embedder", "input": ["a", "b"]}
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert not server.open


async def test_vectors_are_put_into_the_order_of_the_texts() -> None:
    data = [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]
    model, _ = openai_of(json_of({"data": data}))
    assert (await model(["a", "b"])).embeddings == [[1, 0], [0, 1]]
    await model.aclose()


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (vectors([1, 0, 1]), Malformed, "a vector of 3 numbers in place of 2"),
        (vectors([1, 0], [1, 0]), Malformed, "2 vectors for 1 texts"),
        (json_of({"data": [{"embedding": "AAA="}]}), Malformed, "at place 0 is not a vector"),
        (json_of({"data": [{"index": 5, "embedding": [1, 0]}]}), Malformed, "numbered 1 vectors"),
        (json_of({"object": "list"}), Malformed, "0 vectors for 1 texts"),
        (json_of([]), Malformed, "embedder"),
        (Answer([b"<html>"]), Malformed, "embedder"),
        (Answer([b'{"data": ['], 200), Transient, "breaks off"),
        (error(429, "slow down"), RateLimited, "slow down"),
        (error(500, "oops"), Transient, "oops"),
        (OSError("gone"), Transient, "did not answer"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_server_that_fails_is_one_clear_error(answer: Any, kind: type[Exception], message: str) -> None:
    model, server = openai_of(answer)
    with pytest.raises(kind, match=message) as caught:
        await model(["a"])
    await model.aclose()
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1
    assert not server.open


@pytest.mark.parametrize("answer", [HANG, Answer([b"{", HANG])], ids=["head", "body"])
async def test_a_server_that_hangs_times_out(answer: Any) -> None:
    model, _ = openai_of(answer, timeouts=Timeouts(idle=0.01, total=0.05))
    with pytest.raises(Timeout, match=r"0.05 s .total."):
        await model(["a"])
    await model.aclose()


async def test_vectors_are_shortened_where_the_model_can() -> None:
    model, server = openai_of(vectors([1, 0]), model="text-embedding-3-small")
    await model(["a"])
    await model.aclose()
    assert server.bodies[0]["dimensions"] == 2
    known = OpenAIEmbedding("text-embedding-3-large", api_key=KEY)
    assert (known.dimensions, known.timeouts.total) == (3072, 60)


def test_a_model_of_unknown_length_needs_dimensions() -> None:
    with pytest.raises(ConfigError, match="how many numbers the vectors of 'nomic-embed-text' have"):
        OpenAIEmbedding("nomic-embed-text", api_key=KEY)
    with pytest.raises(UnknownKeywordError, match="batch_size"):
        OpenAIEmbedding("text-embedding-3-small", api_key=KEY, batchsize=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("field", ["query_body", "document_body"])
def test_fields_that_are_not_a_mapping_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"OpenAIEmbedding\({field}=\.\.\.\)"):
        openai_of(**{field: "query"})


@pytest.mark.parametrize("kind", [OpenAIEmbedding, GeminiEmbedding])
def test_an_embedding_may_take_a_minute(kind: Any) -> None:
    assert kind("embedder", dimensions=2, api_key=KEY, base_url=URL).timeouts == Timeouts(total=60.0)


# Bedrock's API.


def bedrock_of(model: str, *answers: Any, **options: Any) -> tuple[BedrockEmbedding, Server]:
    server = Server(*map(json_of, answers))
    settings: dict[str, Any] = {"api_key": KEY, "region": "eu-west-1", **options}
    return BedrockEmbedding(model, http_client=lambda: httpx2.AsyncClient(transport=server), **settings), server


async def test_titan_gets_one_text_in_each_request() -> None:
    answers = [{"embedding": [number] * 256, "inputTextTokenCount": 3} for number in (0.5, 1)]
    model, server = bedrock_of("amazon.titan-embed-text-v2:0", *answers, dimensions=256)
    response = await model(["a", "b"])
    await model.aclose()
    assert [vector[0] for vector in response.embeddings] == [0.5, 1.0]
    assert response.usage == EmbeddingUsage(6)
    assert server.bodies == [{"inputText": text, "dimensions": 256} for text in "ab"]
    path = SERVICE.operation_model("InvokeModel").http["requestUri"].format(modelId="amazon.titan-embed-text-v2%3A0")
    assert str(server.requests[0].url) == f"https://bedrock-runtime.eu-west-1.amazonaws.com{path}"


async def test_cohere_on_bedrock_distinguishes_queries() -> None:
    answers = [{"embeddings": {"float": [[1.0] * 1_536]}}, {"embeddings": [[1.0] * 1_536], "id": "1"}, {"message": 1}]
    model, server = bedrock_of("eu.cohere.embed-v4:0", *answers)
    for are_queries in (False, True):
        assert len((await model(["a"], are_queries=are_queries)).embeddings[0]) == 1_536
    assert server.bodies == [
        {"texts": ["a"], "input_type": purpose, "output_dimension": 1_536}
        for purpose in ("search_document", "search_query")
    ]
    with pytest.raises(Malformed, match="without a vector for each text"):
        await model(["a"])
    await model.aclose()


def test_what_bedrock_cannot_embed_is_refused() -> None:
    for model, dimensions in ("amazon.nova-lite-v1:0", None), ("cohere.embed-english-v3", 256), (7, None):
        with pytest.raises(ConfigError, match=r"is unknown: the models, .* are amazon\.titan-embed-text-v1 \(1536\), "):
            BedrockEmbedding(model, dimensions=dimensions, api_key=KEY, region="eu-west-1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"BedrockEmbedding\(region=\.\.\.\) must be as in 'eu-central-1'"):
        BedrockEmbedding(api_key=KEY, region="EU?")


# Without a server.


def test_a_missing_package_is_named_when_the_model_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.embedding.wordllama.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "agentrt.embedding."'):
        WordLlamaEmbedding()
    with pytest.raises(ConfigError, match="64, 128 or 256, not 100"):
        WordLlamaEmbedding(dimensions=100)


def cosine(a: Any, b: Any) -> float:
    def product(a: Any, b: Any) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    return float(product(a, b) / (product(a, a) * product(b, b)) ** 0.5)


async def test_the_table_of_words_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    class Vectors(list[list[float]]):
        def tolist(self) -> list[list[float]]:
            return [*self]

    class Table:
        @classmethod
        def load(cls, *arguments: Any, **options: Any) -> "Table":
            loaded.append(options)
            return cls()

        def embed(self, texts: list[str], norm: bool) -> Vectors:
            return Vectors([float(len(text))] * 64 for text in texts)

    package = ModuleType("wordllama")
    package.__spec__ = ModuleSpec("wordllama", None)
    package.__file__ = "/packages/wordllama/__init__.py"
    package.WordLlama = Table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wordllama", package)
    model = WordLlamaEmbedding(dimensions=64)
    assert (await model(["tea", "coffee"])).embeddings == [[3.0] * 64, [6.0] * 64]
    await model(["tea"])
    assert [options["disable_download"] for options in loaded] == [True]


@pytest.mark.slow  # loads the table of words
async def test_texts_that_mean_alike_are_alike_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it wants to connect")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for dimensions in (64, 256):
        model = WordLlamaEmbedding(dimensions=dimensions)
        car, automobile, soup = (await model(["a fast car", "a quick automobile", "onion soup"])).embeddings
        assert len(car) == dimensions
        assert cosine(car, automobile) > 0.5 > cosine(car, soup)


async def test_gemini_is_asked_for_vectors_of_a_length() -> None:
    server = Server(json_of({"embeddings": [{"values": [1.0, 0.0]}, {"values": [0.0, 1.0]}]}))
    client = lambda: httpx2.AsyncClient(transport=server)  # noqa: E731
    model = GeminiEmbedding(dimensions=2, api_key=KEY, base_url=URL, http_client=client)
    response = await model(["a", "b"])
    await model.aclose()

    assert response.embeddings == [[1.0, 0.0], [0.0, 1.0]]
    (request,) = server.requests
    assert (request.url.path, request.headers["x-goog-api-key"]) == (
        "/v1/models/gemini-embedding-001:batchEmbedContents",
        KEY,
    )
    assert server.bodies[0]["requests"][1] == {
        "model": "models/gemini-embedding-001",
        "content": {"parts": [{"text": "b"}]},
        "outputDimensionality": 2,
        "taskType": "RETRIEVAL_DOCUMENT",
    }


@pytest.mark.parametrize(
    ("base_url", "options", "fields"),
    [
        ("https://api.voyageai.com/v1", {}, [{"input_type": "query"}, {"input_type": "document"}]),
        ("https://integrate.api.nvidia.com/v1", {}, [{"input_type": "query"}, {"input_type": "passage"}]),
        (URL, {"query_body": {"task": "search"}}, [{"task": "search"}, {}]),
        (URL, {}, [{}, {}]),
    ],
)
async def test_queries_are_embedded_as_such(
    base_url: str, options: dict[str, Any], fields: list[dict[str, Any]]
) -> None:
    model, server = openai_of(vectors([1, 0]), base_url=base_url, **options)
    await model(["a"], are_queries=True)
    await model(["a"])
    await model.aclose()
    assert server.bodies == [{"model": "embedder", "input": ["a"], **field} for field in fields]


@pytest.mark.parametrize(("name", "task"), [("gemini-embedding-001", "RETRIEVAL_QUERY"), ("gemini-embedding-2", None)])
async def test_gemini_embeds_queries_as_such(name: str, task: str | None) -> None:
    server = Server(json_of({"embeddings": [{"values": [1.0, 0.0]}]}))
    client = lambda: httpx2.AsyncClient(transport=server)  # noqa: E731
    model = GeminiEmbedding(name, dimensions=2, api_key=KEY, base_url=URL, http_client=client)
    await model(["a"], are_queries=True)
    await model.aclose()
    assert server.bodies[0]["requests"][0].get("taskType") == task


@pytest.mark.parametrize("values", [None, {}, [{"values": "x"}], [{}]])
async def test_other_than_vectors_from_gemini_is_malformed(values: Any) -> None:
    server = Server(json_of({"embeddings": values}))
    client = lambda: httpx2.AsyncClient(transport=server)  # noqa: E731
    model = GeminiEmbedding(dimensions=2, api_key=KEY, base_url=URL, http_client=client)
    with pytest.raises(Malformed):
        await model(["a"])
    await model.aclose()
