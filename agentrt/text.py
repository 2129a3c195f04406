"""Text from models and tools, made safe for a terminal, and errors for a log."""

import reprlib
import traceback

__all__ = ["escaped", "frames_of", "one_line", "shown"]

_KEPT = {ord("\n"), ord("\t")}
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - _KEPT
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # they can make a text read as what it is not
_SURROGATES = range(0xD800, 0xE000)  # no encoding takes them
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS} | {
    code: f"\\u{code:04x}" for code in (*_DIRECTIONS, *_SURROGATES)
}


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python writes no number of more than some thousand digits.
        return super().repr_int(x, level) if abs(x) < 10**100 else "a number of more than 100 digits"


_repr = _Repr()
_repr.maxstring = _repr.maxother = 60
_repr.maxlevel = 2
shown = _repr.repr  # a short `!r`: what the model wrote may be a megabyte


def escaped(text: str) -> str:
    """Return the text with everything spelt out that a terminal would obey, but for newlines and tabs."""
    return text.replace("\r\n", "\n").translate(_ESCAPES)


def one_line(text: str, longest: int = 500) -> str:
    """Return the text with all white space made single spaces, and cut to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[:longest] + "..."


def frames_of(error: BaseException) -> str:
    """Return an error's type and traceback without its words, which may quote what belongs in no log."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    own = f"{frames}{type(error).__name__}"
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return own if before is None else f"{frames_of(before)}\n{own}"
