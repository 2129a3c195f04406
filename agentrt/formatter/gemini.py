"""A conversation in the shape of Gemini's API."""

import base64
import json
from collections.abc import Sequence

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    JSONObject,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)
from agentrt._runtime.boundary import DATA_URL
from agentrt.formatter.conventions import (
    CONVERSATION_START,
    UNANSWERED,
    CallIds,
    empty_result_text,
    is_svg,
    is_text_type,
    object_in,
    results_of_calls,
)
from agentrt.formatter.openai import file_note, valid_name
from agentrt.message import Msg

GEMINI = "gemini"
"""The name of this provider in a `ProviderBlock`."""

_BEGINNING = "gemini:"  # prefix of our signatures
# Google's word for a call that another model has made: without it or a signature, its newer models refuse the request.
_FOREIGN_CALL = "skip_thought_signature_validator"
_OWN_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_MEDIA = ("image/", "audio/", "video/", "application/pdf")


def format_gemini(messages: Sequence[Msg], *, signs_calls: bool = False) -> JSONObject:
    """Return the `contents` of a request, and its `systemInstruction` when there is a system message.

    Turns of user and model alternate, beginning with the user's. The results of a turn's calls come first in the next
    one, in the order of the calls; a call without a result gets a note in its place, and a result without its call
    becomes a note. Thinking goes back with the signature that came with it, and the work of Gemini's own tools goes
    back unchanged. With `signs_calls`, calls of other models get the mark that Gemini 3 and later require instead of a
    signature. Content that the API does not take leaves a note in its place.
    """
    blocks = [(msg, block) for msg in messages for block in msg.get_content_blocks()]
    turns = _GeminiTurns(results_of_calls(block for _, block in blocks), signs_calls=signs_calls)
    system: list[str] = []
    for msg, block in blocks:
        if msg.role != "system":
            turns.add("model" if msg.role == "assistant" else "user", block)
        elif isinstance(block, TextBlock):
            system.append(block.text)
        elif isinstance(block, HintBlock):
            system.append(block.hint)
        elif isinstance(block, DataBlock):
            system.append(file_note(block, "which a system message cannot show"))
    request: JSONObject = {"contents": turns.end()}
    texts = [text for text in system if text]
    return {**request, "systemInstruction": {"parts": [{"text": "\n".join(texts)}]}} if texts else request


def pack_signature(signature: str, *, is_of_call: bool) -> str:
    """Return the signature to keep for a `ThinkingBlock`.

    It says whether it belongs to the next call or file, or to the text so far.
    """
    return f"{_BEGINNING}{json.dumps({'signature': signature, 'is_of_call': is_of_call})}"


class _GeminiTurns:
    """The turns so far, and the parts held back until their place is known."""

    def __init__(self, results: dict[int, ToolResultBlock], *, signs_calls: bool) -> None:
        self._results = results
        self._call_ids = CallIds(str)
        self._paired = {id(result) for result in results.values()}
        self._signs_calls = signs_calls
        self._turns: list[JSONObject] = []
        self._calls: list[tuple[str, ToolCallBlock]] = []  # of the last turn, without a result in the next one yet
        self._signature: str | None = None  # of the next call or file

    def add(self, role: str, block: ContentBlock) -> None:
        match block:
            case TextBlock():
                self._add_text(role, block.text)
            case ThinkingBlock():
                self._add_thinking(block)
            case ToolCallBlock():
                self._add_call(block)
            case ToolResultBlock():
                self._add_results()
                if id(block) not in self._paired:
                    self._add_text("user", f"(A result of the tool {block.name}, whose call was removed:)")
                    for part in _output_parts(block):
                        self._add_part("user", part)
            case HintBlock():
                self._add_text("user", block.hint)
            case ProviderBlock():
                own = object_in(block.content) if block.provider == GEMINI else None
                if own and any(name in own for name in _OWN_PARTS):
                    self._add_part("model", own)
            case DataBlock() if role == "model":
                self._add_file(block)
            case DataBlock():
                self._add_part("user", _data_part(block))

    def end(self) -> list[JSONObject]:
        self._add_results()
        # The API requires a turn, the user's first: compression or a greeting may leave none.
        if not self._turns or self._turns[0]["role"] == "model":
            self._turns.insert(0, {"role": "user", "parts": [{"text": CONVERSATION_START}]})
        return self._turns

    def _add_thinking(self, block: ThinkingBlock) -> None:
        self._add_results()  # thinking begins an answer, so thinking after calls belongs to the next one
        signature = block.signature or ""
        if not signature.startswith(_BEGINNING):
            return
        kept = object_in(signature.removeprefix(_BEGINNING))
        if kept is None or not isinstance(kept.get("signature"), str):
            return  # changed by others
        # Thoughts without a signature, such as those of other providers, are for the user only.
        if block.thinking:
            self._add_part("model", {"text": block.thinking, "thought": True})
        if kept.get("is_of_call"):
            self._signature = kept["signature"]
        else:
            self._add_part("model", {"text": "", "thoughtSignature": kept["signature"]})

    def _add_call(self, block: ToolCallBlock) -> None:
        arguments: JSONObject | None = object_in(block.input if block.input.strip() else "{}")
        if arguments is None:  # the tool refused it, and the model should see what it wrote
            arguments = {"invalid_arguments": block.input}
        name = valid_name(block.name) or "unknown"
        call_id = self._call_ids.new(block)
        part: JSONObject = {"functionCall": {"id": call_id, "name": name, "args": arguments}}
        if self._signature is not None:
            part["thoughtSignature"] = self._signature
        elif self._signs_calls and not self._calls:  # of parallel calls, only the first has the signature
            part["thoughtSignature"] = _FOREIGN_CALL
        self._signature = None
        self._add_part("model", part)
        self._calls.append((call_id, block))

    def _add_file(self, block: DataBlock) -> None:
        part = _data_part(block)
        if self._signature is None or "text" in part:  # the API takes no picture made by the model without a signature
            part = {"text": file_note(block, "made by you earlier")}
        else:
            part["thoughtSignature"] = self._signature
        self._signature = None
        self._add_part("model", part)

    def _add_results(self) -> None:
        """Give each call of the turn its result, all of them before anything else of the next turn."""
        calls, self._calls = self._calls, []  # first: `_add_part` calls this method
        media: list[JSONObject] = []
        for call_id, call in calls:
            result = self._results.get(id(call))
            name = valid_name(call.name) or "unknown"
            response = {"error": UNANSWERED}
            if result is not None:
                texts: list[str] = []
                for part in _output_parts(result):
                    if "text" in part:
                        texts.append(part["text"])
                    else:
                        texts.append("(a file: after the results)")
                        media += [{"text": f"From the result of {result.name}, call {call_id}:"}, part]
                has_failed = result.state not in (ToolResultState.SUCCESS, ToolResultState.RUNNING)
                response = {"error" if has_failed else "output": "\n".join(texts) or empty_result_text(result)}
            self._add_part("user", {"functionResponse": {"id": call_id, "name": name, "response": response}})
        for part in media:
            self._add_part("user", part)

    def _add_text(self, role: str, text: str) -> None:
        self._add_part(role, {"text": text})

    def _add_part(self, role: str, part: JSONObject) -> None:
        if part == {"text": ""}:  # which the API refuses
            return
        if role == "user":
            self._add_results()
            self._signature = None  # its call never came
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "parts": []})
        self._turns[-1]["parts"].append(part)


def _output_parts(result: ToolResultBlock) -> list[JSONObject]:
    return [{"text": block.text} if isinstance(block, TextBlock) else _data_part(block) for block in result.blocks]


def _data_part(block: DataBlock) -> JSONObject:
    """Return the block as the API takes it, or a note where it does not."""
    media_type = block.source.media_type.lower()
    data = block.source.data if isinstance(block.source, Base64Source) else None
    url = "" if isinstance(block.source, Base64Source) else block.source.url
    if inline := DATA_URL.match(url):
        data = inline["data"]
    # As text, since the API refuses files of this type.
    if is_text_type(media_type) and data is not None:
        try:
            text = base64.b64decode(data).decode()
        except ValueError:
            return {"text": file_note(block, "which is not readable text")}
        return {"text": f"{block.name}:\n{text}" if block.name else text}
    if not media_type.startswith(_MEDIA) or is_svg(block):
        return {"text": file_note(block, "of a kind that this model's API does not take")}
    if data is not None:
        return {"inlineData": {"mimeType": media_type, "data": data}}
    if url.startswith(("https://", "http://", "gs://")):
        return {"fileData": {"mimeType": media_type, "fileUri": url}}
    return {"text": file_note(block, "which cannot be fetched from where it is")}
