"""What people, models and tools say, in the form in which spans carry it: JSON text."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

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

__all__ = [
    "arguments_json",
    "call_names",
    "input_messages",
    "output_messages",
    "plain_text",
    "result_text",
    "system_parts",
    "tool_definitions",
]

_MOST_IN_ALL = 100_000  # characters of what a model is sent, which is the whole conversation each time
_LEFT_OUT = {"role": "system", "parts": [{"type": "text", "content": "[what was said before is not shown]"}]}

Clean = Callable[[str], str]
"""Makes a text fit to leave: redacted, and not too long."""


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def arguments_json(call: ToolCallBlock, clean: Clean) -> str:
    return _as_json(_arguments(call, clean))


def call_names(calls: Iterable[ToolCallBlock], state: ToolCallState) -> str | None:
    """Return which of the calls are in that state, without what they are to be called with."""
    named = [{"id": call.id, "name": call.name} for call in calls if call.state is state]
    return _as_json(named) if named else None


def plain_text(messages: Iterable[Msg], clean: Clean) -> str:
    return clean("\n".join(filter(None, (each.get_text_content() for each in messages))))


def input_messages(messages: Iterable[Msg], clean: Clean) -> str:
    """Return the messages but for the system's, which the conventions keep apart; of many, the last ones."""
    told: list[str] = []
    room = _MOST_IN_ALL
    for part in _newest_first(messages, clean):
        text = _as_json(part)
        room -= len(text)
        if told and room < 0:
            told.append(_as_json(_LEFT_OUT))
            break
        told.append(text)
    return f"[{', '.join(reversed(told))}]"


def output_messages(content: Sequence[ContentBlock], finish_reason: str, clean: Clean) -> str:
    # Some backends drop an answer that does not say why it ended.
    parts = [_part(block, clean) for block in content]
    return _as_json([{"role": "assistant", "parts": parts, "finish_reason": clean(finish_reason)}])


def system_parts(messages: Iterable[Msg], clean: Clean) -> str | None:
    texts = [each.get_text_content() for each in messages if each.role == "system"]
    parts = [{"type": "text", "content": clean(text)} for text in texts if text]
    return _as_json(parts) if parts else None


def tool_definitions(tools: Sequence[JSONSchema], clean: Clean) -> str | None:
    told = [{"type": "function", **_cleaned(each.get("function", each), clean)} for each in tools]
    return _as_json(told) if told else None


def result_text(output: str | ToolOutput, clean: Clean) -> str:
    if isinstance(output, str):
        return clean(output)
    return clean("\n".join(block.text if isinstance(block, TextBlock) else _data_name(block) for block in output))


def _newest_first(messages: Iterable[Msg], clean: Clean) -> Iterator[dict[str, Any]]:
    for message in reversed([each for each in messages if each.role != "system"]):
        yield from reversed(_split(message, clean))


def _split(message: Msg, clean: Clean) -> list[dict[str, Any]]:
    """Return the message as those of the conventions, where results of tools are messages of their own."""
    split: list[dict[str, Any]] = []
    for block in message.get_content_blocks():
        role = "tool" if isinstance(block, ToolResultBlock) else message.role
        if not split or split[-1]["role"] != role:
            split.append({"role": role, "parts": []})
        split[-1]["parts"].append(_part(block, clean))
    return split


def _part(block: ContentBlock, clean: Clean) -> dict[str, Any]:
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
    # Never the bytes, and no address either: it may be one that is signed.
    return f"[{block.source.media_type}]"


def _arguments(call: ToolCallBlock, clean: Clean) -> Any:
    try:
        return _cleaned(json.loads(call.input), clean)
    except (ValueError, RecursionError):
        return clean(call.input)


def _cleaned(value: Any, clean: Clean) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): _cleaned(each, clean) for name, each in value.items()}
    if isinstance(value, list):
        return [_cleaned(each, clean) for each in value]
    return _number(value, clean) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _number(value: float, clean: Clean) -> float | str:
    # A number of a card or a person is as good as a text to whoever redacts.
    text = str(value)
    cleaned = clean(text)
    return value if cleaned == text else cleaned
