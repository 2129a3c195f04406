"""Errors of a provider, by HTTP status and body."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from agentrt._runtime.text import lazy_pattern
from agentrt.errors import (
    ContextOverflow,
    Malformed,
    MalformedCall,
    ModelError,
    RateLimited,
    Refused,
    Rejected,
    Transient,
)

_Returned = TypeVar("_Returned")


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault, recognised by its status and a code or words; by its status alone if it has neither."""

    error: type[ModelError]
    statuses: frozenset[int] | None = None
    """`None` matches every status."""
    codes: frozenset[str] = frozenset()
    words: re.Pattern[str] | None = None

    def is_seen_in(self, status: int, codes: Iterable[str], text: str) -> bool:
        """Say whether an answer with this status, with these codes and this text, reports the fault."""
        if self.statuses is not None and status not in self.statuses:
            return False
        if not self.codes and self.words is None:
            return True
        return not self.codes.isdisjoint(codes) or (self.words is not None and self.words.search(text) is not None)


# Providers use one status for faults with different remedies: a request that is too long has to be compressed, a
# used-up quota does not come back by waiting, a filter refuses the next attempt too. Their codes distinguish the
# faults, and for a server without codes, the words of its message do. The first match counts; any other
# status from 500 on is `Transient`, and the rest is `Rejected`.
_FAULTS = (
    _Fault(
        Refused,
        codes=frozenset(
            {
                "1301",  # Z.ai's
                "bio_policy",
                "content_filter",
                "content_policy_violation",
                "data_inspection_failed",
                "datainspectionfailed",
                "image_content_policy_violation",
                "invalid_prompt",
                "misalignment_policy_violation",
                "responsibleaipolicyviolation",
            }
        ),
    ),
    # Anthropic's, DeepSeek's, and OpenRouter's.
    _Fault(
        Refused,
        frozenset({400, 403, 422, 500}),
        words=lazy_pattern(
            r"blocked by content filtering policy|content exists risk|requires moderation .{0,200}was flagged",
            re.IGNORECASE,
        ),
    ),
    # Groq's, about the model's output: a retry may succeed.
    _Fault(MalformedCall, codes=frozenset({"json_validate_failed", "tool_use_failed"})),
    _Fault(
        ContextOverflow,
        frozenset({400, 413, 422, 500}),
        frozenset(
            {
                "1261",  # Z.ai's
                "context_length_exceeded",
                "exceed_context_size_error",
                "request_too_large",
                "string_above_max_length",
                "too_many_prompt_tokens",
            }
        ),
        lazy_pattern(
            r"context[ _](?:length|window|size|limit)|maximum (?:prompt|input|sequence|model) length"
            r"|range of input length|prompt is too long|input is too long|input length exceeds"
            r"|longer than the maximum model length|reduce the length of (?:the|your) (?:messages|prompt|input)"
            r"|token count .{0,40}(?:exceeds the maximum|cannot exceed)|input tokens .{0,40}cannot exceed"
            r"|too many (?:input )?tokens|exceeds? (?:the )?(?:model's )?max(?:imum)? (?:input|context|prompt)"
            r"|exceeded (?:the )?model token limit|max tokens of \d+ exceeded"
            r"|inputs`? tokens \+|inputs`? must have less than \d+ tokens",
            re.IGNORECASE,
        ),
    ),
    _Fault(ContextOverflow, frozenset({413})),
    # A request with more tokens than the limit per minute is refused in every minute.
    _Fault(
        ContextOverflow, frozenset({429}), words=lazy_pattern(r"request too large.{0,200}tokens per min", re.IGNORECASE)
    ),
    _Fault(
        Rejected,
        frozenset({429}),
        frozenset(
            {
                "1113",  # Z.ai's
                "arrearage",
                "billing_error",
                "billing_hard_limit_reached",
                "billing_not_active",
                "insufficient_quota",
            }
        ),
        lazy_pattern(
            r"check your plan and billing|insufficient (?:quota|balance|credit)|credit balance is too low",
            re.IGNORECASE,
        ),
    ),
    _Fault(RateLimited, frozenset({429})),
    _Fault(Transient, frozenset({408, 409, 425, 498, 499})),  # 498: Groq has no room for requests of its flex tier
    _Fault(Transient, frozenset({424}), words=lazy_pattern("try your request again", re.IGNORECASE)),  # Bedrock's
)
# An error within a stream has a code but no status.
_STATUS_OF_CODE = {
    "accessdeniedexception": 403,
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "data_residency_mismatch": 400,
    "empty_image_file": 400,
    "failed_to_download_image": 400,
    "image_file_not_found": 400,
    "image_file_too_large": 400,
    "image_parse_error": 400,
    "image_too_large": 400,
    "image_too_small": 400,
    "insufficient_quota": 429,
    "internalserverexception": 500,
    "invalid_api_key": 401,
    "invalid_base64_image": 400,
    "invalid_image": 400,
    "invalid_image_format": 400,
    "invalid_image_mode": 400,
    "invalid_image_url": 400,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "json_validate_failed": 400,
    "model_not_found": 404,
    "modelstreamerrorexception": 500,  # a retry may help, as Bedrock says
    "modeltimeoutexception": 504,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "serviceunavailableexception": 503,
    "throttlingexception": 429,
    "timeout_error": 504,
    "tool_use_failed": 400,
    "unsupported_image_media_type": 400,
    "validationexception": 400,
    "vector_store_timeout": 504,
}
_BAD_KEY_TEXT = lazy_pattern(r"api key not valid|api key expired|(?:invalid|incorrect) api[ _]key", re.IGNORECASE)
# OpenAI's limits are reset after "6m0s", "1.5s" or "20ms", which its messages say too.
_DURATION = r"(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m(?!s))?(?:(?P<seconds>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+)ms)?"
_RESET_AFTER = lazy_pattern(_DURATION)
_TRY_AGAIN = lazy_pattern(rf"try again in {_DURATION}", re.IGNORECASE)
_RATE_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")
_USER_IN_URL = lazy_pattern(r"://[^/@\s'\"]+@")
_MAX_SECONDS_TO_WAIT = 86_400.0  # seconds; a longer wait means a day's quota, or a mistake
_MAX_TEXT = 500  # characters of a provider's text in a message
_MAX_GATEWAYS = 3  # nested
_MAX_PAGE = 2_000  # characters of a page that are searched for its text
_TAG = lazy_pattern(r"<(?:([a-zA-Z][a-zA-Z0-9]*)|/[a-zA-Z]|[!?])")
_ENDS = {name: lazy_pattern(f"</{name}", re.IGNORECASE) for name in ("head", "script", "style")}  # hidden elements
_ESCAPED = lazy_pattern(r"\\u(?![dD][89a-fA-F])([0-9a-fA-F]{4})")
_GAP = r"[\s\xad\u200b-\u200d\u2060\ufeff]*"  # invisible characters in a page
_MASK = "***"
_MIN_SECRET_LENGTH = 8  # "EMPTY", "none" and "ollama" are keys as well, and words


@dataclass(frozen=True, slots=True)
class ProviderErrors:
    """Makes the errors of one model's provider; no message holds one of the `secrets`."""

    model: str
    url: str
    key_variable: str | None = None
    secrets: Iterable[str] = ()

    def __repr__(self) -> str:
        return f"ProviderErrors({self.source})"  # the generated one would show the secrets

    @property
    def source(self) -> str:
        """The model and its host: every message begins with this."""
        return f"model {self.model!r} at {self.host}"

    @property
    def host(self) -> str:
        """Host and port, without user and password."""
        return urlsplit(self.url).netloc.rpartition("@")[2] or self.url

    @property
    def shown_url(self) -> str:
        """The base URL without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.host}{parts.path}"

    def redact(self, text: str) -> str:
        """Return the text with every secret masked; the text must be complete, since half a secret is not found.

        An encoded secret (as an entity, percent-encoded, with `\\u0041`), or one with tags or space
        inside, is found too, and the text is then returned in plain characters.
        """
        patterns = self._secret_patterns()
        text = _mask(text, patterns)
        # Encodings may be nested (an entity within percent signs), so each step decodes the result of the last one.
        decoded = text
        for mark, decode in _DECODERS.items():
            if mark in decoded:
                decoded = decode(decoded)
                masked = _mask(decoded, patterns)
                if masked != decoded:
                    text = decoded = masked
        return _USER_IN_URL.sub(f"://{_MASK}@", text)

    def excerpt(self, text: str) -> str:
        """Return the text without secrets, shortened for a message."""
        text = self.redact(text)
        # The end is kept too: the problem often comes there, after a long quotation.
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 150]} ... {text[-150:]}"

    def guard(self, read: Callable[[], _Returned]) -> _Returned:
        """Return the result of reading an answer.

        Any exception becomes an error of our tree that names the model, without its key.
        """
        try:
            return read()
        except ModelError as error:
            if str(error).startswith(self.source):  # one of ours, without secrets
                raise
            failure: ModelError = type(error)(f"{self.source}: {self.excerpt(str(error))}")
        except Exception as error:  # noqa: BLE001  # an answer of an unforeseen shape
            failure = Malformed(f"{self.source}: its answer cannot be read ({self.describe(error)})")
            failure.__cause__ = self.safe_cause(error)
        raise failure

    def describe(self, error: BaseException) -> str:
        """Return class and text of an error of another library, without secrets."""
        return self.redact(f"{type(error).__name__}: {error}")[:300]

    def safe_cause(self, error: BaseException) -> BaseException | None:
        """Return the error, or `None` when it or an error behind it holds a secret."""
        chain: list[BaseException] = []
        link: BaseException | None = error
        while link is not None and not any(link is earlier for earlier in chain):  # causes may form a circle
            chain.append(link)
            link = link.__cause__ or link.__context__
        text = " ".join(f"{link} {link!r}" for link in chain)
        return error if self.redact(text) == text else None

    def error_for_status(self, status: int, headers: Mapping[str, str], body: object) -> ModelError:
        """Return the error for an answer with this HTTP status; `body` is its JSON, or its text."""
        if isinstance(body, list) and len(body) == 1:  # the format of Google's servers for streams
            body = body[0]
        # A page is redacted before its tags are removed and it is cut; the text of JSON only afterwards.
        codes, text = _codes_and_text(self.redact(body) if isinstance(body, str) else body)
        text = self.redact(text)
        shown_codes = self.redact(", ".join(sorted(codes)))[:100]
        message = (
            f"{self.source} answered {status}"
            f"{f' ({shown_codes})' if shown_codes else ''}{f': {text[:_MAX_TEXT]}' if text else ''}"
            f"{self._remedy(401 if status == 400 and _BAD_KEY_TEXT.search(text) else status, headers)}"
        )
        delay = _retry_delay(body)
        usual = Transient if status >= 500 else Rejected
        fault = next((fault.error for fault in _FAULTS if fault.is_seen_in(status, codes, text)), usual)
        # Google calls each limit a quota, and names a delay if waiting helps.
        cls = RateLimited if status == 429 and delay is not None else fault
        error = cls(message)
        error.status_code = status
        error.retry_after = _retry_after(headers) if delay is None else delay
        if error.retry_after is None and cls is RateLimited:
            error.retry_after = _limits_reset_after(headers, text)
        return error

    def error_for_event(self, event: object) -> ModelError:
        """Return the error for an event that reports one within a stream."""
        codes, _ = _codes_and_text(event)
        numbers = [int(code) for code in codes if code.isdecimal() and len(code) == 3 and code >= "400"]
        known = [_STATUS_OF_CODE[code] for code in codes if code in _STATUS_OF_CODE]
        return self.error_for_status((numbers + known + [500])[0], {}, event)

    def how_to_give_a_key(self) -> str:
        return f"set {self.key_variable} or give api_key=..." if self.key_variable else "give api_key=..."

    def _secret_patterns(self) -> list[re.Pattern[str]]:
        from html import escape  # here, since it loads all of HTML's character names

        patterns = []
        for secret in self.secrets:
            spellings = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], escape(secret)}
            # The longest first, or the rest of a longer spelling would remain after the mask of a shorter one.
            longest_first = sorted(("".join(spelling.split()) for spelling in spellings), key=len, reverse=True)
            if len("".join(secret.split())) >= _MIN_SECRET_LENGTH:
                pattern = "|".join(_GAP.join(map(re.escape, spelling)) for spelling in longest_first)
                patterns.append(re.compile(pattern, re.IGNORECASE))
        return patterns

    def _remedy(self, status: int, headers: Mapping[str, str]) -> str:
        if status == 401:
            return f"; check the key: {self.how_to_give_a_key()}"
        if status == 402:
            return "; the account has to be topped up"
        if status == 403:
            return f"; the key may not do this: check its rights, and that the account may use {self.model!r}"
        if status == 404:
            return f"; check the model's name {self.model!r} and base_url={self.shown_url!r}"
        if 300 <= status < 400:
            target = self.redact(headers.get("location", "").partition("?")[0])[:200]
            leads = f"it leads to {target!r}, where the key is not sent" if target else "it leads elsewhere"
            return f"; {leads}: check base_url={self.shown_url!r}"
        return f"; check base_url={self.shown_url!r}" if status == 405 else ""


def json_or_text(text: str) -> object:
    """Return the parsed JSON, or else the text: the body of an error may be either."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _mask(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    for pattern in patterns:
        text = pattern.sub(_MASK, text)
    return text


def _unescape(text: str) -> str:
    from html import unescape

    return unescape(text)


def _codes_and_text(body: object) -> tuple[list[str], str]:
    """Return the codes of a body, in lower case, and its text.

    Bodies are `{"error": {"message", "type", "code"}}`, with or without a wrapper, `{"error": "..."}`, `{"errors":
    [...]}` and `{"detail": ...}`, or not JSON at all. The text of a gateway may contain that of the provider behind it.
    """
    if isinstance(body, str):
        is_page = "<" in body[:_MAX_TEXT]
        text = _unescape(_visible_text(body)) if is_page else body
        return [], " ".join(text[:_MAX_PAGE].split())
    if not isinstance(body, Mapping):
        return [], "" if body is None else str(body)
    codes, text = _own_codes_and_text(body)
    gateway_text = text
    for _ in range(_MAX_GATEWAYS):
        inner = _inner_body(body, text)
        if not isinstance(inner, Mapping):
            return codes, f"{gateway_text}: {inner}" if isinstance(inner, str) and inner else text
        body = inner
        inner_codes, text = _own_codes_and_text(body)
        codes += [code for code in inner_codes if code not in codes]
    return codes, text


def _own_codes_and_text(body: Mapping[str, object]) -> tuple[list[str], str]:
    fields = _fields_of(body)
    # Azure names the refusing filter in an inner error.
    inner = [fields.get(name) for name in ("innererror", "inner_error")]
    values = [value.get("code") for value in inner if isinstance(value, Mapping)]
    values += [fields.get(name) for name in ("code", "error_code", "type")]
    codes = dict.fromkeys(str(value).lower() for value in values if isinstance(value, (str, int)) and value != "")
    texts = (body.get("error"), *(fields.get(name) for name in ("message", "Message", "detail", "msg")))
    return [*codes], next((text for text in texts if isinstance(text, str) and text), "") or str(dict(body))


def _fields_of(body: Mapping[str, object]) -> Mapping[str, object]:
    errors = body.get("errors")
    for fields in (body.get("error"), *(errors[:1] if isinstance(errors, list) else ())):
        if isinstance(fields, Mapping):
            return fields
    return body


def _inner_body(body: Mapping[str, object], text: str) -> object:
    """Return the error of the provider behind a gateway or `None`; `text` is the gateway's."""
    metadata = _fields_of(body).get("metadata")  # OpenRouter's
    inner = metadata.get("raw") if isinstance(metadata, Mapping) else None
    if isinstance(inner, str):
        return json_or_text(inner)
    if inner is not None or not text.startswith("{"):
        return inner
    words = json_or_text(text)  # Databricks'
    return words if isinstance(words, Mapping) else None


def _visible_text(page: str) -> str:
    """Return the visible text of a page.

    It takes linear time, since any proxy may have written the page: each character is read a few times at most,
    and the end of an element that is never closed is searched for once.
    """
    texts: list[str] = []
    never_closed: set[str] = set()
    start = 0
    while (tag := _TAG.search(page, start)) is not None and (end := page.find(">", tag.end())) >= 0:
        texts.append(page[start : tag.start()])
        start = end + 1
        name = (tag[1] or "").lower()
        if name in _ENDS and name not in never_closed:
            closed = _ENDS[name].search(page, start)
            if closed is None:
                never_closed.add(name)
            else:
                start = closed.start()
    texts.append(page[start:])
    return " ".join(" ".join(texts).split())


_DECODERS: dict[str, Callable[[str], str]] = {
    "\\u": lambda text: _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text),
    "%": unquote,
    "<": _visible_text,
    "&": _unescape,
}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, by headers with milliseconds, seconds, or a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, _MAX_SECONDS_TO_WAIT)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None and text is not None:
        from email.utils import parsedate_to_datetime  # here, since few servers send a date, and it loads much

        try:
            seconds = max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
        except (ValueError, OverflowError, OSError):  # not a date, or of a year that the system cannot count from
            return None
    return None if seconds is None else min(seconds, _MAX_SECONDS_TO_WAIT)


def _limits_reset_after(headers: Mapping[str, str], text: str) -> float | None:
    """Return the seconds until the used-up limits are reset, by the headers or else by the message."""
    seconds: list[float] = []
    for limit in _RATE_LIMITS:
        if headers.get(f"x-ratelimit-remaining-{limit}") == "0":  # of OpenAI, and of servers with its API
            seconds += _seconds_of(_RESET_AFTER.fullmatch(headers.get(f"x-ratelimit-reset-{limit}", "")))
        if headers.get(f"anthropic-ratelimit-{limit}-remaining") == "0":
            with suppress(ValueError, OverflowError):
                time_of_reset = datetime.fromisoformat(headers.get(f"anthropic-ratelimit-{limit}-reset", ""))
                seconds.append(max(time_of_reset.timestamp() - time.time(), 0.0))
    seconds = seconds or _seconds_of(_TRY_AGAIN.search(text))
    return min(max(seconds), _MAX_SECONDS_TO_WAIT) if seconds else None


def _seconds_of(match: re.Match[str] | None) -> list[float]:
    """Return the seconds of a duration in a list, or an empty list."""
    parts = match.groupdict() if match else {}
    if not any(parts.values()):
        return []
    hours, minutes, seconds, milliseconds = (float(parts[name] or 0) for name in ("hours", "minutes", "seconds", "ms"))
    return [hours * 3600 + minutes * 60 + seconds + milliseconds / 1000]


def _retry_delay(body: object) -> float | None:
    """Return the seconds to wait that a body names: Google's `RetryInfo`, as in "34.07s", or Hugging Face's."""
    if not isinstance(body, Mapping):
        return None
    error = body.get("error")
    details = error.get("details") if isinstance(error, Mapping) else None
    parts = [part for part in details if isinstance(part, Mapping)] if isinstance(details, list) else []
    delays = [delay.removesuffix("s") for part in parts if isinstance(delay := part.get("retryDelay"), str)]
    loading_time = body.get("estimated_time")
    if isinstance(loading_time, (int, float)):
        delays.append(str(loading_time))
    known = [second for second in map(_number, delays) if second is not None]
    return min(max(known), _MAX_SECONDS_TO_WAIT) if known else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(number, 0.0) if math.isfinite(number) else None
