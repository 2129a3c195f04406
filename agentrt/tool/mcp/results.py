"""Results of MCP tools, in blocks."""

from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic_core import to_json

from agentrt._runtime.block import Base64Source, DataBlock, TextBlock, ToolResultState
from agentrt._runtime.schema.validator import Validator
from agentrt.tool.mcp.text import clean_text
from agentrt.tool.to_response import failure
from agentrt.types import ToolResponse

_MAX_BLOCKS = 1_000
_MAX_STRUCTURED = 500_000


def tool_response(name: str, result: CallToolResult, output_schema: Validator | None) -> ToolResponse:
    """Return the result of a call of the tool `name` in blocks; one that is malformed or too large is an error."""
    if len(result.content) > _MAX_BLOCKS:
        return failure(f"{name} failed: its result has {len(result.content):,} parts, and may have {_MAX_BLOCKS:,}.")
    blocks: list[TextBlock | DataBlock] = content_blocks(result.content)
    structured = result.structured_content
    # Errors need not fit the schema, and what they say is for the model.
    if result.is_error:
        return ToolResponse(blocks or [TextBlock(f"{name} failed and did not say why.")], ToolResultState.ERROR)
    if output_schema is not None:
        problem = "it is missing" if structured is None else output_schema.problem(structured)
        if problem is not None:
            return failure(f"{name} failed: its result is not what its schema says: {problem}.")
    if structured is None:
        return ToolResponse(blocks)
    text = to_json(structured).decode()
    # Some servers send no text beside it. What is large is not kept twice in the conversation.
    blocks = blocks or [TextBlock(clean_text(text))]
    return ToolResponse(blocks, metadata={"structured_content": structured} if len(text) <= _MAX_STRUCTURED else {})


def content_blocks(content: Any) -> list[TextBlock | DataBlock]:
    """Return parts of results, prompts and resources as blocks."""
    return [_block_of(part) for part in content]


def _block_of(part: Any) -> TextBlock | DataBlock:
    if isinstance(part, TextContent | TextResourceContents):
        return TextBlock(clean_text(part.text))
    if isinstance(part, ImageContent | AudioContent):
        return DataBlock(Base64Source(part.data, clean_text(part.mime_type, 100)))
    if isinstance(part, EmbeddedResource):
        return _block_of(part.resource)
    if isinstance(part, BlobResourceContents):
        media_type = clean_text(part.mime_type or "application/octet-stream", 100)
        return DataBlock(Base64Source(part.blob, media_type), name=clean_text(str(part.uri), 500))
    # Only named, and not read: the resource may be large, or private.
    if isinstance(part, ResourceLink):
        return TextBlock(f"Resource {clean_text(part.name, 500)}: {clean_text(str(part.uri), 2_000)}")
    return TextBlock(f"(a part of the type {type(part).__name__}, which cannot be shown)")
