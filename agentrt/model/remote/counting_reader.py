"""Answers whose tokens the user's own tokenizer counts, where the server does not."""

from collections.abc import Sequence
from dataclasses import replace

from agentrt.block import ContentBlock
from agentrt.message import Msg
from agentrt.model.remote.stream import AnswerReader
from agentrt.model_interface.estimate import TextLength, estimated_usage
from agentrt.types import ChatResponse

__all__ = ["CountingReader"]


class CountingReader:
    """Reads an answer as the reader in it does, and counts its tokens if that one can only estimate them."""

    def __init__(self, reader: AnswerReader, messages: Sequence[Msg], length: TextLength) -> None:
        self._reader = reader
        self._messages = messages
        self._length = length

    @property
    def is_complete(self) -> bool:
        return self._reader.is_complete

    @property
    def has_ended(self) -> bool:
        return self._reader.has_ended

    @property
    def has_progressed(self) -> bool:
        return self._reader.has_progressed

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        return self._reader.feed(event)

    def read(self, body: dict[str, object]) -> None:
        self._reader.read(body)

    def answer(self) -> ChatResponse:
        response = self._reader.answer()
        if response.usage is None or not response.usage.estimated:
            return response
        return replace(response, usage=estimated_usage(self._messages, response.content, self._length))
