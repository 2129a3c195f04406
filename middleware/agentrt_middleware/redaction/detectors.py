"""Detectors: patterns, literal texts, and everything between two marks."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentrt.errors import MiddlewareConfigError
from agentrt_middleware.redaction.pattern_syntax import ParsedPattern, UnreadablePattern, parse_pattern
from agentrt_middleware.redaction.re2_patterns import re2_problem
from agentrt_middleware.validation import check_function

MAX_WIDTH = 512
"""The most characters that a match may have: as many may have to be held back of what is streamed."""

_DETECTOR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_VALIDATOR_SECONDS = 1.0

_DetectorType = TypeVar("_DetectorType", bound="Detector")

MatchValidator = Callable[[str], int | None]
"""Returns how many characters of a match count, from its beginning; `None` for none of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """How one form of what a detector finds begins, and where that ends.

    It ends with the match of `head`, or continues up to the first match of `stop`. `has_tail` says that this
    match is not part of it. `timeout` is what the validator may take, `None` for one that is known to be quick.
    """

    head: ParsedPattern
    stop: ParsedPattern | None = None
    has_tail: bool = False
    validate: MatchValidator | None = None
    timeout: float | None = None


class Detector:
    """Finds what is to be redacted; `name` stands in its place. `action` overrides the one of the middleware."""

    def __init__(self, name: str, action: str | None) -> None:
        as_given: object = name
        if not isinstance(as_given, str) or not _DETECTOR_NAME.fullmatch(name):
            raise MiddlewareConfigError(
                f"a detector's name must be a letter and up to 63 more letters, digits and underscores, "
                f"not {name!r:.200}"
            )
        self.name = name.upper()
        self.action = action
        self._parts: Sequence[Part] = ()

    def __repr__(self) -> str:
        # Without the patterns: those of literals are the secrets themselves.
        return f"{type(self).__name__}({self.name!r})"

    @property
    def parts(self) -> Sequence[Part]:
        """The forms of what it finds."""
        return self._parts

    def with_action(self: _DetectorType, action: str) -> _DetectorType:
        """Return the same detector with an action of its own: `EMAIL.with_action("token")`."""
        new = self.__class__.__new__(self.__class__)
        new.__dict__.update(self.__dict__)
        new.action = action
        return new


class Pattern(Detector):
    """Finds the matches of a pattern, in the syntax that RE2 and Python's `re` share; the longest at each place.

    A match may have up to 512 characters. `tail` is for longer ones: characters, as between the brackets of a pattern
    (`"A-Za-z0-9_-"`), and all that follow a match belong to it. `validate` gets a match, and returns how many of its
    characters count, or `None`: the search then continues one character later. With a `tail` it sees the match without
    that, and the tail belongs to it if all of the match counts. If it raises, takes longer than a second or returns
    anything else, the text is blocked.

    `\\d`, `\\w`, `\\s` and `\\b` mean ASCII. `^` and `$` mean the beginning and the end of the text.
    """

    def __init__(
        self,
        name: str,
        pattern: str,
        *,
        tail: str | None = None,
        validate: MatchValidator | None = None,
        action: str | None = None,
    ) -> None:
        super().__init__(name, action)
        title = f"Pattern({self.name!r})"
        if validate is not None:
            check_function(f"{title}: validate", validate, "match", plain=True)
        head = _parse_checked(f"{title}: the pattern", pattern)
        stop = None
        if tail is not None:
            given_tail: object = tail
            if not isinstance(given_tail, str) or not re.fullmatch(r"(?!\^)(?:[^\\\]]|\\.)+", given_tail):
                raise MiddlewareConfigError(
                    f'{title}: tail must be characters as between the brackets of a pattern, such as "A-Za-z0-9_-", '
                    f"not {tail!r:.200}"
                )
            _parse_checked(f"{title}: tail", f"[{tail}]")
            stop = _parse_checked(f"{title}: what ends the tail", f"[^{tail}]")
        self._parts = [Part(head, stop, stop is not None, validate, _VALIDATOR_SECONDS)]


class Literals(Detector):
    """Finds each of some texts, such as a password that is known; `ignore_case` finds them in any case."""

    def __init__(
        self, name: str, texts: Iterable[str], *, ignore_case: bool = False, action: str | None = None
    ) -> None:
        super().__init__(name, action)
        title = f"Literals({self.name!r})"
        if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
            raise MiddlewareConfigError(f"{title} takes a list of texts: write Literals(name, [text])")
        known: list[object] = list(texts)
        if not known:
            raise MiddlewareConfigError(f"{title} matches nothing at all: give at least one text")
        for number, text in enumerate(known):  # never shown: these are the secrets
            if not isinstance(text, str) or not text:
                what = "is empty" if text == "" else f"is of the type {type(text).__name__}"
                raise MiddlewareConfigError(f"{title}: text {number} {what}: give texts that are not empty")
            if len(text) > MAX_WIDTH:
                raise MiddlewareConfigError(
                    f"{title}: text {number} has {len(text):,} characters, more than {MAX_WIDTH}: write Between(name, "
                    f"begin, end), with how it begins and ends"
                )
        pattern = "|".join(re.escape(str(text)) for text in dict.fromkeys(known))
        self._parts = [
            Part(_parse_checked(f"{title}: what the texts make", f"(?i:{pattern})" if ignore_case else pattern))
        ]


class Between(Detector):
    """Finds all that stands between two marks, with the marks, however long it is.

    `begin` and `end` are patterns, as in `Pattern`. Without an end mark that is all up to the end of the text.
    """

    def __init__(self, name: str, begin: str, end: str, *, action: str | None = None) -> None:
        super().__init__(name, action)
        title = f"Between({self.name!r})"
        self._parts = [Part(_parse_checked(f"{title}: begin", begin), _parse_checked(f"{title}: end", end))]


def _parse_checked(what: str, pattern: object) -> ParsedPattern:
    """Return the pattern, parsed; raises `MiddlewareConfigError` for one that cannot be used."""
    if not isinstance(pattern, str):
        kind = "re.compile(...): give its text" if isinstance(pattern, re.Pattern) else f"a {type(pattern).__name__}"
        raise MiddlewareConfigError(f"{what} must be a str, not {kind}")
    problem = re2_problem(pattern)
    parsed: ParsedPattern | None = None
    if problem is None:
        try:
            parsed = parse_pattern(pattern)
        except UnreadablePattern as error:
            problem = str(error)
    if problem is None and parsed is not None:
        problem = re2_problem(parsed.match) or re2_problem(parsed.beginning)
    if parsed is None or problem is not None:
        raise MiddlewareConfigError(
            f"{what} is not taken by RE2, or reads otherwise there: {problem:.200}; lookarounds, backreferences and "
            f"\\p{{...}} are not available: say the same with groups, classes and validate="
        )
    if not parsed.can_match:
        raise MiddlewareConfigError(f"{what} matches nothing at all: correct it, or leave the detector out")
    if parsed.min_width == 0:
        raise MiddlewareConfigError(
            f"{what} may match an empty text, so there is nothing to redact: write + or {{1,20}} in place of * or ?"
        )
    if parsed.max_width > MAX_WIDTH:
        raise MiddlewareConfigError(
            f"{what} may match more than {MAX_WIDTH} characters: write {{1,64}} in place of + and *, or "
            f'Pattern(..., tail="A-Za-z0-9") for a match that continues, or Between(name, begin, end)'
        )
    return parsed
