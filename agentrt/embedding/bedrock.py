"""Embeddings on AWS, through Bedrock: Amazon's Titan and Cohere's models."""

from math import inf
from typing import Unpack
from urllib.parse import quote

from agentrt._runtime.block import JSONObject
from agentrt._runtime.http.limits import Timeouts
from agentrt.embedding.answer import EmbeddingReader
from agentrt.embedding.base import EmbeddingModelBase, EmbeddingResponse, EmbeddingUsage
from agentrt.errors import ConfigError, Malformed
from agentrt.model.bedrock import complete_connection
from agentrt.model.remote.endpoint import BEDROCK_API, RemoteEndpoint
from agentrt.model.remote.settings import ConnectionOptions, check_option_names
from agentrt.model.remote.sse import count_in

# The length of their vectors, and the field for another one.
_MODELS: dict[str, tuple[int | None, str | None]] = {
    "amazon.titan-embed-text-v1": (1_536, None),
    "amazon.titan-embed-text-v2": (1_024, "dimensions"),
    "cohere.embed-english-v3": (1_024, None),
    "cohere.embed-multilingual-v3": (1_024, None),
    "cohere.embed-v4": (1_536, "output_dimension"),
}
_MAX_TEXTS_OF_COHERE = 96  # per request


class BedrockEmbedding(RemoteEndpoint, EmbeddingModelBase):
    """An embedding model on AWS, through Bedrock's InvokeModel: Amazon's Titan for text, or one of Cohere's.

    `model` is an id, or that of an inference profile, as in "eu.cohere.embed-v4:0". `dimensions` is the length of its
    vectors, which Titan v2 and Embed v4 can change. Cohere's models get at most `batch_size` texts in one request, and
    96 in any case; Titan gets one. Key, region and the other `ConnectionOptions` are those of a `BedrockChatModel`; a
    request may take 60 seconds unless `timeouts` says otherwise. Only Titan reports its usage.
    """

    _api = BEDROCK_API
    max_seconds = inf  # the limits of the connection hold

    def __init__(
        self,
        model: str = "amazon.titan-embed-text-v2:0",
        *,
        region: str | None = None,
        dimensions: int | None = None,
        batch_size: int = 64,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        own, size_field = next((known for name, known in _MODELS.items() if name in str(model)), (None, None))
        if own is None or (size_field is None and dimensions not in (None, own)):
            sizes = ", ".join(f"{name} ({size})" for name, (size, _) in _MODELS.items())
            raise ConfigError(
                f"BedrockEmbedding({model!r:.100}, dimensions={dimensions!r:.100}) is unknown: the models, and the "
                f"lengths of their vectors, are {sizes}"
            )
        check_option_names(BedrockEmbedding, connection, ConnectionOptions.__annotations__)
        complete_connection(connection, region, "BedrockEmbedding")
        if connection.get("timeouts") is None:
            connection["timeouts"] = Timeouts(total=60.0)
        RemoteEndpoint.__init__(self, model, connection)
        EmbeddingModelBase.__init__(self, model=model, dimensions=dimensions or own, batch_size=batch_size)
        self._size_field = size_field
        self._is_titan = "titan" in model
        self.batch_size = 1 if self._is_titan else min(batch_size, _MAX_TEXTS_OF_COHERE)

    def _path_for(self, body: JSONObject) -> str:
        return f"/model/{quote(self.model, safe='')}/invoke"

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        return await self._invoke("search_document", texts)

    async def _embed_queries(self, texts: list[str]) -> EmbeddingResponse:
        return await self._invoke("search_query", texts)

    async def _invoke(self, purpose: str, texts: list[str]) -> EmbeddingResponse:
        body: JSONObject = {"inputText": texts[0]} if self._is_titan else {"texts": texts, "input_type": purpose}
        if self._size_field is not None:
            body[self._size_field] = self.dimensions
        reader = EmbeddingReader(_vectors_of_bedrock)
        stream = await self._open(body, reader, streams=False)
        await stream.read_whole()
        return reader.response


def _vectors_of_bedrock(body: dict[str, object]) -> EmbeddingResponse:
    vectors = [body["embedding"]] if "embedding" in body else body.get("embeddings")
    if isinstance(vectors, dict):  # by their type, where there may be several
        vectors = vectors.get("float")
    if not isinstance(vectors, list) or not all(isinstance(vector, list) for vector in vectors):
        raise Malformed("it answered without a vector for each text")
    return EmbeddingResponse(vectors, EmbeddingUsage(count_in(body, "inputTextTokenCount")))
