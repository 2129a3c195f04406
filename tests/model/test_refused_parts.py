"""A part of a conversation that its provider refuses is left out, so that the conversation can continue."""

from typing import Any

import httpx2
import pytest

from agentrt import Msg
from agentrt.errors import Rejected
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.model import AnthropicChatModel, GeminiChatModel
from tests.model import wire_openai
from tests.model.wire_openai import HELLO, KEY, Answer, Server, answer_of, completion, error, json_of

NOTE = "which the model's API has refused"
GOOD, BAD = DataBlock(Base64Source("Z29vZA==", "image/png")), DataBlock(Base64Source("YmFk", "image/png"))
SEEN: list[ContentBlock] = [ToolCallBlock("c1", "look", "{}"), ToolResultBlock("c1", "look", [BAD])]


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ([UserMsg("user", [GOOD]), AssistantMsg("a", "I see."), UserMsg("user", [BAD])], "Z29vZA=="),
        ([UserMsg("user", [GOOD]), AssistantMsg("a", "I see."), UserMsg("user", "?"), AssistantMsg("a", SEEN)], "Z29v"),
        ([UserMsg("user", [BAD]), AssistantMsg("a", "I see."), UserMsg("user", "And now?")], "And now?"),
    ],
)
async def test_a_refused_picture_becomes_a_note(messages: list[Msg], left: str) -> None:
    refusal = error(400, "You uploaded an unsupported image.", "invalid_image_format")
    model, server = wire_openai.model_of(refusal, completion(content="Yes."), stream=False)
    for _ in range(2):
        (answer,) = await answer_of(model, messages)
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == ["Yes."]
    first, *others = (str(body) for body in server.bodies)
    assert "YmFk" in first
    assert len(others) == 2
    for body in others:
        assert NOTE in body
        assert left in body
        assert "YmFk" not in body


async def test_a_picture_that_is_named_is_the_one_that_is_left_out() -> None:
    good, bad = (DataBlock(URLSource(f"https://a.example/{name}.png", "image/png")) for name in ("good", "bad"))
    refusal = error(400, "Error while downloading https://a.example/bad.png.", "invalid_image_url")
    model, server = wire_openai.model_of(refusal, completion(content="Yes."), stream=False)
    await answer_of(model, [UserMsg("user", [good, bad])])
    images = [part["image_url"]["url"] for part in server.bodies[1]["messages"][0]["content"] if "image_url" in part]
    assert images == ["https://a.example/good.png"]


async def test_another_refusal_leaves_the_picture_where_it_is() -> None:
    model, server = wire_openai.model_of(error(400, "This model does not support image input."), stream=False)
    with pytest.raises(Rejected):
        await answer_of(model, [UserMsg("user", [GOOD])])
    assert len(server.bodies) == 1


CLAUDE = json_of({"id": "m", "content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn", "usage": {}})
GEMINI = json_of({"candidates": [{"content": {"parts": [{"text": "Yes."}]}, "finishReason": "STOP"}]})


@pytest.mark.parametrize(
    ("cls", "signature", "why", "whole"),
    [
        (AnthropicChatModel, "c2ln", "messages.1.content.0: Invalid `signature` in `thinking` block", CLAUDE),
        (GeminiChatModel, 'gemini:{"signature": "c2ln", "is_of_call": true}', "Corrupted thought signature.", GEMINI),
    ],
)
async def test_a_refused_thought_is_left_out_and_asked_for_again_once(
    cls: Any, signature: str, why: str, whole: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(error(400, why), whole)
    client = lambda: httpx2.AsyncClient(transport=server)  # noqa: E731
    model = cls("gemini-3-flash", api_key=KEY, stream=False, http_client=client)
    called: list[ContentBlock] = [ThinkingBlock("hm", signature=signature), *SEEN[:1]]
    for _ in range(2):
        await model([*HELLO, AssistantMsg("a", called)])
    await model.aclose()

    first, *others = (str(body) for body in server.bodies)
    assert "c2ln" in first
    assert len(others) == 2
    assert not [body for body in others if "c2ln" in body]
    assert len([record for record in caplog.records if "are left out from now on" in record.getMessage()]) == 1
