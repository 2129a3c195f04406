"""Formats of text, each checked in linear time."""

from collections.abc import Callable
from datetime import date, time
from ipaddress import IPv4Address, IPv6Address

from agentrt._runtime.text import lazy_pattern

_DATE = lazy_pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = lazy_pattern(r"([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?")
_UUID = lazy_pattern(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EMAIL = lazy_pattern(r"[^\s@]+@[^\s@]+")
_URI = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]*")


def _is_date(text: str) -> bool:
    # The pattern first: Python's parser also accepts "20240229" and "2024-W09-4".
    return bool(_DATE.fullmatch(text)) and _reads(date.fromisoformat, text)


def _is_time(text: str) -> bool:
    # Python's parser accepts neither leap seconds nor a lower-case `z`.
    return bool(_TIME.fullmatch(text)) and _reads(time.fromisoformat, text.upper().replace(":60", ":59", 1))


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": lambda text: text[10:11] in ("T", "t", " ") and _is_date(text[:10]) and _is_time(text[11:]),
    "uuid": lambda text: bool(_UUID.fullmatch(text)),
    "email": lambda text: bool(_EMAIL.fullmatch(text)),
    "uri": lambda text: bool(_URI.fullmatch(text)),
    "ipv4": lambda text: _reads(IPv4Address, text),
    # Python also accepts an address with a zone, such as fe80::1%eth0.
    "ipv6": lambda text: "%" not in text and _reads(IPv6Address, text),
}
"""The checked formats, as lenient as pydantic's: a time may lack its zone. Others are ignored."""
