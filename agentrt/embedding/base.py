"""What every model that turns texts into vectors does."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import ClassVar

import anyio

from agentrt.errors import ConfigError, Malformed, Timeout, UsageError
from agentrt.model_interface.estimate import CHARACTERS_PER_TOKEN, text_length
from agentrt.representation import repr_by_settings
from agentrt.text import repr_of, whole_characters

__all__ = ["EmbeddingModelBase", "EmbeddingResponse", "EmbeddingUsage", "Vector"]

Vector = Sequence[float]
"""The numbers that stand for what text means: what means alike has vectors of like directions."""

_MAX_DIMENSIONS = 16_000
_MAX_BATCH = 2_048


@dataclass(frozen=True, slots=True)
class EmbeddingUsage:
    """What an embedding took."""

    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EmbeddingResponse:
    """The vectors of texts, in the order of the texts, and what they took."""

    embeddings: list[Vector] = field(repr=False)
    usage: EmbeddingUsage = EmbeddingUsage()


class EmbeddingModelBase(ABC):
    """Turns texts into vectors of `dimensions` numbers; calling it does so.

    A subclass overrides `_embed`, which is given at most `batch_size` texts at a time, one batch after the other.
    Nothing is ever tried again: that is the caller's affair. `model` tells vectors of one model from those of another,
    which do not compare.
    """

    __repr__ = repr_by_settings

    max_seconds: ClassVar[float] = 120.0
    """How long one `_embed` may take."""

    max_batch_tokens: ClassVar[float] = inf
    """About how many tokens one `_embed` is given at most; a longer text goes by itself."""

    search_weight: float = 1.0
    """How much a rank among the vectors counts in a search, where one among the words counts 1."""

    def __init__(self, *, model: str, dimensions: int, batch_size: int = 64) -> None:
        owner = type(self).__name__
        name: object = model
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{owner}(model=...) must be the name of a model, not {name!r:.100}")
        numbers: tuple[tuple[str, object, int], ...] = (
            ("dimensions", dimensions, _MAX_DIMENSIONS),
            ("batch_size", batch_size, _MAX_BATCH),
        )
        for what, number, maximum in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= maximum:
                raise ConfigError(
                    f"{owner}({what}=...) must be a whole number from 1 to {maximum:,}, not {number!r:.100}"
                )
        self.model, self.dimensions, self.batch_size = model, dimensions, batch_size

    async def __call__(self, texts: Sequence[str], *, are_queries: bool = False) -> EmbeddingResponse:
        """Return a vector for each text, in order; `are_queries` is for search queries instead of documents.

        Raises `Malformed` for a model that gives other than it should, `Timeout` for one that takes too long, and what
        `_embed` raises.
        """
        values: object = texts
        if not isinstance(values, (list, tuple)) or not all(isinstance(text, str) for text in values):
            raise UsageError(f"{type(self).__name__} takes a list of str, not {repr_of(values, 100)}")
        vectors: list[Vector] = []
        tokens = 0
        for batch in self._batches(texts):
            response = await self._embed_in_time(batch, are_queries)
            vectors += self._vectors(response, len(batch))
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
        """Return a vector for each of the texts, of which there is at least one."""

    async def _embed_queries(self, texts: list[str]) -> EmbeddingResponse:
        """Return a vector for each query; override it if the model embeds queries differently from documents."""
        return await self._embed(texts)

    async def _embed_in_time(self, batch: list[str], are_queries: bool) -> EmbeddingResponse:
        with anyio.move_on_after(self.max_seconds):
            return await (self._embed_queries(batch) if are_queries else self._embed(batch))
        # Only our own deadline leads here.
        raise Timeout(f"the embedding model {self.model!r} gave no answer for {self.max_seconds:g} seconds")

    def _vectors(self, response: object, count: int) -> list[Vector]:
        if not isinstance(response, EmbeddingResponse):
            raise Malformed(f"{type(self).__name__}._embed must return an EmbeddingResponse, not {repr_of(response)}")
        source = f"the embedding model {self.model!r}"
        if len(response.embeddings) != count:
            raise Malformed(f"{source} returned {len(response.embeddings)} vectors for {count} texts")
        return [self._numbers(vector, source) for vector in response.embeddings]

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
