"""Embeddings without a server, with the extra `embedding`: word vectors from a table, averaged."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from anyio import to_thread

from agentrt.embedding.base import EmbeddingModelBase, EmbeddingResponse, EmbeddingUsage
from agentrt.errors import ConfigError

_WEIGHTS = "l2_supercat"
_FULL_DIMENSIONS = 256
_DIMENSIONS = (64, 128, _FULL_DIMENSIONS)


class WordLlamaEmbedding(EmbeddingModelBase):
    """Makes vectors in this process, with weights from the package: nothing is downloaded, and no key is needed.

    It is made for English, and knows words rather than sentences. The weights were distilled from Llama 2, so that its
    license holds for them. `dimensions` are 256, 128 or 64: fewer take less room, and find less. In a
    search, what it finds counts less than the words do (`search_weight`). Needs the extra `embedding`.
    """

    # An average of words says less than the words themselves: with weight 1, answers that words alone find are lost.
    search_weight = 0.3

    def __init__(self, *, dimensions: int = _FULL_DIMENSIONS) -> None:
        if dimensions not in _DIMENSIONS:
            raise ConfigError(f"WordLlamaEmbedding(dimensions=...) must be 64, 128 or 256, not {dimensions!r:.100}")
        # Looked for but not imported: an import takes seconds.
        if find_spec("wordllama") is None:
            raise ConfigError('WordLlamaEmbedding needs the package wordllama: pip install "agentrt[embedding]"')
        super().__init__(model=f"wordllama/{_WEIGHTS}", dimensions=dimensions)
        self._lock = Lock()
        self._loaded: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(WordLlamaEmbedding, dimensions=self.dimensions), ()

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        return await to_thread.run_sync(self._embed_now, texts, abandon_on_cancel=True)

    def _embed_now(self, texts: list[str]) -> EmbeddingResponse:
        vectors = self._load().embed(texts, norm=False)
        return EmbeddingResponse(vectors.tolist(), EmbeddingUsage())

    def _load(self) -> Any:
        with self._lock:
            if self._loaded is None:
                import wordllama

                # The folder of the package is given as the cache, where the weights are then found.
                self._loaded = wordllama.WordLlama.load(
                    _WEIGHTS,
                    cache_dir=Path(wordllama.__file__).parent,
                    dim=_FULL_DIMENSIONS,
                    trunc_dim=None if self.dimensions == _FULL_DIMENSIONS else self.dimensions,
                    disable_download=True,
                )
            return self._loaded
