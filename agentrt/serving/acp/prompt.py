"""The prompt of an editor's user, as a message."""

from collections.abc import Sequence
from html import escape

from acp.exceptions import RequestError
from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
)

from agentrt.message import Base64Source, ContentBlock, DataBlock, Msg, TextBlock

PromptBlock = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)


def read_prompt(prompt: Sequence[PromptBlock]) -> Msg:
    """Return the message of the user; raises `RequestError` for a prompt without content."""
    blocks = [_read_block(block) for block in prompt]
    if not any(not isinstance(block, TextBlock) or block.text.strip() for block in blocks):
        raise RequestError.invalid_params({"details": "the prompt is empty: send text, an image or a resource"})
    return Msg("user", blocks, "user")


def _read_block(block: PromptBlock) -> ContentBlock:
    match block:
        case TextContentBlock():
            return TextBlock(block.text)
        case ImageContentBlock() | AudioContentBlock():
            return DataBlock(Base64Source(block.data, block.mime_type))
        case ResourceContentBlock():
            # Its content is for the agent's tools to read, if they may.
            return TextBlock(f"[{block.title or block.name}]({block.uri})")
        case EmbeddedResourceContentBlock():
            resource = block.resource
            if isinstance(resource, BlobResourceContents):
                media_type = resource.mime_type or "application/octet-stream"
                return DataBlock(Base64Source(resource.blob, media_type), name=resource.uri)
            return TextBlock(f'<resource uri="{escape(resource.uri)}">\n{resource.text}\n</resource>')
