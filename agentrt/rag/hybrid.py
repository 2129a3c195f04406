"""Texts found by their words and by what they mean: two rankings, joined into one."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from agentrt.embedding import EmbeddingModelBase, Vector
from agentrt.errors import ConfigError
from agentrt.rag.progress import ProgressCount
from agentrt.rag.store import MetadataFilter, StoreBase, StoredText, TextMatch, check_limit
from agentrt.text import repr_of

__all__ = ["FoundTexts", "add_vectors", "search_texts", "use_embedding"]

_logger = logging.getLogger("agentrt")
_MAX_QUERY_SECONDS = 4.0  # a reply waits for a search
_MAX_QUERY_LENGTH = 4_000  # characters; what a question asks for is said by then
# Of each ranking, at least so many texts, or so many times the limit: what is well placed in both is to be found, even
# where it is first in none, and what one of them has far down is not to count as if the other alone had found it.
_MIN_RANKING = 100
_DEPTH = 4
_MAX_RANKING = 10_000
# By how little the first ranks differ. That of the paper which proposed the method, and of most who use it.
_RANK_CONSTANT = 60


@dataclass(frozen=True, slots=True)
class FoundTexts:
    """What a search has found; `failure` says what kept it from looking for more than words, if anything did."""

    matches: list[TextMatch]
    failure: str = ""


def use_embedding(place: str, embedding: object, store: Any) -> None:
    """Have the store keep vectors of this model; raises `ConfigError` where it cannot."""
    if embedding is None:
        return
    if not isinstance(embedding, EmbeddingModelBase):
        raise ConfigError(
            f"{place} must be an embedding model, as in OpenAIEmbedding('text-embedding-3-small'), not "
            f"{repr_of(embedding, 200)}"
        )
    if not isinstance(store, StoreBase):
        raise ConfigError(
            f"{place} needs a store that keeps vectors, as in SQLiteTextStore(path), not {repr_of(store, 200)}"
        )
    store.use_vectors(embedding.model, embedding.dimensions)


async def add_vectors(
    embedding: EmbeddingModelBase | None, texts: Sequence[StoredText], progress: ProgressCount | None = None
) -> list[StoredText]:
    """Return the texts with their vectors, and count them; raises what the model raises."""
    is_watched = progress is not None and progress.is_watched
    # Where nobody watches, the model makes its batches by itself.
    size = embedding.batch_size if embedding is not None and is_watched else len(texts)
    vectors: dict[str, Sequence[float]] = {}
    for start in range(0, len(texts), size or 1):
        part = texts[start : start + size]
        spoken = [text for text in part if text.text.strip()]
        if embedding is not None and spoken:
            response = await embedding([f"{text.keywords}\n{text.text}".strip() for text in spoken])
            vectors |= zip((text.id for text in spoken), response.embeddings, strict=True)
        if progress is not None:
            progress.add_chunks(len(part))
    return [replace(text, vector=vectors.get(text.id)) for text in texts] if vectors else list(texts)


async def search_texts(
    store: Any,
    embedding: EmbeddingModelBase | None,
    owner: str,
    query: str,
    limit: int,
    **options: MetadataFilter | None,
) -> FoundTexts:
    """Return the texts that fit the query best, by words and, with an embedding, by vectors; the best first.

    Where the embedding fails, or takes more than four seconds, words alone have to do, and a warning is logged.
    """
    if embedding is None:
        return FoundTexts(await store.search_text(owner, query, limit, **options))
    depth = min(max(check_limit("limit", limit) * _DEPTH, _MIN_RANKING), _MAX_RANKING)
    by_words: list[TextMatch] = await store.search_text(owner, query, depth, **options)
    question: object = query  # what a model asks for may be anything
    if not isinstance(question, str) or not question.strip():
        return FoundTexts(by_words[:limit])
    vector, failure = await _try_to_embed(embedding, question)
    if vector is None:
        _logger.warning("texts are searched for by their words alone, since %s failed: %s", embedding.model, failure)
        return FoundTexts(by_words[:limit], failure)
    by_vectors = await store.search_vectors(owner, vector, depth, **options)
    return FoundTexts(_join_by_ranks([(by_words, 1.0), (by_vectors, embedding.search_weight)])[:limit])


async def _try_to_embed(embedding: EmbeddingModelBase, query: str) -> tuple[Vector | None, str]:
    failure = "no answer in time"
    with anyio.move_on_after(_MAX_QUERY_SECONDS):
        try:
            return (await embedding([query[:_MAX_QUERY_LENGTH]], are_queries=True)).embeddings[0], ""
        except Exception as error:  # noqa: BLE001  # the boundary to a model, which may be the user's own
            failure = type(error).__name__  # and not its text, which may hold what was asked
    return None, failure


def _join_by_ranks(rankings: Sequence[tuple[Sequence[TextMatch], float]]) -> list[TextMatch]:
    """Return the texts of all rankings, each with its weight, scored by their ranks alone.

    Scores of words and of vectors do not compare.
    """
    scores: dict[str, float] = {}
    texts: dict[str, StoredText] = {}
    for ranking, weight in rankings:
        for rank, match in enumerate(ranking, 1):
            scores[match.text.id] = scores.get(match.text.id, 0.0) + weight / (_RANK_CONSTANT + rank)
            texts[match.text.id] = match.text
    # Of equals, the id decides, as in the stores.
    return [TextMatch(texts[id], scores[id]) for id in sorted(scores, key=lambda id: (-scores[id], id))]
