"""What a terminal would obey is spelt out, whoever wrote it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.text import escaped, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J\x7f\x00\x07\b", "\\x9b2J\\x7f\\x00\\x07\\x08"),
        ("right\rwrong", "right\\x0dwrong"),
        ("one\r\ntwo", "one\ntwo"),
        ("a\tb\nc", "a\tb\nc"),
        ("\u202eevil\u202c \u2066x\u2069", "\\u202eevil\\u202c \\u2066x\\u2069"),
        ("half \ud83d", "half \\ud83d"),
        ("早上好 😀 é", "早上好 😀 é"),
    ],
)
def test_what_a_terminal_would_obey_is_spelt_out(text, shown):
    assert escaped(text) == shown


@given(st.text(st.characters(categories=None)))
def test_nothing_else_that_controls_is_left(text):
    left = {char for char in escaped(text) if unicodedata.category(char) in ("Cc", "Cs")}
    assert left <= {"\n", "\t"}
    escaped(text).encode()


def test_one_line_is_one_line_and_not_too_long():
    assert one_line("a\n\n  b\tc") == "a b c"
    assert one_line("x" * 501) == "x" * 500 + "..."
