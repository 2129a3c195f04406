"""A model's answer as events: however it was cut into pieces, it says the same."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrt.errors import ChainContractError
from agentrt.event import ModelCallEndEvent
from agentrt.message import ContentBlock, DataBlock, Msg, TextBlock, ThinkingBlock, ToolCallBlock, URLSource
from agentrt.types import ChatResponse, ChatUsage
from tests.decoding.helpers import (
    USAGE,
    at_once,
    blocks_of,
    decoder,
    last,
    message_of,
    order,
    piece,
    streamed,
    timeless,
)

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
@settings(max_examples=100, deadline=None)
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


@given(st.builds(TextBlock, texts) | st.builds(ToolCallBlock, st.text(max_size=3), texts, texts), st.integers(0, 30))
@example(ToolCallBlock("c", "search", "{}"), 30)
def test_fast_way_of_a_whole_block_gives_what_the_slow_way_gives(block, limit):
    fast, slow = decoder(["1"]), decoder(["1"])
    if isinstance(block, ToolCallBlock):  # text of this length is not cut here, but ends the reply
        fast.limit = slow.limit = limit
    events = timeless(fast.decode_answer(last(block)))
    assert events[:-1] == timeless(slow.decode_content([block]))
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


# What was streamed, and what the last response adds


def test_what_no_piece_delivered_comes_from_the_last_response():
    call = ToolCallBlock("1", "f", "{}")
    found = blocks_of(piece(TextBlock("so")), last(ThinkingBlock("hm"), TextBlock("so"), call))
    assert [block.type for block in found] == ["text", "thinking", "tool_call"]


@given(st.lists(st.text(st.sampled_from("aé\ud83d\ude00"), min_size=1), min_size=1))
@example(["a", "\ud83d", "\ude00"])  # halves that are no character together, since each delta was mended by itself
def test_the_decoder_keeps_of_a_text_what_its_deltas_said(pieces):
    subject = decoder()
    events = streamed(*(piece(TextBlock(text)) for text in pieces), by=subject)
    (said,) = message_of(events).content
    assert subject.text_of(TextBlock("", said.id)) == said.text


def test_what_was_streamed_is_what_was_said():
    assert blocks_of(piece(TextBlock("streamed")), last(TextBlock("whole"))) == [TextBlock("streamed", "r-1")]


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


def test_stream_whose_whole_answer_was_discarded_is_refused():
    by = decoder()
    by.feed(last(TextBlock("a")))
    by.discard()
    with pytest.raises(ChainContractError, match="ended without any response"):
        by.end()


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
