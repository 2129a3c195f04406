"""What the APIs take: the types of their SDKs, and their documented rules of order, written out plainly.

Each check takes the body of a request, and fails where the API would answer with a 400.
"""

import functools
import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pydantic

from tests.model.wire_bedrock import check_shape

JSONObject = dict[str, Any]


# Functions import the SDKs: that takes two seconds, and each process that runs tests collects these.
@functools.cache
def request_type(api: str) -> Any:
    """Return the SDK's type of a request; for Gemini of its contents."""
    kind: Any
    match api:
        case "chat":
            from openai.types.chat import CompletionCreateParams as kind
        case "responses":
            from openai.types.responses import ResponseCreateParams as kind
        case "anthropic":
            from anthropic.types import MessageCreateParams as kind
        case _:
            from google.genai.types import Content

            kind = list[Content]
    return pydantic.TypeAdapter(kind)


@functools.cache
def _item_fields() -> dict[str, set[str]]:
    from openai.types.responses import ResponseInputItemParam

    return _fields_by_type(*get_args(ResponseInputItemParam))


@functools.cache
def _part_fields() -> dict[str, set[str]]:
    from anthropic.types import ContentBlockParam

    return _fields_by_type(*get_args(ContentBlockParam))


def _fields_by_type(*classes: Any) -> dict[str, set[str]]:
    """Return the fields that the SDK's classes have, by their `type`: the API refuses others, and pydantic does not."""
    fields: dict[str, set[str]] = {}
    for cls in classes:
        hints = get_type_hints(cls)
        for name in get_args(hints["type"]):
            fields.setdefault(name, set()).update(hints)
    return fields


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_GIVEN_TO_FOREIGN_CALLS = "skip_thought_signature_validator"


def check_request(api: str, body: JSONObject) -> None:
    """Fail where the API would refuse the request."""
    if api == "bedrock":
        check_shape(body)
    elif api == "gemini":
        request_type(api).validate_python(body["contents"])
    else:
        _read_all(request_type(api).validate_python({name: value for name, value in body.items() if name != "stream"}))
    _CHECKS[api](body)


def _read_all(value: Any) -> None:
    # Pydantic checks what is an `Iterable` to it only while it is read.
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for item in value.values() if isinstance(value, Mapping) else value:
            _read_all(item)


def check_chat(body: JSONObject) -> None:
    """Results follow their calls at once, one each and in their order; text alone in all but the user's messages."""
    due: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
            assert message["content"]
            assert isinstance(message["content"], str)
            continue
        assert not due, "a call without its result"
        if message["role"] == "assistant":
            assert message["content"] or message.get("tool_calls")
            assert message["content"] is None or isinstance(message["content"], str)
            for call in message.get("tool_calls", ()):
                assert _NAME.fullmatch(call["function"]["name"])
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                assert len(call["id"]) <= 40
                due.append(call["id"])
        elif message["role"] == "system":
            assert isinstance(message["content"], str)
        else:
            assert message["content"] is not None
    assert not due


def check_responses(body: JSONObject) -> None:
    """Reasoning leads to an item of the same answer; calls have one result each, before the user's next item."""
    due: list[str] = []
    answered: set[str] = set()
    items = body["input"]
    assert items
    ids = [item["id"] for item in items if "id" in item]
    assert len(ids) == len({*ids}), "an item twice"
    for item, following in pairwise([*items, {}]):
        assert {*item} <= _item_fields()[item.get("type", "message")]
        kind = item.get("type", item.get("role"))
        if kind == "function_call":
            assert item["call_id"] not in {*due, *answered}
            assert len(item["call_id"]) <= 64
            assert _NAME.fullmatch(item["name"])
            assert isinstance(json.loads(item["arguments"]), dict)
            due.append(item["call_id"])
        elif kind == "function_call_output":
            due.remove(item["call_id"])
            answered.add(item["call_id"])
            assert item["output"]
        elif kind == "reasoning":
            assert item["id"].startswith("rs_")
            assert item["encrypted_content"], "nothing is kept at OpenAI"
            after = following.get("type", following.get("role"))
            assert after == "reasoning" or after in ("assistant", "function_call") or after.endswith("_call")
        elif kind in ("user", "system"):
            assert not due, "a call without its result"
            assert item["content"]
        else:
            assert kind == "assistant" or kind.endswith("_call")
    assert not due


def check_anthropic(body: JSONObject) -> None:
    """Roles alternate; a turn's results come first in the next one; thoughts and blocks of server tools stay whole."""
    turns = body["messages"]
    assert [turn["role"] for turn in turns] == [("user", "assistant")[place % 2] for place in range(len(turns))]
    used: set[str] = set()
    due: set[str] = set()
    for turn, following in pairwise([*turns, {"role": "user", "content": []}]):
        parts = turn["content"]
        assert parts
        assert all(part["text"].strip() for part in parts if part["type"] == "text")
        if turn["role"] == "user":
            results = [part["type"] == "tool_result" for part in parts]
            assert results == sorted(results, reverse=True), "results come first"
            continue
        assert parts[-1]["type"] not in ("thinking", "redacted_thinking")
        assert all(part["signature"] == "c2ln" for part in parts if part["type"] == "thinking")
        # With a call of the client's beside it, a server tool may run when that has its result.
        due = _server_uses(parts, due)
        assert not due or turn is turns[-1] or any(part["type"] == "tool_use" for part in parts)
        ids = [part["id"] for part in parts if part["type"] == "tool_use"]
        assert ids == [part["tool_use_id"] for part in following["content"] if part["type"] == "tool_result"]
        assert not used & {*ids}
        used |= {*ids}
    if turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        assert not turns[-1]["content"][-1]["text"][-1].isspace()
    if used:
        assert body["tools"]
    for part in _parts_within(turns):
        assert {*part} <= _part_fields()[part["type"]]
        if part["type"] == "image" and part["source"]["type"] == "base64":
            assert part["source"]["media_type"] in ("image/jpeg", "image/png", "image/gif", "image/webp")
    if "thinking" in body:
        *earlier, last = turns
        continued = [earlier[-1]] if last["content"][0]["type"] == "tool_result" else [last]
        for turn in continued:  # the turn in which the model is right now began with a thought
            assert turn["role"] == "user" or turn["content"][0]["type"] in ("thinking", "redacted_thinking")


def _server_uses(parts: list[JSONObject], due: set[str]) -> set[str]:
    """Return the uses of server tools that have no result after this turn; `due` had none before it."""
    opened: set[str] = set()
    for part in parts:
        if part["type"] == "server_tool_use":
            opened.add(part["id"])
        elif part["type"].endswith("_tool_result"):
            assert part["tool_use_id"] in due | opened
            due, opened = due - {part["tool_use_id"]}, opened - {part["tool_use_id"]}
        elif part["type"] not in ("thinking", "redacted_thinking"):
            assert not due, "a result comes before anything else"
    assert not due
    return opened


def _parts_within(turns: list[JSONObject]) -> Iterator[JSONObject]:
    for turn in turns:
        for part in turn["content"]:
            yield part
            if part["type"] == "tool_result":
                yield from part["content"]


def check_gemini(body: JSONObject) -> None:
    """Turns alternate; a turn's responses come first in the next one, one for each call and in the order of the calls.

    The first call of a turn is signed, with a signature of Google's or with its word for a call of another model.
    """
    turns = body["contents"]
    assert [turn["role"] for turn in turns] == [("user", "model")[place % 2] for place in range(len(turns))]
    for turn, following in pairwise([*turns, {"parts": []}]):
        assert turn["parts"]
        calls = [part for part in turn["parts"] if "functionCall" in part]
        if turn["role"] == "user":
            assert not calls
            assert not any("thoughtSignature" in part for part in turn["parts"])
        called = [(part["functionCall"]["id"], part["functionCall"]["name"]) for part in calls]
        responses = [part["functionResponse"] for part in following["parts"] if "functionResponse" in part]
        assert called == [(response["id"], response["name"]) for response in responses]
        assert all("functionResponse" in part for part in following["parts"][: len(calls)])
        assert len({id for id, _ in called}) == len(called)
        for part in calls[:1]:
            assert part["thoughtSignature"]
        for part in turn["parts"]:
            assert part.get("text") != "" or "thoughtSignature" in part
            assert part.get("thoughtSignature", "c2ln") in ("c2ln", _GIVEN_TO_FOREIGN_CALLS)
            if turn["role"] == "model" and "inlineData" in part:
                assert part["thoughtSignature"] == "c2ln"
            if "inlineData" in part:
                assert b64decode(part["inlineData"]["data"], validate=True)


def check_bedrock(body: JSONObject) -> None:
    """Roles alternate; a turn's results come first in the next one, for each call; nothing ends in a thought."""
    turns = body["messages"]
    assert [turn["role"] for turn in turns] == [("user", "assistant")[place % 2] for place in range(len(turns))]
    titles: list[str] = []
    used: set[str] = set()
    for turn, following in pairwise([*turns, {"role": "user", "content": []}]):
        parts = turn["content"]
        assert parts
        assert all(part["text"].strip() for part in parts if "text" in part)
        found = [part["document"]["name"] for part in parts if "document" in part]
        assert not found or any("text" in part for part in parts)
        titles += found
        results = [part["toolResult"] for part in parts if "toolResult" in part]
        assert all("toolResult" in part for part in parts[: len(results)])
        titles += [item["document"]["name"] for result in results for item in result["content"] if "document" in item]
        thoughts = [part["reasoningContent"] for part in parts if "reasoningContent" in part]
        if turn["role"] == "user":
            assert not thoughts
            continue
        assert not results
        assert "reasoningContent" not in parts[-1]
        assert all(
            thought["reasoningText"]["signature"] == "c2ln" for thought in thoughts if "reasoningText" in thought
        )
        ids = [part["toolUse"]["toolUseId"] for part in parts if "toolUse" in part]
        answered = [part["toolResult"]["toolUseId"] for part in following["content"] if "toolResult" in part]
        assert ids == answered
        assert not used & {*ids}
        used |= {*ids}
    assert len(titles) == len({*titles})
    if used:
        assert body["toolConfig"]["tools"]


_CHECKS = {
    "anthropic": check_anthropic,
    "bedrock": check_bedrock,
    "chat": check_chat,
    "gemini": check_gemini,
    "responses": check_responses,
}
