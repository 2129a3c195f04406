"""Whatever the types of the SDKs say may come: it is read, kept or passed over, and the answer stays whole."""

import asyncio
import functools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ModelError
from agentrt.message import AssistantMsg, ProviderBlock
from agentrt.types import ChatResponse
from tests.model import wire_anthropic as wire
from tests.model.apis.all_apis import Api, read, said, text_of
from tests.model.apis.answers import MODELS, TOOLS
from tests.model.apis.example_of_type import example_of, name_of_type, union_members
from tests.model.apis.rules import check_request
from tests.model.wire_openai import HELLO

# Of the events, these make up the answer.
READ_EVENTS = (
    "error",
    "response.completed",
    "response.created",
    "response.failed",
    "response.function_call_arguments.delta",
    "response.incomplete",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.annotation.added",
    "response.output_text.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
    "response.refusal.delta",
)
# Items with a meaning of their own; all others are kept as they come.
READ_ITEMS = ("function_call", "image_generation_call", "message", "reasoning")
HOSTED_ITEMS = (
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
)
READ_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
READ_PARTS = ("text", "thought", "function_call", "function_response")


@functools.cache
def other_events() -> list[Any]:
    from openai.types.responses import ResponseStreamEvent

    return [cls for cls in union_members(ResponseStreamEvent) if name_of_type(cls) not in READ_EVENTS]


@functools.cache
def other_items() -> list[Any]:
    from openai.types.responses import ResponseOutputItem

    return [cls for cls in union_members(ResponseOutputItem) if name_of_type(cls) not in READ_ITEMS]


@functools.cache
def other_blocks() -> list[Any]:
    from anthropic.types import ContentBlock
    from anthropic.types.beta import BetaContentBlock

    blocks = [*union_members(ContentBlock), *union_members(BetaContentBlock)]
    return [cls for cls in blocks if name_of_type(cls) not in READ_BLOCKS]


@given(st.data())
@settings(max_examples=30)
def test_other_events_of_the_responses_api_change_nothing(
    apis: dict[str, Api], runner: asyncio.Runner, data: st.DataObject
) -> None:
    api = apis["responses"]
    sent = list(api.sent)
    for _ in range(5):
        event = example_of(data.draw, data.draw(st.sampled_from(other_events())))
        sent.insert(data.draw(st.integers(1, len(sent) - 1)), event)
    assert said(read(runner, api, api.body(sent))) == said(read(runner, api, api.body()))


@given(st.data())
@settings(max_examples=30)
def test_each_item_of_openai_is_kept_and_can_go_back(data: st.DataObject) -> None:
    items = [example_of(data.draw, data.draw(st.sampled_from(other_items()))) for _ in range(3)]
    for number, item in enumerate(items):
        item["id"] = f"x_{number}"
    message = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
    reader = MODELS["responses"]._reader([])
    reader.read({"id": "r", "status": "completed", "output": [*items, message]})
    *kept, text = reader.answer().content

    assert [json.loads(block.content) for block in kept if isinstance(block, ProviderBlock)] == items
    assert text_of(text) == "A"
    # As they came, whatever the types of requests say, which know less of an item than those of answers.
    sent = MODELS["responses"]._body([AssistantMsg("a", [*kept, text])], None, None)["input"]
    returned = [{**item, "created_by": "x"} for item in items if item["type"] in HOSTED_ITEMS]
    assert [{**item, "created_by": "x"} for item in sent[:-1]] == returned
    for api in ("chat", "anthropic", "gemini"):
        check_request(api, MODELS[api]._body([*HELLO, AssistantMsg("a", [*kept, text])], TOOLS, None))


@given(st.data())
@settings(max_examples=30)
def test_each_block_of_anthropic_is_kept_and_can_go_back(
    apis: dict[str, Api], runner: asyncio.Runner, data: st.DataObject
) -> None:
    cls = data.draw(st.sampled_from(other_blocks()))
    block = example_of(data.draw, cls)
    body = b"".join(map(wire.line, [wire.start(), *wire.block(0, block), *wire.text(1, "A"), *wire.stop()]))
    answer = read(runner, apis["anthropic"], body)
    assert isinstance(answer, ChatResponse)
    kept, text = answer.content

    assert isinstance(kept, ProviderBlock)
    assert json.loads(kept.content) == block
    assert text_of(text) == "A"
    (_, turn) = MODELS["anthropic"]._body([AssistantMsg("a", answer.content)], None, None)["messages"]
    without_use = "tool_use_id" in block  # a result without its use is refused
    assert [part for part in turn["content"] if part["type"] != "text"] == ([] if without_use else [block])
    for api in ("chat", "responses", "gemini"):
        check_request(api, MODELS[api]._body([*HELLO, AssistantMsg("a", answer.content)], TOOLS, None))


@given(st.data())
@settings(max_examples=30)
def test_each_part_of_google_leaves_the_answer_whole(
    apis: dict[str, Api], runner: asyncio.Runner, data: st.DataObject
) -> None:
    from google.genai import types as google

    parts = [name for name in google.Part.model_fields if name not in READ_PARTS]
    field = google.Part.model_fields[data.draw(st.sampled_from(parts))]
    part = {field.alias: example_of(data.draw, field.annotation) or {}}
    candidate = {**example_of(data.draw, google.Candidate), "finishReason": "STOP", "index": 0}
    candidate["content"] = {"role": "model", "parts": [{"text": "A"}, part]}
    response = {**example_of(data.draw, google.GenerateContentResponse), "candidates": [candidate]}
    usage_metadata = example_of(data.draw, google.GenerateContentResponseUsageMetadata)
    response |= {"promptFeedback": None, "usageMetadata": usage_metadata}
    answer = read(runner, apis["gemini"], apis["gemini"].line(response))

    if isinstance(answer, ModelError):  # a file without its data, say
        assert "cannot be read" not in str(answer)
        return
    assert text_of(answer.content[0]) == "A"
    for api, model in MODELS.items():
        check_request(api, model._body([*HELLO, AssistantMsg("a", answer.content)], TOOLS, None))


@given(st.data())
def test_other_fields_of_a_chat_chunk_change_nothing(
    apis: dict[str, Api], runner: asyncio.Runner, data: st.DataObject
) -> None:
    from openai.types.chat import ChatCompletionChunk

    api = apis["chat"]
    sent = list(api.sent)
    for _ in range(3):
        place = data.draw(st.integers(0, len(sent) - 1))
        chunk = example_of(data.draw, ChatCompletionChunk)
        choices = chunk.pop("choices")
        sent[place] = {**{name: value for name, value in chunk.items() if name not in ("id", "usage")}, **sent[place]}
        if sent[place]["choices"] and choices:
            sent[place]["choices"] = [{"logprobs": choices[0].get("logprobs"), **sent[place]["choices"][0]}]
    assert said(read(runner, api, api.body(sent))) == said(read(runner, api, api.body()))
