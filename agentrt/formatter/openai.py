"""A conversation in the shape of OpenAI's chat completions API, which many servers speak."""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence

from pydantic_core import from_json

from agentrt._runtime.block import (
    Base64Source,
    DataBlock,
    HintBlock,
    JSONObject,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt._runtime.boundary import DATA_URL
from agentrt._runtime.text import lazy_pattern
from agentrt.formatter.conventions import (
    CONVERSATION_START,
    UNANSWERED,
    empty_result_text,
    is_svg,
    is_text_type,
    results_of_calls,
    text_part,
)
from agentrt.message import Msg

_FORBIDDEN_IN_NAMES = lazy_pattern(r"[^a-zA-Z0-9_-]+")
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_MAX_ID_LENGTH = 40
_MAX_NAME_LENGTH = 64


def format_openai(
    messages: Sequence[Msg], *, reasoning: bool = False, names: bool = True, nine_letter_ids: bool = False
) -> list[JSONObject]:
    """Return the `messages` of a request.

    Each round of a reply becomes an assistant's message with its text and calls, and then the result of each call, in
    the order of the calls; a call without a result gets a note in its place, and a result without its call becomes a
    note. Images of results follow in a user's message, since a result takes text only. Unsupported content leaves a
    note in its place. With `reasoning`, thinking goes back as `reasoning_content` with the rounds since the user's last
    message, as some reasoning models require; otherwise never. Without `names`, no message names its speaker; with
    `nine_letter_ids`, ids of calls have the form that Mistral requires.
    """
    results = results_of_calls(block for msg in messages for block in msg.get_content_blocks())
    paired = {id(result) for result in results.values()}
    last_of_user = len(messages)
    if reasoning:
        last_of_user = -1
        for index, msg in enumerate(messages):
            # Some programs store tool results as the user's.
            is_result = all(isinstance(block, ToolResultBlock) for block in msg.get_content_blocks())
            if msg.role == "user" and not (_is_hint(msg) or is_result):
                last_of_user = index
    formatted: list[JSONObject] = []
    for index, msg in enumerate(messages):
        if msg.role == "assistant":
            formatted += _Rounds(results, paired, with_reasoning=index > last_of_user).split(msg)
        elif msg.role == "system":
            formatted += _system_messages(msg)
        else:
            formatted += _user_messages(msg, paired)
    if not formatted:  # compression may leave nothing
        formatted.append({"role": "user", "content": CONVERSATION_START})
    if not names:
        for message in formatted:
            message.pop("name", None)
    if nine_letter_ids:
        # On the complete conversation, so that a call and its result keep one id.
        for message in formatted:
            for call in message.get("tool_calls", ()):
                call["id"] = _nine_letters(call["id"])
            if "tool_call_id" in message:
                message["tool_call_id"] = _nine_letters(message["tool_call_id"])
    return formatted


def _is_hint(msg: Msg) -> bool:
    return all(isinstance(block, HintBlock) for block in msg.get_content_blocks())


class _Rounds:
    """Cuts an assistant's message into its rounds."""

    def __init__(self, results: dict[int, ToolResultBlock], paired: set[int], *, with_reasoning: bool) -> None:
        self._results = results
        self._paired = paired
        self._with_reasoning = with_reasoning
        self._messages: list[JSONObject] = []
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[ToolCallBlock] = []

    def split(self, msg: Msg) -> list[JSONObject]:
        for block in msg.get_content_blocks():
            match block:
                case ToolCallBlock():
                    self._calls.append(block)
                case TextBlock():
                    self._texts.append(block.text)
                case ThinkingBlock():
                    self._thinking.append(block.thinking)
                case DataBlock():
                    self._texts.append(file_note(block, "made by you earlier"))
                case HintBlock():
                    self._end_round()
                    self._messages.append({"role": "user", "content": block.hint})
                case ToolResultBlock():
                    self._end_round()
                    if id(block) not in self._paired:
                        self._messages.append({"role": "user", "content": _unpaired_result(block)})
                case _:  # other providers' blocks stay out
                    pass
        self._end_round()
        return self._messages

    def _end_round(self) -> None:
        text = "\n".join(filter(None, self._texts))
        if text or self._calls:
            message: JSONObject = {"role": "assistant", "content": text or None}
            if self._with_reasoning:  # servers that require it require it for each round
                message["reasoning_content"] = "".join(self._thinking)
            if self._calls:
                message["tool_calls"] = [
                    {
                        "id": short_id(call.id),
                        "type": "function",
                        "function": {"name": valid_name(call.name) or "unknown", "arguments": arguments_to_send(call)},
                    }
                    for call in self._calls
                ]
            self._messages += [message, *self._result_messages()]
        self._texts, self._thinking, self._calls = [], [], []

    def _result_messages(self) -> Iterator[JSONObject]:
        media: list[JSONObject] = []
        for call in self._calls:
            result = self._results.get(id(call))
            text = UNANSWERED if result is None else _result_text(result, media)
            yield {"role": "tool", "tool_call_id": short_id(call.id), "content": text}
        if media:  # after all results, which must follow each other without a break
            yield {"role": "user", "content": media}


def arguments_to_send(call: ToolCallBlock) -> str:
    """Return the JSON of an object; for anything else, servers refuse the whole conversation."""
    arguments = call.input if call.input.strip() else "{}"
    try:
        is_object = isinstance(from_json(arguments, allow_inf_nan=False), dict)
    except (ValueError, TypeError):  # TypeError: text with half a surrogate pair
        is_object = False
    return arguments if is_object else json.dumps({"invalid_arguments": arguments})


def _result_text(result: ToolResultBlock, media: list[JSONObject]) -> str:
    """Return the result's text; files are added to `media`, with a note about their origin."""
    if isinstance(result.output, str):
        return result.output or empty_result_text(result)
    texts: list[str] = []
    for block in result.output:
        part = part_of(block)
        if part["type"] == "text":
            texts.append(part["text"])
        else:
            kind = block.source.media_type if isinstance(block, DataBlock) else "text"
            texts.append(f"({kind}: in the message after the results)")
            media += [text_part(f"From the result of {result.name}, call {result.id}:"), part]
    return "\n".join(texts) or empty_result_text(result)


def _unpaired_result(result: ToolResultBlock) -> str | list[JSONObject]:
    """Return the content of a user's message: the API takes results only after their calls."""
    media: list[JSONObject] = []
    text = f"(A result of the tool {result.name}, whose call was removed:)\n{_result_text(result, media)}"
    return [text_part(text), *media] if media else text


def _system_messages(msg: Msg) -> list[JSONObject]:
    texts: list[str] = []
    for block in msg.get_content_blocks():
        match block:
            case TextBlock():
                texts.append(block.text)
            case HintBlock():
                texts.append(block.hint)
            case DataBlock():
                texts.append(file_note(block, "which a system message cannot show"))
            case _:
                pass
    text = "\n".join(filter(None, texts))
    return [{"role": "system", "content": text}] if text else []


def _user_messages(msg: Msg, paired: set[int]) -> list[JSONObject]:
    parts: list[JSONObject] = []
    for block in msg.get_content_blocks():
        match block:
            case TextBlock() | DataBlock():
                parts.append(part_of(block))
            case HintBlock():
                parts.append(text_part(block.hint))
            case ToolResultBlock() if id(block) not in paired:
                content = _unpaired_result(block)
                parts += [text_part(content)] if isinstance(content, str) else content
            case _:  # a result already sent with its call
                pass
    if not parts:
        return []
    # Some servers of this API do not take parts, so plain text goes as a `str`.
    is_text = all(part["type"] == "text" for part in parts)
    message: JSONObject = {"role": "user", "content": "\n".join(part["text"] for part in parts) if is_text else parts}
    name = valid_name(msg.name)
    if name not in ("", "user") and not _is_hint(msg):
        message["name"] = name
    return [message]


def part_of(block: TextBlock | DataBlock) -> JSONObject:
    """Return the block as the API takes it, or a note where it does not."""
    if isinstance(block, TextBlock):
        return text_part(block.text)
    source, media_type = block.source, block.source.media_type.lower()
    if is_svg(block):
        return text_part(file_note(block, "of a kind that this model's API does not take"))
    if media_type.startswith("image/"):
        url = f"data:{source.media_type};base64,{source.data}" if isinstance(source, Base64Source) else source.url
        if not url.startswith(("https://", "http://", "data:")):
            return text_part(file_note(block, "which cannot be fetched from where it is"))
        return {"type": "image_url", "image_url": {"url": url}}
    data = source.data if isinstance(source, Base64Source) else None
    if isinstance(source, URLSource) and (inline := DATA_URL.match(source.url)):
        data = inline["data"]
    if data is None:
        return text_part(file_note(block, "which cannot be fetched from where it is"))
    if media_type in _AUDIO_FORMATS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS[media_type]}}
    if media_type == "application/pdf":
        file = {"filename": block.name or "file.pdf", "file_data": f"data:{media_type};base64,{data}"}
        return {"type": "file", "file": file}
    if is_text_type(media_type):
        try:
            text = base64.b64decode(data).decode()
        except ValueError:
            return text_part(file_note(block, "which is not readable text"))
        return text_part(f"{block.name}:\n{text}" if block.name else text)
    return text_part(file_note(block, "of a kind that this model's API does not take"))


def file_note(block: DataBlock, why: str) -> str:
    """Return the note in place of a file that is not sent."""
    source = block.source
    name = f" {block.name!r}" if block.name else ""
    where = "" if isinstance(source, Base64Source) or source.url.startswith("data:") else f" at {source.url}"
    return f"({source.media_type}{name}{where}, {why})"


def _nine_letters(id: str) -> str:
    is_own = len(id) == 9 and id.isascii() and id.isalnum()
    return id if is_own else hashlib.sha256(id.encode()).hexdigest()[:9]


def valid_name(name: str) -> str:
    """Return the name without the characters that the API refuses, "" if none is left."""
    short = _FORBIDDEN_IN_NAMES.sub("_", name)[:_MAX_NAME_LENGTH]
    return short if short.strip("_-") else ""


def short_id(id: str, limit: int = _MAX_ID_LENGTH) -> str:
    """Return the id, or its hash if it is too long for the API."""
    # Ids of another provider may be longer; the hash keeps a call and its result together.
    return id if len(id) <= limit else hashlib.sha256(id.encode()).hexdigest()[:limit]
