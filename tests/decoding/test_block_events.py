"""Blocks as events: each begins, is filled and ends; calls have ids of their own; there is a limit to all of them."""

import base64
import re
from dataclasses import fields, replace
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt._runtime.decoding.block_events import events_of
from agentrt._runtime.decoding.decoder import Decoder
from agentrt._runtime.decoding.recorder import Recorder
from agentrt._runtime.model_interface.block_comparison import is_same
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    URLSource,
)
from agentrt.model.scripted import stream_response
from tests.decoding.helpers import USAGE, at_once, blocks_of, decoder, last, message_of, order, piece, streamed

PROVIDER = ProviderBlock("openai", "{}")
PICTURE = DataBlock(URLSource("https://example.org/a.png", "image/png"), "a.png")
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
text_blocks = st.builds(TextBlock, texts, texts)
# An id with "/" is that of a call which another call makes; the decoder gives the model's calls others.
call_ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1)
calls = st.builds(ToolCallBlock, call_ids, texts, texts)
results = st.builds(
    ToolResultBlock,
    call_ids,
    texts,
    st.lists(text_blocks, max_size=3, unique_by=lambda block: block.id),
    st.sampled_from([state for state in ToolResultState if state is not ToolResultState.RUNNING]),
    st.dictionaries(texts, texts, max_size=2),
)
begun_results = st.builds(ToolResultBlock, call_ids, texts, st.just([]), st.just(ToolResultState.RUNNING))


@given(text_blocks | calls | results | begun_results)
def test_a_block_is_its_events(block):
    call = [ToolCallBlock(block.id, block.name, "{}")] if isinstance(block, ToolResultBlock) else []
    events = [event for each in [*call, block] for event in events_of("r", each)]
    assert message_of(events).content[-1] == block


def test_events_of_blocks_are_as_their_classes_make_them():
    result = ToolResultBlock("1", "f", [TextBlock("a")], ToolResultState.SUCCESS, {"k": 1})
    numbers = count(1)
    events = [
        event
        for block in (TextBlock("a"), ToolCallBlock("1", "f", "{}"), result)
        for event in events_of("r", block, numbers)
    ]
    for event in events:
        values = {each.name: getattr(event, each.name) for each in fields(event)}
        assert values.pop("type") == type(event)(**values).type
        assert type(event)(**values) == event
    assert [event.seq for event in events] == [*range(1, 10)]


@given(st.binary(max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_data_in_pieces_is_the_data(data, cuts):
    places = [0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]
    encoded = [base64.b64encode(data[start:end]).decode() for start, end in pairwise(places)]
    blocks = [DataBlock(Base64Source(each, "image/png"), "a.png", "provider's") for each in encoded]
    found = blocks_of(*map(piece, blocks), last(DataBlock(Base64Source("", "image/png"), "a.png", "provider's")))
    assert found == [DataBlock(Base64Source(base64.b64encode(data).decode(), "image/png"), "a.png", "r-1")]


def test_a_picture_behind_a_url_arrives_whole():
    picture = DataBlock(URLSource("https://example.org/a.png", "image/png"), "a.png")
    source = URLSource("https://example.org/a.png", "image/png")
    assert blocks_of(piece(picture), last(picture)) == [DataBlock(source, "a.png", "r-1")]
    assert blocks_of(last(picture)) == [DataBlock(source, "a.png", "r-1")]


def test_the_signature_may_come_by_itself_after_the_thinking():
    pieces = [ThinkingBlock("hm"), ThinkingBlock("", signature="sig"), TextBlock("so")]
    found = blocks_of(*map(piece, pieces), last(ThinkingBlock("hm", signature="sig"), TextBlock("so")))
    assert found[0] == ThinkingBlock("hm", "r-1", "sig")


def test_thinking_that_is_only_a_signature_is_kept():
    assert blocks_of(last(ThinkingBlock("", signature="sig"), TextBlock("so")))[0] == ThinkingBlock("", "r-1", "sig")


def test_a_call_ends_the_text_before_it_and_calls_end_together():
    events = streamed(piece(TextBlock("a")), piece(ToolCallBlock("1", "f")), piece(ToolCallBlock("2", "g")), last())
    assert order(events) == "TX_START TX_DELTA TX_END CALL_START:1 CALL_START:2 CALL_END:1 CALL_END:2 ME"


def test_pieces_that_say_nothing_make_no_event():
    assert order(streamed(piece(), piece(TextBlock("")), piece(ThinkingBlock("")), last())) == "ME"


@pytest.mark.parametrize("empty", [TextBlock(""), ThinkingBlock("")], ids=["text", "thinking"])
def test_a_piece_that_says_nothing_delivers_nothing(empty):
    kind = type(empty)
    assert len(blocks_of(piece(empty), last(kind("hello")))) == 1


async def test_scripted_model_streams_the_signature_with_its_thinking():
    whole = last(ThinkingBlock("let me see", signature="sig"), TextBlock("so"))
    responses = [response async for response in stream_response(whole)]
    assert len(responses) > 2
    assert message_of(streamed(*responses)).content[0] == ThinkingBlock("let me see", "r-1", "sig")


def test_every_block_of_thinking_keeps_its_own_signature():
    """A provider that signs its thinking takes a block back only as it gave it."""
    thinking = [ThinkingBlock("a", signature="s1"), ThinkingBlock("b", signature="s2")]
    found = blocks_of(last(*thinking, TextBlock("so")))
    assert [(block.thinking, block.signature) for block in found[:2]] == [("a", "s1"), ("b", "s2")]


SEARCH = ProviderBlock("anthropic", '{"type": "server_tool_use", "id": "s1"}')


@pytest.mark.parametrize("decode", [lambda *content: blocks_of(piece(*content), last(*content)), None])
def test_provider_blocks_keep_their_places_among_the_thinking(decode):
    content = [ThinkingBlock("first", signature="1"), SEARCH, ThinkingBlock("then", signature="2"), TextBlock("so")]
    built = decode(*content) if decode else message_of(at_once(last(*content))).content
    assert [block.type for block in built] == ["thinking", "provider", "thinking", "text"]
    assert [built[0].signature, built[1].content, built[2].signature] == ["1", SEARCH.content, "2"]


def test_provider_blocks_count_as_written_and_can_be_discarded():
    by = decoder()
    event = by.feed(piece(SEARCH))[0]
    assert by.written == len(SEARCH.content)
    assert by.discard() == [event.block_id]


# Ids of tool calls


def test_a_call_keeps_the_id_that_its_provider_gave_it():
    assert [block.id for block in blocks_of(last(ToolCallBlock("call_7", "f")))] == ["call_7"]


@pytest.mark.parametrize("taken", ["7", ""])
def test_an_id_that_is_taken_or_empty_is_replaced(taken):
    by = decoder(["7"])
    events = streamed(piece(ToolCallBlock(taken, "f", "{")), piece(ToolCallBlock(taken, "f", "}")), last(), by=by)
    assert message_of(events).content == [ToolCallBlock("r-1", "f", "{}")]


def test_two_whole_calls_with_one_id_are_two_calls():
    twice = [ToolCallBlock("1", "f", "{}"), ToolCallBlock("1", "g", "[]"), ToolCallBlock("1", "h", "")]
    events = at_once(last(*twice))
    assert [(block.id, block.name, block.input) for block in message_of(events).content] == [
        ("1", "f", "{}"),
        ("r-1", "g", "[]"),
        ("r-2", "h", ""),
    ]
    assert order(events).endswith("CALL_END:1 CALL_END:r-1 CALL_END:r-2 ME")


def test_a_call_that_the_last_response_repeats_is_one_call():
    call = ToolCallBlock("1", "f", "{}")
    assert blocks_of(piece(call), last(call)) == [call]


def test_streamed_calls_of_two_tools_with_one_id_are_two_calls():
    calls = [ToolCallBlock("", "f", "{}"), ToolCallBlock("", "g", "[]")]
    found = blocks_of(*map(piece, calls), last(*calls))
    assert [(block.name, block.input) for block in found] == [("f", "{}"), ("g", "[]")]


def test_the_ids_of_a_discarded_attempt_are_free_again():
    by = decoder()
    by.feed(piece(ToolCallBlock("1", "f")))
    assert by.discard() == ["1"]
    assert [block.id for block in message_of(at_once(last(ToolCallBlock("1", "f")), by)).content] == ["1"]
    assert by.discard() == ["1"]
    assert by.discard() == []


def test_a_piece_without_a_name_continues_its_call():
    pieces = [ToolCallBlock("1", "f", "{"), ToolCallBlock("1", None, "}"), ToolCallBlock("1", "", None)]
    assert blocks_of(*map(piece, pieces)) == [ToolCallBlock("1", "f", "{}")]


# A limit


def test_text_is_cut_where_the_limit_is():
    by = Decoder("r", lambda: "b", {}, "tester", limit=5)
    assert message_of(at_once(last(TextBlock("x" * 9_000)), by)).get_text_content() == "xxxxx"
    by = Decoder("r", lambda: "b", {}, "tester", limit=5)
    assert message_of(by.feed(piece(TextBlock("x" * 9_000)))).get_text_content() == "xxxxx"
    assert by.written == 9_000


BIG = "x" * 10_000


OVER: dict[str, ContentBlock] = {
    "data": DataBlock(Base64Source("AAAA" * 2_500, "image/png")),
    "url": DataBlock(URLSource(BIG, "image/png")),
    "name": DataBlock(URLSource("u", "image/png"), BIG),
    "call": ToolCallBlock("1", "f", BIG),
    "call name": ToolCallBlock("1", BIG),
    "call id": ToolCallBlock(BIG, "f"),
    "signature": ThinkingBlock("", signature=BIG),
    "provider": ProviderBlock("anthropic", BIG),
}


@pytest.mark.parametrize("kind", OVER)
@pytest.mark.parametrize("make", [piece, last])
def test_note_replaces_a_block_that_is_too_large(kind, make):
    numbers = count(1)
    by = Decoder("r", lambda: f"r-{next(numbers)}", {}, "tester", limit=5_000)
    message = message_of(by.feed(make(TextBlock("so"), OVER[kind], OVER[kind])))
    assert by.written > 5_000
    [note] = {block.text for block in message.get_content_blocks("text")} - {"so"}
    assert re.fullmatch(r"\[left out: .*, 10,\d\d\d characters, more than max_output allows\]", note)
    assert len(message.to_json()) < 1_000


@pytest.mark.parametrize(
    ("block", "change"),
    [
        (TextBlock("a"), {"text": "b"}),
        (ThinkingBlock("a", signature="s"), {"signature": None}),
        (DataBlock(Base64Source("aGk=", "image/png"), "a.png"), {"name": "b.png"}),
        (ProviderBlock("openai", "{}"), {"content": "[]"}),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_blocks_are_the_same_whatever_their_ids(block, change):
    other = replace(block, id="another")
    assert is_same(block, other)
    assert not is_same(block, replace(other, **change))


def test_a_recorder_says_which_block_an_event_ends():
    recorder = Recorder("r", "tester")
    ended = [block for event in at_once(last(TextBlock("a"), PROVIDER, PICTURE)) for block in recorder.record(event)]
    assert ended == recorder.blocks
    assert [block.type for block in ended] == ["text", "provider", "data"]
    assert recorder.message.usage == USAGE


def test_a_call_ends_with_its_result():
    recorder = Recorder("r", "tester")
    called, result = ToolCallBlock("1", "f", "{}"), ToolResultBlock("1", "f", [TextBlock("a")], ToolResultState.SUCCESS)
    events = [*events_of("r", called), *events_of("r", result)]
    assert [len(recorder.record(event)) for event in events] == [0] * (len(events) - 1) + [2]
    assert recorder.blocks == [replace(called, state=ToolCallState.FINISHED), result]
