"""Patterns and formats of text, each checked in time linear in the length of the text.

Patterns are those of JavaScript, as in JSON Schema. They run on the engine of pydantic-core, which never backtracks and
therefore has neither look-around nor back-references. Lookaheads at the very beginning are taken apart here, since
validation libraries write many of them: `^(?!a)b` fits what `^b` fits and `^a` does not.
"""

from collections.abc import Callable
from datetime import date, time
from ipaddress import IPv4Address, IPv6Address

from pydantic_core import SchemaError, SchemaValidator
from pydantic_core.core_schema import str_schema

from agentrt.text import lazy_pattern

__all__ = ["FORMATS", "PatternError", "compile_pattern"]

# In JavaScript these classes are ASCII, in Rust Unicode; Rust lets a class stand within a class.
_CLASSES = {"d": "[0-9]", "D": "[^0-9]", "w": "[A-Za-z0-9_]", "W": "[^A-Za-z0-9_]", "<": "<", ">": ">"}
_NO_RANGE = (r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "-")
_IN_CLASS = {"[": r"\[", "&": r"\&", "~": r"\~"}  # operators in Rust


class PatternError(ValueError):
    """A pattern that cannot be checked; the message says why."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether some part of a string matches the pattern; raises `PatternError`."""
    lookaheads, rest = _split_lookaheads(pattern)
    matches = _compile_regex(rest)
    if not lookaheads:
        return matches
    required = [_compile_regex(f"^(?:{inner})") for sign, inner in lookaheads if sign == "="]
    forbidden = [_compile_regex(f"^(?:{inner})") for sign, inner in lookaheads if sign == "!"]

    def check(text: str) -> bool:
        return (
            matches(text)
            and all(is_ahead(text) for is_ahead in required)
            and not any(is_ahead(text) for is_ahead in forbidden)
        )

    return check


def _compile_regex(pattern: str) -> Callable[[str], bool]:
    try:
        return SchemaValidator(str_schema(pattern=_translate(pattern), regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        # The last line says what is wrong, after a drawing of where.
        raise PatternError(str(error).strip().rpartition("\n")[2].strip().removeprefix("error: ")) from None


def _split_lookaheads(pattern: str) -> tuple[list[tuple[str, str]], str]:
    """Return the lookaheads that follow a `^` at the beginning, each with its sign, and the pattern without them."""
    lookaheads: list[tuple[str, str]] = []
    rest = pattern[1:] if pattern.startswith("^") else ""
    while rest.startswith(("(?=", "(?!")):
        end = _end_of_group(rest)
        lookaheads.append((rest[2], rest[3:end]))
        rest = rest[end + 1 :]
    if not lookaheads:
        return [], pattern
    if rest[:1] in ("*", "+", "?", "{") or _has_alternatives(rest):
        raise PatternError("a lookahead is only supported at the beginning of a pattern without `|` around it")
    return lookaheads, f"^{rest}"


def _split_tokens(pattern: str) -> list[tuple[int, str, bool]]:
    """Return each character or escape with its place, and whether it is inside a class."""
    tokens: list[tuple[int, str, bool]] = []
    place, in_class = 0, False
    while place < len(pattern):
        token = pattern[place : place + 2] if pattern[place] == "\\" else pattern[place]
        was_in_class = in_class
        if not in_class and token == "[":
            in_class = True
        elif in_class and token == "]":
            in_class = was_in_class = False
        tokens.append((place, token, was_in_class))
        place += len(token)
    return tokens


# Classes are left out below: in `[()|]` the signs stand for themselves.
def _end_of_group(group: str) -> int:
    """Return where the group ends that opens with the first character."""
    depth = 0
    for place, token, in_class in _split_tokens(group):
        if not in_class and token in ("(", ")"):
            depth += 1 if token == "(" else -1
            if depth == 0:
                return place
    raise PatternError("a group is not closed")


def _has_alternatives(pattern: str) -> bool:
    depth = 0
    for _, token, in_class in _split_tokens(pattern):
        if not in_class and token in ("(", ")"):
            depth += 1 if token == "(" else -1
        elif not in_class and token == "|" and depth == 0:
            return True
    return False


def _translate(pattern: str) -> str:
    """Return a JavaScript pattern in the syntax of Rust."""
    tokens = _split_tokens(pattern)
    translated: list[str] = []
    for number, (_, token, in_class) in enumerate(tokens):
        if token[0] == "\\" and token[1:] in _CLASSES:
            translated.append(_CLASSES[token[1:]])
        elif in_class and token == "-":
            # Beside a class it cannot be a range: there JavaScript takes it for itself, and Rust refuses it.
            neighbours = (tokens[number - 1], tokens[min(number + 1, len(tokens) - 1)])
            translated.append(r"\-" if any(neighbour in _NO_RANGE for _, neighbour, _ in neighbours) else token)
        else:
            translated.append(_IN_CLASS.get(token, token) if in_class else token)
    return "".join(translated)


_DATE = lazy_pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = lazy_pattern(r"([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?")
_UUID = lazy_pattern(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EMAIL = lazy_pattern(r"[^\s@]+@[^\s@]+")
_URI = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]*")


def _is_date(text: str) -> bool:
    # The pattern first: Python's parser also takes "20240229" and "2024-W09-4".
    return bool(_DATE.fullmatch(text)) and _reads(date.fromisoformat, text)


def _is_time(text: str) -> bool:
    # Python's parser takes neither leap seconds nor a lower-case `z`.
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
    # Python also takes an address with a zone, such as fe80::1%eth0.
    "ipv6": lambda text: "%" not in text and _reads(IPv6Address, text),
}
"""The formats that are checked, as leniently as pydantic does: a time may lack its zone. Others are ignored."""
