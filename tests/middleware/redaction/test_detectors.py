"""What the shipped detectors find, and which detectors are refused."""

import re
import sys
import threading

import pytest

from agentrt.errors import MiddlewareConfigError, RedactionBlocked
from agentrt.middleware import (
    API_KEY,
    CARD,
    EMAIL,
    IBAN,
    IP,
    PHONE,
    PRIVATE_KEY,
    Between,
    Literals,
    Pattern,
    RedactionMiddleware,
)
from agentrt_middleware.redaction.re2_patterns import compile_for_re2
from tests.middleware.redaction.helpers import CARD_TEXT, EMAIL_TEXT, IBAN_TEXT, KEY_TEXT, PRIVATE_TEXT

redact = RedactionMiddleware([EMAIL, CARD, IBAN, IP, PHONE, API_KEY, PRIVATE_KEY]).text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"Write to {EMAIL_TEXT}, please.", "Write to [EMAIL], please."),
        ("first.last+tag@mail.example.co.uk!", "[EMAIL]!"),
        (f"{CARD_TEXT} 12/27", "[CARD] 12/27"),
        ("000041111111111111119999", "0000[CARD]9999"),
        ("4111-1111-1111-1111", "[CARD]"),
        ("378282246310005 and 30569309025904", "[CARD] and [CARD]"),
        ("30569309025904 3530111333300000 5555555555554444", "[CARD] [CARD] [CARD]"),
        (f"{IBAN_TEXT} and GB29NWBK60161331926819.", "[IBAN] and [IBAN]."),
        ("de89 3704 0044 0532 0130 00", "[IBAN]"),
        ("10.0.0.1, 255.255.255.255", "[IP], [IP]"),
        ("2001:db8::1 fe80::1 2001:0db8:85a3:0000:0000:8a2e:0370:7334", "[IP] [IP] [IP]"),
        ("+1 (415) 555-2671, +49 30 1234567", "[PHONE], [PHONE]"),
        ("(212) 555-0100 or 212-555-0100", "[PHONE] or [PHONE]"),
        (f"key={KEY_TEXT};", "key=[API_KEY];"),
        ("sk-proj-abcDEF1234567890abcdefghij0", "[API_KEY]"),
        ("AKIAIOSFODNN7EXAMPLE", "[API_KEY]"),
        ("Authorization: Bearer abcdefghijk1234567890", "Authorization: [API_KEY]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sIg-n_d end", "[API_KEY] end"),
        (f"{PRIVATE_TEXT}\nend", "[PRIVATE_KEY]\nend"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nwithout an end", "[PRIVATE_KEY]"),
    ],
)
def test_private_data_is_found(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "In 2024-01-01 at 12:30:45 there were 1,000,000 of 3.14.",
        "4111 1111 1111 1112 has a wrong checksum",
        "DE89 3704 0044 0532 0130 01 as well",
        "std::vector<int> v; f64::consts::PI; a[::2]",
        "a task-oriented-programming-language-for-everybody",
        "bob at example.com, @bob, bob@localhost",
        "1700000000000000000",
        "256.1.1 and 1.2.3",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_long_key_is_redacted_to_its_end() -> None:
    assert redact(f"{KEY_TEXT}{'x' * 10_000} end") == "[API_KEY] end"


def test_users_detectors_find_what_they_are_given() -> None:
    detectors = [
        Pattern("badge", r"\bB-\d{6}\b"),
        Literals("secret", ["hunter2", "a+b"], ignore_case=True),
        Between("note", "<note>", "</note>"),
        Pattern("ticket", "T-", tail="0-9"),
    ]
    redaction = RedactionMiddleware(detectors)
    text = "B-123456 B-1234567 HUNTER2 a+b <note>\nmine</note> T-1234567890."
    assert redaction.text(text) == "[BADGE] B-1234567 [SECRET] [SECRET] [NOTE] [TICKET]."


def test_a_validator_says_how_much_of_a_match_counts() -> None:
    def even(digits: str) -> int | None:
        return len(digits) // 2 * 2 or None

    assert RedactionMiddleware([Pattern("even", r"\d{1,5}", validate=even)]).text("12345 1 12") == "[EVEN]5 1 [EVEN]"


def test_overlapping_finds_become_one_with_the_strictest_action() -> None:
    detectors = [Pattern("one", "abc", action="mask"), Pattern("other", "cde")]
    assert RedactionMiddleware(detectors).text("abcde abc") == "[OTHER] ****"


async def later(text: str) -> int:
    return 1


def raise_secret(text: str) -> int:
    raise ValueError(f"cannot check {text}")


@pytest.mark.parametrize(
    "validate", [raise_secret, lambda text: "all", lambda text: True, lambda text: 99, lambda text: 0]
)
def test_a_validator_that_raises_or_answers_nonsense_blocks(validate) -> None:
    redaction = RedactionMiddleware([Pattern("badge", "B-[0-9]{6}", validate=validate)])
    with pytest.raises(RedactionBlocked) as raised:
        redaction.text("it is B-123456")
    assert "BADGE" in str(raised.value)
    assert raised.value.detector == "BADGE"
    assert "123456" not in str(raised.value)
    assert raised.value.__cause__ is raised.value.__context__ is None


def test_a_validator_that_hangs_blocks_after_a_second() -> None:
    released = threading.Event()

    def hang(text: str) -> int:
        released.wait()
        return 1

    try:
        with pytest.raises(RedactionBlocked, match="gave no answer within 1 s"):
            RedactionMiddleware([Pattern("badge", "B-", validate=hang)]).text("B-1")
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name == "agentrt detector":
                thread.join()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pattern("x", "(?=a)b"), r"Pattern\('X'\): the pattern is not taken by RE2.*validate="),
        (lambda: Pattern("x", r"(a)\1"), "not taken by RE2"),
        (lambda: Pattern("x", "(a"), "not taken by RE2"),
        (lambda: Pattern("x", r"\p{L}"), "not taken by RE2"),
        (lambda: Pattern("x", "[[:alpha:]]"), "not taken by RE2, or reads otherwise"),
        (lambda: Pattern("x", "a*"), "may match an empty text"),
        (lambda: Pattern("x", r"\b"), "may match an empty text"),
        (lambda: Pattern("x", r"[^\s\S]"), "matches nothing at all"),
        (lambda: Pattern("x", r"a\bb"), "matches nothing at all"),
        (lambda: Pattern("x", "$a"), "matches nothing at all"),
        (lambda: Pattern("x", r"\d+"), r"may match more than 512 characters: .*tail=.*Between\("),
        (lambda: Pattern("x", "(?:a{1,30}){1,30}"), "may match more than 512 characters"),
        (lambda: Pattern("x", re.compile("a")), r"must be a str, not re.compile\(...\): give its text"),
        (lambda: Pattern("x", 5), "must be a str, not a int"),
        (lambda: Pattern("", "a"), "a detector's name must be"),
        (lambda: Pattern("a b", "a"), "a detector's name must be"),
        (lambda: Pattern("x", "a", tail=""), "tail must be characters"),
        (lambda: Pattern("x", "a", tail="^a"), "tail must be characters"),
        (lambda: Pattern("x", "a", tail=r"\s\S"), "what ends the tail matches nothing at all"),
        (lambda: Pattern("x", "a", tail="a]|[b"), "tail must be characters"),
        (lambda: Pattern("x", "a)|(b"), "not taken by RE2"),
        (lambda: Pattern("x", "a", validate=later), "must be a plain function"),
        (lambda: Pattern("x", "a", validate=5), "validate has 5, which is not callable: write a function"),
        (lambda: Pattern("x", "a", validate=lambda: 1), r"must be a function \(match\)"),
        (lambda: Literals("x", []), "matches nothing at all"),
        (lambda: Literals("x", "secret"), r"write Literals\(name, \[text\]\)"),
        (lambda: Literals("x", [""]), "text 0 is empty"),
        (lambda: Literals("x", ["a", 5]), "text 1 is of the type int"),
        (lambda: Literals("x", ["a" * 513]), "text 0 has 513 characters"),
        (lambda: Between("x", "a*", "b"), r"Between\('X'\): begin may match an empty text"),
        (lambda: Between("x", "a", "b+"), "end may match more than 512 characters"),
        (lambda: RedactionMiddleware([EMAIL, Pattern("email", "a")]), "two detectors of the name EMAIL"),
        (lambda: RedactionMiddleware([]), "takes a list of detectors"),
        (lambda: RedactionMiddleware(EMAIL), "takes a list of detectors"),
        (lambda: RedactionMiddleware(["email"]), "not a str"),
        (lambda: RedactionMiddleware([Pattern]), "a class: make an instance"),
        (lambda: RedactionMiddleware(action="masc"), "did you mean 'mask'"),
        (lambda: RedactionMiddleware([Pattern("x", "a", action="tokn")]), "the action of X .* did you mean 'token'"),
        (lambda: RedactionMiddleware(action="hash"), "needs a key.*hash_key="),
        (lambda: RedactionMiddleware(action="hash", hash_key="short"), "at least 8 characters"),
        (lambda: RedactionMiddleware(restore=("tools",)), 'give action="token"'),
        (lambda: RedactionMiddleware(action="token", restore=("input",)), '"tools" and "output"'),
        (lambda: RedactionMiddleware(input="yes"), "input=.* must be True or False"),
        (lambda: RedactionMiddleware(input=False, output=False, tools=False), "does nothing"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(make, message) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        make()


def test_a_refused_literal_is_not_in_the_error() -> None:
    with pytest.raises(MiddlewareConfigError) as raised:
        Literals("x", ["hunter2" * 100])
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(RedactionMiddleware([Literals("x", ["hunter2"])]))


def test_a_missing_package_is_named_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_for_re2.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    for make in (RedactionMiddleware, lambda: Pattern("x", "a")):
        with pytest.raises(MiddlewareConfigError, match=r'pip install "agentrt\[redaction\]"'):
            make()


@pytest.mark.parametrize(
    ("action", "shown"),
    [
        ("redact", r"\[EMAIL\] \[EMAIL\] \[EMAIL\]"),
        ("mask", r"\*\*\*\*.com \*\*\*\*.com \*\*\*\*.com"),
        ("hash", r"(\[EMAIL_[a-p]{16}\]) \1 (?!\1)\[EMAIL_[a-p]{16}\]"),
        ("token", r"\[EMAIL\] \[EMAIL\] \[EMAIL\]"),
        ("block", r"\[EMAIL\] \[EMAIL\] \[EMAIL\]"),
    ],
)
def test_text_for_logs_and_spans_needs_no_conversation(action: str, shown: str) -> None:
    redaction = RedactionMiddleware([EMAIL], action=action, hash_key="a secret key")
    assert re.fullmatch(shown, redaction.text("bob@example.com bob@example.com eve@example.com"))
    assert "a secret key" not in repr(redaction)


def test_a_short_value_is_masked_as_a_whole() -> None:
    assert (
        RedactionMiddleware([Literals("pin", ["1234567", "12345678"])], action="mask").text("1234567 12345678")
        == "**** ****5678"
    )


def test_a_detector_may_have_an_action_of_its_own() -> None:
    redaction = RedactionMiddleware([EMAIL.with_action("mask"), CARD])
    assert redaction.text(f"{EMAIL_TEXT} {CARD_TEXT}") == "****.com [CARD]"
    assert EMAIL.action is None


def test_half_a_surrogate_pair_is_no_obstacle() -> None:
    assert redact(f"\ud83d {EMAIL_TEXT} \udc00") == "\ud83d [EMAIL] \udc00"
