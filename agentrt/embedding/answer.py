"""The answer to one embedding request; it is never streamed."""

from collections.abc import Callable

from agentrt._runtime.block import ContentBlock
from agentrt.embedding.base import EmbeddingResponse
from agentrt.errors import Malformed
from agentrt.model.remote.reader import AnswerReader
from agentrt.types import ChatResponse


class EmbeddingReader(AnswerReader):
    """Reads one answer by a provider's `parse`, and keeps it as `response`."""

    def __init__(self, parse: Callable[[dict[str, object]], EmbeddingResponse]) -> None:
        super().__init__(())  # an embedding answers no messages
        self._parse = parse
        self.response = EmbeddingResponse([])

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        raise Malformed("it answered with a stream, for which it was not asked")

    def read(self, body: dict[str, object]) -> None:
        self.response = self._parse(body)

    def answer(self) -> ChatResponse:
        return ChatResponse([])
