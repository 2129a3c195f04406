"""A conversation in the shape of OpenAI's chat completions API, which many servers speak."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from agentrt.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.formatter.shared import DATA_URL, TEXTS, UNANSWERED, nothing_of, results_of_calls
from agentrt.message import Msg

__all__ = ["format_openai"]

Part = dict[str, Any]

_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]+")
_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_LONGEST_ID = 40
_LONGEST_NAME = 64


def format_openai(messages: Sequence[Msg], *, reasoning: bool = False) -> list[dict[str, Any]]:
    """Return the `messages` of a request.

    Each round of a reply becomes an assistant's message with its text and calls, and then the result of each call, in
    the order of the calls; a call that has none is told so, and a result without its call becomes a note. Images of
    results follow in a user's message, since a result takes text only. What the API does not take leaves a note in its
    place. With `reasoning`, thinking goes back as `reasoning_content` with the rounds since the last message of the
    user, as some reasoning models demand; otherwise never.
    """
    results = results_of_calls(block for msg in messages for block in msg.get_content_blocks())
    since = _last_of_the_user(messages) if reasoning else len(messages)
    formatted: list[dict[str, Any]] = []
    for index, msg in enumerate(messages):
        if msg.role == "assistant":
            formatted += _Rounds(results, with_reasoning=index > since).of(msg)
        elif msg.role == "system":
            formatted += _system(msg)
        else:
            formatted += _user(msg, results)
    return formatted


def _last_of_the_user(messages: Sequence[Msg]) -> int:
    theirs = [n for n, msg in enumerate(messages) if msg.role == "user" and not _is_hint(msg)]
    return theirs[-1] if theirs else -1


def _is_hint(msg: Msg) -> bool:
    return all(isinstance(block, HintBlock) for block in msg.get_content_blocks())


class _Rounds:
    """Cuts an assistant's message into its rounds."""

    def __init__(self, results: dict[int, ToolResultBlock], *, with_reasoning: bool) -> None:
        self._results = results
        self._answering = {id(result) for result in results.values()}
        self._with_reasoning = with_reasoning
        self._messages: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[ToolCallBlock] = []

    def of(self, msg: Msg) -> list[dict[str, Any]]:
        for block in msg.get_content_blocks():
            self._add(block)
        self._end_round()
        return self._messages

    def _add(self, block: ContentBlock) -> None:
        if isinstance(block, ToolCallBlock):
            self._calls.append(block)
        elif isinstance(block, TextBlock):
            self._texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            self._thinking.append(block.thinking)
        elif isinstance(block, DataBlock):
            self._texts.append(_note(block, "made by you earlier"))
        elif isinstance(block, HintBlock):
            self._end_round()
            self._messages.append({"role": "user", "content": block.hint})
        elif isinstance(block, ToolResultBlock):  # what another provider did stays out
            self._end_round()
            if id(block) not in self._answering:
                self._messages.append(_orphan(block))

    def _end_round(self) -> None:
        text = "\n".join(filter(None, self._texts))
        thinking = "".join(self._thinking) if self._with_reasoning else ""
        if text or self._calls:
            message: dict[str, Any] = {"role": "assistant", "content": text or None}
            if self._with_reasoning:  # servers that want it want it of each round
                message["reasoning_content"] = thinking
            if self._calls:
                message["tool_calls"] = [_call(call) for call in self._calls]
            self._messages += [message, *self._answers()]
        self._texts, self._thinking, self._calls = [], [], []

    def _answers(self) -> Iterator[dict[str, Any]]:
        media: list[Part] = []
        for call in self._calls:
            result = self._results.get(id(call))
            text = UNANSWERED if result is None else _output(result, media)
            yield {"role": "tool", "tool_call_id": _id(call.id), "content": text}
        if media:
            yield {"role": "user", "content": media}


def _call(call: ToolCallBlock) -> dict[str, Any]:
    function = {"name": _name(call.name) or "unknown", "arguments": _arguments(call.input)}
    return {"id": _id(call.id), "type": "function", "function": function}


def _arguments(text: str) -> str:
    # Servers that read the arguments refuse the whole conversation when they are no JSON object.
    if not text.strip():
        return "{}"
    try:
        is_object = isinstance(from_json(text, allow_inf_nan=False), dict)
    except (ValueError, TypeError):  # TypeError: text with half a surrogate pair
        is_object = False
    return text if is_object else json.dumps({"invalid_arguments": text})


def _output(result: ToolResultBlock, media: list[Part]) -> str:
    """Return the result's text; what is no text is added to `media`, with a word about where it comes from."""
    if isinstance(result.output, str):
        return result.output or nothing_of(result)
    texts: list[str] = []
    for block in result.output:
        part = _part(block)
        if part["type"] == "text":
            texts.append(part["text"])
        else:
            texts.append(f"({_kind(block)}: in the message after the results)")
            media += [_text(f"From the result of {result.name}, call {result.id}:"), part]
    return "\n".join(texts) or nothing_of(result)


def _orphan(result: ToolResultBlock) -> dict[str, Any]:
    media: list[Part] = []
    text = f"(A result of the tool {result.name}, whose call is no longer here:)\n{_output(result, media)}"
    return {"role": "user", "content": [_text(text), *media] if media else text}


def _system(msg: Msg) -> list[dict[str, Any]]:
    texts = [_spoken(block) for block in msg.get_content_blocks()]
    text = "\n".join(filter(None, texts))
    return [{"role": "system", "content": text}] if text else []


def _spoken(block: ContentBlock) -> str:
    if isinstance(block, DataBlock):
        return _note(block, "which a system message cannot show")
    return block.hint if isinstance(block, HintBlock) else block.text if isinstance(block, TextBlock) else ""


def _user(msg: Msg, results: dict[int, ToolResultBlock]) -> list[dict[str, Any]]:
    answering = {id(result) for result in results.values()}
    parts: list[Part] = []
    for block in msg.get_content_blocks():
        if isinstance(block, (TextBlock, DataBlock)):
            parts.append(_part(block))
        elif isinstance(block, HintBlock):
            parts.append(_text(block.hint))
        elif isinstance(block, ToolResultBlock) and id(block) not in answering:
            content = _orphan(block)["content"]
            parts += content if isinstance(content, list) else [_text(content)]
    if not parts:
        return []
    is_text = all(part["type"] == "text" for part in parts)
    content = "\n".join(part["text"] for part in parts) if is_text else parts
    name = _name(msg.name)
    named = {} if name in ("", "user") or _is_hint(msg) else {"name": name}
    return [{"role": "user", "content": content, **named}]


def _part(block: TextBlock | DataBlock) -> Part:
    if isinstance(block, TextBlock):
        return _text(block.text)
    media_type = block.source.media_type.lower()
    if media_type.startswith("image/"):
        return _image(block)
    data = _data(block)
    if data is None:
        return _text(_note(block, "which cannot be fetched from where it is"))
    if media_type in _SOUNDS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _SOUNDS[media_type]}}
    if media_type == "application/pdf":
        file = {"filename": block.name or "file.pdf", "file_data": f"data:{media_type};base64,{data}"}
        return {"type": "file", "file": file}
    if media_type.startswith("text/") or media_type in TEXTS:
        return _text(_read(block, data))
    return _text(_note(block, "of a kind that this model's API does not take"))


def _image(block: DataBlock) -> Part:
    source = block.source
    if isinstance(source, Base64Source):
        url = f"data:{source.media_type};base64,{source.data}"
    elif source.url.startswith(("https://", "http://", "data:")):
        url = source.url
    else:
        return _text(_note(block, "which cannot be fetched from where it is"))
    return {"type": "image_url", "image_url": {"url": url}}


def _data(block: DataBlock) -> str | None:
    if isinstance(block.source, Base64Source):
        return block.source.data
    inline = DATA_URL.match(block.source.url)
    return inline["data"] if inline else None


def _read(block: DataBlock, data: str) -> str:
    try:
        text = base64.b64decode(data).decode()
    except ValueError:
        return _note(block, "which is no readable text")
    return f"{block.name}:\n{text}" if block.name else text


def _note(block: DataBlock, why: str) -> str:
    source = block.source
    named = f" {block.name!r}" if block.name else ""
    where = "" if isinstance(source, Base64Source) or source.url.startswith("data:") else f" at {source.url}"
    return f"({_kind(block)}{named}{where}, {why})"


def _kind(block: TextBlock | DataBlock) -> str:
    return block.source.media_type if isinstance(block, DataBlock) else "text"


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _name(name: str) -> str:
    short = _FORBIDDEN.sub("_", name)[:_LONGEST_NAME]
    return short if short.strip("_-") else ""


def _id(id: str) -> str:
    return id if len(id) <= _LONGEST_ID else hashlib.sha256(id.encode()).hexdigest()[:_LONGEST_ID]
