"""Text from models and tools, made safe for a terminal, and errors for a log."""

import inspect
import re
import reprlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any, AnyStr, TextIO, cast


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns, but compiled when it is first used, so that no import has to wait for it.

    It has the same attributes, but it is not an instance of `re.Pattern`.
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(text, flags))


class _LazyPattern:
    def __init__(self, text: Any, flags: int) -> None:
        self._made_of = text, flags

    def __getattr__(self, name: str) -> Any:
        # Asked for what is not there yet; from then on it is found at once, as in a pattern.
        value = getattr(re.compile(*self._made_of), name)
        setattr(self, name, value)
        return value


_HARMLESS = {ord("\n"), ord("\t")}
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - _HARMLESS
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # they can make text read as what it is not
_SURROGATE_CODES = range(0xD800, 0xE000)  # no encoding takes them
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS} | {
    code: f"\\u{code:04x}" for code in (*_DIRECTIONS, *_SURROGATE_CODES)
}


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python writes no number of more than some thousand digits.
        return super().repr_int(x, level) if abs(x) < 10**100 else "a number of more than 100 digits"


_repr = _Repr()
_repr.maxstring = _repr.maxother = 60
_repr.maxlevel = 2
short_repr = _repr.repr
"""Returns a short `repr`, for errors that a model reads: what it wrote may be a megabyte."""


def repr_of(value: object, longest: int = 200) -> str:
    """Return the beginning of a value's `repr`, without an address in memory, for errors that a programmer reads.

    Also of a value that has none, as a number of 5,000 digits. Of a coroutine it says that an `await` is missing.
    """
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))[:longest]
    except Exception:  # noqa: BLE001  # the value's own __repr__; the error that names the value matters more
        return f"<{type(value).__name__} that has no repr>"
    if inspect.iscoroutine(value):
        return f"{text} (is an `await` missing?)"
    return text


def repr_with_module(value: object) -> str:
    """Return `repr_of(value)` and the module of its class, since several modules may have a class of that name."""
    module = type(value).__module__
    return repr_of(value) if module == "builtins" else f"{repr_of(value)} of {module}"


def escape_controls(text: str) -> str:
    """Return the text with everything spelt out that a terminal would obey, except newlines and tabs."""
    return text.replace("\r\n", "\n").translate(_ESCAPES)


def encodable_text(text: str, stream: TextIO) -> str:
    """Return the text with escapes for the characters that the stream's encoding does not have."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def type_with_article(value: object) -> str:
    """Return the name of the value's type with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def whole_characters(text: str) -> str:
    """Return the text with half surrogate pairs replaced, since no file and no request can hold them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def one_line(text: str, longest: int = 500) -> str:
    """Return the text with all white space made single spaces, and cut to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[:longest] + "..."


_MAX_CHAIN = 10
_PLUMBING = {"agentrt", "anyio", "asyncio", "concurrent", "outcome", "threading", "trio"}


def first_error(error: BaseException) -> BaseException:
    """Return the error, or the first of a group: task groups raise the errors of their tasks as one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def user_frames_of(error: BaseException, message_of: Callable[[BaseException], str] | None = None) -> str:
    """Return an error's type and traceback, from the first frame that is not ours; `message_of` adds its message.

    The last few of the errors that led to it come before it: a chain may be of any length, or a circle.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < _MAX_CHAIN and all(cause is not known for known in chain):
        chain.append(cause)
        hidden = cause.__cause__ is not None or cause.__suppress_context__
        cause = cause.__cause__ if hidden else cause.__context__
    descriptions = []
    for link in reversed(chain):
        frames = link.__traceback__
        while frames is not None and frames.tb_next is not None:
            if str(frames.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _PLUMBING:
                break
            frames = frames.tb_next
        message = message_of(link) if message_of else ""
        lines = "".join(traceback.format_tb(frames))
        descriptions.append(f"{lines}{type(link).__name__}{': ' if message else ''}{message}")
    return "\n".join(descriptions)


_SHORTEST_SECRET = 8  # a shorter one is a word as well
_MASKED = "***"
_SECRETS = lazy_pattern(
    r"(?P<before>://)[^/\s@]{1,500}(?=@)"
    r"|(?P<query>[?&](?:token|key|secret|sig|signature|auth)=)[^\s\"'&#]{4,}"
    r"|(?P<scheme>\b(?:bearer|basic)\s)[\w.~+/=-]{8,}"
    r"|(?P<name>\b(?:\w{0,50}api[_-]?key|\w{0,50}access[_-]?key(?:[_-]id)?|[a-z]{1,50}[_-](?:token|secret)|secret[_-]key"
    r"|passw(?:or)?d|authorization)[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?:bearer\s|basic\s)?)[^\s\"',;&]{4,}"
    r"|\b(?:sk|pk|rk|gh[opsu]|github_pat|glpat|xox[abprs]|hf|npm|pypi)[-_][\w-]{16,}"
    r"|\b(?:AKIA|ASIA|AIza)[\w-]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*",
    re.IGNORECASE,
)


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with the given secrets masked, and with everything masked that looks like a key or a password."""
    known = {form for secret in secrets if len(secret) >= _SHORTEST_SECRET for form in (secret, repr(secret)[1:-1])}
    for form in sorted(known, key=len, reverse=True):  # one may begin with another
        text = text.replace(form, _MASKED)
    # The words that announce a secret stay: the scheme of a URL, the name of a header.
    return _SECRETS.sub(lambda match: f"{match[match.lastgroup] if match.lastgroup else ''}{_MASKED}", text)
