"""JavaScript patterns, as in JSON Schema, for an engine with linear time.

It never backtracks, and has neither look-around nor back-references. Leading lookaheads are split off
here, since validation libraries write many of them: `^(?!a)b` matches what `^b` matches and `^a` does not.
"""

from collections.abc import Iterator

from agentrt.types import JSONSchema

_NO_RANGE = (r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "-")
_IN_CLASS = {"[": r"\[", "&": r"\&", "~": r"\~"}  # operators in Rust


class PatternError(ValueError):
    """An unsupported pattern; the message says why."""


def split_pattern(pattern: str) -> list[JSONSchema]:
    """Return schemas that a string must fit to match the pattern: one, or one more for each leading lookahead."""
    rest = pattern[1:] if pattern.startswith("^") else ""
    schemas: list[JSONSchema] = []
    while rest.startswith(("(?=", "(?!")):
        end = next((place for place, token, depth in _split_groups(rest) if token == ")" and depth == 0), None)
        if end is None:
            raise PatternError("a group is not closed")
        ahead: JSONSchema = {"pattern": translate(f"^(?:{rest[3:end]})")}
        schemas.append(ahead if rest[2] == "=" else {"not": ahead})
        rest = rest[end + 1 :]
    if not schemas:
        return [{"pattern": translate(pattern)}]
    if rest[:1] in ("*", "+", "?", "{") or any(token == "|" and depth == 0 for _, token, depth in _split_groups(rest)):
        raise PatternError("a lookahead is only supported at the beginning of a pattern without `|` around it")
    return [{"pattern": translate(f"^{rest}")}, *schemas]


def translate(pattern: str) -> str:
    """Return a pattern without the differences between JavaScript and Rust in a class."""
    tokens = _split_tokens(pattern)
    translated: list[str] = []
    for number, (_, token, in_class) in enumerate(tokens):
        if in_class and token == "-":
            # Beside a class it cannot be a range: there JavaScript takes it for itself, and Rust refuses it.
            neighbours = (tokens[number - 1], tokens[min(number + 1, len(tokens) - 1)])
            translated.append(r"\-" if any(neighbour in _NO_RANGE for _, neighbour, _ in neighbours) else token)
        else:
            translated.append(_IN_CLASS.get(token, token) if in_class else token)
    return "".join(translated)


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


def _split_groups(pattern: str) -> Iterator[tuple[int, str, int]]:
    """Yield each sign of a group with its place, and how many groups are open after it."""
    depth = 0
    for place, token, in_class in _split_tokens(pattern):
        if not in_class and token in ("(", ")", "|"):  # in `[()|]` they stand for themselves
            depth += {"(": 1, ")": -1}.get(token, 0)
            yield place, token, depth
