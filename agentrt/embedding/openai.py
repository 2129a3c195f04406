"""OpenAI's embeddings API, and the many servers that speak it."""

from collections.abc import Mapping
from math import inf
from typing import Unpack
from urllib.parse import urlsplit

from agentrt._runtime.block import JSONObject
from agentrt._runtime.http.limits import Timeouts
from agentrt.embedding.answer import EmbeddingReader
from agentrt.embedding.base import EmbeddingModelBase, EmbeddingResponse, EmbeddingUsage, Vector
from agentrt.errors import ConfigError, Malformed
from agentrt.model.remote.endpoint import OPENAI_API, RemoteEndpoint
from agentrt.model.remote.settings import ConnectionOptions, check_option
from agentrt.model.remote.sse import count_in, dict_in, list_in

# The length of the vectors of OpenAI's own models, and whether they can be shortened.
_OPENAI_MODELS = {
    "text-embedding-3-small": (1_536, True),
    "text-embedding-3-large": (3_072, True),
    "text-embedding-ada-002": (1_536, False),
}
# The fields of a request for the vectors of queries, and for those of documents.
_INPUT_TYPES: dict[str, tuple[JSONObject, JSONObject]] = {
    host: ({"input_type": query}, {"input_type": document})
    for host, query, document in (
        ("api.cohere.ai", "search_query", "search_document"),
        ("api.cohere.com", "search_query", "search_document"),
        ("api.voyageai.com", "query", "document"),
        ("integrate.api.nvidia.com", "query", "passage"),
    )
}
_TOTAL_SECONDS = 60.0
_MAX_REQUEST_TOKENS = 150_000  # the API takes 300,000 in one request; half of that is left as a margin for the estimate


class OpenAIEmbedding(RemoteEndpoint, EmbeddingModelBase):
    """An embedding model of OpenAI, or of any server that speaks its API, whose URL is given as `base_url`.

    `dimensions` is the length of its vectors. It may be left out for OpenAI's own models, and shortens the
    vectors of those that can be shortened. At most `batch_size` texts, of about 150,000 tokens in all, are sent in one
    request. Key, URL and the other `ConnectionOptions` are those of an `OpenAIChatModel`; a request may take 60 seconds
    unless `timeouts` says otherwise.

    `query_body` and `document_body` are added to the requests for queries and for documents, such as
    `{"input_type": "query"}`. Their defaults are right for the servers of Cohere, NVIDIA and Voyage, empty for others.
    """

    _api = OPENAI_API
    _path = "/embeddings"
    max_seconds = inf  # the limits of the connection hold
    max_batch_tokens = _MAX_REQUEST_TOKENS

    def __init__(
        self,
        model: str,
        *,
        dimensions: int | None = None,
        batch_size: int = 64,
        query_body: Mapping[str, object] | None = None,
        document_body: Mapping[str, object] | None = None,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        if connection.get("timeouts") is None:
            connection["timeouts"] = Timeouts(total=_TOTAL_SECONDS)
        RemoteEndpoint.__init__(self, model, connection)
        own, can_be_shortened = _OPENAI_MODELS.get(model, (None, False))
        if dimensions is None and own is None:
            raise ConfigError(
                f"OpenAIEmbedding(dimensions=...) must say how many numbers the vectors of {model!r:.100} have: its "
                f"documentation does"
            )
        EmbeddingModelBase.__init__(self, model=model, dimensions=dimensions or own or 0, batch_size=batch_size)
        check_option(query_body, Mapping, "OpenAIEmbedding(query_body=...)", 'query_body={"input_type": "query"}')
        check_option(
            document_body, Mapping, "OpenAIEmbedding(document_body=...)", 'document_body={"input_type": "document"}'
        )
        of_query, of_document = _INPUT_TYPES.get(urlsplit(self.base_url).hostname or "", ({}, {}))
        self._query_body = of_query if query_body is None else dict(query_body)
        self._document_body = of_document if document_body is None else dict(document_body)
        # Sent only to models known to understand it: many servers refuse unknown fields.
        self._is_shortened = can_be_shortened and dimensions not in (None, own)

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        return await self._embed_with(self._document_body, texts)

    async def _embed_queries(self, texts: list[str]) -> EmbeddingResponse:
        return await self._embed_with(self._query_body, texts)

    async def _embed_with(self, fields: JSONObject, texts: list[str]) -> EmbeddingResponse:
        # Without `encoding_format`: the default is the format read here, and some servers refuse the field.
        body: JSONObject = {"model": self.model, "input": texts, **fields}
        if self._is_shortened:
            body["dimensions"] = self.dimensions
        reader = EmbeddingReader(_read_vectors)
        stream = await self._open(body, reader, streams=False)
        await stream.read_whole()
        return reader.response


def _read_vectors(body: dict[str, object]) -> EmbeddingResponse:
    vectors: dict[int, Vector] = {}
    for place, item in enumerate(list_in(body, "data")):
        vector = item.get("embedding")
        if not isinstance(vector, list):
            raise Malformed(f"what it has at place {place} is not a vector")
        # In the order of the texts, which the answer need not have.
        vectors[count_in(item, "index") if "index" in item else place] = vector
    if sorted(vectors) != list(range(len(vectors))):
        raise Malformed(f"it numbered {len(vectors)} vectors {sorted(vectors)[:20]!r:.100}")
    usage = EmbeddingUsage(count_in(dict_in(body, "usage"), "prompt_tokens"))
    return EmbeddingResponse([vectors[place] for place in sorted(vectors)], usage)
