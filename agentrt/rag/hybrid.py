"""Hybrid search: the rankings by words and by meaning, joined into one."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from agentrt._runtime.text import repr_of
from agentrt.embedding import EmbeddingModelBase
from agentrt.errors import ConfigError
from agentrt.rag.progress import ProgressCount
from agentrt.rag.store import MetadataFilter, StoreBase, StoredText, TextMatch, check_limit

_logger = logging.getLogger("agentrt")
_MAX_QUERY_SECONDS = 4.0  # a reply waits for a search
_MAX_QUERY_LENGTH = 4_000  # characters; a question is clear by then
# The candidates of each ranking, as a minimum and as a multiple of the limit: texts placed well in both have to be
# found, even if first in neither, and a low place in one ranking is not the same as none.
_MIN_RANKING = 100
_DEPTH = 4
_MAX_RANKING = 10_000
# The constant of reciprocal rank fusion, from the original paper: larger values flatten the first ranks.
_RANK_CONSTANT = 60


@dataclass(frozen=True, slots=True)
class FoundTexts:
    """The result of a search; `failure` says why it used words alone, if it did."""

    matches: list[TextMatch]
    failure: str = ""


def use_embedding(place: str, embedding: object, store: Any) -> None:
    """Prepare the store for vectors of this model; raises `ConfigError` if it cannot keep them."""
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
    """Return the texts with their vectors, and count them; raises the model's errors."""
    is_watched = progress is not None and progress.is_watched
    # Without a listener, the model makes its own batches.
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
    """Return the texts that fit the query best, by words and, with an embedding, by vectors; best first.

    If the embedding fails, or takes more than four seconds, words alone are used, and a warning is logged.
    """
    if embedding is None:
        return FoundTexts(await store.search_text(owner, query, limit, **options))
    depth = min(max(check_limit("limit", limit) * _DEPTH, _MIN_RANKING), _MAX_RANKING)
    by_words: list[TextMatch] = await store.search_text(owner, query, depth, **options)
    question: object = query  # a model may ask for anything
    if not isinstance(question, str) or not question.strip():
        return FoundTexts(by_words[:limit])
    vector, failure = None, "no answer in time"
    with anyio.move_on_after(_MAX_QUERY_SECONDS):
        try:
            vector = (await embedding([question[:_MAX_QUERY_LENGTH]], are_queries=True)).embeddings[0]
        except Exception as error:  # noqa: BLE001  # the boundary to a model, which may be the user's own
            failure = type(error).__name__  # not its text, which may quote the query
    if vector is None:
        _logger.warning("texts are searched for by their words alone, since %s failed: %s", embedding.model, failure)
        return FoundTexts(by_words[:limit], failure)
    by_vectors = await store.search_vectors(owner, vector, depth, **options)
    # Joined by rank alone, since scores of words and of vectors are not comparable.
    scores: dict[str, float] = {}
    texts: dict[str, StoredText] = {}
    for ranking, weight in ((by_words, 1.0), (by_vectors, embedding.search_weight)):
        for rank, match in enumerate(ranking, 1):
            scores[match.text.id] = scores.get(match.text.id, 0.0) + weight / (_RANK_CONSTANT + rank)
            texts[match.text.id] = match.text
    # Ties are broken by id, as in the stores.
    best = sorted(scores, key=lambda id: (-scores[id], id))[:limit]
    return FoundTexts([TextMatch(texts[id], scores[id]) for id in best])
