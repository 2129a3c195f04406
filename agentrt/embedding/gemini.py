"""Embeddings of Google's Gemini API."""

from math import inf
from typing import Unpack

from agentrt._runtime.block import JSONObject
from agentrt._runtime.http.limits import Timeouts
from agentrt.embedding.answer import EmbeddingReader
from agentrt.embedding.base import EmbeddingModelBase, EmbeddingResponse, Vector
from agentrt.errors import Malformed
from agentrt.model.gemini import plain_name
from agentrt.model.remote.endpoint import GEMINI_API, RemoteEndpoint
from agentrt.model.remote.settings import ConnectionOptions
from agentrt.model.remote.sse import list_in

_MODELS_WITH_TASKS = ("gemini-embedding-001", "text-embedding-004", "text-embedding-005")  # later ones have none
_MAX_TEXTS = 100  # per request, the API's limit


class GeminiEmbedding(RemoteEndpoint, EmbeddingModelBase):
    """An embedding model of Google's Gemini API.

    `dimensions` is the length to which the API shortens its vectors. At most `batch_size` texts, and
    100 in any case, are sent in one request. Key, URL and the other `ConnectionOptions` are those of a
    `GeminiChatModel`; a request may take 60 seconds unless `timeouts` says otherwise. The API reports no usage.
    """

    _api = GEMINI_API
    max_seconds = inf  # the limits of the connection hold

    def __init__(
        self,
        model: str = "gemini-embedding-001",
        *,
        dimensions: int = 1_536,
        batch_size: int = 64,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        if connection.get("timeouts") is None:
            connection["timeouts"] = Timeouts(total=60.0)
        model = plain_name(model)
        RemoteEndpoint.__init__(self, model, connection)
        EmbeddingModelBase.__init__(self, model=model, dimensions=dimensions, batch_size=batch_size)
        self.batch_size = min(batch_size, _MAX_TEXTS)

    def _path_for(self, body: JSONObject) -> str:
        return f"/models/{self.model}:batchEmbedContents"

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        return await self._embed_for("RETRIEVAL_DOCUMENT", texts)

    async def _embed_queries(self, texts: list[str]) -> EmbeddingResponse:
        return await self._embed_for("RETRIEVAL_QUERY", texts)

    async def _embed_for(self, task: str, texts: list[str]) -> EmbeddingResponse:
        common: JSONObject = {"model": f"models/{self.model}", "outputDimensionality": self.dimensions}
        if self.model in _MODELS_WITH_TASKS:
            common["taskType"] = task
        requests: list[JSONObject] = [{**common, "content": {"parts": [{"text": text}]}} for text in texts]
        reader = EmbeddingReader(_read_values)
        stream = await self._open({"requests": requests}, reader, streams=False)
        await stream.read_whole()
        return reader.response


def _read_values(body: dict[str, object]) -> EmbeddingResponse:
    vectors: list[Vector] = []
    for place, item in enumerate(list_in(body, "embeddings")):
        vector = item.get("values")
        if not isinstance(vector, list):
            raise Malformed(f"what it has at place {place} is not a vector")
        vectors.append(vector)
    return EmbeddingResponse(vectors)
