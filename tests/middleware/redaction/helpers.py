"""What the tests of redaction share."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from agentrt_middleware.redaction.detectors import Detector
from agentrt_middleware.redaction.text_redactor import Engine, TextRedactor

EMAIL_TEXT = "bob@example.com"
CARD_TEXT = "4111 1111 1111 1111"
IBAN_TEXT = "DE89 3704 0044 0532 0130 00"
KEY_TEXT = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
PRIVATE_TEXT = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"

# Whatever the detectors look for, and what is next to it, cut at any place.
FRAGMENTS = (
    *(EMAIL_TEXT, CARD_TEXT, IBAN_TEXT, KEY_TEXT, PRIVATE_TEXT, "10.0.0.1", "2001:db8::1", "+1 415 555 2671"),
    *("sk-abcdefghij0123456789xyz", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi", "Bearer abcdefghij0123456789", "212-555-0100"),
    *("-----BEGIN ", "-----END PRIVATE KEY-----", "DE89", "GB29NWBK60161331926819", "4111", "5555555555554444", "@"),
    *("sk-", "+1", "x.co", "::", "1.2.3", " ", "-", "é", "\n", "the", "9", "0", "a", "]", "[EMAIL]", "😀"),
)
_parts = st.builds(
    lambda text, start, end: text[start : len(text) - end],
    st.sampled_from(FRAGMENTS),
    st.sampled_from([0, 0, 0, 1, 2, 5, 9]),
    st.sampled_from([0, 0, 0, 1, 2, 5, 9]),
)
texts = st.lists(_parts, max_size=10).map("".join)


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """Return the text cut at these places, as far as it has them."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


cuts = st.lists(st.integers(0, 250), max_size=12)


def show_names(detectors: Sequence[Detector]):
    """Return a replacement that tells what was found, and who found it."""

    def replace(text: str, found_by: Sequence[int]) -> str:
        return f"<{'+'.join(sorted({detectors[number].name for number in found_by}))}:{text}>"

    return replace


def redact_whole(engine: Engine, text: str, replace=None) -> str:
    return TextRedactor(engine, replace or show_names(engine.detectors)).end(text)


def redact_pieces(engine: Engine, pieces: Sequence[str], replace=None) -> str:
    redactor = TextRedactor(engine, replace or show_names(engine.detectors))
    return "".join([*map(redactor.feed, pieces), redactor.end()])
