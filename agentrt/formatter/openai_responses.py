"""A conversation in the shape of OpenAI's Responses API."""

import json
from collections.abc import Sequence
from functools import partial

from pydantic_core import from_json

from agentrt._runtime.block import (
    Base64Source,
    DataBlock,
    HintBlock,
    JSONObject,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt.formatter.conventions import (
    CONVERSATION_START,
    UNANSWERED,
    CallIds,
    empty_result_text,
    object_in,
    results_of_calls,
)
from agentrt.formatter.openai import arguments_to_send, file_note, part_of, short_id, valid_name
from agentrt.message import Msg

OPENAI = "openai"
"""The name of this provider in a `ProviderBlock`."""

_MAX_CALL_ID_LENGTH = 64  # characters; some servers use ids this long
_SIGNATURE = "openai:"  # prefix of a signature that holds an item of reasoning
HOSTED_ITEMS = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
        "x_search_call",  # xAI's
    }
)
"""Items of OpenAI's own tools, except pictures; a stored block must not pass for an item of another kind."""

_PICTURE_FIELDS = ("id", "status", "type")  # those that the API takes back


def format_openai_responses(messages: Sequence[Msg]) -> list[JSONObject]:
    """Return the `input` of a request.

    A reply becomes its items in their order: reasoning as the API gave it, before the item that it led to, texts,
    calls, and the work of OpenAI's own tools. The results of a round's calls follow its items, images included; a call
    without a result gets a note in its place, and a result without its call becomes a note. Reasoning of other
    providers, and reasoning that led to nothing, stays out. Unsupported content leaves a note in its place.
    """
    blocks = [block for msg in messages for block in msg.get_content_blocks()]
    results = results_of_calls(blocks)
    paired = {id(result) for result in results.values()}
    call_ids = CallIds(partial(short_id, limit=_MAX_CALL_ID_LENGTH))
    items: list[JSONObject] = []
    for msg in messages:
        if msg.role == "assistant":
            items += _RoundItems(results, paired, call_ids).split(msg)
        else:
            items += _message_items(msg, paired)
    return items or [_user_item([_text_part(CONVERSATION_START)])]  # compression may leave none


def pack_reasoning(item: JSONObject) -> str | None:
    """Return the signature to keep for an item of reasoning in its `ThinkingBlock`, `None` for none.

    Its text is that of the block, so only the rest is packed.
    """
    kept = {name: item[name] for name in ("id", "encrypted_content") if isinstance(item.get(name), str)}
    if item.get("content"):
        kept["is_raw"] = True
    return f"{_SIGNATURE}{json.dumps(kept)}" if "id" in kept else None


class _RoundItems:
    """Makes the items of a reply, round by round."""

    def __init__(self, results: dict[int, ToolResultBlock], paired: set[int], call_ids: CallIds) -> None:
        self._results = results
        self._call_ids = call_ids
        self._paired = paired
        self._items: list[JSONObject] = []
        self._reasoning: list[JSONObject] = []
        """Reasoning whose item is still to come: the API refuses reasoning alone."""
        self._texts: list[JSONObject] = []
        """Items of text whose phase is still to come."""
        self._calls: list[tuple[str, ToolCallBlock]] = []
        self._called: list[JSONObject] = []
        """The items of the calls."""
        self._answer_start = 0
        """The index of the first item of the answer that is being split."""
        self._picture: tuple[JSONObject, str] | None = None
        """The note about the last picture, and its data, until its item is there."""

    def split(self, msg: Msg) -> list[JSONObject]:
        for block in msg.get_content_blocks():
            match block:
                case ThinkingBlock():
                    self._reasoning += _reasoning_items(block)
                case TextBlock() if block.text:
                    self._texts.append({"role": "assistant", "content": block.text})
                    self._add(self._texts[-1])
                case DataBlock():  # the API has no form for a picture of the assistant's
                    note: JSONObject = {"role": "assistant", "content": file_note(block, "made by you earlier")}
                    self._add(note)
                    self._picture = (note, block.source.data) if isinstance(block.source, Base64Source) else None
                case ToolCallBlock():
                    call_id = self._call_ids.new(block)
                    self._calls.append((call_id, block))
                    called = {"name": valid_name(block.name) or "unknown", "arguments": arguments_to_send(block)}
                    self._called.append({"type": "function_call", "call_id": call_id, **called})
                    self._add(self._called[-1])
                case ProviderBlock():
                    self._add_own(block)
                case HintBlock():
                    self._end_round([_text_part(block.hint)])
                case ToolResultBlock():
                    self._end_round([] if id(block) in self._paired else _parts_of_unpaired(block))
                case _:
                    pass
        self._end_round()
        return self._items

    def _add(self, item: JSONObject) -> None:
        self._items += [*self._reasoning, item]
        self._reasoning = []

    def _add_own(self, block: ProviderBlock) -> None:
        item = (object_in(block.content) if block.provider == OPENAI else None) or {}
        if item.get("type") in HOSTED_ITEMS:
            item.pop("created_by", None)  # sent by the API for some items, but refused in requests
            self._add(item)
        elif item.get("type") == "image_generation_call" and isinstance(item.get("id"), str):
            # Replaces the note; without its picture, which a layer may have removed, the API refuses it.
            if self._picture is not None and self._items[-1] is self._picture[0]:
                kept = {name: value for name, value in item.items() if name in _PICTURE_FIELDS}
                self._items[-1] = {"status": "completed", **kept, "result": self._picture[1]}
        elif item.get("type") == "phase":  # the adapter puts it after the texts that it describes
            for text in self._texts:
                text["phase"] = item.get("phase")
            self._texts = []
        elif item.get("type") == "namespace":  # of a tool that was searched: its call is refused without it
            for (_, call), called in zip(self._calls, self._called, strict=True):
                if call.id == item.get("call_id") and isinstance(item.get("namespace"), str):
                    called["namespace"] = item["namespace"]
        elif item.get("type") == "order":
            self._put_in_order(item.get("places"))

    def _put_in_order(self, places: object) -> None:
        """Put the items of an answer into the API's order: they were added in the order in which they ended."""
        answer = [*self._items[self._answer_start :], *self._reasoning]
        if not isinstance(places, list) or len(places) != len(answer):
            return  # a part of it was removed
        if not all(isinstance(place, int) for place in places):
            return  # changed by others
        ordered = [answer[number] for number in sorted(range(len(answer)), key=places.__getitem__)]
        end = len(ordered)
        while end and ordered[end - 1].get("type") == "reasoning":
            end -= 1
        self._items[self._answer_start :], self._reasoning = ordered[:end], ordered[end:]

    def _end_round(self, parts: Sequence[JSONObject] = ()) -> None:
        """End the round, and add the parts as a message of the user."""
        for call_id, call in self._calls:
            result = self._results.get(id(call))
            output = UNANSWERED if result is None else _output_of(result)
            self._items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        # The rest of the reasoning belongs to an answer that was cut off before its item came.
        self._reasoning, self._texts, self._calls, self._called = [], [], [], []
        if parts:
            self._items.append(_user_item([*parts]))
        self._answer_start = len(self._items)


def _reasoning_items(block: ThinkingBlock) -> list[JSONObject]:
    signature = block.signature or ""
    if not signature.startswith(_SIGNATURE):
        return []
    try:
        kept = from_json(signature.removeprefix(_SIGNATURE))
    except (ValueError, TypeError):  # changed by others, or with half a surrogate pair
        return []
    if not isinstance(kept, dict) or not isinstance(kept.get("id"), str):
        return []
    # The API reads the encrypted content, and treats a summary in one part like the same one in several.
    item: JSONObject = {"type": "reasoning", "id": kept["id"], "summary": []}
    if kept.get("is_raw"):
        item["content"] = [{"type": "reasoning_text", "text": block.thinking}]
    elif block.thinking:
        item["summary"] = [{"type": "summary_text", "text": block.thinking}]
    if isinstance(kept.get("encrypted_content"), str):
        item["encrypted_content"] = kept["encrypted_content"]
    return [item]


# Unlike in chat completions, a result may hold pictures and files here.
def _output_of(result: ToolResultBlock) -> str | list[JSONObject]:
    if isinstance(result.output, str):
        return result.output or empty_result_text(result)
    parts = [_input_part(block) for block in result.output]
    if any(part["type"] != "input_text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts) or empty_result_text(result)


def _parts_of_unpaired(result: ToolResultBlock) -> list[JSONObject]:
    """Return the parts of a user's message: the API takes results only after their calls."""
    output = _output_of(result)
    head = f"(A result of the tool {result.name}, whose call was removed:)"
    return [_text_part(f"{head}\n{output}")] if isinstance(output, str) else [_text_part(head), *output]


def _message_items(msg: Msg, paired: set[int]) -> list[JSONObject]:
    parts: list[JSONObject] = []
    for block in msg.get_content_blocks():
        match block:
            case TextBlock() | DataBlock() if msg.role == "user":
                parts.append(_input_part(block))
            case TextBlock() if block.text:
                parts.append(_text_part(block.text))
            case DataBlock():
                parts.append(_text_part(file_note(block, "which a system message cannot show")))
            case HintBlock():
                parts.append(_text_part(block.hint))
            case ToolResultBlock() if id(block) not in paired:
                parts += _parts_of_unpaired(block)
            case _:  # a result already sent with its call
                pass
    if not parts:
        return []
    return [_user_item(parts)] if msg.role == "user" else [{"role": "system", "content": parts}]


def _user_item(parts: list[JSONObject]) -> JSONObject:
    return {"role": "user", "content": parts}


def _text_part(text: str) -> JSONObject:
    return {"type": "input_text", "text": text}


def _input_part(block: TextBlock | DataBlock) -> JSONObject:
    """Return the block as the API takes it, or a note where it does not."""
    if isinstance(block, DataBlock) and isinstance(block.source, URLSource):
        url = block.source.url
        if block.source.media_type.lower() == "application/pdf" and url.startswith(("https://", "http://")):
            return {"type": "input_file", "file_url": url}  # which the API fetches itself
    part = part_of(block)
    match part["type"]:
        case "image_url":
            return {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
        case "file":
            return {"type": "input_file", **part["file"]}
        case "text":
            return _text_part(part["text"])
    assert isinstance(block, DataBlock)  # a sound, which only the chat completions take
    return _text_part(file_note(block, "of a kind that this model's API does not take"))
