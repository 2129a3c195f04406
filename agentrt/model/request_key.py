"""The key of a request: its content, without ids and times."""

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any

from pydantic_core import to_json

from agentrt._runtime.block import DataBlock, TextBlock
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.text import lazy_pattern
from agentrt.message import Msg
from agentrt.types import JSONObject, JSONSchema, ToolChoice

_HANDLE = lazy_pattern(r"<([A-Za-z][A-Za-z0-9_]{0,63})_[1-9][0-9]{0,8}_[0-9a-f]{8}>")
_KEPT_HANDLE = lazy_pattern(r"<[A-Za-z][A-Za-z0-9_]{0,63}_#([0-9]{1,9})>")


def request_key(
    messages: Sequence[Msg], tools: Sequence[JSONSchema] | None, tool_choice: ToolChoice | None, model: ChatModelBase
) -> str:
    """Return a key that two requests share if they ask the same model the same question.

    It covers the class, name, provider, account and `answer_settings` of the model, the names, roles and content of the
    messages, the tools with their schemas, and the tool choice. It leaves out ids and times; calls of tools, and
    handles of held values, count by their order. Equal requests have equal keys in every process.
    """
    return key_of_description(describe_request(messages, tools, tool_choice, model))


def key_of_description(description: JSONObject) -> str:
    """Return the key of a request from the result of `describe_request`."""
    try:
        # Settings and parts of a schema that JSON cannot hold.
        text = to_json(
            description,
            inf_nan_mode="constants",
            fallback=lambda value: [f"{type(value).__module__}.{type(value).__qualname__}", repr(value)],
        )
    except ValueError:  # half a surrogate pair, which a model may write, or a schema that contains itself
        text = ascii(description).encode()
    return sha256(text).hexdigest()


def describe_request(
    messages: Sequence[Msg], tools: Sequence[JSONSchema] | None, tool_choice: ToolChoice | None, model: ChatModelBase
) -> JSONObject:
    """Return the data that the key is computed from."""
    kind = type(model)
    numbers = _Numbers()
    return {
        "model": [f"{kind.__module__}.{kind.__qualname__}", model.model, model.provider],
        "account": model.account,
        "settings": sorted(([str(name), value] for name, value in model.answer_settings.items()), key=itemgetter(0)),
        "messages": [_described_message(message, numbers) for message in messages],
        "tools": list(tools or ()),
        "tool_choice": None if tool_choice is None else [tool_choice.mode, tool_choice.tools],
    }


class RequestHandles:
    """The handles of held values in a request, in order: an answer to an equal request has others in their places.

    The tag of a conversation is random, so no other one has its handles.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @classmethod
    def of(cls, messages: Sequence[Msg]) -> "RequestHandles":
        """Return the handles in the messages of a request."""
        handles = cls()
        numbers = _Numbers(handles)
        for message in messages:
            _described_message(message, numbers)
        return handles

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def number(self, text: str) -> str:
        """Return the text with numbers in the place of handles; new ones get the next."""
        if "<" not in text:
            return text
        # The name stays, since a model treats a private value otherwise than an untrusted one.
        return _HANDLE.sub(lambda match: self._numbered(match[1], self._note(match[0])), text)

    def without_tags(self, text: str) -> str | None:
        """Return the text of an answer as it is kept; `None` for one that cannot be told from what is kept."""
        if _KEPT_HANDLE.search(text) is not None:
            return None
        return _HANDLE.sub(lambda match: self._mark(match), text)

    def with_tags(self, text: str) -> str:
        """Return the text of a kept answer with the handles of this request."""
        handles = list(self._numbers)

        def restore(match: re.Match[str]) -> str:
            number = int(match[1])  # of a request that is equal to this one, but a store may hold anything
            return handles[number] if number < len(handles) else match[0]

        return _KEPT_HANDLE.sub(restore, text)

    def _note(self, handle: str) -> int:
        return self._numbers.setdefault(handle, len(self._numbers))

    def _mark(self, match: re.Match[str]) -> str:
        number = self._numbers.get(match[0])
        return match[0] if number is None else self._numbered(match[1], number)

    @staticmethod
    def _numbered(name: str, number: int) -> str:
        return f"<{name}_#{number}>"


class _Numbers:
    """The numbers by which ids and handles count in one request."""

    def __init__(self, handles: RequestHandles | None = None) -> None:
        self._calls: dict[str, int] = {}
        self.text = (RequestHandles() if handles is None else handles).number

    def call(self, call_id: str) -> int:
        return self._calls.setdefault(call_id, len(self._calls))


def _described_message(message: Msg, numbers: _Numbers) -> list[Any]:
    content = message.content
    if content.__class__ is str:  # equal to one block of text
        return [message.role, message.name, ["text", numbers.text(content)]]
    described: list[Any] = [message.role, message.name]
    for block in content:
        describe = _DESCRIPTIONS.get(block.type)  # type: ignore[union-attr]  # a str was told apart by its class
        described.append([block.type, *describe(block, numbers)] if describe else repr(block))  # type: ignore[union-attr]
    return described


def _describe_data(block: DataBlock, _: object) -> Iterable[Any]:
    source = block.source
    place = source.data if source.type == "base64" else source.url
    return source.type, source.media_type, place, block.name


def _described_output(output: str | Sequence[TextBlock | DataBlock], numbers: _Numbers) -> object:
    if isinstance(output, str):
        return [["text", numbers.text(output)]]
    return [
        ["text", numbers.text(part.text)] if part.type == "text" else ["data", *_describe_data(part, None)]
        for part in output
    ]


_DESCRIPTIONS: dict[str, Callable[[Any, _Numbers], Iterable[Any]]] = {
    "text": lambda block, numbers: (numbers.text(block.text),),
    "thinking": lambda block, numbers: (numbers.text(block.thinking), block.signature),
    "data": _describe_data,
    "hint": lambda block, numbers: (numbers.text(block.hint),),
    "tool_call": lambda block, numbers: (numbers.call(block.id), block.name, numbers.text(block.input)),
    "tool_result": lambda block, numbers: (
        numbers.call(block.id),
        block.name,
        block.state,
        _described_output(block.output, numbers),
    ),
    "provider": lambda block, _: (block.provider, block.content),
}
