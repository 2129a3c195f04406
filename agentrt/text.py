"""Text from models and tools, made safe for a terminal."""

__all__ = ["escaped", "one_line"]

_KEPT = {ord("\n"), ord("\t")}
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - _KEPT
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # they can make a text read as what it is not
_SURROGATES = range(0xD800, 0xE000)  # no encoding takes them
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS} | {
    code: f"\\u{code:04x}" for code in (*_DIRECTIONS, *_SURROGATES)
}


def escaped(text: str) -> str:
    """Return the text with everything spelt out that a terminal would obey, but for newlines and tabs."""
    return text.replace("\r\n", "\n").translate(_ESCAPES)


def one_line(text: str, longest: int = 500) -> str:
    """Return the text with all white space made single spaces, and cut to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[:longest] + "..."
