"""Redaction of what a tool gives: its pieces as they come, and its result."""

from dataclasses import replace

from agentrt.message import TextBlock
from agentrt.types import OpenQuestion, ToolChunk, ToolOutput, ToolResponse
from agentrt_middleware.redaction.content import change_block, change_value
from agentrt_middleware.redaction.conversation_text import ConversationText
from agentrt_middleware.redaction.events import GrowingText

__all__ = ["ToolOutputRedactor"]


class ToolOutputRedactor:
    """Takes the pieces of one tool's output, and gives those that may leave."""

    def __init__(self, text: ConversationText) -> None:
        self._text = text
        self._open: tuple[str, GrowingText] | None = None  # the block that is being written, and its text

    def take(self, chunk: ToolChunk) -> ToolChunk | None:
        """Take in a piece; returns what may leave of it, if anything."""
        content: ToolOutput = []
        # A layer may give anything; the runtime refuses by name what is not content.
        if not isinstance(chunk.content, (list, tuple)):
            return replace(chunk, content=change_value(chunk.content, self._text.change))
        for block in chunk.content:
            if isinstance(block, TextBlock):
                content += self._feed(block)
            else:
                content += self._end_open()
                content.append(change_block(block, self._text.change))
        if chunk.is_last:
            content += self._end_open()
        if not (content or chunk.is_last or chunk.metadata):
            return None
        return replace(chunk, content=content, metadata=change_value(chunk.metadata, self._text.change))

    def end(self) -> ToolChunk | None:
        """Return what is left to show before the result."""
        content = self._end_open()
        return ToolChunk(content) if content else None

    def redact_response(self, response: ToolResponse) -> ToolResponse:
        """Return the result as it may leave."""
        change = self._text.change
        content = response.content
        if isinstance(content, (list, tuple)):
            content = [change_block(block, change) for block in content]
        else:
            content = change_value(content, change)
        response = replace(response, content=content, metadata=change_value(response.metadata, change))
        if isinstance(response.waits, (list, tuple)) and response.waits:
            response.waits = [self._redact_question(question) for question in response.waits]
        return response

    def _redact_question(self, question: OpenQuestion) -> OpenQuestion:
        """Return what a call asks as it may be kept: its answer is compared with that."""
        if not isinstance(question, OpenQuestion):  # which the runtime refuses by name
            return question
        change = self._text.change
        return replace(
            question, tool_call=change_block(question.tool_call, change), message=change_value(question.message, change)
        )

    def _feed(self, block: TextBlock) -> ToolOutput:
        # One block is written after the other, so that a new id ends the one before it.
        content: ToolOutput = []
        if self._open is None or self._open[0] != block.id:
            content = self._end_open()
            self._open = block.id, self._text.begin()
        text = self._open[1].feed(block.text)
        return [*content, TextBlock(text, block.id)] if text else content

    def _end_open(self) -> ToolOutput:
        if self._open is None:
            return []
        (block_id, stream), self._open = self._open, None
        text = stream.end()
        return [TextBlock(text, block_id)] if text else []
