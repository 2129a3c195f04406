"""Reading a function's docstring: what it does, and what its parameters mean.

It understands the styles of Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param name:`).
"""

import inspect
import re
from collections.abc import Iterator
from functools import lru_cache

from agentrt._runtime.text import lazy_pattern

_GOOGLE_PARAMETERS = ("args:", "arguments:", "parameters:", "params:", "keyword args:", "keyword arguments:")
_GOOGLE_SECTIONS = (
    *_GOOGLE_PARAMETERS,
    *("return:", "returns:", "yield:", "yields:", "raise:", "raises:", "except:", "exceptions:", "warns:"),
    *("attributes:", "example:", "examples:", "references:", "see also:", "todo:"),
)
_NUMPY_PARAMETERS = ("parameters", "other parameters")
_NUMPY_SECTIONS = (
    *_NUMPY_PARAMETERS,
    *("returns", "yields", "receives", "raises", "warns", "warnings", "attributes", "methods"),
    *("examples", "references", "see also", "notes"),
)
# These patterns may take long for some texts, which does no harm: docstrings are the programmer's, never the model's.
_GOOGLE_ENTRY = lazy_pattern(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = lazy_pattern(r"([\w*,\s]+?)\s*(?::.*)?")
_SPHINX_FIELD = lazy_pattern(
    r":(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|yields?|ytype|raises?|except|exception|var|ivar|cvar"
    r"|vartype|meta)(?:\s[^:]*)?:.*"
)
_SPHINX_ENTRY = lazy_pattern(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")


@lru_cache(maxsize=1024)  # name and parameters of a tool are asked for separately
def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Return what the text says before its first section, as written, and the meaning of each parameter it explains."""
    lines = inspect.cleandoc(text or "").splitlines()
    section_starts = (number for number in range(len(lines)) if _begins_section(lines[number:]))
    description = "\n".join(line.rstrip() for line in lines[: next(section_starts, None)]).strip()
    meanings = {name: " ".join(" ".join(meaning).split()) for name, meaning in _explained_parameters(lines)}
    return description, meanings


def _begins_section(lines: list[str]) -> bool:
    """Say whether a section, whatever it is about, begins with the first of these lines."""
    return (
        lines[0].rstrip().lower() in _GOOGLE_SECTIONS
        or bool(_SPHINX_FIELD.fullmatch(lines[0]))
        or (lines[0].strip().lower() in _NUMPY_SECTIONS and _is_underlined(lines))
    )


def _is_underlined(lines: list[str]) -> bool:
    return len(lines) > 1 and set(lines[1].strip()) == {"-"}


def _explained_parameters(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(lines):
        title = line.strip().lower()
        if title in _GOOGLE_PARAMETERS:
            body = _indented_lines(lines[number + 1 :], _indent_width(line))
            yield from _split_entries(body, _GOOGLE_ENTRY)
        elif title in _NUMPY_PARAMETERS and _is_underlined(lines[number:]):
            body = lines[number + 2 :]
            # The section ends where the title of the next one is underlined.
            ends = (place for place in range(len(body)) if body[place].strip() and _is_underlined(body[place:]))
            for names, meaning in _split_entries(body[: next(ends, None)], _NUMPY_ENTRY):
                for name in names.split(","):
                    yield name.strip(" *"), meaning
        elif match := _SPHINX_ENTRY.fullmatch(line.strip()):
            yield match[1], [match[2], *_indented_lines(lines[number + 1 :], _indent_width(line))]


def _split_entries(lines: list[str], pattern: re.Pattern[str]) -> Iterator[tuple[str, list[str]]]:
    """Split a section into entries: one begins at each line that is indented least."""
    # Blank lines are left out: the meaning of a parameter may have some.
    lines = [line for line in lines if line.strip()]
    least_indent = min(map(_indent_width, lines), default=0)
    starts = [number for number, line in enumerate(lines) if _indent_width(line) == least_indent]
    # What matches no entry is ignored: a broken docstring is no reason to refuse a tool.
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        match = pattern.fullmatch(lines[start].strip())
        if match:
            yield match[1], [*match.groups()[1:], *lines[start + 1 : end]]


def _indented_lines(lines: list[str], indent: int) -> list[str]:
    """Return the lines up to the first that is indented no further than `indent`."""
    for number, line in enumerate(lines):
        if line.strip() and _indent_width(line) <= indent:
            return lines[:number]
    return lines


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip())
