"""A conversation in the shape of Ollama's own API."""

import json
from collections.abc import Sequence

from agentrt._runtime.block import JSONObject
from agentrt.formatter.openai import format_openai
from agentrt.message import Msg


def format_ollama(messages: Sequence[Msg]) -> list[JSONObject]:
    """Return the `messages` of a request.

    Rounds, results and notes are those of `format_openai`. Images are sent as data; one with an address leaves a note,
    since the server fetches none, and so does any other file. Thinking goes back with the rounds since the user's last
    message.
    """
    names: dict[str, str] = {}
    formatted: list[JSONObject] = []
    for message in format_openai(messages, reasoning=True, names=False):
        content = message["content"]
        parts: list[JSONObject] = (
            [{"type": "text", "text": content or ""}] if not isinstance(content, list) else content
        )
        own: JSONObject = {"role": message["role"], "content": "\n".join(filter(None, map(_text_in_part, parts)))}
        if images := [data for part in parts if (data := _image_in(part))]:
            own["images"] = images
        if thinking := message.get("reasoning_content"):
            own["thinking"] = thinking
        if calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            own["tool_calls"] = [_call_to_send(call) for call in calls]
        if call_id := message.get("tool_call_id"):
            own |= {"tool_name": names.get(call_id, ""), "tool_call_id": call_id}
        formatted.append(own)
    return formatted


def _call_to_send(call: JSONObject) -> JSONObject:
    function = call["function"]
    return {"id": call["id"], "function": {**function, "arguments": json.loads(function["arguments"])}}


def _image_in(part: JSONObject) -> str:
    """Return the data of an image, in base64; "" for any other part, and for an image elsewhere."""
    url: str = part["image_url"]["url"] if part["type"] == "image_url" else ""
    return url.partition(";base64,")[2] if url.startswith("data:") else ""


def _text_in_part(part: JSONObject) -> str:
    if part["type"] == "text":
        return str(part["text"])
    if _image_in(part):
        return ""
    where = f" at {part['image_url']['url']}" if part["type"] == "image_url" else ""
    return f"(a file{where}, of a kind that this model's API does not take)"
