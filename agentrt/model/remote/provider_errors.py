"""What went wrong at a provider, as an error of the tree: told by HTTP status and body, not by an SDK's classes."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import escape, unescape
from typing import Any
from urllib.parse import unquote, urlsplit

from agentrt.errors import ContextOverflow, ModelError, RateLimited, Refused, Rejected, Transient

__all__ = ["Provider"]

_OVERFLOW_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "request_too_large",
    "string_above_max_length",
}
_OVERFLOW_TEXT = re.compile(
    r"context[ _](?:length|window|size|limit)|maximum (?:prompt|input|sequence|model) length|range of input length"
    r"|prompt is too long|input is too long|input length exceeds|longer than the maximum model length"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)|token count .{0,40}exceeds the maximum"
    r"|too many (?:input )?tokens|exceeds? (?:the )?(?:model's )?max(?:imum)? (?:input|context|prompt)",
    re.IGNORECASE,
)
_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error", "arrearage"}
_QUOTA_TEXT = re.compile(
    r"check your plan and billing|insufficient (?:quota|balance|credit)|credit balance is too low", re.IGNORECASE
)
_FILTER_CODES = {
    "content_filter",
    "content_policy_violation",
    "data_inspection_failed",
    "datainspectionfailed",
    "responsibleaipolicyviolation",
}
_STATUS_OF_CODE = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "timeout_error": 504,
}
_PASSING = {408, 409, 425, 499}
_USER_IN_URL = re.compile(r"://[^/@\s'\"]+@")
_LONGEST_PAUSE = 86_400.0  # seconds; a server that asks for more means a day's quota, or is mistaken
_MAX_TEXT = 500  # characters of a provider's own words that a message repeats
_MAX_PAGE = 2_000  # characters of a page that are looked through for what it says
_TAG = re.compile(r"<(?:([a-zA-Z][a-zA-Z0-9]*)|/[a-zA-Z]|[!?])")
_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("head", "script", "style")}  # of what is not shown
_ESCAPED = re.compile(r"\\u(?![dD][89a-fA-F])([0-9a-fA-F]{4})")
_GAP = r"[\s\xad\u200b-\u200d\u2060\ufeff]*"  # what a page may put between characters without being seen
_BLOT = "***"
_SHORTEST_SECRET = 8  # "EMPTY", "none" and "ollama" are keys as well, and words


@dataclass(frozen=True, slots=True)
class Provider:
    """Whom a model's requests go to, as messages name it, and the secrets that no message may hold."""

    model: str
    url: str
    key_variable: str | None = None
    secrets: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"model {self.model!r} at {self.host}"

    def __repr__(self) -> str:
        return f"Provider({self})"

    @property
    def host(self) -> str:
        """Host and port, without what a URL may hold besides."""
        return urlsplit(self.url).netloc.rpartition("@")[2] or self.url

    def clean(self, text: str) -> str:
        """Return the text with every secret blotted out; it must be whole, for half a secret is not found.

        A secret that is spelt in another way (as an entity, percent-encoded, with `\\u0041`), or has tags or space
        within it, is found too, and the text is then returned in plain characters.
        """
        patterns = [_pattern(secret) for secret in self.secrets if len("".join(secret.split())) >= _SHORTEST_SECRET]
        text = _mask(text, patterns)
        decoded = text
        for mark, decode in _DECODERS.items():
            if mark in decoded:
                decoded = decode(decoded)
                masked = _mask(decoded, patterns)
                if masked != decoded:
                    text = decoded = masked
        return _USER_IN_URL.sub(f"://{_BLOT}@", text)

    def told(self, text: str) -> str:
        """Return the text without secrets and not too long for a message."""
        text = self.clean(text)
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 150]} ... {text[-150:]}"

    def safe_cause(self, error: BaseException) -> BaseException | None:
        """Return the error, or `None` when it or an error behind it holds a secret."""
        told = " ".join(f"{each} {each!r}" for each in _behind(error))
        return error if self.clean(told) == told else None

    def failure(self, status: int, headers: Mapping[str, str], body: Any) -> ModelError:
        """Return the error for an answer with this HTTP status; `body` is its JSON, or its text."""
        code, text = _code_and_text(self.clean(body) if isinstance(body, str) else body)
        remedy = self._remedy(status, headers)
        text = self.clean(text)
        error = _error(status, code, text)(self._message(status, code, text, remedy))
        error.status_code = status
        error.retry_after = _retry_after(headers)
        return error

    def failure_in_stream(self, event: Mapping[str, Any]) -> ModelError:
        """Return the error for an event that reports one after the answer has begun."""
        code, _ = _code_and_text(event)
        known = [_STATUS_OF_CODE[word] for word in code if word in _STATUS_OF_CODE]
        numbers = [int(word) for word in code if word.isdecimal() and len(word) == 3 and word >= "400"]
        return self.failure((numbers + known + [500])[0], {}, event)

    def _message(self, status: int, code: Iterable[str], text: str, remedy: str) -> str:
        said = f": {text[:_MAX_TEXT]}" if text else ""
        codes = self.clean(", ".join(sorted(code)))[:100]
        return f"{self} answered {status}{f' ({codes})' if codes else ''}{said}{remedy}"

    def _remedy(self, status: int, headers: Mapping[str, str]) -> str:
        if status == 401:
            return f"; check the key: {self.how_to_give_a_key()}"
        if status == 402:
            return "; the account has to be topped up"
        if status == 403:
            return f"; the key may not do this: check its rights, and that the account may use {self.model!r}"
        if status == 404:
            return f"; check the model's name {self.model!r} and base_url={self.shown_url()!r}"
        if 300 <= status < 400:
            there = self.clean(headers.get("location", "").partition("?")[0])[:200]
            leads = f"it leads to {there!r}, where the key is not sent" if there else "it leads elsewhere"
            return f"; {leads}: check base_url={self.shown_url()!r}"
        return f"; check base_url={self.shown_url()!r}" if status == 405 else ""

    def how_to_give_a_key(self) -> str:
        """Return the words that tell how to give a key."""
        return f"set {self.key_variable} or give api_key=..." if self.key_variable else "give api_key=..."

    def shown_url(self) -> str:
        """The base URL without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.host}{parts.path}"


def _pattern(secret: str) -> re.Pattern[str]:
    spellings = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], escape(secret)}
    longest_first = sorted(("".join(spelling.split()) for spelling in spellings), key=len, reverse=True)
    return re.compile("|".join(_GAP.join(map(re.escape, spelling)) for spelling in longest_first), re.IGNORECASE)


def _mask(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    for pattern in patterns:
        text = pattern.sub(_BLOT, text)
    return text


def _error(status: int, code: set[str], text: str) -> type[ModelError]:
    if code & _FILTER_CODES:
        return Refused
    if status in (400, 413, 422, 500) and (code & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(text)):
        return ContextOverflow
    if status == 413:
        return ContextOverflow
    if status == 429:
        return Rejected if code & _QUOTA_CODES or _QUOTA_TEXT.search(text) else RateLimited
    return Transient if status >= 500 or status in _PASSING else Rejected


def _code_and_text(body: Any) -> tuple[set[str], str]:
    """Return what a body says for programs, in lower case, and for people.

    Bodies are `{"error": {"message", "type", "code"}}`, with or without a wrapper, `{"error": "..."}` and
    `{"detail": ...}`, or no JSON at all.
    """
    if isinstance(body, str):
        return set(), " ".join(_without_tags(body).split())
    if not isinstance(body, Mapping):
        return set(), "" if body is None else str(body)
    error = body.get("error")
    inner: Mapping[str, Any] = error if isinstance(error, Mapping) else body
    words = [inner.get("code"), inner.get("type"), *_inner_codes(inner)]
    code = {str(word).lower() for word in words if isinstance(word, (str, int)) and word != ""}
    texts = (error, inner.get("message"), inner.get("detail"), inner.get("msg"))
    text = next((each for each in texts if isinstance(each, str) and each), "")
    return code, text or str(dict(body))


def _inner_codes(error: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("innererror", "inner_error"):
        inner = error.get(name)
        if isinstance(inner, Mapping):
            yield inner.get("code")


def _without_tags(page: str) -> str:
    if "<" not in page[:_MAX_TEXT]:
        return page[:_MAX_PAGE]
    return unescape(_visible_text(page))[:_MAX_PAGE]


def _visible_text(page: str) -> str:
    return " ".join(" ".join(texts_between_tags(page)).split())


def texts_between_tags(page: str) -> list[str]:
    """Return what stands between the tags of a page and is shown; each character is looked at a few times at most."""
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
    return texts


_DECODERS: dict[str, Callable[[str], str]] = {
    "\\u": lambda text: _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text),
    "%": unquote,
    "<": _visible_text,
    "&": unescape,
}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, _LONGEST_PAUSE)
    said = headers.get("retry-after")
    seconds = _seconds(said)
    if seconds is None and said is not None:
        seconds = _seconds_until(said)
    return None if seconds is None else min(seconds, _LONGEST_PAUSE)


def _seconds(said: str | None) -> float | None:
    try:
        seconds = float(said or "")
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _seconds_until(said: str) -> float | None:
    try:
        return max(parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError, OSError):  # of a year that the system cannot count from
        return None


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
