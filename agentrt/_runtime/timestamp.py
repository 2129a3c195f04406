"""Times: nanoseconds in the program, and ISO 8601 text in JSON, since JavaScript rounds such large integers."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

import pydantic
from pydantic_core import CoreSchema, core_schema

from agentrt._runtime.text import lazy_pattern
from agentrt.errors import InvalidInputError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_NANOSECONDS = 1_000_000_000
_ISO_8601 = lazy_pattern(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)


def timestamp_text(nanoseconds: int) -> str | int:
    """Return the time in UTC, to the nanosecond; one outside of the years 1 to 9999 stays as it is.

    Raises `InvalidInputError` for what is not nanoseconds, such as `time.time()`.
    """
    if not isinstance(nanoseconds, int):
        raise InvalidInputError(
            f"the time {nanoseconds!r:.100} cannot be written as JSON: times are an int of nanoseconds, such as "
            f"time.time_ns(), so write created_at=..., or leave it out"
        )
    seconds, rest = divmod(nanoseconds, _NANOSECONDS)
    try:
        return f"{_text_of_second(seconds)}.{rest:09}Z"
    except OverflowError:
        return nanoseconds


@lru_cache(maxsize=16)  # the events of a reply come thousands a second
def _text_of_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def parse_timestamp(text: str) -> int:
    """Return the nanoseconds of a time in ISO 8601, with its zone; raises `ValueError` for other text."""
    match = _ISO_8601.fullmatch(text)
    if match is None:
        raise ValueError
    # The fraction by itself, since a `datetime` has no nanoseconds.
    moment = datetime.fromisoformat(match[1] + match[3])
    return (moment - _EPOCH) // _SECOND * _NANOSECONDS + int((match[2] or "").ljust(9, "0"))


class _ReadsText:
    """Has pydantic read a time from an integer, without a call into Python, or from text."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "pydantic.GetCoreSchemaHandler") -> CoreSchema:
        integer = handler(source)
        text = core_schema.no_info_after_validator_function(parse_timestamp, core_schema.str_schema())
        return core_schema.union_schema(
            [integer, text],
            mode="left_to_right",
            custom_error_type="time",
            custom_error_message="should be a time in ISO 8601, such as '2026-01-31T12:00:00Z', or nanoseconds",
            serialization=core_schema.simple_ser_schema("int"),
        )


class _WritesText:
    def __get_pydantic_core_schema__(self, source: Any, handler: "pydantic.GetCoreSchemaHandler") -> CoreSchema:
        serializer = pydantic.PlainSerializer(timestamp_text, when_used="json")
        return serializer.__get_pydantic_core_schema__(source, handler)


Timestamp = Annotated[int, _ReadsText()]
"""Nanoseconds since the epoch; read from text as well."""

WireTimestamp = Annotated[Timestamp, _WritesText()]
"""The same, as ISO 8601 text in JSON."""
