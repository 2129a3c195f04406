"""The base class of embedding models."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import ClassVar

import anyio

from agentrt._runtime.model_interface.estimate import CHARACTERS_PER_TOKEN, text_length
from agentrt._runtime.options import check_whole
from agentrt._runtime.representation import repr_by_settings
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.errors import ConfigError, Malformed, Timeout, UsageError

Vector = Sequence[float]
"""The vector of some text: texts of similar meaning have vectors of similar direction."""

_MAX_DIMENSIONS = 16_000
_MAX_BATCH = 2_048


@dataclass(frozen=True, slots=True)
class EmbeddingUsage:
    """The tokens that an embedding took."""

    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingResponse:
    """The vectors of texts, in the order of the texts, and the usage."""

    embeddings: list[Vector] = field(repr=False)
    usage: EmbeddingUsage = EmbeddingUsage()


class EmbeddingModelBase(ABC):
    """Turns texts into vectors of `dimensions` numbers; calling it does so.

    A subclass overrides `_embed`, which gets at most `batch_size` texts at a time, one batch after the other. There are
    no retries: those are up to the caller. `model` distinguishes the vectors of different models, which cannot be
    compared.
    """

    __repr__ = repr_by_settings

    max_seconds: ClassVar[float] = 120.0
    """How long one `_embed` may take."""

    max_batch_tokens: ClassVar[float] = inf
    """The approximate maximum of tokens per `_embed`; a longer text goes alone."""

    search_weight: float = 1.0
    """The weight of the vector ranking in a search; the word ranking has weight 1."""

    def __init__(self, *, model: str, dimensions: int, batch_size: int = 64) -> None:
        owner = type(self).__name__
        name: object = model
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{owner}(model=...) must be the name of a model, not {name!r:.100}")
        check_whole(f"{owner}(dimensions=...)", dimensions, most=_MAX_DIMENSIONS)
        check_whole(f"{owner}(batch_size=...)", batch_size, most=_MAX_BATCH)
        self.model, self.dimensions, self.batch_size = model, dimensions, batch_size

    async def __call__(self, texts: Sequence[str], *, are_queries: bool = False) -> EmbeddingResponse:
        """Return a vector for each text, in order; `are_queries` is for search queries instead of documents.

        Raises `Malformed` for an invalid answer, `Timeout` for a model that takes too long, and any error of `_embed`.
        """
        values: object = texts
        if not isinstance(values, (list, tuple)) or not all(isinstance(text, str) for text in values):
            raise UsageError(f"{type(self).__name__} takes a list of str, not {repr_of(values, 100)}")
        vectors: list[Vector] = []
        tokens = 0
        for batch in self._batches(texts):
            response = await self._embed_in_time(batch, are_queries)
            if not isinstance(response, EmbeddingResponse):
                raise Malformed(
                    f"{type(self).__name__}._embed must return an EmbeddingResponse, not {repr_of(response)}"
                )
            source = f"the embedding model {self.model!r}"
            if len(response.embeddings) != len(batch):
                raise Malformed(f"{source} returned {len(response.embeddings)} vectors for {len(batch)} texts")
            vectors += [self._numbers(vector, source) for vector in response.embeddings]
            tokens += response.usage.input_tokens
        return EmbeddingResponse(vectors, EmbeddingUsage(tokens))

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        tokens = 0.0
        for text in texts:
            size = text_length(text) / CHARACTERS_PER_TOKEN
            if batch and (len(batch) == self.batch_size or tokens + size > self.max_batch_tokens):
                yield batch
                batch, tokens = [], 0.0
            batch.append(whole_characters(text))
            tokens += size
        if batch:
            yield batch

    @abstractmethod
    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        """Return a vector for each text; there is at least one."""

    async def _embed_queries(self, texts: list[str]) -> EmbeddingResponse:
        """Return a vector for each query; override it if the model embeds queries differently from documents."""
        return await self._embed(texts)

    async def _embed_in_time(self, batch: list[str], are_queries: bool) -> EmbeddingResponse:
        with anyio.move_on_after(self.max_seconds):
            return await (self._embed_queries(batch) if are_queries else self._embed(batch))
        # Only our own deadline leads here.
        raise Timeout(f"the embedding model {self.model!r} gave no answer for {self.max_seconds:g} seconds")

    def _numbers(self, vector: Vector, source: str) -> Vector:
        try:
            numbers = [float(number) for number in vector]
        except (TypeError, ValueError) as error:
            raise Malformed(f"{source} returned what is not a vector of numbers: {repr_of(vector, 50)}") from error
        if len(numbers) != self.dimensions:
            raise Malformed(
                f"{source} returned a vector of {len(numbers)} numbers in place of {self.dimensions}: check the "
                f"dimensions of {type(self).__name__}, or what the server runs"
            )
        if not all(map(isfinite, numbers)):
            raise Malformed(f"{source} returned a vector with a number that is not finite")
        return numbers
