"""Whatever the pieces of a text are, what leaves is the redacted whole."""

import re
from zlib import crc32

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.middleware import API_KEY, CARD, EMAIL, IBAN, IP, PHONE, PRIVATE_KEY, Between, Detector, Literals, Pattern
from agentrt_middleware.redaction.actions import Actions
from agentrt_middleware.redaction.text_redactor import Engine
from agentrt_middleware.redaction.tokens import Tokens
from tests.middleware.redaction.helpers import cuts, pieces_of, redact_pieces, redact_whole, texts

SHIPPED = [EMAIL, CARD, IBAN, IP, PHONE, API_KEY, PRIVATE_KEY]
ENGINE = Engine(SHIPPED)
SMALL = "aab1- \né"

small_texts = st.text(SMALL, max_size=24)
atoms = st.sampled_from(["a", "b", "1", "-", " ", "[ab]", "[^a]", r"\d", r"\w", r"\s", ".", "(?i:A)", "(?s:.)", "é"])
marks = st.sampled_from([r"\b", r"\B", "^", "$", "(?m:^)", "(?m:$)"])


def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["?", "{0,2}", "{1,3}", "{2,4}", "{2}"])
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"(?:{'|'.join(branches)})"),
        st.builds(lambda one, count: f"(?:{one}){count}", inner, counts),
        st.builds(lambda mark, one: mark + one, marks, inner),
        st.builds(lambda one, mark: one + mark, inner, marks),
    )


patterns = st.recursive(atoms, extend, max_leaves=6)


def validator(seed: int):
    """Return a validator that takes any part of a match, or nothing, and the same of equal matches."""

    def validate(text: str) -> int | None:
        counted = crc32(f"{seed}{text}".encode()) % (len(text) + 2) - 1
        return counted if counted > 0 else None

    return validate


@st.composite
def detector_lists(draw) -> list[Detector]:
    detectors: list[Detector] = []
    for number in range(draw(st.integers(1, 3))):
        name, pattern = f"d{number}", draw(patterns)
        kind = draw(st.sampled_from(["pattern", "pattern", "validated", "tail", "between", "literals"]))
        try:
            if kind == "between":
                detectors.append(Between(name, pattern, draw(patterns)))
            elif kind == "tail":
                detectors.append(Pattern(name, pattern, tail=draw(st.sampled_from(["a", "ab", r"\w", "é-"]))))
            elif kind == "literals":
                detectors.append(Literals(name, draw(st.lists(st.text(SMALL, min_size=1, max_size=3), min_size=1))))
            else:
                validate = validator(draw(st.integers(0, 99))) if kind == "validated" else None
                detectors.append(Pattern(name, pattern, validate=validate))
        except MiddlewareConfigError:  # it may match nothing, or an empty text
            assume(False)
    return detectors


@pytest.mark.slow
@settings(max_examples=3_000)
@given(detector_lists(), small_texts, cuts)
def test_any_cut_of_any_patterns_gives_the_redacted_whole(detectors, text, places):
    engine = Engine(detectors)
    whole = redact_whole(engine, text)
    assert redact_pieces(engine, pieces_of(text, places)) == whole
    assert redact_pieces(engine, list(text)) == whole


@given(texts, cuts)
def test_any_cut_with_shipped_detectors_gives_the_whole(text, places):
    whole = redact_whole(ENGINE, text)
    assert redact_pieces(ENGINE, pieces_of(text, places)) == whole
    assert redact_pieces(ENGINE, list(text)) == whole


@given(texts)
def test_redacting_again_changes_nothing(text):
    replace = Actions(SHIPPED, "redact", None).replacer("the text", None)
    once = redact_whole(ENGINE, text, replace)
    assert redact_whole(ENGINE, once, replace) == once


@given(texts, cuts, cuts)
def test_tokens_become_their_values_again_for_any_cut(text, places, other_places):
    table = Tokens(AgentBase(), ["output"])
    replace = Actions(SHIPPED, "token", None).replacer("the text", table.token)
    redacted = redact_pieces(ENGINE, pieces_of(text, places), replace)
    assert table.restore(redacted) == text
    restoring = table.restoring()
    pieces = [restoring.feed(piece) for piece in pieces_of(redacted, other_places)]
    assert "".join([*pieces, restoring.end()]) == text
    # Of another conversation, they stay.
    assert Tokens(AgentBase(), ["output"]).restore(redacted) == redacted


def leftmost_longest(pattern: str, text: str) -> list[tuple[int, int]]:
    """Return where the pattern matches, by trying every place and every length."""
    found, at = [], 0
    while at < len(text):
        for end in range(len(text), at, -1):
            # In the whole text, since `\\b` looks at what is next to the match.
            whole = f"(?s:.){{{at}}}(?:{pattern})(?s:.){{{len(text) - end}}}"
            if re.compile(whole, re.ASCII).fullmatch(text):
                found.append((at, end))
                at = end
                break
        else:
            at += 1
    return found


anchor_free = st.recursive(atoms, extend, max_leaves=4).filter(
    lambda pattern: not any(mark in pattern for mark in ("^", "$"))
)


@pytest.mark.slow
@settings(max_examples=400)
@given(anchor_free, st.text(SMALL, max_size=10))
def test_matches_are_the_leftmost_longest_of_the_pattern(pattern, text):
    try:
        engine = Engine([Pattern("d", pattern)])
    except MiddlewareConfigError:
        assume(False)
    expected, at = "", 0
    for start, end in leftmost_longest(pattern, text):
        expected += f"{text[at:start]}<D:{text[start:end]}>"
        at = end
    assert redact_whole(engine, text) == expected + text[at:]
