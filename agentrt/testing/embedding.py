"""An embedding model for tests: deterministic, immediate and free."""

import re
from hashlib import blake2b

from anyio.lowlevel import checkpoint

from agentrt.embedding import EmbeddingModelBase, EmbeddingResponse, EmbeddingUsage


class HashingEmbedding(EmbeddingModelBase):
    """Makes vectors by hashing words, so that texts with the same words are alike; `calls` records its inputs."""

    def __init__(self, *, dimensions: int = 64, model: str = "hashing", batch_size: int = 64) -> None:
        super().__init__(model=model, dimensions=dimensions, batch_size=batch_size)
        self.calls: list[list[str]] = []

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        self.calls.append(texts)
        await checkpoint()
        return EmbeddingResponse([self._vector(text) for text in texts], EmbeddingUsage(sum(map(len, texts))))

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word in re.findall(r"[^\W_]+", text.lower()):
            digest = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
            vector[digest % self.dimensions] += 1.0 if digest & 1 << 63 else -1.0
        return vector
