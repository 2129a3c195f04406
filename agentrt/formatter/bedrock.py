"""A conversation in the shape of Bedrock's Converse API."""

from collections.abc import Sequence
from typing import Any

from agentrt._runtime.block import Base64Source, DataBlock, JSONObject
from agentrt._runtime.boundary import DATA_URL
from agentrt._runtime.text import lazy_pattern
from agentrt.formatter.anthropic import arrange_turns, unshown_file
from agentrt.formatter.conventions import CallIds, is_text_type, text_part
from agentrt.formatter.openai import short_id, valid_name
from agentrt.message import Msg

_OFFICE = "application/vnd.openxmlformats-officedocument"
# The API's names of what it takes, by media type.
_FILE_FORMATS = {
    "image": {"image/gif": "gif", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/png": "png", "image/webp": "webp"},
    "document": {
        "application/msword": "doc",
        "application/pdf": "pdf",
        "application/vnd.ms-excel": "xls",
        f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
        f"{_OFFICE}.wordprocessingml.document": "docx",
        "text/csv": "csv",
        "text/html": "html",
        "text/markdown": "md",
    },
    "video": {
        "video/3gpp": "three_gp",
        "video/mp4": "mp4",
        "video/mpeg": "mpeg",
        "video/quicktime": "mov",
        "video/webm": "webm",
        "video/x-flv": "flv",
        "video/x-matroska": "mkv",
        "video/x-ms-wmv": "wmv",
    },
    "audio": {
        "audio/aac": "aac",
        "audio/flac": "flac",
        "audio/mp4": "mp4",
        "audio/mpeg": "mp3",
        "audio/ogg": "ogg",
        "audio/opus": "opus",
        "audio/wav": "wav",
        "audio/webm": "webm",
        "audio/x-wav": "wav",
    },
}
_UNKNOWN_IN_IDS = lazy_pattern(r"[^a-zA-Z0-9_.:-]")
_FORBIDDEN_IN_TITLES = lazy_pattern(r"[^a-zA-Z0-9()\[\]-]+")
_THINKING_PARTS = ("thinking", "redacted_thinking")
_MAX_CALL_ID = 64  # of ids
_MAX_TITLE = 180  # leaves room for a number


def format_bedrock(messages: Sequence[Msg], *, thoughts: bool = True) -> JSONObject:
    """Return the `messages` of a request, and its `system` when there is a system message.

    Turns are arranged as in `format_anthropic`. Thinking of Claude, here or from Anthropic's own API, goes back with
    its signature; with `thoughts=False`, for other models, none does. Files go as bytes, or by the address of an S3
    object; content that the API does not take leaves a note in its place.
    """
    call_ids = CallIds(lambda call_id: short_id(_UNKNOWN_IN_IDS.sub("_", call_id) or "call", _MAX_CALL_ID))
    payload = arrange_turns(messages, _Files().part, call_ids, lambda _: {})
    turns = []
    for turn in payload["messages"]:
        content = [
            _translate(part) for part in turn["content"] if thoughts or not part.get("type", "").endswith("thinking")
        ]
        # The API requires text beside a document.
        if any("document" in part for part in content) and not any("text" in part for part in content):
            content.append({"text": "(The user gave this without words.)"})
        turns.append({"role": turn["role"], "content": content})
    request: JSONObject = {"messages": turns}
    return {"system": [{"text": payload["system"]}], **request} if "system" in payload else request


def _translate(part: JSONObject) -> JSONObject:
    match part:
        case {"type": "text", "text": text}:
            return {"text": text}
        case {"type": "thinking", "thinking": text, "signature": signature}:
            return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}
        case {"type": "redacted_thinking", "data": data}:
            return {"reasoningContent": {"redactedContent": data}}
        case {"type": "tool_use", "id": call_id, "name": name, "input": arguments}:
            return {"toolUse": {"toolUseId": call_id, "name": valid_name(name) or "unnamed", "input": arguments}}
        case {"type": "tool_result", "tool_use_id": call_id, "content": content}:
            status = "error" if part.get("is_error") else "success"
            # Of all files, the API takes sound from the user alone.
            note = {"text": "[sound, which cannot be played here]"}
            output = [note if "audio" in item else _translate(item) for item in content]
            return {"toolResult": {"toolUseId": call_id, "content": output, "status": status}}
    return part  # a file


class _Files:
    """The files of one request, whose names the API requires to differ."""

    def __init__(self) -> None:
        self._titles: set[str] = set()

    def part(self, block: DataBlock) -> JSONObject:
        """Return the file as the API takes it, or a note where it does not."""
        media_type = block.source.media_type.partition(";")[0].strip().lower()
        source = self._source(block)
        kind, name = next(
            ((kind, names[media_type]) for kind, names in _FILE_FORMATS.items() if media_type in names), ("", "")
        )
        if not kind and is_text_type(media_type):
            kind, name = "document", "txt"
        if source is None or not kind:
            return text_part(unshown_file(block))
        file: JSONObject = {"format": name, "source": source}
        return {kind: {**file, "name": self._new_title(block.name)} if kind == "document" else file}

    def _new_title(self, name: str | None) -> str:
        stem = (name or "").rpartition(".")[0] or name or ""
        title = _FORBIDDEN_IN_TITLES.sub(" ", stem)[:_MAX_TITLE].strip() or "document"
        number, unique = 1, title
        while unique in self._titles:
            number += 1
            unique = f"{title} ({number})"
        self._titles.add(unique)
        return unique

    def _source(self, block: DataBlock) -> dict[str, Any] | None:
        source = block.source
        if isinstance(source, Base64Source):
            return {"bytes": source.data} if source.data else None
        inline = DATA_URL.fullmatch(source.url)
        if inline:
            return {"bytes": inline["data"]} if inline["data"] else None
        return {"s3Location": {"uri": source.url}} if source.url.startswith("s3://") else None
