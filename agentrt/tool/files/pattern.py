"""Patterns for paths and for lines, whose time has a bound whatever a model writes."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from agentrt._runtime.schema.engine import SchemaEngine
from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.patterns import PatternError, translate
from agentrt.errors import ToolError

_MAX_PATTERN = 1_000


class PathPattern:
    """A pattern for paths, one name after the other, so that its time is bounded by their product."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > _MAX_PATTERN:
            raise ToolError(f"a pattern for paths has 1 to {_MAX_PATTERN:,} characters, such as '**/*.py'")
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        # Two "**" in a row mean what one does, and a hundred would be tried with each other for every name.
        self._parts = [
            part for part, before in zip(parts, ["", *parts], strict=False) if part != "**" or before != "**"
        ]

    def matches(self, path: str) -> bool:
        ends = {0}  # how many parts of the pattern fit the names so far
        names = path.split("/")
        for name in names:
            ends = self._pass_folders(ends)
            # A "**" may stand for this folder and for more, so it is not used up.
            ends = {
                end if self._parts[end] == "**" else end + 1
                for end in ends
                if end < len(self._parts) and (self._parts[end] == "**" or fnmatchcase(name, self._parts[end]))
            }
        return len(self._parts) in self._pass_folders(ends)

    def _pass_folders(self, ends: set[int]) -> set[int]:
        # "**" also stands for no folder at all.
        passed = set(ends)
        for end in ends:
            while end < len(self._parts) and self._parts[end] == "**":
                end += 1
                passed.add(end)
        return passed


def compile_expression(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a line has a match."""
    if not pattern or len(pattern) > _MAX_PATTERN:
        raise ToolError(f"a regular expression has 1 to {_MAX_PATTERN:,} characters")
    # The engine that checks arguments, whose time is linear in the text: that of Python may take for ever.
    try:
        schema = {"pattern": translate(pattern)}
        return SchemaEngine(schema, formats=False).compile(schema).is_valid
    except (SchemaError, PatternError) as error:
        raise ToolError(f"the regular expression cannot be used: {error}") from None
