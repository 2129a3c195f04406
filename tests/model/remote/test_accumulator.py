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


def joined(pieces: list[ContentBlock]) -> dict[str, str]:
    """Return what the pieces of each block add up to."""
    found: dict[str, str] = {}
    for piece in pieces:
        found[piece.id] = found.get(piece.id, "") + text_of(piece)
    return found


def text_of(block: ContentBlock) -> str:
    if isinstance(block, ToolCallBlock):
        return block.input
    return block.text if isinstance(block, TextBlock) else block.thinking if isinstance(block, ThinkingBlock) else ""


def test_pieces_share_the_id_of_their_block() -> None:
    assembly = StreamAccumulator()
    assembly.text("Hel")
    assembly.text("lo")

    (whole,) = assembly.content()
    assert assembly.take() == [TextBlock("Hel", whole.id), TextBlock("lo", whole.id)]
    assert whole == TextBlock("Hello", whole.id)
    assert assembly.take() == []


def test_text_after_something_else_is_a_block_of_its_own() -> None:
    assembly = StreamAccumulator()
    assembly.text("a")
    assembly.thinking("b")
    assembly.text("c")
    assembly.call(0, "c1", "add", "{}")
    assembly.text("d")

    assert [text_of(block) for block in assembly.content()] == ["a", "b", "c", "{}", "d"]


def test_nothing_makes_no_piece() -> None:
    assembly = StreamAccumulator()
    assembly.text("")
    assembly.thinking("")

    assert assembly.take() == assembly.content() == []


def test_a_signature_ends_the_thinking_that_it_signs() -> None:
    assembly = StreamAccumulator()
    assembly.thinking("a")
    assembly.thinking("", "signed")
    assembly.thinking("b")

    first, second = assembly.content()
    assert (first.thinking, first.signature) == ("a", "signed")  # type: ignore[union-attr]  # thinking
    assert (second.thinking, second.signature) == ("b", None)  # type: ignore[union-attr]  # thinking


def test_a_block_can_be_ended_by_hand() -> None:
    assembly = StreamAccumulator()
    assembly.text("a")
    assembly.end_block()
    assembly.text("b")

    assert [text_of(block) for block in assembly.content()] == ["a", "b"]


def test_a_call_is_handed_on_when_its_name_is_whole() -> None:
    assembly = StreamAccumulator()
    assembly.call(0, "", "get_", "")
    assembly.call(0, "c1", "weather", "")
    assert assembly.take() == []

    assembly.call(0, "", "", '{"city"')
    assert assembly.take() == [ToolCallBlock("c1", "get_weather", '{"city"')]


def test_arguments_wait_for_a_name_that_comes_late() -> None:
    assembly = StreamAccumulator()
    assembly.call(0, "c1", "", '{"a":')
    assembly.call(0, "", "add", " 1}")

    assert joined(assembly.take()) == {"c1": '{"a": 1}'}


def test_another_name_begins_a_call_after_one_that_is_complete() -> None:
    assembly = StreamAccumulator()
    for name, arguments in (("add", ""), ("", '{"a": 1}'), ("sub", ""), ("", '{"b": 2}')):
        assembly.call(0, "", name, arguments)

    calls = [block for block in assembly.content() if isinstance(block, ToolCallBlock)]
    assert [(call.name, call.input) for call in calls] == [("add", '{"a": 1}'), ("sub", '{"b": 2}')]


def test_an_id_that_comes_after_the_arguments_began_changes_nothing() -> None:
    assembly = StreamAccumulator()
    assembly.call(0, "", "add", '{"a":')
    assembly.call(0, "late", "", " 1}")

    (call,) = assembly.content()
    assert joined(assembly.take()) == {call.id: '{"a": 1}'}


def test_a_call_that_has_no_arguments_is_in_the_whole() -> None:
    assembly = StreamAccumulator()
    assembly.call(0, "c1", "now", "")

    assert assembly.take() == []
    assert assembly.content() == [ToolCallBlock("c1", "now")]


def test_a_second_whole_call_with_the_same_id_and_index_is_a_call_of_its_own() -> None:
    assembly = StreamAccumulator()
    assembly.call(0, "c", "add", '{"a": 1}')
    assembly.call(0, "c", "add", '{"a": 2}')

    assert [text_of(block) for block in assembly.content()] == ['{"a": 1}', '{"a": 2}']
    assert len({block.id for block in assembly.content()}) == 2


def test_without_an_index_a_name_begins_a_call() -> None:
    assembly = StreamAccumulator()
    for fragment in [("", "add", "{}"), ("", "add", '{"a":'), ("", "add", "1}"), ("", "", " "), ("", "sub", "")]:
        assembly.call(None, *fragment)

    assert [(block.name, block.input) for block in assembly.content() if isinstance(block, ToolCallBlock)] == [
        ("add", "{}"),
        ("add", '{"a":1} '),
        ("sub", ""),
    ]


def test_a_call_without_a_name_is_refused() -> None:
    assembly = StreamAccumulator()
    assembly.call(0, "c1", "", "{}")

    with pytest.raises(Malformed, match="which"):
        assembly.content()


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


@given(st.lists(fragments, max_size=20))
def test_the_pieces_always_add_up_to_the_whole(given: list[Any]) -> None:
    assembly = StreamAccumulator()
    for kind, *rest in given:
        getattr(assembly, kind)(*rest)
    try:
        content = assembly.content()
    except Malformed:
        return
    streamed = joined(assembly.take())
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
    assembly = StreamAccumulator()
    for fragment in split(arguments, cuts):
        assembly.call(index, "", "run", fragment)
    assembly.call(index, "", "run", arguments)

    assert [text_of(block) for block in assembly.content()] == [arguments, arguments]


def test_each_fragment_is_read_once_to_find_out_where_a_call_ends() -> None:
    read = 0
    assembly = StreamAccumulator()
    assembly.call(0, "", "run", '{"a": "')
    extent = assembly._last_call.extent  # type: ignore[union-attr]  # a call has begun
    original = type(extent)._read

    def count(self: Any, text: str) -> None:
        nonlocal read
        read += len(text)
        original(self, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(extent), "_read", count)
        for _ in range(1000):
            assembly.call(0, "", "run", "{}x")

    assert len(assembly.content()) == 1
    assert read <= 3_007
