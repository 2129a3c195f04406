"""Thoughts and pictures that a provider has refused, and that later requests omit."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ModelError
from agentrt.formatter.openai import file_note
from agentrt.message import Msg

_MAX_LEFT_OUT = 10_000
_UNACCEPTED = (400, 404, 415, 422)
# The codes of OpenAI, and the messages of Anthropic, Gemini, vLLM and others. Not here: a model without image input
# is the wrong choice of model.
_REFUSED_IMAGE = lazy_pattern(
    r"\b(?:empty_image_file|failed_to_download_image|image_(?:content_policy_violation|file_not_found|file_too_large"
    r"|parse_error|too_large|too_small)|invalid_base64_image|invalid_image(?:_format|_mode|_url)?"
    r"|unsupported_image_media_type)\b"
    r"|(?:could not|unable to) process (?:input )?image|provided image is not valid|image\.source\.base64"
    r"|image (?:was specified using|exceeds)|image dimensions exceed|(?:unsupported|invalid|corrupt(?:ed)?) image\b"
    r"|(?:failed|unable) to (?:load|decode|download|fetch|identify) (?:the )?image|cannot identify image"
    r"|error while downloading",
    re.IGNORECASE,
)


class RefusedParts:
    """The parts of conversations that an API has refused, by hashes of their content."""

    def __init__(self, refused_thoughts: re.Pattern[str] | None) -> None:
        self._refused_thoughts = refused_thoughts  # matches the API's error for a signature
        self._refused: dict[str, None] = {}  # hashes, oldest first

    def note(self, messages: Sequence[Msg], error: ModelError) -> bool:
        """Record the parts of these messages that the error is about; returns whether there are any."""
        if error.status_code not in _UNACCEPTED:
            return False
        parts: list[str] = []
        if self._refused_thoughts is not None and self._refused_thoughts.search(str(error)):
            thoughts = [block for block in _blocks_in(messages) if isinstance(block, ThinkingBlock)]
            parts = [_hash_of(thought.signature) for thought in thoughts if thought.signature]
        elif _REFUSED_IMAGE.search(str(error)):
            images = [*_images_of(messages)]
            # Some APIs name the address. Otherwise they are those since the user's last message, as earlier ones were
            # accepted; without any there, all are suspected, since another process may have sent the earlier ones.
            named = [
                image for image in images if isinstance(image.source, URLSource) and image.source.url in str(error)
            ]
            last = max((place for place, message in enumerate(messages) if message.role == "user"), default=0)
            parts = [_hash_of(_data_of(image)) for image in named or [*_images_of(messages[last:])] or images]
        self._refused |= dict.fromkeys(parts)
        while len(self._refused) > _MAX_LEFT_OUT:
            del self._refused[next(iter(self._refused))]
        return bool(parts)

    def remove_from(self, messages: list[Msg]) -> list[Msg]:
        """Return the messages without the refused parts; a note replaces each picture."""
        return [*map(self._clean_message, messages)] if self._refused else messages

    def _clean_message(self, message: Msg) -> Msg:
        if isinstance(message.content, str):
            return message
        content = [self._clean_block(block) for block in message.content]
        unchanged = all(block is before for block, before in zip(content, message.content, strict=True))
        return message if unchanged else replace(message, content=content)

    def _clean_block(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, ThinkingBlock) and block.signature and _hash_of(block.signature) in self._refused:
            return replace(block, signature=None)
        if isinstance(block, DataBlock):
            return self._note_or_image(block)
        if isinstance(block, ToolResultBlock) and not isinstance(block.output, str):
            output = [self._note_or_image(part) for part in block.output]
            if any(part is not before for part, before in zip(output, block.output, strict=True)):
                return replace(block, output=output)
        return block

    def _note_or_image(self, part: TextBlock | DataBlock) -> TextBlock | DataBlock:
        if isinstance(part, TextBlock) or not _is_image(part) or _hash_of(_data_of(part)) not in self._refused:
            return part
        return TextBlock(file_note(part, "which the model's API has refused"))


def _blocks_in(messages: Iterable[Msg]) -> Iterator[ContentBlock]:
    for message in messages:
        yield from () if isinstance(message.content, str) else message.content


def _images_of(messages: Iterable[Msg]) -> Iterator[DataBlock]:
    for block in _blocks_in(messages):
        is_list = isinstance(block, ToolResultBlock) and not isinstance(block.output, str)
        for part in block.output if is_list else (block,):  # type: ignore[union-attr]  # a result, as seen above
            if isinstance(part, DataBlock) and _is_image(part):
                yield part


def _is_image(block: DataBlock) -> bool:
    return block.source.media_type.lower().startswith("image/")


def _data_of(block: DataBlock) -> str:
    return block.source.data if isinstance(block.source, Base64Source) else block.source.url


def _hash_of(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
