"""Fragments of an answer become pieces with stable ids, and the whole that they add up to."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import Malformed
from agentrt.message import ContentBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model.remote.accumulator import StreamAccumulator


def text_by_block(pieces: list[ContentBlock]) -> dict[str, str]:
    """Return what the pieces of each block add up to."""
    found: dict[str, str] = {}
    for piece in pieces:
        found[piece.id] = found.get(piece.id, "") + text_of(piece)
    return found


def text_of(block: ContentBlock) -> str:
    if isinstance(block, ToolCallBlock):
        return block.input
    return block.text if isinstance(block, TextBlock) else block.thinking if isinstance(block, ThinkingBlock) else ""


@pytest.fixture
def accumulator() -> StreamAccumulator:
    return StreamAccumulator()


def test_pieces_share_the_id_of_their_block(accumulator: StreamAccumulator) -> None:
    accumulator.add_text("Hel")
    accumulator.add_text("lo")

    (whole,) = accumulator.content()
    assert accumulator.take_pieces() == [TextBlock("Hel", whole.id), TextBlock("lo", whole.id)]
    assert whole == TextBlock("Hello", whole.id)
    assert accumulator.take_pieces() == []


def test_text_after_something_else_is_a_block_of_its_own(accumulator: StreamAccumulator) -> None:
    accumulator.add_text("a")
    accumulator.add_thinking("b")
    accumulator.add_text("c")
    accumulator.add_call(0, "c1", "add", "{}")
    accumulator.add_text("d")

    assert [text_of(block) for block in accumulator.content()] == ["a", "b", "c", "{}", "d"]


def test_empty_fragments_make_no_piece(accumulator: StreamAccumulator) -> None:
    accumulator.add_text("")
    accumulator.add_thinking("")

    assert accumulator.take_pieces() == accumulator.content() == []


def test_a_signature_ends_the_thinking_that_it_signs(accumulator: StreamAccumulator) -> None:
    accumulator.add_thinking("a")
    accumulator.add_thinking("", "signed")
    accumulator.add_thinking("b")

    first, second = accumulator.content()
    assert (first.thinking, first.signature) == ("a", "signed")  # type: ignore[union-attr]  # thinking
    assert (second.thinking, second.signature) == ("b", None)  # type: ignore[union-attr]  # thinking


def test_a_call_becomes_a_piece_when_its_name_is_whole(accumulator: StreamAccumulator) -> None:
    accumulator.add_call(0, "", "get_", "")
    accumulator.add_call(0, "c1", "weather", "")
    assert accumulator.take_pieces() == []

    accumulator.add_call(0, "", "", '{"city"')
    assert accumulator.take_pieces() == [ToolCallBlock("c1", "get_weather", '{"city"')]


def test_arguments_wait_for_a_name_that_comes_late(accumulator: StreamAccumulator) -> None:
    accumulator.add_call(0, "c1", "", '{"a":')
    accumulator.add_call(0, "", "add", " 1}")

    assert text_by_block(accumulator.take_pieces()) == {"c1": '{"a": 1}'}


def test_another_name_begins_a_call_after_one_that_is_complete(accumulator: StreamAccumulator) -> None:
    for name, arguments in (("add", ""), ("", '{"a": 1}'), ("sub", ""), ("", '{"b": 2}')):
        accumulator.add_call(0, "", name, arguments)

    calls = [block for block in accumulator.content() if isinstance(block, ToolCallBlock)]
    assert [(call.name, call.input) for call in calls] == [("add", '{"a": 1}'), ("sub", '{"b": 2}')]


def test_an_id_that_comes_after_the_arguments_changes_nothing(accumulator: StreamAccumulator) -> None:
    accumulator.add_call(0, "", "add", '{"a":')
    accumulator.add_call(0, "late", "", " 1}")

    (call,) = accumulator.content()
    assert text_by_block(accumulator.take_pieces()) == {call.id: '{"a": 1}'}


def test_a_call_that_has_no_arguments_is_in_the_whole(accumulator: StreamAccumulator) -> None:
    accumulator.add_call(0, "c1", "now", "")

    assert accumulator.take_pieces() == []
    assert accumulator.content() == [ToolCallBlock("c1", "now")]


def test_a_second_whole_call_of_one_id_and_index_is_another_call(accumulator: StreamAccumulator) -> None:
    accumulator.add_call(0, "c", "add", '{"a": 1}')
    accumulator.add_call(0, "c", "add", '{"a": 2}')

    assert [text_of(block) for block in accumulator.content()] == ['{"a": 1}', '{"a": 2}']
    assert len({block.id for block in accumulator.content()}) == 2


def test_without_an_index_a_name_begins_a_call(accumulator: StreamAccumulator) -> None:
    for fragment in [("", "add", "{}"), ("", "add", '{"a":'), ("", "add", "1}"), ("", "", " "), ("", "sub", "")]:
        accumulator.add_call(None, *fragment)

    assert [(block.name, block.input) for block in accumulator.content() if isinstance(block, ToolCallBlock)] == [
        ("add", "{}"),
        ("add", '{"a":1} '),
        ("sub", ""),
    ]


def test_a_call_without_a_name_is_refused(accumulator: StreamAccumulator) -> None:
    accumulator.add_call(0, "c1", "", "{}")

    with pytest.raises(Malformed, match="which"):
        accumulator.content()


fragments = st.one_of(
    st.tuples(st.just("text"), st.text(max_size=3)),
    st.tuples(st.just("thinking"), st.text(max_size=3)),
    st.tuples(
        st.just("call"),
        st.none() | st.integers(0, 2),
        st.sampled_from(["", "c1", "c2"]),
        st.sampled_from(["", "add", "sub"]),
        st.sampled_from(["", "{", "}", "{}", '{"a": 1}', "x"]) | st.just({"a": 1}),
    ),
)


@pytest.mark.slow
@given(st.lists(fragments, max_size=20))
def test_the_pieces_always_add_up_to_the_whole(given: list[Any]) -> None:
    accumulator = StreamAccumulator()
    for kind, *rest in given:
        getattr(accumulator, f"add_{kind}")(*rest)
    try:
        content = accumulator.content()
    except Malformed:
        return
    streamed = text_by_block(accumulator.take_pieces())
    ids = [block.id for block in content]

    assert len(set(ids)) == len(ids)
    assert all(ids)
    assert streamed == {block.id: text_of(block) for block in content if text_of(block)}


HARD = ["}{", "}", '{"a": 1}', '\\"}{', "}\\", "[{", "{}{}"]


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


@given(st.sampled_from(HARD), st.text(max_size=3), st.lists(st.integers(0, 60)), st.sampled_from([0, None]))
def test_a_name_in_every_fragment_tears_no_call_apart(hard: str, more: str, cuts: list[int], index: int | None) -> None:
    arguments = json.dumps({"code": hard + more, "list": [{"b": hard}]})
    accumulator = StreamAccumulator()
    for fragment in split(arguments, cuts):
        accumulator.add_call(index, "", "run", fragment)
    accumulator.add_call(index, "", "run", arguments)

    assert [text_of(block) for block in accumulator.content()] == [arguments, arguments]


def test_each_fragment_is_read_once_to_find_the_end_of_a_call(accumulator: StreamAccumulator) -> None:
    read = 0
    accumulator.add_call(0, "", "run", '{"a": "')
    brackets = accumulator._last_call.brackets  # type: ignore[union-attr]  # a call has begun
    original = type(brackets)._read

    def count(self: Any, text: str) -> None:
        nonlocal read
        read += len(text)
        original(self, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(brackets), "_read", count)
        for _ in range(1000):
            accumulator.add_call(0, "", "run", "{}x")

    assert len(accumulator.content()) == 1
    assert read <= 3_007
