"""The content of messages, answers and tool calls in the form of spans: JSON text."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import NotRequired, TypedDict

from agentrt.message import (
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
)
from agentrt.types import JSONSchema, ToolOutput

_MAX_INPUT_CHARACTERS = 100_000  # of a request, which is the whole conversation each time

_Clean = Callable[[str], str]  # returns text that may leave the process: redacted, and not too long


class _Message(TypedDict):
    """A message of the conventions."""

    role: str
    name: NotRequired[str]  # of the speaker, if the role does not say it
    parts: list[dict[str, object]]


_EARLIER_MESSAGES: _Message = {
    "role": "system",
    "parts": [{"type": "text", "content": "[earlier messages are not shown]"}],
}


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def arguments_json(call: ToolCallBlock, clean: _Clean) -> str:
    return _as_json(_arguments(call, clean))


def call_names(calls: Iterable[ToolCallBlock], state: ToolCallState) -> str | None:
    """Return the calls in that state, without their arguments."""
    names = [{"id": call.id, "name": call.name} for call in calls if call.state is state]
    return _as_json(names) if names else None


def plain_text(messages: Iterable[Msg], clean: _Clean) -> str:
    return clean("\n".join(filter(None, (message.get_text_content() for message in messages))))


def input_messages(messages: Iterable[Msg], clean: _Clean) -> str:
    """Return the messages, of many only the newest, without system messages, which the conventions separate."""
    texts: list[str] = []  # newest first
    room = _MAX_INPUT_CHARACTERS
    # Lazily, from the end, so that a long conversation is not rendered completely for each call.
    conversation = [message for message in messages if message.role != "system"]
    parts = (part for message in reversed(conversation) for part in reversed(_split_by_role(message, clean)))
    for part in parts:
        text = _as_json(part)
        room -= len(text)
        if texts and room < 0:
            texts.append(_as_json(_EARLIER_MESSAGES))
            break
        texts.append(text)
    return f"[{', '.join(reversed(texts))}]"


def output_messages(content: Sequence[ContentBlock], finish_reason: str, clean: _Clean) -> str:
    # Some backends drop an answer without a finish reason.
    parts = [_part(block, clean) for block in content]
    return _as_json([{"role": "assistant", "parts": parts, "finish_reason": clean(finish_reason)}])


def system_parts(messages: Iterable[Msg], clean: _Clean) -> str | None:
    texts = [message.get_text_content() for message in messages if message.role == "system"]
    parts = [{"type": "text", "content": clean(text)} for text in texts if text]
    return _as_json(parts) if parts else None


def tool_definitions(tools: Sequence[JSONSchema], clean: _Clean) -> str | None:
    schemas = [tool.get("function", tool) for tool in tools]
    definitions = [{"type": "function", **_clean_dict(schema, clean)} for schema in schemas]
    return _as_json(definitions) if definitions else None


def result_text(output: str | ToolOutput, clean: _Clean) -> str:
    if isinstance(output, str):
        return clean(output)
    return clean("\n".join(block.text if isinstance(block, TextBlock) else _data_name(block) for block in output))


def _split_by_role(message: Msg, clean: _Clean) -> list[_Message]:
    """Return the message as messages of the conventions, where tool results have a separate role."""
    split: list[_Message] = []
    for block in message.get_content_blocks():
        role = "tool" if isinstance(block, ToolResultBlock) else message.role
        if not split or split[-1]["role"] != role:
            named: _Message = {"role": role, "name": clean(message.name), "parts": []}
            split.append(named if message.name and message.name != role != "tool" else {"role": role, "parts": []})
        split[-1]["parts"].append(_part(block, clean))
    return split


def _part(block: ContentBlock, clean: _Clean) -> dict[str, object]:
    match block:
        case TextBlock():
            return {"type": "text", "content": clean(block.text)}
        case ThinkingBlock():
            return {"type": "reasoning", "content": clean(block.thinking)}
        case HintBlock():
            return {"type": "text", "content": clean(block.hint)}
        case ProviderBlock():
            return {"type": "provider", "name": clean(block.provider), "content": clean(block.content)}
        case ToolCallBlock():
            arguments = _arguments(block, clean)
            return {"type": "tool_call", "id": clean(block.id), "name": clean(block.name), "arguments": arguments}
        case ToolResultBlock():
            return {"type": "tool_call_response", "id": clean(block.id), "response": result_text(block.output, clean)}
    return {"type": "blob", "mime_type": clean(block.source.media_type), "content": clean(_data_name(block))}


def _data_name(block: DataBlock) -> str:
    # Never the bytes, nor the URL, which may be signed.
    return f"[{block.source.media_type}]"


def _arguments(call: ToolCallBlock, clean: _Clean) -> object:
    try:
        return _clean_value(json.loads(call.input), clean)
    except (ValueError, RecursionError):  # models write JSON that is broken, or nested too deeply
        return clean(call.input)


def _clean_value(value: object, clean: _Clean) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return _clean_dict(value, clean)
    if isinstance(value, list):
        return [_clean_value(item, clean) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # A number may be that of a card or an account, so it is redacted like text.
        text = str(value)
        cleaned = clean(text)
        return value if cleaned == text else cleaned
    return value


def _clean_dict(value: dict[str, object], clean: _Clean) -> dict[str, object]:
    return {clean(name): _clean_value(item, clean) for name, item in value.items()}
