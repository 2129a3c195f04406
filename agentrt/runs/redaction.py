"""Redaction of records and cassettes, by strings, patterns, functions and detectors."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pydantic_core import from_json

from agentrt.errors import ConfigError

REDACTED = "[REDACTED]"


class DetectorLike(Protocol):
    """The part of a redaction `Detector` that is used here; its module is loaded only if one is given."""

    name: str

    @property
    def parts(self) -> Sequence[object]:
        """The patterns of its matches."""


Redactor = str | re.Pattern[str] | Callable[[str], str] | DetectorLike


def redactors_of(option: str, redact: object) -> list[Callable[[str], str]]:
    """Return a function for each redactor that replaces what it finds, also in JSON text; raises `ConfigError`."""
    values = redact if isinstance(redact, (list, tuple, set, frozenset)) else [redact]
    return [_reach_escaped(_redactor_of(option, value)) for value in values]


def _reach_escaped(redact: Callable[[str], str]) -> Callable[[str], str]:
    """Return the function so that it also finds what JSON text, such as arguments of a call, writes with escapes."""

    def redact_value(value: Any) -> Any:
        if isinstance(value, str):
            return redact_text(value)
        if isinstance(value, list):
            return [redact_value(part) for part in value]
        return {key: redact_value(part) for key, part in value.items()} if isinstance(value, dict) else value

    def redact_text(text: str) -> str:
        text = redact(text)
        if "\\" not in text or not text.lstrip().startswith(("{", "[", '"')):
            return text
        try:
            # Arguments may be cut off.
            value = from_json(text, allow_partial="trailing-strings")
        except ValueError:
            return text
        redacted = redact_value(value)
        return text if redacted == value else json.dumps(redacted, ensure_ascii=False)

    return redact_text


def _redactor_of(option: str, value: object) -> Callable[[str], str]:
    if isinstance(value, str) and value:
        return lambda text: text.replace(value, REDACTED)
    if isinstance(value, re.Pattern):
        return lambda text: value.sub(REDACTED, text)
    if callable(value) and not isinstance(value, type):
        return value
    # Imported here, since few programs use a detector.
    from agentrt.middleware import Detector, RedactionMiddleware

    if isinstance(value, Detector):
        return RedactionMiddleware([value], action="redact").text
    # The value is not shown: it may be the secret itself.
    raise ConfigError(
        f"{option} takes texts, patterns, detectors and functions of text, not a {type(value).__name__}: "
        f"write redact=[api_key], redact=[re.compile('sk-.*')], redact=[API_KEY] or redact=[function]"
    )
