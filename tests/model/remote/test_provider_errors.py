"""What a provider says becomes an error of the tree, and no secret is in it."""

import json
import logging
import pickle
import re
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import httpx2
import pytest

from agentrt.errors import ContextOverflow, MalformedCall, ModelError, RateLimited, Refused, Rejected, Transient
from agentrt.model import Timeouts
from agentrt.model.remote.provider_errors import _TAG, ProviderErrors
from tests.model.wire_openai import HANG, KEY, SHORT, URL, Answer, delta, error, events, failure_of, json_of, stream_of

ECHO = f"Incorrect key {KEY} given"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (error(400, "bad"), Rejected, "400.*bad"),
        (error(401, "no such key"), Rejected, "set OPENAI_API_KEY or give api_key"),
        (error(402, "Insufficient Balance"), Rejected, "topped up"),
        (error(403, "no"), Rejected, "rights"),
        (error(404, "no"), Rejected, "'gpt-test' and base_url='http://test.invalid/v1'"),
        (Answer([b"<html><body>nothing here</body></html>"], 404), Rejected, "404: nothing here;"),
        (error(422, "no"), Rejected, "422: no$"),
        (error(408), Transient, "408"),
        (error(409), Transient, "409"),
        (error(500), Transient, "500"),
        (Answer([b"Bad gateway"], 502), Transient, "502: Bad gateway"),
        (error(503), Transient, "503"),
        (error(529, type="overloaded_error"), Transient, "529 .overloaded_error"),
        (error(429), RateLimited, "429"),
        (error(429, "You exceeded your current quota", "insufficient_quota"), Rejected, "insufficient_quota"),
        (error(400, "no", "content_filter"), Refused, "content_filter"),
        (error(400, "no", "DataInspectionFailed"), Refused, "datainspection"),
        (error(400, "no", "context_length_exceeded"), ContextOverflow, "context_length"),
        (error(413, "too large", type="request_too_large"), ContextOverflow, "413"),
        (Answer([], 500), Transient, "500"),
    ],
)
async def test_each_status_becomes_an_error_of_the_tree(
    answer: Answer, kind: type[ModelError], words: str, stream: bool
) -> None:
    failure = await failure_of(answer, stream=stream)

    assert type(failure) is kind
    assert failure.status_code == answer.status
    with pytest.raises(kind, match=rf"model 'gpt-test' at test.invalid answered.*{words}"):
        raise failure


def behind_gateway(raw: object) -> dict[str, Any]:
    metadata = {"raw": raw, "provider_name": "Example"}
    return {"error": {"message": "Provider returned error", "code": 400, "metadata": metadata}}


INPUTS = "`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000 `inputs` tokens and 20 `max_new_tokens`"
BROKEN_CALL = {"message": "Failed to call a function.", "type": "invalid_request_error", "code": "tool_use_failed"}
TOO_LARGE = "Request too large for gpt-x in organization org-x on tokens per min (TPM): Limit 30000, Requested 45000."


# Each as its provider has been seen to answer: Perplexity, OpenRouter, TGI and Together, Moonshot, Z.ai, watsonx,
# Snowflake, Databricks; Groq; OpenAI, Anthropic, DeepSeek, OpenRouter; Groq, Bedrock; OpenAI; xAI.
@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, {"error": {"message": "no", "type": "too_many_prompt_tokens", "code": 400}}, ContextOverflow, "no"),
        (
            400,
            behind_gateway('{"error": {"message": "prompt is too long: 215000 tokens > 200000 maximum"}}'),
            ContextOverflow,
            "prompt is too long",
        ),
        (400, behind_gateway("It takes one image."), Rejected, "Provider returned error: It takes one image."),
        (422, {"error": f"Input validation error: {INPUTS}", "error_type": "validation"}, ContextOverflow, "3000"),
        (
            400,
            {"error": {"message": "Invalid request: Your request exceeded model token limit: 131072"}},
            ContextOverflow,
            "131072",
        ),
        (400, {"error": {"code": "1261", "message": "Prompt"}}, ContextOverflow, "Prompt"),
        (
            400,
            {"errors": [{"code": "invalid", "message": "the number of input tokens 5000 cannot exceed the limit"}]},
            ContextOverflow,
            "5000",
        ),
        (400, {"message": "max tokens of 8192 exceeded", "error_code": "395004"}, ContextOverflow, "395004"),
        (
            400,
            {
                "error_code": "BAD_REQUEST",
                "message": '{"error": {"message": "prompt token count (9) cannot exceed 8"}}',
            },
            ContextOverflow,
            "bad_request.*: prompt token count",
        ),
        (400, {"error": BROKEN_CALL}, MalformedCall, "Failed to call"),
        (400, {"error": {**BROKEN_CALL, "code": "json_validate_failed"}}, MalformedCall, "json_validate_failed"),
        (400, {"error": {"message": "Invalid prompt", "code": "invalid_prompt"}}, Refused, "Invalid prompt"),
        (400, {"error": {"message": "Output blocked by content filtering policy"}}, Refused, "blocked"),
        (400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error"}}, Refused, "Risk"),
        (
            403,
            {"error": {"code": 403, "message": "x requires moderation on Example. Your input was flagged for 'a'"}},
            Refused,
            "flagged",
        ),
        (498, {"error": {"message": "Flex tier capacity exceeded"}}, Transient, "Flex"),
        (424, {"message": "The system met an unexpected error. Try your request again."}, Transient, "again"),
        (424, {"message": "no such dependency"}, Rejected, "dependency"),
        (429, {"error": {"message": TOO_LARGE, "code": "rate_limit_exceeded"}}, ContextOverflow, "Requested 45000"),
        (400, {"error": "Incorrect API key provided: x", "code": "Invalid"}, Rejected, "check the key: set"),
    ],
)
async def test_each_providers_way_of_reporting_a_fault_is_known(
    status: int, body: Any, kind: type[ModelError], words: str
) -> None:
    failure = await failure_of(json_of(body, status))
    assert type(failure) is kind
    assert re.search(words, str(failure))


async def test_a_fault_in_mid_stream_is_known_as_well() -> None:
    assert type(await failure_of(stream_of({"error": BROKEN_CALL}))) is MalformedCall


async def test_a_model_that_is_loading_says_when_it_is_there() -> None:
    loading = json_of({"error": "Model x is currently loading", "estimated_time": 20.5}, 503)
    failure = await failure_of(loading)
    assert (type(failure), failure.retry_after) == (Transient, 20.5)


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        "prompt is too long: 215000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "the request exceeds the available context size, try increasing it",
        "The decoder prompt (length 9000) is longer than the maximum model length of 4096.",
        "input length exceeds maximum context length",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
        "Please reduce the length of the messages or completion.",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    ],
)
async def test_each_providers_message_of_a_full_context_is_recognised(words: str) -> None:
    assert type(await failure_of(error(400, words))) is ContextOverflow


@pytest.mark.parametrize(
    "body", [{"error": "Nope"}, {"message": "Nope", "code": "x"}, {"detail": "Nope"}, {"error": {"message": "Nope"}}]
)
async def test_a_providers_message_is_found_in_bodies_of_every_shape(body: Any) -> None:
    assert ": Nope" in str(await failure_of(json_of(body, 400)))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "1e9"}, 86_400.0),
        ({"retry-after-ms": "1e300"}, 86_400.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400.0),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_the_header_for_the_time_to_retry_is_read(
    headers: dict[str, str], seconds: float | None, status: int
) -> None:
    assert (await failure_of(error(status, **headers))).retry_after == seconds


async def test_a_date_to_retry_at_is_counted_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    assert 3000 < ((await failure_of(error(429, **{"retry-after": date}))).retry_after or 0) <= 3600


FAILURES: list[Callable[[], Any]] = [
    *(partial(error, status, ECHO, KEY) for status in (400, 401, 403, 404, 429, 500)),
    lambda: Answer([ECHO.encode()], 502),
    lambda: Answer([f"<p>{ECHO}</p>".encode()]),
    lambda: Answer([f"data: {ECHO}\n\n".encode()]),
    lambda: stream_of({"error": {"message": ECHO}}),
    lambda: stream_of(delta(content={"key": KEY})),
    lambda: stream_of(delta(refusal=ECHO), delta("stop")),
    lambda: Answer([events(delta(content="Hi")), httpx2.ReadError(ECHO)]),
    lambda: httpx2.ConnectError(ECHO),
    lambda: httpx2.ConnectTimeout(ECHO),
    lambda: httpx2.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'"),
    lambda: Answer([HANG]),
    lambda: Answer([("<br>" * (20_000 // 4 - 4) + KEY).encode()], 502),
    lambda: json_of([{"k": KEY}], 400),
    lambda: Answer([], 302, {"location": f"http://elsewhere.invalid/{KEY}"}),
    lambda: Answer([b"event: error\ndata: " + ECHO.encode() + b"\n\n"]),
    lambda: stream_of(delta(content=f"model 'gpt-test' at test.invalid {KEY}"), {"choices": KEY}),
    lambda: Answer([json.dumps(f"model 'gpt-test' at test.invalid {KEY}").encode()]),
]


LIMITS = (15, 80, 100, 150, 200, 300, 350, 450, 500, 20_000)


"""Near these places, something may be cut off."""


def padded_around_key(wrap: Callable[[str], Any], cut: int) -> Callable[[], Any]:
    return lambda: wrap("x" * (cut - len(KEY) // 2) + KEY + "y" * 300)


FAILURES += [
    padded_around_key(wrap, cut)
    for cut in LIMITS
    for wrap in (
        lambda text: Answer([text.encode()]),
        lambda text: Answer([text.encode()], 502),
        lambda text: Answer([f"<p>{text}</p>".encode()], 502),
        lambda text: Answer([f"data: {text}\n\n".encode()]),
        lambda text: error(400, text),
        lambda text: error(400, "no", text),
        lambda text: json_of({"choices": text}),
        lambda text: json_of({text: "no"}),
        lambda text: stream_of(delta(refusal=text), delta("stop")),
        lambda text: httpx2.ConnectError(text),
    )
]


@pytest.mark.parametrize("stream", [True, False])
async def test_no_failure_shows_the_key(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for number, answer in enumerate(FAILURES):
        caplog.clear()
        failure = await failure_of(answer(), stream=stream, timeouts=Timeouts(idle=SHORT, total=SHORT))

        told = "".join(traceback.format_exception(failure))
        for each in (told, repr(failure), str(failure.args), caplog.text, pickle.dumps(failure.args).decode("latin-1")):
            assert KEY[:10] not in each, number
            assert KEY[-10:] not in each, number
            assert KEY.lower() not in each.lower(), number
        assert len(str(failure)) < 1000, number
        assert failure.__context__ is None, number


@pytest.mark.parametrize("answer", [error(401, code="sk-CANARY-0123"), httpx2.ReadError("via http://me:sk-canary@box")])
async def test_no_failure_shows_a_key_in_capitals_or_a_password(answer: Any) -> None:
    failure = await failure_of(answer, api_key="sk-CANARY-0123")

    assert "canary" not in "".join(traceback.format_exception(failure)).lower()


async def test_no_failure_shows_a_secret_header() -> None:
    failure = await failure_of(
        error(403, "another-canary-0123456789"), extra_headers={"x": "another-canary-0123456789"}
    )

    assert "another-canary" not in str(failure)


SPLIT = f"{KEY[:9]}<b class='x'>{KEY[9:14]}</b><br/>{KEY[14:]}"


@pytest.mark.parametrize(
    "body",
    [
        f"<html><body>no such key {SPLIT}</body></html>".encode(),
        f"<html><body>no such key <script>x</script>{KEY[:9]}<style>{KEY[9:]}</style>{KEY[9:]}</body></html>".encode(),
        json.dumps({"error": {"message": f"no such key {SPLIT}"}}).encode(),
    ],
)
@pytest.mark.parametrize("status", [401, 200])
async def test_a_key_that_is_split_by_tags_is_masked_whole(body: bytes, status: int) -> None:
    told = str(await failure_of(Answer([body], status)))

    assert "no such key ***" in told
    assert not [part for part in (KEY[:9], KEY[9:14], KEY[14:]) if part in told]


def test_a_secret_is_masked_however_a_page_spells_it() -> None:
    errors = ProviderErrors("m", URL, secrets=("pass<word>&more",))
    failure = errors.error_for_status(401, {}, "<html>not pass&lt;word&gt;&amp;more</html>")
    assert str(failure).startswith("model 'm' at test.invalid answered 401: not ***;")


@pytest.mark.parametrize(
    "spelt",
    [
        "&#115;k-canary-0123456789",
        "sk%2Dcanary%2D0123456789",
        r"\u0073k-canary-0123456789",
        "sk-canary-\n  0123456789",
        "sk-canary-\u200b0123456789",
        "sk-ca<b>nary</b>&#45;<wbr>0123456789",
    ],
)
def test_a_key_is_masked_in_every_spelling(spelt: str) -> None:
    errors = ProviderErrors("m", URL, secrets=("sk-canary-0123456789",))
    for body in (f"no key {spelt}", f"<p>no key {spelt}</p>", {"error": {"message": f"no key {spelt}"}}):
        told = str(errors.error_for_status(401, {}, body))
        assert "no key ***" in told
        assert "0123" not in told


@pytest.mark.time_limit(20)
def test_a_secret_is_sought_in_linear_time() -> None:
    errors = ProviderErrors("m", URL, secrets=("Bearer sk-canary-0123456789",))
    assert errors.redact("Bearer \n sk-canary-0123456789") == "***"
    errors.redact(f"Bearer{' ' * 100_000}" + "B e a r e r " * 10_000)


@pytest.mark.parametrize("page", ["<a" * 30_000, "<style>" * 9_000, "<a>" * 20_000, "<" * 60_000])
def test_a_page_is_stripped_in_linear_time_and_cut(page: str) -> None:
    searched = CountingPattern(_TAG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrt.model.remote.provider_errors._TAG", searched)
        failure = ProviderErrors("m", URL).error_for_status(502, {}, f"<p>Sorry.</p>{page}{'x' * 60_000}")
    assert "502: Sorry." in str(failure)
    assert len(str(failure)) < 600
    assert searched.looked_at <= 3 * len(page) + 200_000


class CountingPattern:
    """A pattern that counts the characters that it looks at."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern
        self.looked_at = 0

    def search(self, text: str, start: int) -> re.Match[str] | None:
        match = self.pattern.search(text, start)
        self.looked_at += (match.end() if match else len(text)) - start
        return match
