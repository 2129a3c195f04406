"""What an answer rests on stands in one place of the message, whichever API has said it."""

import json
from typing import Any

import httpx2
import pytest

from agentrt import Agent, Msg
from agentrt.formatter import format_anthropic, format_openai
from agentrt.message import AssistantMsg, ProviderBlock, TextBlock
from agentrt.model import AnthropicChatModel, BedrockChatModel, GeminiChatModel, OpenAIChatModel, OpenAIResponsesModel
from tests.loop.helpers import rebuilt
from tests.model import wire_bedrock
from tests.model.wire_openai import DONE, KEY, Answer, Server, events, json_of

URL, TITLE, CITED = "https://a.example/rome", "Rome", "2,8 Millionen"
TEXT = f"Größe — 🏛: {CITED} Menschen."
START, END = TEXT.index(CITED), TEXT.index(CITED) + len(CITED)
BYTES = [len(TEXT[:place].encode()) for place in (START, END)]
WEB = {"web": {"uri": URL, "title": TITLE}}
SUPPORT = {"segment": {"startIndex": BYTES[0], "endIndex": BYTES[1], "text": CITED}, "groundingChunkIndices": [0]}
GROUNDS = {"groundingChunks": [WEB], "groundingSupports": [SUPPORT], "searchEntryPoint": {"renderedContent": "<b>"}}
OF_CHAT = {"url": URL, "title": TITLE, "start_index": START, "end_index": END}
OF_RESPONSES = {"type": "url_citation", **OF_CHAT}
OF_ANTHROPIC = {
    "type": "web_search_result_location",
    "url": URL,
    "title": TITLE,
    "cited_text": "It has 2.8 million.",
    "encrypted_index": "ZW5j",
}

OF_BEDROCK = {
    "title": TITLE,
    "sourceContent": [{"text": "It has 2.8 million."}],
    "location": {"web": {"url": URL, "domain": "a.example"}},
}


def chat(stream: bool) -> Answer:
    annotations = [{"type": "url_citation", "url_citation": OF_CHAT}]
    message = {"content": TEXT, "annotations": annotations}
    if not stream:
        return json_of({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    deltas = [{"content": TEXT[:9]}, {"content": TEXT[9:]}, {"annotations": annotations}]
    choices = [{"index": 0, "delta": delta} for delta in deltas] + [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    return Answer([*(events({"choices": [choice]}) for choice in choices), DONE])


def responses(stream: bool) -> Answer:
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "phase": "final_answer"}
    part = {"type": "output_text", "text": TEXT, "annotations": [OF_RESPONSES]}
    whole = {"id": "r", "status": "completed", "output": [{**item, "content": [part]}]}
    if not stream:
        return json_of(whole)
    place = {"output_index": 0, "content_index": 0, "item_id": "m"}
    bare = {**part, "annotations": []}  # as some servers have it; OpenAI's repeats what it has found
    sent = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *({"type": "response.output_text.delta", **place, "delta": text} for text in (TEXT[:9], TEXT[9:])),
        {"type": "response.output_text.annotation.added", **place, "annotation_index": 0, "annotation": OF_RESPONSES},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "content": [bare]}},
        {"type": "response.completed", "response": {**whole, "output": []}},
    ]
    return Answer([events(*sent)])


def anthropic(stream: bool) -> Answer:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": TEXT[:START]},
        {"type": "text", "text": CITED, "citations": [OF_ANTHROPIC]},
        {"type": "text", "text": TEXT[END:]},
    ]
    if not stream:
        return json_of({"id": "m", "content": content, "stop_reason": "end_turn"})
    sent: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m"}}]
    for index, block in enumerate(content):
        sent.append({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}})
        deltas = [{"type": "citations_delta", "citation": citation} for citation in block.get("citations", [])]
        deltas.append({"type": "text_delta", "text": block["text"]})
        sent += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        sent.append({"type": "content_block_stop", "index": index})
    sent += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    return Answer([events(*sent)])


def gemini(stream: bool) -> Answer:
    def part_of(text: str, **fields: Any) -> dict[str, Any]:
        return {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": text}]}, **fields}]}

    end = {"finishReason": "STOP", "groundingMetadata": GROUNDS}
    return Answer([events(part_of(TEXT[:9]), part_of(TEXT[9:], **end))]) if stream else json_of(part_of(TEXT, **end))


def bedrock(stream: bool) -> Answer:
    texts = (TEXT[:START], CITED, TEXT[END:])
    if not stream:
        first, cited, last = ({"text": text} for text in texts)
        content = [first, {"citationsContent": {"content": [cited], "citations": [OF_BEDROCK]}}, last]
        return json_of({"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "end_turn"})
    first_block, cited_block, last_block = (wire_bedrock.text(index, text) for index, text in enumerate(texts))
    cited_block.insert(1, {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"citation": OF_BEDROCK}}})
    return wire_bedrock.stream_of(
        wire_bedrock.events_frames(*wire_bedrock.message(first_block, cited_block, last_block))
    )


APIS: dict[str, tuple[Any, Any, dict[str, Any], str | None]] = {
    "chat": (OpenAIChatModel, chat, OF_CHAT, None),
    "responses": (OpenAIResponsesModel, responses, OF_RESPONSES, None),
    "anthropic": (AnthropicChatModel, anthropic, OF_ANTHROPIC, "It has 2.8 million."),
    "gemini": (GeminiChatModel, gemini, WEB, None),
    "bedrock": (BedrockChatModel, bedrock, OF_BEDROCK, "It has 2.8 million."),
}


async def message_of(api: str, stream: bool) -> tuple[Msg, Server]:
    cls, answer, _, _ = APIS[api]
    server = Server(answer(stream))
    client = lambda: httpx2.AsyncClient(transport=server)  # noqa: E731
    model = cls("some-model", api_key=KEY, base_url="http://test.invalid", stream=stream, http_client=client)
    async with Agent("tester", model=model) as agent:
        events_of_reply = [event async for event in agent.reply_stream("How many?")]
        (message,) = agent.state.context[1:]
    assert rebuilt(events_of_reply).get_citations() == message.get_citations()
    return message, server


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_a_citation_is_the_same_from_each_api(api: str, stream: bool) -> None:
    message, _ = await message_of(api, stream)
    *_, source, quote = APIS[api]

    assert message.get_text_content() == TEXT
    assert message.get_citations() == [
        {
            "url": URL,
            "title": TITLE,
            "quote": quote,
            "text": CITED,
            "start": START,
            "end": END,
            "block_id": message.get_content_blocks("text")[0].id,
            "source": source,
        }
    ]
    assert Msg.from_json(message.to_json()).get_citations() == message.get_citations()


async def test_what_google_wants_shown_is_kept() -> None:
    message, _ = await message_of("gemini", stream=False)
    (block,) = message.get_content_blocks("provider")
    assert json.loads(block.content)["groundingMetadata"] == GROUNDS


async def test_citations_of_a_search_go_back_to_anthropic_alone() -> None:
    message, _ = await message_of("anthropic", stream=True)

    (_, turn) = format_anthropic([message])["messages"]
    assert turn["content"] == [
        {"type": "text", "text": TEXT[:START]},
        {"type": "text", "text": CITED, "citations": [OF_ANTHROPIC]},
        {"type": "text", "text": TEXT[END:]},
    ]
    assert format_openai([message]) == [{"role": "assistant", "content": TEXT}]


CHANGED = ["{", "[]", '{"citations": 1}', '{"type": "citations", "citations": [1, {"start": "x"}]}']


@pytest.mark.parametrize("kept", CHANGED)
def test_citations_that_others_have_changed_are_passed_over(kept: str) -> None:
    message = AssistantMsg("a", [TextBlock("x"), ProviderBlock("anthropic", kept)])
    assert [citation["text"] for citation in message.get_citations()] in ([], [None])
    assert format_anthropic([message])["messages"][1]["content"] == [{"type": "text", "text": "x"}]


async def test_a_citation_follows_its_words_in_a_changed_text() -> None:
    message, _ = await message_of("anthropic", stream=False)
    text, _ = message.get_content_blocks()
    assert isinstance(text, TextBlock)
    text.text = text.text.replace("Größe", "XX")
    (citation,) = message.get_citations()
    assert (citation["text"], citation["start"]) == (CITED, START - 3)
    assert [part["text"] for part in format_anthropic([message])["messages"][1]["content"]][1] == CITED

    text.text = "short"
    (citation,) = message.get_citations()
    assert (citation["url"], citation["text"], citation["start"], citation["block_id"]) == (URL, None, None, None)
    assert format_anthropic([message])["messages"][1]["content"] == [{"type": "text", "text": "short"}]
