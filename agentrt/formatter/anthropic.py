"""A conversation in the shape of Anthropic's messages API."""

import base64
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
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
)
from agentrt.formatter.shared import DATA_URL, TEXTS, UNANSWERED, nothing_of, results_of_calls
from agentrt.message import Msg

__all__ = ["PROVIDER", "format_anthropic", "pack_thinking"]

PROVIDER = "anthropic"
"""The name of this provider in a `ProviderBlock`."""

Part = dict[str, Any]

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PACKED = "anthropic:"
# What blocks of other classes stand for, and a stored block must not become.
_OTHER_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document")
_START = "(The conversation starts here.)"
_HUGE_NUMBER = re.compile(r"\d{200}|[eE]\+?\d{3}")  # numbers that a float cannot hold are read as infinite
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")


def format_anthropic(messages: Sequence[Msg]) -> dict[str, Any]:
    """Return the `messages` of a request, and its `system` when there is a system message.

    Roles alternate, beginning with the user's; the results of a turn's calls come first in the turn after it, in the
    order of the calls, and a call that has none is told so. Thinking goes back only with the signature that came with
    it, and what Anthropic's own tools did goes back as it came, a use together with its result; one that is still
    without a result ends the request or is left out. What the API does not take (sound, an image of the assistant's
    own) leaves a note in its place.
    """
    items = [(msg.role, block) for msg in messages if msg.role != "system" for block in msg.get_content_blocks()]
    turns = _Turns(results_of_calls(block for _, block in items), _own_parts(items))
    for role, block in items:
        turns.add(role, block)
    payload: dict[str, Any] = {"messages": turns.end()}
    system = [text for msg in messages if msg.role == "system" and (text := _text_of(msg))]
    return {"system": "\n\n".join(system), **payload} if system else payload


def pack_thinking(parts: Sequence[Part]) -> str | None:
    """Return what to keep as the signature of one `ThinkingBlock` that holds the text of all these blocks of thinking.

    Thinking may come as several blocks in a row, each with a signature of its own or encrypted as a whole, and goes
    back exactly as it came.
    """
    if len(parts) == 1 and parts[0]["type"] == "thinking" and not parts[0]["signature"].startswith(_PACKED):
        return parts[0]["signature"] or None
    return f"{_PACKED}{json.dumps(list(parts), ensure_ascii=False)}"


def _unpack_thinking(block: ThinkingBlock) -> list[Part]:
    signature = block.signature
    if not signature:
        return []
    if not signature.startswith(_PACKED):
        return [{"type": "thinking", "thinking": block.thinking, "signature": signature}]
    try:
        parts = from_json(signature.removeprefix(_PACKED))
    except (ValueError, TypeError):  # of a model adapter of somebody else's, or with half a surrogate pair
        return []
    return [part for part in parts if _is_signed(part)] if isinstance(parts, list) else []


def _is_signed(part: Any) -> bool:
    # The stored text may have been changed by others, and must not become a part of another kind.
    kind = part.get("type") if isinstance(part, dict) else None
    return bool((kind == "thinking" and part.get("signature")) or (kind == "redacted_thinking" and part.get("data")))


def _own_parts(items: Sequence[tuple[str, ContentBlock]]) -> dict[int, Part]:
    """Return what Anthropic's own tools did, by the identity of the block, without what the API would refuse.

    It refuses a result without its use, and a use without a result unless the answer is still to continue.
    """
    parts: dict[int, Part] = {}
    uses: dict[str, int] = {}  # those that have no result yet
    for role, block in items:
        if isinstance(block, ProviderBlock):
            part = _own_part(block) if role == "assistant" else None
            if part is None or ("tool_use_id" in part and uses.pop(part["tool_use_id"], None) is None):
                continue
            parts[id(block)] = part
            if part["type"].endswith("_tool_use"):
                uses[part["id"]] = id(block)
        elif isinstance(block, HintBlock) or (role != "assistant" and not isinstance(block, ToolResultBlock)):
            for use in uses.values():
                del parts[use]
            uses.clear()
    return parts


def _own_part(block: ProviderBlock) -> Part | None:
    part = _parse_object(block.content) if block.provider == PROVIDER else None
    return part if part is not None and _is_whole(part) else None


def _parse_object(text: str) -> Part | None:
    """Return the object that the JSON holds, unless JSON could not say it again, which would spoil every request."""
    try:
        value = from_json(text, allow_inf_nan=False)
        if _HUGE_NUMBER.search(text):
            json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):  # TypeError: text with half a surrogate pair
        return None
    return value if isinstance(value, dict) else None


def _is_whole(part: Part) -> bool:
    kind = part.get("type")
    if not isinstance(kind, str) or kind in _OTHER_BLOCKS:
        return False
    names = ["id"] if kind.endswith("_tool_use") else []
    names += ["tool_use_id"] if "tool_use_id" in part else []
    return all(isinstance(part.get(name), str) for name in names)


class _Turns:
    """The turns so far, and what is held back until it is known where it belongs."""

    def __init__(self, results: dict[int, ToolResultBlock], own_parts: dict[int, Part]) -> None:
        self._results = results
        self._own_parts = own_parts
        self._paired = {id(result) for result in results.values()}
        self._turns: list[dict[str, Any]] = []
        self._thinking: list[Part] = []
        self._calls: list[tuple[str, ToolCallBlock]] = []
        self._ids: set[str] = set()

    def add(self, role: str, block: ContentBlock) -> None:
        """Take the next block of the conversation."""
        if isinstance(block, ThinkingBlock):
            self._think(block)
        elif isinstance(block, ToolCallBlock):
            self._call(block)
        elif isinstance(block, ToolResultBlock):
            self._result(block)
        elif isinstance(block, HintBlock):
            self._say("user", block.hint)
        elif isinstance(block, TextBlock):
            self._say("assistant" if role == "assistant" else "user", block.text)
        elif isinstance(block, ProviderBlock):
            if id(block) in self._own_parts:
                self._put("assistant", self._own_parts[id(block)])
        elif role == "assistant":
            self._say("assistant", _note(block))
        else:
            self._put("user", _media(block))

    def end(self) -> list[dict[str, Any]]:
        """Return the turns."""
        self._answer()
        if not self._turns or self._turns[0]["role"] == "assistant":
            self._turns.insert(0, {"role": "user", "content": [_text(_START)]})
        last = self._turns[-1]
        end = last["content"][-1]
        if last["role"] == "assistant" and end["type"] == "text":
            last["content"][-1] = {**end, "text": end["text"].rstrip()}
        return self._turns

    def _think(self, block: ThinkingBlock) -> None:
        # Thinking begins an answer, so thinking after calls belongs to the next one. Nothing may end in thinking:
        # it waits for what follows on it.
        self._answer()
        self._thinking += _unpack_thinking(block)

    def _call(self, block: ToolCallBlock) -> None:
        call_id = self._free_id(block.id)
        self._put("assistant", {"type": "tool_use", "id": call_id, "name": _name(block), "input": _input(block)})
        self._calls.append((call_id, block))

    def _free_id(self, wanted: str) -> str:
        # Another provider, or another reply, may have given ids that are forbidden here or were used before.
        base = call_id = _FORBIDDEN.sub("_", wanted) or "call"
        number = 1
        while call_id in self._ids:
            number += 1
            call_id = f"{base}_{number}"
        self._ids.add(call_id)
        return call_id

    def _result(self, block: ToolResultBlock) -> None:
        if id(block) in self._paired:
            self._answer()
            return
        self._say("user", f"Result of {block.name!r}, whose call is no longer part of the conversation:")
        for part in _output(block):
            self._put("user", part)

    def _answer(self) -> None:
        calls, self._calls = self._calls, []
        for call_id, call in calls:
            self._put("user", _tool_result(call_id, self._results.get(id(call))))

    def _say(self, role: str, text: str) -> None:
        if text.strip():
            self._put(role, _text(text))

    def _put(self, role: str, part: Part) -> None:
        if role == "user":
            self._answer()
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "content": []})
        content = self._turns[-1]["content"]
        if role == "assistant":
            content += self._thinking
        self._thinking = []
        content.append(part)


def _text_of(msg: Msg) -> str:
    blocks = msg.get_content_blocks()
    texts = (block.text if isinstance(block, TextBlock) else _hint(block) for block in blocks)
    return "\n".join(text for text in texts if text.strip())


def _hint(block: ContentBlock) -> str:
    return block.hint if isinstance(block, HintBlock) else ""


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _name(block: ToolCallBlock) -> str:
    return _FORBIDDEN.sub("_", block.name)[:128] or "unnamed"


def _input(block: ToolCallBlock) -> dict[str, Any]:
    # Only an object is taken. What is none was refused by the tool, and the model should see what it wrote.
    if not block.input.strip():
        return {}
    value = _parse_object(block.input)
    return {"INVALID_JSON": block.input} if value is None else value


def _tool_result(call_id: str, result: ToolResultBlock | None) -> Part:
    if result is None:
        return {"type": "tool_result", "tool_use_id": call_id, "content": [_text(UNANSWERED)], "is_error": True}
    part: Part = {"type": "tool_result", "tool_use_id": call_id, "content": list(_output(result))}
    if result.state not in (ToolResultState.SUCCESS, ToolResultState.RUNNING):
        part["is_error"] = True
    return part


def _output(result: ToolResultBlock) -> Iterator[Part]:
    blocks = [TextBlock(result.output)] if isinstance(result.output, str) else result.output
    kept = [block for block in blocks if not isinstance(block, TextBlock) or block.text.strip()]
    if not kept:
        yield _text(nothing_of(result))
    for block in kept:
        yield _text(block.text) if isinstance(block, TextBlock) else _media(block)


def _media(block: DataBlock) -> Part:
    source = _inlined(block.source)
    media_type = source.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    wire = _source(source, media_type)
    if wire is None:
        return _text(_note(block))
    if media_type.startswith("image/"):
        return {"type": "image", "source": wire}
    return {"type": "document", "source": wire, **({"title": block.name} if block.name else {})}


def _inlined(source: Base64Source | URLSource) -> Base64Source | URLSource:
    match = DATA_URL.fullmatch(source.url) if isinstance(source, URLSource) else None
    return Base64Source(match["data"], match["media_type"] or source.media_type) if match else source


def _source(source: Base64Source | URLSource, media_type: str) -> Part | None:
    """Return the source as the API takes it, `None` where it does not."""
    if isinstance(source, URLSource):
        taken = media_type.startswith("image/") or media_type == "application/pdf"
        return {"type": "url", "url": source.url} if taken and source.url.startswith(("http://", "https://")) else None
    if media_type in _IMAGES or media_type == "application/pdf":
        return {"type": "base64", "media_type": media_type, "data": source.data}
    if media_type.startswith("text/") or media_type in TEXTS:
        return _text_source(source.data)
    return None


def _text_source(data: str) -> Part | None:
    try:
        text = base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None
    return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else None


def _note(block: DataBlock) -> str:
    name = f" {block.name!r}" if block.name else ""
    where = f" at {block.source.url}" if isinstance(block.source, URLSource) and len(block.source.url) < 2000 else ""
    return f"[{block.source.media_type} file{name}{where}, which cannot be shown here]"
