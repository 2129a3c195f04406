"""The projection between messages, answers and results of this runtime and the JSON of the AGENT-HOOKS standard.

Text alone is a `str`; anything else is a list of objects, one a block. What comes back from an interceptor is compared
with what went out, and what is unchanged stays the very block that it was, with its data and signatures.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agentrt.errors import ToolError
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.tool.arguments import parse_arguments
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolOutput


class ProjectionError(ValueError):
    """An interceptor's change has no form in this runtime; the message says which, without quoting it."""


def content_to_wire(content: str | Sequence[ContentBlock]) -> Any:
    """Return the content of a message or result."""
    if isinstance(content, str):
        return content
    if all(isinstance(block, TextBlock) for block in content):
        return "\n".join(block.text for block in content if isinstance(block, TextBlock))
    return [_block_to_wire(block) for block in content]


def content_from_wire(after: Any, before: Any, blocks: Sequence[ContentBlock]) -> list[ContentBlock]:
    """Return the blocks for content that an interceptor has changed."""
    if isinstance(after, str):
        return [TextBlock(after)]
    if not isinstance(after, list):
        raise ProjectionError(f"content is {type(after).__name__}, neither a str nor a list")
    earlier = before if isinstance(before, list) else []
    return [_block_from_wire(item, index, earlier, blocks) for index, item in enumerate(after)]


def _block_to_wire(block: ContentBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ThinkingBlock():
            return {"type": "thinking", "thinking": block.thinking}
        case HintBlock():
            return {"type": "hint", "hint": block.hint}
        case ToolCallBlock():
            return {"type": "tool_call", "id": block.id, "name": block.name, "args": arguments_of(block)}
        case ToolResultBlock():
            value = value_to_wire(block.blocks)
            return {"type": "tool_result", "id": block.id, "name": block.name, "value": value}
        case DataBlock(source=source):
            data = {"data": source.data} if isinstance(source, Base64Source) else {"url": source.url}
            return {"type": "data", "media_type": source.media_type, **data}
        case _:
            return {"type": "provider", "provider": block.provider, "content": block.content}


def _block_from_wire(item: Any, index: int, before: list[Any], blocks: Sequence[ContentBlock]) -> ContentBlock:
    for earlier, block in zip(before, blocks, strict=False):
        if earlier == item:
            return block
    if isinstance(item, str):
        return TextBlock(item)
    match item:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "hint", "hint": str(text)}:
            return HintBlock(text)
    in_this_place = blocks[index] if index < len(blocks) else None
    match item, in_this_place:
        case {"type": "tool_call", "args": dict(arguments)}, ToolCallBlock() as call:
            return replace(call, input=_dump(arguments))
        case {"type": "tool_result", "value": value}, ToolResultBlock() as result:
            return replace(result, output=value_from_wire(value))
    raise ProjectionError("a block that is not text was changed")


def messages_to_wire(messages: Sequence[Msg]) -> list[dict[str, Any]]:
    """Return the messages of a request."""
    return [{"role": message.role, "content": content_to_wire(message.content)} for message in messages]


def messages_from_wire(after: Any, before: list[dict[str, Any]], messages: Sequence[Msg]) -> list[Msg]:
    """Return the messages for those that interceptors have changed, added or left out."""
    if not isinstance(after, list):
        raise ProjectionError("messages is not a list")
    changed: list[Msg] = []
    for index, item in enumerate(after):
        if not (isinstance(item, dict) and "content" in item):
            raise ProjectionError("a message has no content")
        is_same_place = index < len(before) and len(after) == len(before) and item.get("role") == before[index]["role"]
        found = index if is_same_place else next((i for i, other in enumerate(before) if other == item), None)
        if found is None:
            content = content_from_wire(item["content"], None, ())
            is_user = item.get("role") not in ("system", "assistant")
            changed.append(Msg(item.get("role", "user"), content, "user" if is_user else item["role"]))
        elif item == before[found]:
            changed.append(messages[found])
        else:
            blocks = messages[found].get_content_blocks()
            content = content_from_wire(item["content"], before[found]["content"], blocks)
            changed.append(replace(messages[found], content=content))
    return changed


def tools_to_wire(tools: Sequence[JSONSchema]) -> list[dict[str, Any]]:
    """Return the tools of a request."""
    functions = [tool.get("function", tool) for tool in tools]
    return [
        {
            "name": function["name"],
            "description": function.get("description", ""),
            "schema": function.get("parameters", {}),
        }
        for function in functions
    ]


def arguments_of(call: ToolCallBlock) -> dict[str, Any]:
    """Return the arguments as the model wrote them; none if they are not a JSON object: that call never runs."""
    with suppress(ToolError):
        return parse_arguments(call.input)
    return {}


def calls_of(blocks: Sequence[ContentBlock]) -> list[dict[str, Any]]:
    """Return the tool calls of an answer."""
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    return [{"id": call.id, "name": call.name, "args": arguments_of(call)} for call in calls]


def text_of(blocks: Sequence[ContentBlock]) -> str | None:
    """Return the text of an answer, `None` if it has none."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    return "".join(texts) if texts else None


def thinking_of(blocks: Sequence[ContentBlock]) -> str:
    """Return what the model thinks in an answer."""
    return "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))


def usage_to_wire(usage: ChatUsage | None) -> dict[str, int] | None:
    """Return the tokens of an answer."""
    return None if usage is None else {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}


def response_from_wire(response: ChatResponse, text: Any, calls: Any) -> ChatResponse:
    """Return the answer with this text and these calls in the place of its own."""
    if not (text is None or isinstance(text, str)) or not isinstance(calls, list):
        raise ProjectionError("an answer was given content other than text, or calls other than a list")
    blocks = list(response.content)
    if text != text_of(blocks):
        blocks = _substitute(blocks, TextBlock, [TextBlock(text)] if text else [])
    before = calls_of(blocks)
    if calls != before:
        as_sent = {call["id"]: call for call in before}
        known = {block.id: block for block in blocks if isinstance(block, ToolCallBlock)}
        changed: list[ContentBlock] = []
        for call in calls:
            block = known.get(call.get("id"))
            if block is None or not isinstance(call.get("args"), dict) or not isinstance(call.get("name"), str):
                raise ProjectionError("an answer was given a call that the model did not make")
            is_same = call == as_sent[block.id]
            changed.append(block if is_same else replace(block, name=call["name"], input=_dump(call["args"])))
        blocks = _substitute(blocks, ToolCallBlock, changed)
    return replace(response, content=blocks)


def _substitute(
    blocks: Sequence[ContentBlock], kind: type[ContentBlock], substitutes: Sequence[ContentBlock]
) -> list[ContentBlock]:
    """Return the blocks with those of one kind replaced; the substitutes stand where the first of them stood."""
    place = next((index for index, block in enumerate(blocks) if isinstance(block, kind)), 0)
    others = [block for block in blocks if not isinstance(block, kind)]
    return [*others[:place], *substitutes, *others[place:]]


def value_to_wire(output: Sequence[ContentBlock]) -> Any:
    """Return the value of a tool's result: its text, or the JSON object or list that the text is."""
    value = content_to_wire(output)
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(value)
    return value


def value_from_wire(value: Any) -> ToolOutput:
    """Return the output for a value that an interceptor has put in the place of a tool's result."""
    return [TextBlock(value if isinstance(value, str) else _dump(value))]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
