"""A model's answer as events: however it was cut into pieces, it says the same."""

import base64
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.decoding.decoder import Decoder
from agentrt.errors import ChainContractError
from agentrt.event import AgentEvent, ModelCallEndEvent, ToolCallStartEvent, ToolResultStartEvent
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt.model.scripted import stream_response
from agentrt.types import ChatResponse, ChatUsage
from tests.loop.helpers import short

USAGE = ChatUsage(5, 3, 2, 1)


def decoder(taken: Iterable[str] = ()) -> Decoder:
    numbers = count(1)
    return Decoder("r", lambda: f"r-{next(numbers)}", set(taken), "tester")


def piece(*content: ContentBlock) -> ChatResponse:
    return ChatResponse(list(content), is_last=False)


def last(*content: ContentBlock) -> ChatResponse:
    return ChatResponse(list(content), is_last=True, usage=USAGE, finished_reason="stop")


def streamed(*responses: ChatResponse, by: Decoder | None = None) -> list[AgentEvent]:
    by = by or decoder()
    return timeless([*(event for response in responses for event in by.feed(response)), *by.end()])


def at_once(response: ChatResponse, by: Decoder | None = None) -> list[AgentEvent]:
    return timeless((by or decoder()).decode_answer(response))


def timeless(events: list[AgentEvent]) -> list[AgentEvent]:
    return [replace(event, created_at=0) for event in events]


def message_of(events: Iterable[AgentEvent]) -> Msg:
    message = AssistantMsg("tester", [], id="r", created_at=0)
    for event in events:
        message.append_event(event)
    return message


def order(events: Iterable[AgentEvent]) -> str:
    return " ".join(map(short, events))


def blocks_of(*responses: ChatResponse) -> list[ContentBlock]:
    return message_of(streamed(*responses)).get_content_blocks()


# Cutting a whole answer into pieces


def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = draw(st.sets(st.integers(0, len(text)), max_size=4))
    return [text[start:end] for start, end in pairwise([0, *sorted(places), len(text)])]


def riffled(draw: st.DrawFn, rows: list[list[Any]]) -> list[Any]:
    """Draw one order of all items that keeps the order within each row."""
    rows = [list(row) for row in rows]
    places = draw(st.permutations([place for place, row in enumerate(rows) for _ in row]))
    return [rows[place].pop(0) for place in places]


texts = st.text("ab {}é", max_size=20)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[ContentBlock], list[ContentBlock]]:
    """Draw the blocks of an answer, and the pieces of a stream that says the same."""
    thinking, text = draw(texts), draw(texts)
    signature = draw(st.none() | st.just("sig")) if thinking else None
    whole: list[ContentBlock] = [ThinkingBlock(thinking, signature=signature)] if thinking else []
    pieces: list[ContentBlock] = [ThinkingBlock(each) for each in cut(draw, thinking) if thinking]
    if signature:
        pieces.append(ThinkingBlock("", signature=signature))
    if text:
        whole.append(TextBlock(text))
        pieces += [TextBlock(each) for each in cut(draw, text)]
    calls = [ToolCallBlock(str(n), f"tool{n}", draw(texts)) for n in range(draw(st.integers(0, 4)))]
    rows = [[ToolCallBlock(call.id, call.name, each) for each in cut(draw, call.input)] for call in calls]
    mixed = riffled(draw, rows)
    begun = list(dict.fromkeys(each.id for each in mixed))
    return whole + [calls[int(each)] for each in begun], pieces + mixed


def grouped(draw: st.DrawFn, pieces: list[ContentBlock]) -> list[ChatResponse]:
    places = sorted(draw(st.sets(st.integers(0, len(pieces)), max_size=len(pieces))))
    return [piece(*pieces[start:end]) for start, end in pairwise([0, *places, len(pieces)])]


@given(answers(), st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_in_pieces_says_what_the_whole_answer_says(answer, data):
    whole, pieces = answer
    uncut = message_of(at_once(last(*whole)))
    assert message_of(streamed(*grouped(data.draw, pieces), last(*whole))) == uncut
    assert [(block.type, getattr(block, "text", "")) for block in uncut.content] == [
        (block.type, getattr(block, "text", "")) for block in whole
    ]


@given(answers())
@settings(deadline=None)
def test_a_stream_of_the_last_response_alone_is_the_whole_answer(answer):
    whole, _ = answer
    assert streamed(last(*whole)) == at_once(last(*whole))


@given(answers())
@settings(deadline=None)
def test_fast_way_of_a_piece_gives_what_the_slow_way_gives(answer):
    _, pieces = answer
    fast, slow = decoder(), decoder()
    for block in pieces:
        assert timeless(fast.feed(piece(block))) == timeless(slow._feed(piece(block)))
        assert fast.written == slow.written
    if pieces:
        assert timeless(fast.end()) == timeless(slow.end())


@given(texts)
def test_fast_way_of_a_whole_text_gives_what_the_slow_way_gives(text):
    fast, slow = decoder(), decoder()
    assert timeless(fast.decode_answer(last(TextBlock(text))))[:-1] == timeless(slow.decode_content([TextBlock(text)]))
    assert (fast.written, fast.block_ids) == (slow.written, slow.block_ids)


@given(answers(), st.data())
@settings(deadline=None)
def test_every_block_begins_and_ends_once_before_the_model_call(answer, data):
    whole, pieces = answer
    events = streamed(*grouped(data.draw, pieces), last(*whole))
    names = [event.type for event in events]
    for kind in ("TEXT_BLOCK", "THINKING_BLOCK", "TOOL_CALL"):
        assert names.count(f"{kind}_START") == names.count(f"{kind}_END")
    assert names.index("MODEL_CALL_END") == len(names) - 1
    assert {event.reply_id for event in events} == {"r"}


@given(answers(), st.integers(0, 30))
@settings(deadline=None)
def test_discarded_attempt_leaves_no_trace_in_the_next(answer, progress):
    whole, pieces = answer
    by = decoder()
    begun = message_of([event for each in pieces[:progress] for event in by.feed(piece(each))])
    assert by.discard() == [block.id for block in begun.content]
    again = message_of(streamed(*map(piece, pieces), last(*whole), by=by))
    assert without_ids(again) == without_ids(message_of(streamed(*map(piece, pieces), last(*whole))))


def without_ids(message: Msg) -> list[tuple[Any, ...]]:
    return [
        (block.type, block.id, block.name, block.input)
        if isinstance(block, ToolCallBlock)
        else (block.type, getattr(block, "text", None), getattr(block, "thinking", None))
        for block in message.content
    ]


@given(st.binary(max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_data_in_pieces_is_the_data(data, cuts):
    places = [0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]
    encoded = [base64.b64encode(data[start:end]).decode() for start, end in pairwise(places)]
    blocks = [DataBlock(Base64Source(each, "image/png"), "a.png", "provider's") for each in encoded]
    found = blocks_of(*map(piece, blocks), last(DataBlock(Base64Source("", "image/png"), "a.png", "provider's")))
    assert found == [DataBlock(Base64Source(base64.b64encode(data).decode(), "image/png"), "a.png", "r-1")]


# What was streamed, and what the last response adds


def test_what_no_piece_delivered_comes_from_the_last_response():
    call = ToolCallBlock("1", "f", "{}")
    found = blocks_of(piece(TextBlock("so")), last(ThinkingBlock("hm"), TextBlock("so"), call))
    assert [block.type for block in found] == ["text", "thinking", "tool_call"]


def test_what_was_streamed_is_what_was_said():
    assert blocks_of(piece(TextBlock("streamed")), last(TextBlock("whole"))) == [TextBlock("streamed", "r-1")]


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


def test_usage_and_reason_come_at_the_end():
    assert streamed(last())[-1] == ModelCallEndEvent("r", 5, 3, 2, 1, "stop", created_at=0)


def test_unknown_usage_is_none_or_marked_as_an_estimate():
    unknown = ChatResponse([], usage=ChatUsage(5, 3, None, None, estimated=True))
    assert streamed(unknown)[-1] == ModelCallEndEvent("r", 5, 3, 0, 0, None, estimated=True, created_at=0)
    half = ChatResponse([], usage=ChatUsage(None, 3))
    assert streamed(half)[-1] == ModelCallEndEvent("r", 0, 3, 0, 0, None, estimated=True, created_at=0)
    for nothing in (None, ChatUsage(None, None)):
        assert streamed(ChatResponse([], usage=nothing))[-1] == ModelCallEndEvent("r", None, None, created_at=0)


def test_usage_of_partly_counted_calls_is_marked_as_an_estimate():
    unknown, known = ModelCallEndEvent("r"), ModelCallEndEvent("r", 5, 3)
    result = [ToolCallStartEvent("r", "1", "f"), ToolResultStartEvent("r", "1", "f")]
    assert message_of([unknown]).usage is None
    assert message_of([known]).usage == ChatUsage(5, 3)
    assert message_of([known, unknown]).usage == ChatUsage(5, 3, estimated=True)
    assert message_of([unknown, *result, known]).usage == ChatUsage(5, 3, estimated=True)


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


# What no model may send


@pytest.mark.parametrize(
    "block", [HintBlock("x"), ToolResultBlock("1", "f", "x"), "text"], ids=["hint", "result", "str"]
)
@pytest.mark.parametrize("make", [piece, last])
def test_a_block_that_no_model_writes_is_refused(block, make):
    with pytest.raises(ChainContractError) as caught:
        decoder().feed(make(block))
    assert str(caught.value) == (
        f"on_model_call: model 'tester' answered with {block!r:.200}: "
        f"an answer holds text, thinking, data and tool calls"
    )


@pytest.mark.parametrize("item", ["text", None, TextBlock("a")])
def test_item_that_is_not_a_response_is_refused(item):
    with pytest.raises(ChainContractError) as caught:
        decoder().feed(item)
    assert str(caught.value) == (
        f"on_model_call: model 'tester' streamed {item!r:.200}: each item must be a ChatResponse"
    )


def test_a_stream_without_any_response_is_refused():
    with pytest.raises(ChainContractError) as caught:
        decoder().end()
    assert str(caught.value) == (
        "on_model_call: model 'tester' gave a stream that ended without any response: "
        "end it with the whole content and is_last=True"
    )


def test_stream_without_a_last_response_says_what_its_pieces_say():
    call = ToolCallBlock("1", "f", "{}")
    pieces = [piece(TextBlock("a")), piece(TextBlock("b")), piece(call)]
    assert streamed(*pieces)[:-1] == streamed(*pieces, last(TextBlock("ab"), call))[:-1]
    assert streamed(*pieces)[-1] == ModelCallEndEvent("r", created_at=0)
    assert order(streamed(piece())) == "ME"


def test_usage_and_reason_are_those_of_the_last_piece_with_them():
    early = ChatResponse([TextBlock("a")], is_last=False, usage=ChatUsage(1, 1))
    reason = ChatResponse([TextBlock("b")], is_last=False, finished_reason="stop")
    late = ChatResponse([], is_last=False, usage=USAGE)
    assert streamed(early, reason, late)[-1] == ModelCallEndEvent("r", 5, 3, 2, 1, "stop", created_at=0)
    assert streamed(early, reason)[-1] == ModelCallEndEvent("r", 1, 1, 0, 0, "stop", created_at=0)


def test_call_input_that_is_not_a_str_is_refused():
    with pytest.raises(ChainContractError, match="tester"):
        message_of(at_once(last(ToolCallBlock("1", "f", {"a": 1}))))


@pytest.mark.parametrize("more", [last(TextBlock("so")), piece(TextBlock("more"))], ids=["last", "piece"])
def test_nothing_is_said_after_the_last_response(more):
    """Refused or passed over: nothing may be said twice, and nothing beyond the last response."""
    try:
        found = blocks_of(last(TextBlock("so")), more)
    except ChainContractError:
        return
    assert found == [TextBlock("so", "r-1")]


def test_model_whose_pieces_grow_draws_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    streamed(piece(TextBlock("a")), piece(TextBlock("ab")), piece(TextBlock("abc")), last(TextBlock("abc")))
    [record] = caplog.records
    assert record.getMessage() == (
        "model 'tester' streamed 6 characters, but its whole answer has 3: each piece must hold only what is new"
    )


REST: dict[str, tuple[list[ContentBlock], list[ContentBlock], list[ContentBlock]]] = {
    "text": ([TextBlock("he"), TextBlock("l")], [TextBlock("hello")], [TextBlock("hello", "r-1")]),
    "second text": (
        [TextBlock("one")],
        [TextBlock("one"), TextBlock("two")],
        [TextBlock("one", "r-1"), TextBlock("two", "r-2")],
    ),
    "text after a call": (
        [TextBlock("so"), ToolCallBlock("1", "f", "{}")],
        [TextBlock("so much"), ToolCallBlock("1", "f", "{}")],
        [TextBlock("so", "r-1"), ToolCallBlock("1", "f", "{}"), TextBlock(" much", "r-2")],
    ),
    "thinking": (
        [ThinkingBlock("h")],
        [ThinkingBlock("hm"), TextBlock("so")],
        [ThinkingBlock("hm", "r-1"), TextBlock("so", "r-2")],
    ),
    "input": ([ToolCallBlock("1", "f", "{")], [ToolCallBlock("1", "f", "{}")], [ToolCallBlock("1", "f", "{}")]),
    "input not begun": ([ToolCallBlock("1", "f")], [ToolCallBlock("1", "f", "{}")], [ToolCallBlock("1", "f", "{}")]),
    "half a character": ([TextBlock("a\ud800")], [TextBlock("a\ud800b")], [TextBlock("a\ufffdb", "r-1")]),
}


@pytest.mark.parametrize("case", REST)
def test_last_response_announces_what_is_beyond_the_pieces(case, caplog):
    pieces, whole, found = REST[case]
    assert blocks_of(*map(piece, pieces), last(*whole)) == found
    assert not caplog.records


@pytest.mark.parametrize("whole", ["he... longer", "HELLO and more", "hel"])
def test_last_response_that_differs_from_the_pieces_adds_nothing(whole):
    """A layer may have rewritten the pieces, to take a secret out of them say."""
    assert blocks_of(piece(TextBlock("hello")), last(TextBlock(whole))) == [TextBlock("hello", "r-1")]


def test_pictures_of_which_no_piece_came_are_announced():
    one, two = (DataBlock(URLSource(f"https://example.org/{n}", "image/png")) for n in "12")
    assert [block.source.url[-1] for block in blocks_of(piece(one), last(one, two))] == ["1", "2"]


# Odd values: mended where it is plain what they mean, and refused by name where it is not


HALF = "\ud800"
MENDED: dict[str, tuple[list[ContentBlock], list[ContentBlock]]] = {
    "half a character": ([TextBlock(f"a{HALF}")], [TextBlock("a\ufffd", "r-1")]),
    "no text": ([TextBlock(None), TextBlock("a")], [TextBlock("a", "r-1")]),
    "half a signature": ([ThinkingBlock("a", signature=HALF)], [ThinkingBlock("a", "r-1", "\ufffd")]),
    "no thinking": ([ThinkingBlock(None, signature="s")], [ThinkingBlock("", "r-1", "s")]),
    "half a name and id": (
        [ToolCallBlock(f"1{HALF}", f"f{HALF}", f"{{{HALF}}}")],
        [ToolCallBlock("1\ufffd", "f\ufffd", "{\ufffd}")],
    ),
    "an id that is a number": ([ToolCallBlock(7, "f", "{}")], [ToolCallBlock("7", "f", "{}")]),
    "no id": ([ToolCallBlock(None, "f", "{}")], [ToolCallBlock("r-1", "f", "{}")]),
    "no name": ([ToolCallBlock("1", None, "{}")], [ToolCallBlock("1", "tool_without_a_name", "{}")]),
    "empty name": ([ToolCallBlock("1", "", "{}")], [ToolCallBlock("1", "tool_without_a_name", "{}")]),
    "no input": ([ToolCallBlock("1", "f", None)], [ToolCallBlock("1", "f", "")]),
    "a picture's name": (
        [DataBlock(URLSource(f"u{HALF}", "image/png"), HALF, 3)],
        [DataBlock(URLSource("u\ufffd", "image/png"), "\ufffd", "r-1")],
    ),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "content": (ChatResponse(None), "answered with the content None: it must be a list of blocks"),
    "content text": (ChatResponse("hi"), "answered with the content 'hi': it must be a list of blocks"),
    "text": (last(TextBlock(5)), "answered with a TextBlock whose text is 5: it must be a str"),
    "thinking": (last(ThinkingBlock(["a"])), r"answered with a ThinkingBlock whose thinking is \['a'\]: it must be"),
    "signature": (
        last(ThinkingBlock("a", signature=b"s")),
        "a ThinkingBlock whose signature is b's': it must be a str",
    ),
    "name": (last(ToolCallBlock("1", 5)), "answered with a ToolCallBlock whose name is 5: it must be a str"),
    "id": (last(ToolCallBlock(["1"], "f")), r"answered with a ToolCallBlock whose id is \['1'\]: it must be a str"),
    "input": (last(ToolCallBlock("1", "f", {"a": 1})), r"a ToolCallBlock whose input is \{'a': 1\}: it must be a str"),
    "source": (last(DataBlock(None)), "answered with a DataBlock whose source is None"),
    "media type": (last(DataBlock(URLSource("u", None, "url"))), "answered with a URLSource whose media_type is"),
    "base64": (last(DataBlock(Base64Source("no!", "image/png"))), "answered with data that is not base64"),
    "usage": (ChatResponse([], usage={"input_tokens": 3}), "reported the usage {'input_tokens': 3}: it must be a Chat"),
    "tokens": (ChatResponse([], usage=ChatUsage("many", 3)), r"reported the usage .*: it must be in whole numbers"),
}


@pytest.mark.parametrize("case", MENDED)
def test_an_odd_value_of_plain_meaning_is_mended(case):
    odd, mended = MENDED[case]
    assert message_of(at_once(last(*odd))).content == mended
    assert blocks_of(*map(piece, odd), last(*odd)) == mended


@pytest.mark.parametrize("case", [case for case in REFUSED if case != "media type"])
def test_an_odd_value_is_refused_by_hook_model_and_value(case):
    odd, problem = REFUSED[case]
    with pytest.raises(ChainContractError, match=f"^on_model_call: model 'tester' .*{problem}"):
        streamed(odd)
    with pytest.raises(ChainContractError, match=f"^on_model_call: model 'tester' .*{problem}"):
        at_once(odd)


def test_a_piece_without_a_name_continues_its_call():
    pieces = [ToolCallBlock("1", "f", "{"), ToolCallBlock("1", None, "}"), ToolCallBlock("1", "", None)]
    assert blocks_of(*map(piece, pieces)) == [ToolCallBlock("1", "f", "{}")]


# A limit


def test_text_is_cut_where_the_limit_is():
    by = Decoder("r", lambda: "b", set(), "tester", limit=5)
    assert message_of(at_once(last(TextBlock("x" * 9_000)), by)).get_text_content() == "xxxxx"
    by = Decoder("r", lambda: "b", set(), "tester", limit=5)
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
    by = Decoder("r", lambda: f"r-{next(numbers)}", set(), "tester", limit=5_000)
    message = message_of(by.feed(make(TextBlock("so"), OVER[kind], OVER[kind])))
    assert by.written > 5_000
    [note] = {block.text for block in message.get_content_blocks("text")} - {"so"}
    assert re.fullmatch(r"\[left out: .*, 10,\d\d\d characters, more than max_output allows\]", note)
    assert len(message.to_json()) < 1_000


@pytest.mark.parametrize("nothing", [[], [TextBlock("")], [ThinkingBlock("")]], ids=["none", "text", "thinking"])
def test_a_response_that_says_nothing_counts_as_well(nothing):
    by = decoder()
    for _ in range(10):
        by.feed(piece(*nothing))
    assert by.written == 10


@pytest.mark.parametrize("whole", [[TextBlock("abc")], [], [TextBlock("abc"), ToolCallBlock("1", "f", "{}")]])
def test_model_whose_pieces_are_new_draws_no_warning(
    whole: list[ContentBlock], caplog: pytest.LogCaptureFixture
) -> None:
    streamed(piece(TextBlock("a")), piece(TextBlock("bc")), last(*whole))
    assert not caplog.records


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
