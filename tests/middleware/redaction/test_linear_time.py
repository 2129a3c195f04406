"""Hostile text takes time in proportion to its length."""

from collections.abc import Callable
from functools import partial
from time import process_time

import pytest

from agentrt.middleware import API_KEY, CARD, EMAIL, IBAN, IP, PHONE, PRIVATE_KEY, Between, Detector, Pattern
from agentrt_middleware.redaction.content import change_json
from agentrt_middleware.redaction.text_redactor import Engine
from tests.middleware.redaction.helpers import redact_pieces, redact_whole

SHIPPED = [EMAIL, CARD, IBAN, IP, PHONE, API_KEY, PRIVATE_KEY]
GREEDY: list[Detector] = [Pattern("wide", "a{1,500}b"), Pattern("nested", "(?:a{1,16}){1,31}c")]
OVERLAPPING: list[Detector] = [
    Pattern("one", "ab{0,4}a"),
    Pattern("two", "bab{0,4}a"),
    Between("all", "<<", ">>"),
    Pattern("run", "#", tail="#a"),
]
HOSTILE: list[tuple[list[Detector], str]] = [
    (SHIPPED, "a"),
    (SHIPPED, "a@"),
    (SHIPPED, "a.b@"),
    (SHIPPED, "4111111111111112"),
    (SHIPPED, "4111 1111 1111 1111"),
    (SHIPPED, "DE89"),
    (SHIPPED, "2001:"),
    (SHIPPED, "+1 "),
    (SHIPPED, "sk-"),
    (SHIPPED, "eyJ"),
    (SHIPPED, "bob@example.com "),
    (SHIPPED, "-----BEGIN "),
    (SHIPPED, "-----BEGIN PRIVATE KEY-----bob@example.com"),
    (GREEDY, "a"),
    (OVERLAPPING, "ab"),
    (OVERLAPPING, "<<ab"),
    (OVERLAPPING, "#a"),
]

LINEAR = 24  # eight if nothing else ran here, and 64 where the time grows with the square of the length


def seconds(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def takes_linear_time(work: Callable[[str], object], fragment: str) -> bool:
    """Compare the times for a text and for one that is eight times as long."""
    short, long = (partial(work, (fragment * size)[:size]) for size in (5_000, 40_000))
    # The first call also makes what later ones find, and less than five milliseconds is measured too coarsely.
    reference = max(min(seconds(short), seconds(short)), 0.005)
    return any(seconds(long) <= LINEAR * reference for _ in range(2))  # once, something else may have run here


@pytest.mark.slow
@pytest.mark.parametrize(("detectors", "fragment"), HOSTILE)
def test_time_grows_with_the_length_and_not_its_square(detectors: list[Detector], fragment: str) -> None:
    engine = Engine(detectors)
    assert takes_linear_time(lambda text: redact_whole(engine, text), fragment)
    assert takes_linear_time(
        lambda text: redact_pieces(engine, [text[n : n + 4] for n in range(0, len(text), 4)]), fragment
    )


@pytest.mark.slow
@pytest.mark.parametrize("fragment", ['"', '\\"', '"\\', '["a@', "[", '{"a":'])
def test_hostile_json_takes_linear_time(fragment: str) -> None:
    engine = Engine(SHIPPED)
    assert takes_linear_time(lambda text: change_json(text, lambda part: redact_whole(engine, part)), fragment)


@pytest.mark.parametrize(("detectors", "fragment"), HOSTILE)
def test_no_more_is_held_back_than_a_match_may_have(detectors: list[Detector], fragment: str) -> None:
    text = (fragment * 1_000)[:2_000]
    assert redact_pieces(Engine(detectors), list(text)) == redact_whole(Engine(detectors), text)
