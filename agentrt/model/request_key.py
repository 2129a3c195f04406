"""What a request asks, without what differs each time it is asked: its ids and times."""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any

from pydantic_core import to_json

from agentrt.block import DataBlock, TextBlock
from agentrt.message import Msg
from agentrt.model_interface.base import ChatModelBase
from agentrt.types import JSONObject, JSONSchema, ToolChoice

__all__ = ["describe_request", "key_of_description", "request_key"]


def request_key(
    messages: Sequence[Msg],
    tools: Sequence[JSONSchema] | None,
    tool_choice: ToolChoice | None,
    model: ChatModelBase,
) -> str:
    """Return a key that two requests share if they ask the same of the same model.

    It covers the class, name, provider, account and settings of the model, the names, roles and content of the
    messages, the tools with their schemas, and the tool choice. It leaves out ids and times; calls of tools count by
    their order. Equal requests have equal keys in every process.
    """
    return key_of_description(describe_request(messages, tools, tool_choice, model))


def key_of_description(description: JSONObject) -> str:
    """Return the key of a request from what `describe_request` says of it."""
    try:
        text = to_json(description, inf_nan_mode="constants", fallback=_described_value)
    except ValueError:  # half a surrogate pair, which a model may write, or a schema that contains itself
        text = ascii(description).encode()
    return sha256(text).hexdigest()


def describe_request(
    messages: Sequence[Msg],
    tools: Sequence[JSONSchema] | None,
    tool_choice: ToolChoice | None,
    model: ChatModelBase,
) -> JSONObject:
    """Return what the key is made of."""
    kind = type(model)
    call_numbers: dict[str, int] = {}
    return {
        "model": [f"{kind.__module__}.{kind.__qualname__}", model.model, model.provider, model.account],
        "settings": sorted(([str(name), value] for name, value in model.settings.items()), key=itemgetter(0)),
        "messages": [_described_message(message, call_numbers) for message in messages],
        "tools": list(tools or ()),
        "tool_choice": None if tool_choice is None else [tool_choice.mode, tool_choice.tools],
    }


def _described_message(message: Msg, call_numbers: dict[str, int]) -> list[Any]:
    content = message.content
    if content.__class__ is str:  # the same as one block of text
        return [message.role, message.name, ["text", content]]
    described: list[Any] = [message.role, message.name]
    for block in content:
        describe = _DESCRIPTIONS.get(block.type)  # type: ignore[union-attr]  # a str was told apart by its class
        described.append([block.type, *describe(block, call_numbers)] if describe else repr(block))  # type: ignore[union-attr]
    return described


def _describe_data(block: DataBlock, _: object) -> Iterable[Any]:
    source = block.source
    place = source.data if source.type == "base64" else source.url
    return source.type, source.media_type, place, block.name


def _described_output(output: str | Sequence[TextBlock | DataBlock]) -> object:
    if isinstance(output, str):
        return [["text", output]]
    return [["text", part.text] if part.type == "text" else ["data", *_describe_data(part, None)] for part in output]


_DESCRIPTIONS: dict[str, Callable[[Any, dict[str, int]], Iterable[Any]]] = {
    "text": lambda block, _: (block.text,),
    "thinking": lambda block, _: (block.thinking, block.signature),
    "data": _describe_data,
    "hint": lambda block, _: (block.hint,),
    "tool_call": lambda block, numbers: (numbers.setdefault(block.id, len(numbers)), block.name, block.input),
    "tool_result": lambda block, numbers: (
        numbers.setdefault(block.id, len(numbers)),
        block.name,
        block.state,
        _described_output(block.output),
    ),
    "provider": lambda block, _: (block.provider, block.content),
}


def _described_value(value: object) -> object:
    """Stand in for a setting or a part of a schema that JSON has no form for."""
    return [f"{type(value).__module__}.{type(value).__qualname__}", repr(value)]
