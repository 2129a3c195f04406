"""Messages and answers of a conversation, as the parts of an A2A message."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from agentrt._runtime.boundary import strict_json
from agentrt.message import Base64Source, DataBlock, HintBlock, Msg, TextBlock, ToolResultBlock


def unsent_messages(messages: Sequence[Msg], record: Mapping[str, Any], name: str) -> tuple[list[Msg], str]:
    """Return the messages after the last answer of the other side, and the id of the reply that has this answer.

    The other side has its own answers and received the messages before them. An answer is found by its reply's id,
    since another agent may have the same name.
    """
    replies = [record.get("asked_by", record.get("reply_id")), record.get("answered_in")]
    for reply_id in filter(None, replies):
        for number in range(len(messages), 0, -1):
            message = messages[number - 1]
            if message.id == reply_id and message.role == "assistant" and message.name == name:
                return list(messages[number:]), reply_id
    return list(messages), ""


def message_digests(messages: Sequence[Msg]) -> list[str]:
    """Return a hash of the content of each message, since callers choose the ids."""
    return [sha256(message.to_json().encode()).hexdigest() for message in messages]


def new_parts(messages: Sequence[Msg]) -> list[dict[str, Any]]:
    """Return the parts of messages that the other side does not know."""
    # The other side has instructions of its own: system prompts that layers make here are not for it.
    new = [message for message in messages if message.role != "system"]
    # A hub has several speakers, and the other side has to know who said what.
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
    return [{"text": text}, *(file_part(block) for block in result.blocks if isinstance(block, DataBlock))]


def file_part(block: DataBlock) -> dict[str, Any]:
    """Return the part of a file, with its bytes or its URL."""
    source = block.source
    value = {"raw": source.data} if isinstance(source, Base64Source) else {"url": source.url}
    return {**value, "mediaType": source.media_type, **({"filename": block.name} if block.name else {})}
