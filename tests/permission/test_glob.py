"""Patterns of permission rules."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrt.permission.glob import escape, matches

check_many = settings(max_examples=300, deadline=None, database=None)
tokens = st.sampled_from(["a", "b", "*", "?", "[*]", "[?]", "[", "]", "\n"])
texts = st.text("ab*?[]\n", max_size=12)
plain = st.tuples(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
mixed = st.tuples(st.lists(tokens, max_size=10).map("".join), texts)


def fits(pattern: str, text: str) -> bool:
    """Say the same, by trying everything."""
    if not pattern:
        return not text
    if pattern[:3] in ("[*]", "[?]"):
        return text[:1] == pattern[1] and fits(pattern[3:], text[1:])
    if pattern[0] == "*":
        return fits(pattern[1:], text) or (text != "" and fits(pattern, text[1:]))
    return text != "" and pattern[0] in ("?", text[0]) and fits(pattern[1:], text[1:])


@check_many
@given(plain | mixed)
@example(("a*a", "a"))
@example(("*ba*ab", "abab"))
@example(("*b?*ab", "abab"))
@example(("*ab*ba*", "aaba"))
@example(("*a?*b", "ab"))
@example(("*a?b*", "aabb"))
@example(("a*ab*", "abb"))
@example(("[[*]]", "[*]"))
def test_pattern_matches_what_exhaustive_search_finds(both: tuple[str, str]) -> None:
    pattern, text = both
    assert matches(pattern, text) == fits(pattern, text)


@check_many
@given(texts, texts)
def test_escaped_string_matches_itself_and_nothing_else(text: str, other: str) -> None:
    assert matches(escape(text), text)
    assert matches(escape(text), other) == (text == other)


@pytest.mark.parametrize(
    ("pattern", "text", "fit"),
    [
        ("", "", True),
        ("*", "", True),
        ("*", "several\nlines/and slashes", True),
        ("git *", "git push", True),
        ("git *", "git", False),
        ("git *", "Git push", False),
        ("mcp__github__*", "mcp__github__list", True),
        ("mcp__github__*", "mcp__gitlab__list", False),
        ("mcp__*__delete_?", "mcp__a__b__delete_1", True),
        ("?", "", False),
        ("*.env", "/home/.env", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        (r"C:\tmp\*", r"C:\tmp\x", True),
        (r"\d+", "1", False),
    ],
)
def test_pattern_matches_what_it_seems_to(pattern: str, text: str, fit: bool) -> None:
    assert matches(pattern, text) is fit


@pytest.mark.parametrize("pattern", ["*a" * 40 + "*b", "*" + "a?" * 400 + "b*", "*" + "?" * 400 + "b"])
def test_hostile_pattern_takes_time_linear_in_the_text(pattern: str) -> None:
    assert not matches(pattern, "a" * 100_000)  # hours, for a matcher that tries again from every place
