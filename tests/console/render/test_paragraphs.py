"""A text that is still being written is handed out in parts that cannot change any more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.console.render.paragraphs import Paragraphs

PIECES = st.lists(st.sampled_from(["a", " ", "\n", "\n\n", "```", "~~~", "```py\n", "1. x\n", "   y", "word "]))


def cut(*pieces: str) -> tuple[list[str], str]:
    paragraphs = Paragraphs()
    finished = [each for piece in pieces for each in paragraphs.feed(piece)]
    return finished, paragraphs.rest


@given(PIECES)
def test_no_character_is_lost_or_repeated(pieces):
    finished, rest = cut(*pieces)
    assert "".join(finished) + rest == "".join(pieces)


@given(PIECES)
def test_the_size_of_the_pieces_changes_nothing(pieces):
    assert cut(*pieces) == cut(*"".join(pieces))


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        ("one\n\ntwo", [], "one\n\ntwo"),  # the line is not over: it may yet be indented
        ("one\n\ntwo\n", ["one\n\n"], "two\n"),
        ("one\n\n\ntwo\n\nthree\n", ["one\n\n\n", "two\n\n"], "three\n"),
        ("- one\n\n  more of one\n", [], "- one\n\n  more of one\n"),
        ("```\nx\n\ny\n", [], "```\nx\n\ny\n"),
        ("```\nx\n\ny\n```\n\nz\n", ["```\nx\n\ny\n```\n\n"], "z\n"),
        ("````\n```\n\nx\n````\n\nz\n", ["````\n```\n\nx\n````\n\n"], "z\n"),
    ],
)
def test_a_paragraph_ends_where_the_next_one_begins(text, finished, rest):
    assert cut(text) == (finished, rest)


def test_taking_the_rest_begins_anew():
    paragraphs = Paragraphs()
    paragraphs.feed("```\nopen")
    assert paragraphs.take_rest() == "```\nopen"
    assert paragraphs.rest == ""
    assert paragraphs.feed("one\n\ntwo\n") == ["one\n\n"]
