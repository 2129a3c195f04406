"""Answers whose tokens the user's own tokenizer counts, where the server does not."""

from collections.abc import Sequence
from dataclasses import replace

from agentrt.message import Msg
from agentrt.model.remote.stream import AnswerReader, WrappedReader
from agentrt.model_interface.estimate import TextLength, estimated_usage
from agentrt.types import ChatResponse

__all__ = ["CountingReader"]


class CountingReader(WrappedReader):
    """Reads an answer as the reader in it does, and counts its tokens if that one can only estimate them."""

    def __init__(self, reader: AnswerReader, messages: Sequence[Msg], length: TextLength) -> None:
        super().__init__(reader)
        self._messages = messages
        self._length = length

    def answer(self) -> ChatResponse:
        response = super().answer()
        if response.usage is None or not response.usage.estimated:
            return response
        return replace(response, usage=estimated_usage(self._messages, response.content, self._length))
