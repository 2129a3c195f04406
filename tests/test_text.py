"""What a terminal would obey is spelt out, whoever wrote it."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt._runtime.text import escape_controls, lazy_pattern, mask, one_line


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
    assert escape_controls(text) == shown


@given(st.text(st.characters(categories=None)))
def test_nothing_else_that_controls_is_left(text):
    left = {char for char in escape_controls(text) if unicodedata.category(char) in ("Cc", "Cs")}
    assert left <= {"\n", "\t"}
    escape_controls(text).encode()


def test_one_line_is_one_line_and_not_too_long():
    assert one_line("a\n\n  b\tc") == "a b c"
    assert one_line("x" * 501) == "x" * 500 + "..."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("postgres://me:hunter2@db/x", "postgres://***@db/x"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("it said bearer abcdefgh12345.", "it said bearer ***"),
        ('{"api_key": "abcd-efgh", "city": "Oslo"}', '{"api_key": "***", "city": "Oslo"}'),
        ("OPENAI_API_KEY=abcdefgh failed", "OPENAI_API_KEY=*** failed"),
        ("password: hunter2, user: me", "password: ***, user: me"),
        ("access_token=abcdefgh&page=2", "access_token=***&page=2"),
        ("https://host/x?page=2&key=abcdefgh&sort=a", "https://host/x?page=2&key=***&sort=a"),
        ("ghp_" + "a1" * 18, "***"),
        ("AKIA" + "B2" * 8, "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "***-----END RSA PRIVATE KEY-----"),
        ("unexpected token: foobar at skate-park", "unexpected token: foobar at skate-park"),
        ("no such file: /work/a@b", "no such file: /work/a@b"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text, told):
    assert mask(text) == told


def test_known_secrets_are_masked_unless_shorter_than_8():
    assert mask("aXXXXXXXXb none", ["XXXXXXXX", "none"]) == "a***b none"


@pytest.mark.parametrize("secret", ["pass\nword's\"", "C:\\keys\\mine"])
def test_secret_is_masked_as_it_is_and_as_repr_shows_it(secret):
    assert mask(f"{secret}, {secret!r}, {[secret]}", [secret]).count("***") == 3
    assert not any(word in mask(f"{secret} {secret!r}", [secret]) for word in ("word", "keys"))


def test_secret_that_begins_with_another_is_masked_whole():
    assert mask("first-secret-and-more", ["first-secret", "first-secret-and-more"]) == "***"


def test_a_lazy_pattern_has_the_attributes_of_a_pattern() -> None:
    pattern = lazy_pattern("a(?P<rest>.*)", re.IGNORECASE)
    compiled = re.compile("a(?P<rest>.*)", re.IGNORECASE)
    for _ in range(2):
        match = pattern.fullmatch("Abc")
        assert match["rest"] == "bc"
        assert pattern.sub("x", "ab") == "x"
    assert (pattern.pattern, pattern.flags, pattern.groupindex) == (
        compiled.pattern,
        compiled.flags,
        compiled.groupindex,
    )


def test_a_lazy_pattern_is_compiled_when_it_is_used() -> None:
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("")
