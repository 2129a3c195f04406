"""Messages and answers of a conversation, as the parts of an A2A message."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentrt.boundary import strict_json
from agentrt.message import Base64Source, DataBlock, HintBlock, Msg, TextBlock, ToolResultBlock

__all__ = ["answer_parts", "file_part", "new_parts"]


def new_parts(messages: Sequence[Msg], name: str) -> list[dict[str, Any]]:
    """Return the parts of all messages since the last one of the agent `name`, which the other side does not know."""
    first = 0
    for number, message in enumerate(messages, 1):
        # The other side has its own messages, and got those before them when it answered.
        if message.role == "assistant" and message.name == name:
            first = number
    # The other side has instructions of its own: system prompts that layers make here are not for it.
    new = [message for message in messages[first:] if message.role != "system"]
    # In a hub several speak, and the other side has to know who said what.
    is_among_others = len({message.name for message in new}) > 1
    parts: list[dict[str, Any]] = []
    for message in new:
        begin = f"{message.name}: " if is_among_others or message.role == "assistant" else ""
        for block in message.get_content_blocks():
            if isinstance(block, (TextBlock, HintBlock)):
                parts.append({"text": begin + (block.text if isinstance(block, TextBlock) else block.hint)})
                begin = ""
            elif isinstance(block, DataBlock):
                parts.append(file_part(block))
    return parts


def answer_parts(result: ToolResultBlock) -> list[dict[str, Any]]:
    """Return the parts of an answer: a JSON object as data, anything else as text."""
    text = result.text
    # An object that is not valid JSON, or is nested too deeply, is sent as text.
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            return [{"data": strict_json(text)}]
    blocks = [] if isinstance(result.output, str) else result.output
    return [{"text": text}, *(file_part(block) for block in blocks if isinstance(block, DataBlock))]


def file_part(block: DataBlock) -> dict[str, Any]:
    """Return the part of a file, with its bytes or its URL."""
    source = block.source
    value = {"raw": source.data} if isinstance(source, Base64Source) else {"url": source.url}
    return {**value, "mediaType": source.media_type, **({"filename": block.name} if block.name else {})}
