"""Anthropic's messages API, played in this process: what is sent, and what is made of the answers."""

import json
import logging
import re
import traceback
from functools import partial
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, Msg, Toolkit, UserMsg
from agentrt.agent import ReActConfig
from agentrt.errors import (
    ConfigError,
    ContextOverflow,
    Malformed,
    ModelError,
    RateLimited,
    Refused,
    Rejected,
    Timeout,
    Transient,
)
from agentrt.event import ModelCallEndEvent, TextBlockDeltaEvent
from agentrt.message import (
    AssistantMsg,
    HintBlock,
    ProviderBlock,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.model import AnthropicChatModel, ChatResponse, ClaudeRules
from agentrt.model.claude import CLAUDE_RULES, rules_of
from agentrt.model.remote import Timeouts
from agentrt.types import ChatUsage, DeferredSchema, ToolChoice
from tests.loop.helpers import add, elsewhere, items_of
from tests.model.wire_anthropic import (
    CUT,
    HANG,
    KEY,
    Event,
    Reply,
    Wire,
    block,
    line,
    model_on,
    redacted,
    start,
    stop,
    text,
    text_events,
    thinking,
    tool_use,
    usage,
)
from tests.model.wire_openai import body_of

HELLO = [UserMsg("user", "Hello")]
OLDER = "claude-sonnet-4-5"  # which takes what its successors refuse
ADD = Toolkit(tools=[add]).get_json_schemas()
ADDED = [start(), *tool_use(0, "t1", "add", '{"a": 1', ', "b": 2}'), *stop("tool_use")]


def agent_on(wire: Wire, *tools: Any, **options: Any) -> Agent:
    return Agent("tester", "You are tested.", model_on(wire, **options), Toolkit(tools=list(tools)))


async def whole_reply(wire: Wire, *tools: Any, **options: Any) -> Msg:
    """Return the message that the conversation keeps of a reply, with all its rounds."""
    agent = agent_on(wire, *tools, **options)
    await agent.reply("go")
    kept: Msg = agent.state.context[-1]
    return kept


async def ask(wire: Wire, **options: Any) -> list[ChatResponse]:
    """Return what a model gives for one call, streamed or not."""
    result = await model_on(wire, **options)(HELLO)
    return [result] if isinstance(result, ChatResponse) else [piece async for piece in result]


async def answer(wire: Wire, **options: Any) -> ChatResponse:
    return (await ask(wire, **options))[-1]


async def body_for(tool_choice: ToolChoice | None = None, messages: list[Msg] = HELLO, **options: Any) -> Event:
    """Return the body of the request that a call makes."""
    tools = options.pop("tools", ADD)
    wire = Wire(text_events("ok"))
    stream: Any = await model_on(wire, **options)(messages, tools, tool_choice)
    await stream.aclose()
    return wire.bodies[0]


def message(*content: Event, reason: str = "end_turn", **counts: int | None) -> Reply:
    body = {"id": "msg_1", "type": "message", "role": "assistant", "content": list(content)}
    return Reply({**body, "stop_reason": reason, "usage": usage(output_tokens=5, **counts)})


async def test_deferred_tools_come_with_the_search_and_without_marks():
    def schema(name):
        return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}

    body = await body_for(tools=[schema("first"), DeferredSchema(schema("second"))], cache="auto")
    parts = [(tool["name"], "defer_loading" in tool, "cache_control" in tool) for tool in body["tools"]]
    assert parts == [("first", False, False), ("second", True, False), ("tool_search_tool_bm25", False, True)]
    assert body["tools"][2]["type"] == "tool_search_tool_bm25_20251119"


async def test_a_stream_gives_its_pieces_and_then_the_whole():
    *pieces, whole = await ask(Wire([start(), {"type": "ping"}, *text(0, "Hel", "", "lo"), *stop()]))

    assert [piece.content[0].text for piece in pieces] == ["Hel", "lo"]
    assert [block.text for block in whole.content] == ["Hello"]
    assert (whole.is_last, whole.finished_reason, whole.id) == (True, "stop", "msg_1")
    assert whole.usage == ChatUsage(10, 5)


async def test_an_answer_that_is_not_streamed_is_one_response():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "Adding."},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
    ]
    wire = Wire(message(*blocks, reason="tool_use"))
    (response,) = await ask(wire, stream=False)

    thought, words, call = response.content
    assert (thought.thinking, thought.signature, words.text) == ("hm", "sig", "Adding.")
    assert (call.id, call.name, call.input) == ("t1", "add", '{"a": 1}')
    assert response.finished_reason == "tool_calls"
    assert wire.bodies[0]["stream"] is False


@pytest.fixture(autouse=True)
def the_environment_names_no_server(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)


async def test_the_request_holds_the_settings_of_the_model():
    options = {"model": OLDER, "temperature": 0.5, "top_p": 0.9, "stop": "END", "max_tokens": 99}
    wire = Wire(text_events("ok"))
    model = model_on(
        wire, **options, extra_body={"metadata": {"user_id": "u"}}, extra_headers={"x-trace": "t-12345678"}
    )
    async for _ in await model([Msg("system", "Be brief.", "system"), *HELLO], ADD):
        pass

    (request,) = wire.requests
    assert str(request.url) == "https://api.anthropic.com/v1/messages"
    assert KEY in (request.headers.get("x-api-key"), request.headers.get("authorization", "").removeprefix("Bearer "))
    assert request.headers["x-trace"] == "t-12345678"
    assert request.headers["anthropic-version"]
    assert wire.bodies == [
        {
            "model": OLDER,
            "stream": True,
            "max_tokens": 99,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop_sequences": ["END"],
            "system": "Be brief.",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            "tools": [
                {
                    "name": "add",
                    "description": ADD[0]["function"]["description"],
                    "input_schema": ADD[0]["function"]["parameters"],
                }
            ],
            "metadata": {"user_id": "u"},
        }
    ]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("claude-sonnet-5", "enabled"),
        ("claude-opus-4-7-20260401", "enabled"),
        ("claude-haiku-4-5", "adaptive"),
        ("anthropic/claude-sonnet-5.5", "disabled"),
        ("eu.anthropic.claude-opus-5-5-v1", "between_tools"),
    ],
)
def test_thinking_that_a_model_refuses_is_refused_at_once(model, kind):
    thinking = {"type": kind} | ({"budget_tokens": 2000} if kind == "enabled" else {})
    with pytest.raises(ConfigError, match=re.escape(f"{model!r} does not accept thinking of the type {kind!r}")):
        AnthropicChatModel(model, api_key=KEY, thinking=thinking)
    AnthropicChatModel(model, api_key=KEY, thinking=thinking, rules=ClaudeRules())
    AnthropicChatModel("a-model-nobody-knows", api_key=KEY, thinking=thinking)


@pytest.mark.parametrize("name", ["temperature", "top_p"])
async def test_refused_sampling_raises_and_its_default_is_not_sent(name):
    with pytest.raises(ConfigError, match=f"accepts only its default {name}, not 0.5: leave it out"):
        AnthropicChatModel("claude-sonnet-5", api_key=KEY, **{name: 0.5})
    assert name not in await body_for(**{name: 1.0})
    assert (await body_for(rules=ClaudeRules(), **{name: 0.5}))[name] == 0.5


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"model": OLDER}, 8192),
        ({"model": "claude-opus-4-6", "thinking": {"type": "adaptive"}}, 24_576),
        ({}, 24_576),
        ({"thinking": {"type": "disabled"}}, 8192),
        ({"max_tokens": 7}, 7),
    ],
)
async def test_a_model_that_thinks_has_room_for_it(options, most):
    assert (await body_for(**options))["max_tokens"] == most


async def test_effort_is_sent_as_the_api_wants_it():
    assert (await body_for(effort="low"))["output_config"] == {"effort": "low"}
    assert "output_config" not in await body_for()


@pytest.mark.parametrize("mode", ["required", "add"])
async def test_a_model_that_cannot_be_made_to_call_a_tool_is_asked_to(mode):
    body = await body_for(ToolChoice(mode), model="claude-opus-5-5")
    assert body["tool_choice"] == {"type": "auto"}
    assert (await body_for(ToolChoice("none"), model="claude-opus-5-5"))["tool_choice"] == {"type": "none"}


async def test_thinking_turned_off_stays_off_when_a_tool_is_forced():
    off = {"type": "disabled"}
    assert (await body_for(ToolChoice("required"), thinking=off))["thinking"] == off


BINDING = {"prefix_mismatch_behavior": "drop_block"}
THOUGHT = [ThinkingBlock("hm", signature="sig"), TextBlock("Hi.")]


@pytest.mark.parametrize("thinking", [None, {"type": "adaptive", "display": "summarized"}])
@pytest.mark.parametrize("headers", [{}, {"Anthropic-Beta": "one,two"}])
async def test_the_api_is_asked_to_drop_thoughts_that_no_longer_fit(thinking, headers):
    wire = Wire(text_events("ok"))
    model = model_on(wire, "claude-sonnet-5-5", thinking=thinking, extra_headers=headers)
    async for _ in await model([*HELLO, AssistantMsg("a", THOUGHT), *HELLO]):
        pass

    assert wire.bodies[0]["thinking"] == {"type": "adaptive", **(thinking or {}), "block_binding": BINDING}
    assert wire.bodies[0]["messages"][1]["content"][0]["signature"] == "sig"
    betas = [*headers.values(), "thinking-binding-controls-2026-08-01"]
    assert wire.requests[0].headers["anthropic-beta"] == ",".join(betas)


async def test_a_block_binding_of_the_user_stays_as_it_is():
    by_hand = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
    assert (await body_for(model="claude-sonnet-5-5", thinking=by_hand))["thinking"] == by_hand


@pytest.mark.parametrize(("model", "kind"), [("claude-sonnet-5-5", "between_tools"), ("claude-haiku-5-5", "disabled")])
async def test_thoughts_are_left_out_when_the_api_cannot_drop_them(model, kind):
    wire = Wire(text_events("ok"))
    async for _ in await model_on(wire, model, thinking={"type": kind})([*HELLO, AssistantMsg("a", THOUGHT), *HELLO]):
        pass

    assert wire.bodies[0]["thinking"] == {"type": kind}
    assert wire.bodies[0]["messages"][1]["content"] == [{"type": "text", "text": "Hi."}]
    assert "anthropic-beta" not in wire.requests[0].headers


async def test_models_that_do_not_bind_thoughts_get_no_block_binding():
    wire = Wire(text_events("ok"))
    async for _ in await model_on(wire)([*HELLO, AssistantMsg("a", THOUGHT), *HELLO]):
        pass

    assert "thinking" not in wire.bodies[0]
    assert "anthropic-beta" not in wire.requests[0].headers


SEARCHING = {"type": "web_search_20250305", "name": "web_search"}


async def test_tools_that_anthropic_runs_go_with_the_agents_own():
    body = await body_for(server_tools=[SEARCHING])
    assert [tool["name"] for tool in body["tools"]] == ["add", "web_search"]
    assert (await body_for(tools=None, server_tools=[SEARCHING]))["tools"] == [SEARCHING]
    reply = AssistantMsg("a", [ToolCallBlock("1", "add", "{}"), ToolResultBlock("1", "add", "3")])
    body = await body_for(tools=None, messages=[*HELLO, reply], server_tools=[SEARCHING])
    assert [tool["name"] for tool in body["tools"]] == ["add", "web_search"]
    assert "tool_choice" not in body


async def test_anthropics_tools_are_barred_when_no_tool_may_be_called():
    body = await body_for(ToolChoice("none"), tools=None, server_tools=[SEARCHING])
    assert (body["tools"], body["tool_choice"]) == ([SEARCHING], {"type": "none"})


@pytest.mark.parametrize("wrong", ["web_search", [add], [{"name": "x"}], [{"type": 5}], None, SEARCHING, 5])
def test_a_server_tool_of_another_shape_is_refused(wrong):
    with pytest.raises(ConfigError, match="server_tools"):
        AnthropicChatModel("claude", api_key=KEY, server_tools=wrong)


@pytest.mark.parametrize(
    ("mode", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("add", {"type": "tool", "name": "add"}),
    ],
)
async def test_each_tool_choice_is_sent_in_the_words_of_the_api(mode, sent):
    assert (await body_for(ToolChoice(mode)))["tool_choice"] == sent


async def test_without_tools_the_request_does_not_mention_tools():
    assert {"tools", "tool_choice"}.isdisjoint(await body_for(ToolChoice("auto"), tools=[]))


async def test_called_tools_are_declared_even_when_none_is_offered():
    reply = AssistantMsg("a", [ToolCallBlock("1", "add", "{}"), ToolResultBlock("1", "add", "3")])
    body = await body_for(tools=None, messages=[*HELLO, reply])

    assert [tool["name"] for tool in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}


BUDGET = {"type": "enabled", "budget_tokens": 2000}


async def test_the_budget_of_thinking_comes_on_top_of_the_answer():
    body = await body_for(model=OLDER, thinking=BUDGET)

    assert (body["thinking"], body["max_tokens"]) == (BUDGET, 10192)


async def test_thinking_is_left_out_of_a_call_that_forces_a_tool():
    assert "thinking" not in await body_for(ToolChoice("required"), model=OLDER, thinking=BUDGET)


@pytest.mark.parametrize(("signature", "thinks"), [("sig", True), (None, False)])
async def test_thinking_is_left_out_of_a_round_of_another_model(signature, thinks):
    blocks = [
        ThinkingBlock("hm", signature=signature),
        ToolCallBlock("1", "add", "{}"),
        ToolResultBlock("1", "add", "3"),
    ]
    body = await body_for(messages=[*HELLO, AssistantMsg("a", blocks)], model=OLDER, thinking=BUDGET)

    assert ("thinking" in body) is thinks


@pytest.mark.parametrize(("signature", "thinks"), [("sig", True), (None, False)])
async def test_thinking_is_left_out_of_a_paused_turn_of_another_model(signature, thinks):
    use = ProviderBlock("anthropic", json.dumps(QUERY))
    paused = AssistantMsg("a", [ThinkingBlock("hm", signature=signature), use])
    body = await body_for(messages=[*HELLO, paused], model=OLDER, thinking=BUDGET)

    assert body["messages"][-1]["role"] == "assistant"
    assert ("thinking" in body) is thinks


async def test_a_formatter_may_give_plain_text():
    def format_plainly(messages):
        return {"messages": [{"role": "user", "content": "hi"}]}

    for model in (OLDER, "claude-sonnet-5-5", "claude-haiku-5-5"):
        thinking = {"type": "disabled"} if model == "claude-haiku-5-5" else None
        body = await body_for(model=model, thinking=thinking, tools=None, formatter=format_plainly)
        assert body["messages"][0]["role"] == "user"
    body = await body_for(model=OLDER, thinking=BUDGET, formatter=format_plainly)
    assert body["thinking"] == BUDGET


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("claude-sonnet-5-20260301", "sonnet-5"),
        ("claude-sonnet-5-0", "sonnet-5"),
        ("claude-sonnet-5-1m", "sonnet-5"),
        ("anthropic/claude-sonnet-5.5", "sonnet-5-5"),
        ("us.anthropic.claude-sonnet-5-5-20260901-v1:0", "sonnet-5-5"),
        ("claude-opus-4-8@20260401", "opus-4-8"),
        ("claude-mythos-preview", "mythos-preview"),
    ],
)
def test_the_rules_of_a_model_are_found_by_any_of_its_names(name, rules):
    assert rules_of(name) is CLAUDE_RULES[rules]


@pytest.mark.parametrize("name", ["claude-sonnet-6", "claude-sonnet-5-6", "claude-sonnet-55", "claude-3-7-sonnet"])
def test_a_model_that_is_not_in_the_table_has_no_rules(name):
    assert rules_of(name) == ClaudeRules()


@pytest.mark.parametrize("wrong", ["thinks", {}, {"thinks": True}, ClaudeRules])
def test_rules_of_another_type_are_refused_at_once(wrong):
    with pytest.raises(ConfigError, match=r"AnthropicChatModel\(rules=...\) must be a ClaudeRules, as in"):
        AnthropicChatModel("claude", api_key=KEY, rules=wrong)


def test_effort_of_another_type_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"AnthropicChatModel\(effort=...\) must be a str, not 5"):
        AnthropicChatModel("claude", api_key=KEY, effort=5)


async def test_half_a_character_in_thinking_spoils_no_later_request():
    thoughts = [*thinking(0, "s1", "half \ud83c"), *thinking(1, "s2", "more")]
    wire = Wire([start(), *thoughts, *tool_use(2, "1", "add", "{}"), *stop()], text_events("Tea."))
    await agent_on(wire).reply("What should I drink?")
    assert len(wire.bodies) == 2


async def test_half_a_character_in_a_provider_part_spoils_no_request():
    found = {**FOUND, "content": [{"type": "web_search_result", "title": "half \ud83c", "url": "u"}]}
    wire = Wire([start(), *block(0, QUERY), *block(1, found), *text(2, "Tea."), *stop()], text_events("More tea."))
    agent = agent_on(wire)
    await agent.reply("What should I drink?")
    agent = elsewhere(agent)
    await agent.reply("And then?")

    kinds = [part["type"] for part in wire.bodies[1]["messages"][1]["content"]]
    assert kinds == ["server_tool_use", "web_search_tool_result", "text"]


@pytest.mark.parametrize("wrong", [4000, True, {"budget_tokens": 4000}, {"type": "enabled", "budget_tokens": "all"}])
def test_thinking_of_another_shape_is_refused_where_it_is_given(wrong):
    with pytest.raises(ConfigError, match="budget_tokens"):
        AnthropicChatModel("claude", api_key=KEY, thinking=wrong)


def test_key_and_address_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://host/anthropic")

    assert repr(AnthropicChatModel("m", key_variable="OTHER_KEY")) == (
        "AnthropicChatModel('m', base_url='https://host/anthropic')"
    )


def test_a_missing_key_is_refused_with_the_name_of_its_variable(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY or give api_key"):
        AnthropicChatModel("claude")


async def test_input_tokens_include_the_cached_ones():
    counts = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 30}
    response = await answer(Wire([start(**counts), *text(0, "Hi"), *stop(input_tokens=None)]))

    assert response.usage == ChatUsage(140, 5, cache_input_tokens=100, cache_creation_input_tokens=30)


async def test_the_last_count_of_a_stream_holds():
    events = [start(), *text(0, "Hi"), *stop(input_tokens=12, cache_read_input_tokens=3, output_tokens=9)]

    assert (await answer(Wire(events))).usage == ChatUsage(15, 9, cache_input_tokens=3)


async def test_no_output_tokens_of_an_empty_answer_are_a_count():
    events = [start(output_tokens=0), *stop(output_tokens=0)]

    assert (await answer(Wire(events))).usage == ChatUsage(10, 0)


@pytest.mark.parametrize("counts", [{"input_tokens": 0, "output_tokens": 0}, {"input_tokens": None}])
async def test_usage_that_is_missing_is_estimated_and_says_so(counts):
    events = [start(**counts), *text(0, "Hello there"), *stop(output_tokens=counts.get("output_tokens"))]
    counted = (await answer(Wire(events))).usage

    assert counted.estimated
    assert counted.input_tokens > 0
    assert counted.output_tokens > 0


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "pause"),
        ("something_new", "something_new"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_each_stop_reason_has_a_finished_reason(reason, word, stream):
    wire = Wire([start(), *text(0, "Hi"), *stop(reason)] if stream else message(reason=reason))

    assert (await answer(wire, stream=stream)).finished_reason == word


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_an_error_of_its_own(stream):
    wire = Wire([start(), *text(0, "I "), *stop("refusal")] if stream else message(reason="refusal"))

    with pytest.raises(Refused, match=r"claude-sonnet-5.*declined"):
        await ask(wire, stream=stream)


@pytest.mark.parametrize("reason", ["max_tokens", None])
@pytest.mark.parametrize("pieces", [(), ("",), ('{"a": ',)])
@pytest.mark.parametrize("stream", [True, False])
async def test_half_a_call_at_the_end_means_that_the_answer_was_cut(reason, pieces, stream):
    if stream:
        wire = Wire([start(), *tool_use(0, "t1", "add", *pieces), *stop(reason)])
    else:
        called = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
        wire = Wire(Reply({"content": [called], "stop_reason": reason, "usage": usage()}))

    assert (await answer(wire, stream=stream)).finished_reason == "length"


async def test_a_call_without_arguments_is_a_whole_one():
    wire = Wire([start(), *tool_use(0, "t1", "add", ""), *stop("tool_use")])

    assert (await answer(wire)).finished_reason == "tool_calls"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_model_may_be_an_application_in_this_process(stream):
    async def app(scope, receive, send):
        asked = json.loads(await body_of(receive))
        assert (scope["path"], asked["stream"]) == ("/v1/messages", stream)
        said = asked["messages"][-1]["content"][0]["text"].upper()
        whole = {"content": [{"type": "text", "text": said}], "stop_reason": "end_turn", "usage": usage()}
        events = [start(), *text(0, said), *stop()]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in map(line, events) if stream else [json.dumps(whole).encode()]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    client = partial(httpx2.AsyncClient, transport=httpx2.ASGITransport(app))
    model = AnthropicChatModel("claude-sonnet-5", api_key=KEY, stream=stream, http_client=client)
    async with Agent("tester", model=model) as agent:
        reply = await agent.reply("Hello")

    assert (reply.get_text_content(), reply.usage.input_tokens) == ("HELLO", 10)


async def test_calls_that_come_interleaved_are_told_apart_by_index():
    one, two = tool_use(0, "t1", "add", '{"a": 1, ', '"b": 2}'), tool_use(1, "t2", "add", '{"a": 3, ', '"b": 4}')
    shuffled = [one[0], two[0], two[1], one[1], one[2], two[2], one[3], two[3]]
    wire = Wire([start(), *shuffled, *stop("tool_use")], text_events("done"))
    reply = await whole_reply(wire, add)

    assert {each.id: each.output[0].text for each in reply.get_content_blocks("tool_result")} == {"t1": "3", "t2": "7"}


@pytest.mark.parametrize(
    ("given", "deltas", "kept"),
    [
        ({}, [], ""),
        ({"a": 1, "b": 2}, [], '{"a": 1, "b": 2}'),
        ({"a": 1}, ['{"a": ', "1}"], '{"a": 1}'),
    ],
)
async def test_an_input_without_deltas_is_the_one_of_the_start(given, deltas, kept):
    first = {"type": "tool_use", "id": "t1", "name": "add", "input": given}
    pieces = ({"type": "input_json_delta", "partial_json": each} for each in deltas)
    response = await answer(Wire([start(), *block(0, first, *pieces), *stop("tool_use")]))

    assert response.content == [ToolCallBlock("t1", "add", kept)]


async def test_arguments_that_were_cut_short_never_reach_the_tool():
    ran = []

    async def remove(path: str, dry_run: bool = True) -> str:
        ran.append(path)
        return "removed"

    wire = Wire(
        [start(), *tool_use(0, "t1", "remove", '{"path": "/a", "dry_r'), *stop("max_tokens")], text_events("Oh.")
    )
    reply = await whole_reply(wire, remove)

    assert ran == []
    assert reply.get_content_blocks("tool_result")[0].state == "error"
    assert wire.bodies[1]["messages"][1]["content"][0]["input"] == {"INVALID_JSON": '{"path": "/a", "dry_r'}


THOUGHTS = [
    [thinking(0, "sig", "Let me ", "think.")],
    [thinking(0, "one", "First."), thinking(1, "two", "Second.")],
    [redacted(0, "sealed"), thinking(1, "sig", "Open."), redacted(2, "sealed too")],
    [thinking(0, "sig")],
    [redacted(0, "sealed")],
]


def parts_of(events: list[list[Event]]) -> list[Event]:
    """Return the blocks of thinking that the events make."""
    parts = []
    for first, *rest in events:
        part = dict(first["content_block"])
        for event in rest[:-1]:
            delta = dict(event["delta"])
            delta.pop("type")
            ((name, value),) = delta.items()
            part[name] += value
        parts.append(part)
    return parts


@pytest.mark.parametrize("thoughts", THOUGHTS)
@pytest.mark.parametrize("stream", [True, False])
async def test_thinking_goes_back_exactly_as_it_came(thoughts, stream):
    parts = parts_of(thoughts)
    call = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}}
    events = [
        start(),
        *(event for each in thoughts for event in each),
        *tool_use(9, "t1", "add", json.dumps(call["input"])),
    ]
    first: Any = [*events, *stop("tool_use")] if stream else message(*parts, call, reason="tool_use")
    wire = Wire(first, text_events("Three.") if stream else message({"type": "text", "text": "Three."}))
    await agent_on(wire, add, stream=stream, model=OLDER, thinking=BUDGET).reply("go")

    assert wire.bodies[1]["messages"][1]["content"] == [*parts, call]
    assert wire.bodies[1]["thinking"] == BUDGET


async def test_a_signature_that_comes_twice_is_kept_once():
    first = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    events = block(0, first, {"type": "signature_delta", "signature": "sig"})
    response = await answer(Wire([start(), *events, *text(1, "Hi"), *stop()]))

    assert response.content[0].signature == "sig"


async def test_a_conversation_of_tools_goes_back_and_forth():
    wire = Wire(ADDED, text_events("Three."), text_events("Again."))
    agent = agent_on(wire, add)
    first = await agent.reply("1 + 2?")
    await agent.reply("Again?")

    assert first.get_text_content() == "Three."
    roles = [turn["role"] for turn in wire.bodies[2]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert wire.bodies[1]["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"}]}
    ]
    assert all(
        earlier["messages"] == later["messages"][: len(earlier["messages"])] for earlier, later in pairwise(wire.bodies)
    )


async def test_unknown_events_are_ignored():
    unknown = [{"type": "new_event", "x": 1}, *block(0, {"type": "text", "text": ""}, {"type": "new_delta", "x": 1})]
    response = await answer(Wire([start(), *unknown, *text(1, "Hi"), *stop()]))

    assert [each.text for each in response.content] == ["Hi"]


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "title": "Tea", "url": "https://tea.test", "encrypted_content": "EqgC"}],
}
QUERY = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "green tea"}}
MCP_USE = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "echo", "server_name": "mcp", "input": {}}
MCP_RESULT = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []}
LISTED = {
    "type": "tool_search_tool_result",
    "tool_use_id": "srvtoolu_2",
    "content": {"type": "tool_search_tool_search_result", "tool_references": []},
}


def query(*pieces: str) -> list[Event]:
    return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


SEARCHED = [
    *thinking(0, "one", "I should look."),
    *block(1, SEARCH, *query("", '{"que', 'ry": "green', ' tea"}')),
    *block(2, FOUND),
    *thinking(3, "two", "Green it is."),
    *text(4, "Drink ", "tea."),
]


def shape_of(response: ChatResponse) -> list[Any]:
    """Return the answer as Anthropic wrote it, so far as it is not ours."""
    return [json.loads(each.content) if isinstance(each, ProviderBlock) else each.type for each in response.content]


async def test_a_server_that_takes_no_name_is_shown_that_tool_alone() -> None:
    others = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "look")]
    body = await body_for(ToolChoice("look"), tools=others, rules=ClaudeRules(named_choice=False))
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["look"], {"type": "any"})


async def test_a_part_that_no_event_ends_is_a_piece_as_well() -> None:
    begun = block(1, {**SEARCH, "id": "srvtoolu_2"})[:-1]
    *pieces, whole = await ask(Wire([start(), *block(0, SEARCH), *begun, *stop()]))
    assert [part for piece in pieces for part in piece.content] == whole.content


async def test_server_tools_leave_provider_blocks_and_no_calls_of_ours():
    *pieces, whole = await ask(Wire([start(), *SEARCHED, *stop()]))

    assert shape_of(whole) == ["thinking", QUERY, FOUND, "thinking", "text"]
    assert whole.finished_reason == "stop"
    assert [block for piece in pieces for block in piece.content if isinstance(block, ProviderBlock)] == [
        block for block in whole.content if isinstance(block, ProviderBlock)
    ]


async def test_an_answer_that_is_not_streamed_keeps_them_too():
    body = message({"type": "text", "text": "I look."}, QUERY, FOUND, {"type": "text", "text": "Tea."})
    assert shape_of(await answer(Wire(body), stream=False)) == ["text", QUERY, FOUND, "text"]


async def test_unknown_kinds_of_parts_are_kept_with_their_deltas():
    parts = [
        *block(0, MCP_USE, *query("{}")),
        *block(1, MCP_RESULT),
        *block(2, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "So "}),
        *block(3, LISTED),
        *block(4, {"type": "new", "list": []}, {"type": "new_delta", "list": [1]}, {"type": "new_delta", "list": [2]}),
        *text(5, "Hi"),
    ]
    response = await answer(Wire([start(), *parts, *stop()]))

    assert shape_of(response) == [
        MCP_USE,
        MCP_RESULT,
        {"type": "compaction", "content": "So "},
        LISTED,
        {"type": "new", "list": [2]},
        "text",
    ]


async def test_a_call_of_ours_among_server_tools_stays_a_call():
    played = [*block(0, SEARCH, *query('{"q": 1}')), *block(1, FOUND), *tool_use(2, "t1", "add", '{"a": 1, "b": 2}')]
    response = await answer(Wire([start(), *played, *stop("tool_use")]))

    assert response.content[-1] == ToolCallBlock("t1", "add", '{"a": 1, "b": 2}')
    assert [each.type for each in response.content] == ["provider", "provider", "tool_call"]


async def test_an_unended_part_is_kept_and_its_wrong_input_is_shown():
    first = {"type": "content_block_start", "index": 0, "content_block": SEARCH}
    half = {"type": "content_block_delta", "index": 0, "delta": query('{"que')[0]}
    response = await answer(Wire([start(), first, half, *stop("max_tokens")]))

    assert shape_of(response) == [{**SEARCH, "input": {"INVALID_JSON": '{"que'}}]


async def test_the_next_request_carries_back_what_server_tools_did():
    wire = Wire([start(), *SEARCHED, *stop()], text_events("You are welcome."))
    agent = agent_on(wire)
    await agent.reply("What should I drink?")
    agent = elsewhere(agent)
    await agent.reply("Thanks")

    assert [part["type"] for part in wire.bodies[1]["messages"][1]["content"]] == [
        "thinking",
        "server_tool_use",
        "web_search_tool_result",
        "thinking",
        "text",
    ]
    assert wire.bodies[1]["messages"][1]["content"][1:3] == [QUERY, FOUND]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_paused_turn_continues_where_the_provider_stopped(stream):
    if stream:
        first = [start(), *text(0, "I look."), *block(1, SEARCH, *query('{"query": "green tea"}')), *stop("pause_turn")]
        wire = Wire(first, [start(), *block(0, FOUND), *text(1, "Tea."), *stop()])
    else:
        said_first = message({"type": "text", "text": "I look."}, QUERY, reason="pause_turn")
        wire = Wire(said_first, message(FOUND, {"type": "text", "text": "Tea."}))
    agent = agent_on(wire, stream=stream)
    reply = await agent.reply("What should I drink?")

    assert reply.get_text_content() == "Tea."
    assert [part["type"] for part in wire.bodies[1]["messages"][-1]["content"]] == ["text", "server_tool_use"]
    kept = agent.state.context[-1]
    assert [each.type for each in kept.content] == ["text", "provider", "provider", "text"]
    assert kept.finished_reason == "completed"


async def test_a_provider_that_pauses_for_ever_uses_up_the_rounds():
    wire = Wire(*[[start(), *text(0, "..."), *stop("pause_turn")]] * 4)
    agent = Agent("tester", "", model_on(wire), react_config=ReActConfig(max_iters=3))
    await agent.reply("go")

    assert len(wire.requests) == 4
    assert agent.state.context[-1].finished_reason == "exceed_max_iters"


async def test_a_second_start_within_an_answer_never_mixes_two():
    with pytest.raises(Transient, match="a second answer"):
        await ask(Wire([start(), *text(0, "Once "), start(), *text(0, "Twice"), *stop()]))
    again = await answer(Wire([start(), *text(0, "Once"), *stop()[:1], start(), *text(0, "Twice"), *stop()]))
    assert again.content[0].text == "Once"
    harmless = await answer(Wire([start(), start(), *text(0, "Once"), *stop()]))
    assert harmless.content[0].text == "Once"


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        ({"input_tokens": 90}, {"input_tokens": 20, "output_tokens": 3}, ChatUsage(20, 3)),
        ({"input_tokens": 20}, {"input_tokens": 90, "output_tokens": 3}, ChatUsage(90, 3)),
        ({"input_tokens": 20}, {"input_tokens": 0, "output_tokens": 3}, ChatUsage(20, 3)),
        ({"input_tokens": 20}, {"input_tokens": 0, "cache_read_input_tokens": 20}, ChatUsage(20, 5, 20)),
        ({"output_tokens": 50}, {"output_tokens": 7}, ChatUsage(10, 7)),
    ],
)
async def test_the_last_count_is_the_usage(first, last, wanted):
    assert (await answer(Wire([start(**first), *text(0, "Hi"), *stop(**last)]))).usage == wanted


def test_server_tool_input_is_progress_and_an_empty_delta_is_not():
    reader = model_on(Wire())._reader(HELLO)
    first, *deltas, _ = block(0, SEARCH, *query("{", ""))
    progress = []
    for event in (first, *deltas, {"type": "ping"}):
        assert reader.feed(event) == []
        progress.append(reader.has_progressed)

    assert progress == [False, True, False, False]


def error_event(kind: str, words: str = "sorry") -> Event:
    return {"type": "error", "error": {"type": kind, "message": words}}


FAILURES = [
    (429, "rate_limit_error", "slow down", RateLimited),
    (500, "api_error", "internal", Transient),
    (529, "overloaded_error", "overloaded", Transient),
    (503, "api_error", "unavailable", Transient),
    (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", ContextOverflow),
    (413, "request_too_large", "request exceeds the maximum size", ContextOverflow),
    (400, "invalid_request_error", "messages.0: bad", Rejected),
    (400, "invalid_request_error", "Your credit balance is too low", Rejected),
    (401, "authentication_error", "invalid x-api-key", Rejected),
    (403, "permission_error", "not allowed", Rejected),
    (404, "not_found_error", "model: claude-9", Rejected),
]


@pytest.mark.parametrize(("status", "kind", "words", "error"), FAILURES)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_status_becomes_an_error_of_the_tree(status, kind, words, error, stream):
    with pytest.raises(ModelError, match="claude-sonnet-5") as caught:
        await ask(Wire(Reply(error_event(kind, words), status)), stream=stream)

    assert (type(caught.value), caught.value.status_code) == (error, status)


async def test_a_429_says_how_long_to_wait():
    with pytest.raises(RateLimited) as caught:
        await ask(Wire(Reply(error_event("rate_limit_error"), 429, {"retry-after": "7"})))

    assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", Transient), ("rate_limit_error", RateLimited), ("api_error", Transient), ("new", Transient)],
)
async def test_an_error_in_mid_stream_is_classified_and_ends_it(kind, error):
    wire = Wire([start(), *text(0, "Hel"), error_event(kind), HANG])

    with pytest.raises(ModelError) as caught:
        await ask(wire)
    assert type(caught.value) is error
    assert wire.open == 0


@pytest.mark.parametrize("end", [[], [CUT]], ids=["ends", "breaks"])
async def test_a_cut_stream_says_how_much_came(end):
    wire = Wire([start(), *text(0, "Hel", "lo"), *end])

    with pytest.raises(Transient, match="cut after 2 pieces with 5 characters"):
        await ask(wire)
    assert wire.open == 0


async def test_a_stream_that_only_lacks_its_last_word_is_whole():
    events = [start(), *text(0, "Hi"), stop()[0], CUT]

    assert (await answer(Wire(events))).finished_reason == "stop"


async def test_pings_do_not_count_as_progress():
    wire = Wire([start(), *text(0, "Hi"), *[{"type": "ping"}] * 5, HANG])

    with pytest.raises(Timeout, match="idle"):
        await ask(wire, timeouts=Timeouts(idle=0.05))
    assert wire.open == 0


async def test_leaving_a_stream_releases_its_connection():
    wire = Wire([start(), *text(0, "Hi"), HANG])
    async with agent_on(wire).reply_stream("go") as events:
        async for event in events:
            if isinstance(event, TextBlockDeltaEvent):
                break

    assert wire.open == 0


WRONG = [
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 7}},
    {"type": "content_block_delta", "index": "0", "delta": {"type": "text_delta", "text": "x"}},
    {"type": "content_block_start", "index": 0, "content_block": "text"},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "1", "name": "add", "input": 3},
    },
    {"type": "message_delta", "usage": {"input_tokens": "many"}},
    b"data: {not json\n\n",
    b"data: [1, 2]\n\n",
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_stream_of_another_shape_is_malformed(wrong):
    with pytest.raises(Malformed, match="claude-sonnet-5"):
        await ask(Wire([start(), *text(0, "x"), wrong, *stop()]))


@pytest.mark.parametrize("before", [[], [start(), *text(0, "x")]])
async def test_another_apis_last_word_does_not_make_an_answer_whole(before):
    with pytest.raises(Malformed, match="base_url"):
        await ask(Wire([*before, b"data: [DONE]\n\n"]))


@pytest.mark.parametrize("body", [b"<html>Hello</html>", b"", {"ok": True}, {"content": "Hi"}, {"content": [1]}])
async def test_a_message_of_another_shape_is_malformed(body):
    with pytest.raises(Malformed, match="claude-sonnet-5"):
        await ask(Wire(Reply(body)), stream=False)


@pytest.mark.parametrize(
    "wire",
    [
        lambda: Wire(Reply(error_event("authentication_error", f"invalid key {KEY}"), 401)),
        lambda: Wire([start(), error_event("api_error", f"trace: {KEY}")]),
        lambda: Wire([start(), *text(0, "Hi"), Exception(f"x-api-key: {KEY}")]),
        lambda: Wire([start(), f"data: {KEY}\n\n".encode()]),
    ],
)
async def test_no_failure_repeats_the_key(wire, caplog):
    caplog.set_level(logging.DEBUG)
    model = model_on(wire())
    with pytest.raises(ModelError) as caught:
        async for _ in await model(HELLO):
            pass

    told = "".join(traceback.format_exception(caught.value)) + repr(vars(model)) + repr(model) + caplog.text
    assert KEY not in told


async def test_a_secret_header_is_sent_and_not_logged(caplog):
    caplog.set_level(logging.DEBUG)
    wire = Wire([start(), *text(0, "Hi"), *stop()])
    await ask(wire, extra_headers={"x-secret": "another-canary-0123456789"})

    assert wire.requests[0].headers["x-secret"] == "another-canary-0123456789"
    assert "another-canary" not in caplog.text


RECORDED = [
    start(cache_read_input_tokens=4),
    *thinking(0, "sig", "Let me ", "think."),
    *redacted(1, "sealed"),
    *text(2, "Adding — 好 ", "now."),
    *tool_use(3, "t1", "add", '{"a": 1', ', "b": 2}'),
    *tool_use(4, "t2", "add", '{"a": 3, "b"', ": 4}"),
    *stop("tool_use"),
]
BYTES = b"".join(map(line, RECORDED))


def without_ids(msg: Msg) -> list[tuple[Any, ...]]:
    kinds = (TextBlock, ThinkingBlock)
    return [
        (each.type, getattr(each, "text", ""), getattr(each, "thinking", ""), getattr(each, "signature", ""))
        if isinstance(each, kinds)
        else (each.type, each.id, each.name, str(getattr(each, "input", "")))
        for each in msg.get_content_blocks()
    ]


@given(cuts=st.lists(st.integers(0, len(BYTES)), max_size=40))
async def test_however_the_bytes_are_cut_the_message_is_the_same(cuts):
    edges = sorted({0, len(BYTES), *cuts})
    whole, parted = [
        await whole_reply(Wire(stream, text_events("done")), add)
        for stream in (RECORDED, [BYTES[a:b] for a, b in pairwise(edges)])
    ]

    assert without_ids(parted) == without_ids(whole)
    assert [each.output[0].text for each in parted.get_content_blocks("tool_result")] == ["3", "7"]
    assert parted.usage == whole.usage == ChatUsage(24, 10, cache_input_tokens=4)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)
)
FIELDS = st.sampled_from(
    [
        "index",
        "delta",
        "content_block",
        "message",
        "usage",
        "text",
        "id",
        "name",
        "input",
        "partial_json",
        "stop_reason",
    ]
)
KINDS = st.sampled_from(
    [event["type"] for event in RECORDED] + ["text", "text_delta", "tool_use", "thinking_delta", "error"]
)
NESTED = st.recursive(JSON, lambda inner: st.dictionaries(FIELDS, inner, max_size=3), max_leaves=6)
EVENTS = st.builds(lambda kind, fields: {"type": kind, **fields}, KINDS, st.dictionaries(FIELDS, NESTED, max_size=4))


@given(junk=st.lists(st.one_of(EVENTS, st.binary(max_size=30), st.sampled_from(RECORDED)), max_size=8))
async def test_whatever_comes_nothing_but_a_model_error_is_raised(junk):
    wire = Wire([start(), *junk, *stop()])
    try:
        response = await answer(wire)
    except ModelError:
        pass
    else:
        assert response.is_last
    assert wire.open == 0


async def test_the_sdk_does_no_tracing_of_its_own(monkeypatch):
    spans = []
    monkeypatch.setattr("opentelemetry.trace.get_tracer", lambda *args, **options: spans.append(args))
    await ask(Wire(text_events("Hi")))

    assert spans == []


async def test_the_reply_reports_what_the_call_used():
    events = await items_of(agent_on(Wire(text_events("Hi"))))

    (end,) = [event for event in events if isinstance(event, ModelCallEndEvent)]
    assert (end.input_tokens, end.output_tokens, end.finished_reason) == (10, 5, "stop")


TOOL_PAIR = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    for name in ("one", "two")
]


def marked(body: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Return what is marked for the cache: places in tools, in the system prompt, and in the turns."""
    return (
        [tool["name"] for tool in body["tools"] if "cache_control" in tool],
        [part["text"] for part in body["system"] if "cache_control" in part],
        [part.get("text") for turn in body["messages"] for part in turn["content"] if "cache_control" in part],
    )


async def test_the_prefix_is_marked_up_to_what_comes_again() -> None:
    messages = [SystemMsg("system", "Be brief."), UserMsg("user", "Hi")]
    hint = UserMsg("plan", [HintBlock("Do the next step.")])
    answered = AssistantMsg("a", [ThinkingBlock("hm", signature="s"), TextBlock("A")])
    wire = Wire(*[text_events("Hello")] * 3)
    model = model_on(wire, cache="auto")
    for conversation in (messages, [*messages, hint], [*messages, answered, hint]):
        stream: Any = await model(conversation, TOOL_PAIR)
        await stream.aclose()
    await model.aclose()

    assert [marked(body) for body in wire.bodies] == [
        (["two"], ["Be brief."], ["Hi"]),
        (["two"], ["Be brief."], ["Hi"]),
        (["two"], ["Be brief."], ["A"]),
    ]


async def test_nothing_is_marked_where_the_cache_is_off() -> None:
    wire = Wire(text_events("Hello"))
    model = model_on(wire, cache="off")
    stream: Any = await model([SystemMsg("system", "Be brief."), UserMsg("user", "Hi")], TOOL_PAIR)
    await stream.aclose()
    await model.aclose()

    assert "cache_control" not in json.dumps(wire.bodies[0])
    with pytest.raises(ConfigError, match=r"cache=\.\.\.\) must be 'auto' or 'off', not 'yes'"):
        AnthropicChatModel("claude-sonnet-5", api_key="key", cache="yes")
