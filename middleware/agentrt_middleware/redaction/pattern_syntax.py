"""Patterns as Python's `re` reads them, written for RE2: the pattern itself, and one for what may grow into a match.

RE2 finds matches in linear time, but does not say whether text that ends early could still become one. So a second
pattern is derived from the first, which matches the beginnings of its matches. Both are written from one parse tree, so
that they cannot disagree. `\\d`, `\\w`, `\\s` and `\\b` mean ASCII, as in RE2.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

# Private, and the same from Python 3.11 to 3.14: Python has no public parser of patterns. A version without these
# cannot import RedactionMiddleware; of other nodes other patterns would be made, which `test_detectors.py` notices.
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from agentrt_middleware.redaction.re2_patterns import compile_for_re2

_Node = tuple[Any, Any]
_Nodes = Sequence[_Node]
_CharacterKind = str
_Boundary = tuple[_CharacterKind, _CharacterKind]  # the kinds of the characters before and after a place

_WORD, _NEWLINE, _OTHER, _EDGE = "word", "newline", "other", "edge"
_KINDS = (_WORD, _NEWLINE, _OTHER, _EDGE)
_ALL_BOUNDARIES: frozenset[_Boundary] = frozenset((before, after) for before in _KINDS for after in _KINDS)
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)  # the longest match is taken of either
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


class UnreadablePattern(ValueError):
    """The problem of a pattern."""


@dataclass(frozen=True, slots=True)
class ParsedPattern:
    """A pattern for RE2: `match` for its matches, `beginning` for all that a match may begin with, itself included."""

    match: str
    beginning: str
    min_width: int
    max_width: int  # in characters; `sys.maxsize` and the like for one without a limit
    can_match: bool


def parse_pattern(pattern: str) -> ParsedPattern:
    """Return the pattern as RE2 reads it; raises `UnreadablePattern` for syntax that the two engines do not share."""
    problem = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of what a later Python, and RE2 today, reads as something else
            tree = _parser.parse(pattern, re.ASCII)
        min_width, max_width = tree.getwidth()
        flags = tree.state.flags
        writer = _Writer()
        match = writer.write(tree, flags)
        beginning = writer.beginning(tree, flags) or "[^\\x00-\\x{10FFFF}]"
        can_match = bool(_Reachability().after(tree, flags, _ALL_BOUNDARIES))
    except (re.error, UnreadablePattern, FutureWarning, DeprecationWarning, OverflowError, RecursionError) as error:
        problem = str(error) or type(error).__name__
    if problem:
        raise UnreadablePattern(problem)
    return ParsedPattern(match, beginning, min_width, max_width, can_match)


class _Writer:
    """Writes a parse tree for RE2."""

    def write(self, nodes: _Nodes, flags: int) -> str:
        return "".join(self._node(node, flags) for node in nodes)

    def _node(self, node: _Node, flags: int) -> str:
        op, value = node
        if op in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY):
            return self._class(node, flags)
        if op is sre.AT:
            return self._assertion(value, flags)
        if op is sre.SUBPATTERN:
            _, added, removed, inner = value
            return f"(?:{self.write(inner, (flags | added) & ~removed)})"
        if op is sre.BRANCH:
            return f"(?:{'|'.join(self.write(branch, flags) for branch in value[1])})"
        if op in _REPEATS:
            at_least, at_most, inner = value
            return f"(?:{self.write(inner, flags)}){_repetition(at_least, at_most)}"
        raise UnreadablePattern(f"{str(op).lower().replace('_', ' ')} is not supported")

    def _class(self, node: _Node, flags: int) -> str:
        op, value = node
        if op is sre.ANY:
            return "(?s:.)" if flags & re.DOTALL else "(?-s:.)"
        if op is sre.LITERAL:
            text = _literal(value)
        elif op is sre.NOT_LITERAL:
            text = f"[^{_literal(value)}]"
        else:
            negation = "^" if value[0][0] is sre.NEGATE else ""
            text = f"[{negation}{''.join(self._member(member) for member in value)}]"
        return f"(?i:{text})" if flags & re.IGNORECASE else text

    def _assertion(self, where: Any, flags: int) -> str:
        if where is sre.AT_BOUNDARY:
            return r"\b"
        if where is sre.AT_NON_BOUNDARY:
            return r"\B"
        if where is sre.AT_BEGINNING and flags & re.MULTILINE:
            return "(?m:^)"
        if where is sre.AT_END and flags & re.MULTILINE:
            return "(?m:$)"
        return r"\A" if where in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING) else r"\z"

    def beginning(self, nodes: _Nodes, flags: int) -> str:
        """Return a pattern for what a match of the nodes may begin with; "" if that is nothing.

        An assertion is left out where the text may end, since what comes after that is not known yet.
        """
        beginning = ""
        for node in reversed(nodes):
            first, whole = self._node_beginning(node, flags), self._node(node, flags)
            if first == whole:  # a single character, as most are: written once
                beginning = f"{whole}(?:{beginning})?" if beginning else whole
            else:
                rest = f"{whole}(?:{beginning})" if beginning else ""
                beginning = "|".join(filter(None, (first, rest)))
        return beginning

    def _node_beginning(self, node: _Node, flags: int) -> str:
        op, value = node
        if op is sre.AT:  # it has no characters of its own
            return ""
        if op is sre.SUBPATTERN:
            _, added, removed, inner = value
            return _grouped(self.beginning(inner, (flags | added) & ~removed))
        if op is sre.BRANCH:
            beginnings = filter(None, (self.beginning(branch, flags) for branch in value[1]))
            # The end is in each of them, though it follows all of them as well: where thousands of places continue at
            # one, RE2 compiles in quadratic time.
            return _grouped("|".join(rf"(?:{beginning})\z" for beginning in beginnings))
        if op in _REPEATS:
            _, at_most, inner = value
            # Some whole rounds, and the beginning of one more.
            last = _grouped(self.beginning(inner, flags))
            if not at_most or not last:
                return ""
            most_before = at_most if at_most == sre.MAXREPEAT else at_most - 1
            return f"(?:{self.write(inner, flags)}){_repetition(0, most_before)}{last}"
        return self._class(node, flags)

    def _member(self, member: _Node) -> str:
        op, value = member
        if op is sre.NEGATE:
            return ""
        if op is sre.LITERAL:
            return _literal(value)
        if op is sre.RANGE:
            return f"{_literal(value[0])}-{_literal(value[1])}"
        return _CATEGORIES[value]


class _Reachability:
    """Finds out whether a pattern can match at all.

    The boundaries at which a match may end are followed from node to node. That takes in assertions, so that `a\\bb` is
    found to match nothing.
    """

    def after(self, nodes: _Nodes, flags: int, boundaries: frozenset[_Boundary]) -> frozenset[_Boundary]:
        """Return the boundaries after the nodes have matched at one of these."""
        for node in nodes:
            boundaries = self._after_node(node, flags, boundaries)
        return boundaries

    def _after_node(self, node: _Node, flags: int, boundaries: frozenset[_Boundary]) -> frozenset[_Boundary]:
        op, value = node
        if op is sre.AT:
            return frozenset(filter(partial(self._holds, value, flags), boundaries))
        if op is sre.SUBPATTERN:
            _, added, removed, inner = value
            return self.after(inner, (flags | added) & ~removed, boundaries)
        if op is sre.BRANCH:
            return frozenset().union(*(self.after(branch, flags, boundaries) for branch in value[1]))
        if op in _REPEATS:
            at_least, at_most, inner = value
            # Which boundaries can be reached changes in the first rounds alone, but a pattern of 512 rounds is rare.
            for _ in range(at_least):
                boundaries = self.after(inner, flags, boundaries)
            for _ in range(min(at_most - at_least, len(_ALL_BOUNDARIES))):  # no more of them can be added
                boundaries |= self.after(inner, flags, boundaries)
            return boundaries
        # The character that is consumed stands after the old boundary and before the new one.
        consumed = self._kinds(node, flags) & {after for _, after in boundaries}
        return frozenset((before, after) for before in consumed for after in _KINDS)

    def _holds(self, where: Any, flags: int, boundary: _Boundary) -> bool:
        before, after = boundary
        line_ends = (_EDGE, _NEWLINE) if flags & re.MULTILINE else (_EDGE,)
        if where is sre.AT_BEGINNING:
            return before in line_ends
        if where is sre.AT_END:
            return after in line_ends
        if where is sre.AT_BEGINNING_STRING:
            return before == _EDGE
        if where is sre.AT_END_STRING:
            return after == _EDGE
        return ((before == _WORD) != (after == _WORD)) == (where is sre.AT_BOUNDARY)

    def _kinds(self, node: _Node, flags: int) -> set[_CharacterKind]:
        op, value = node
        if op is sre.LITERAL:
            return {_kind_of_character(chr(value))}
        # Each stretch of characters that a class cuts out of all characters begins, or ends, at one of these.
        ends: list[int] = [value] if op is sre.NOT_LITERAL else []
        for member, end in value if op is sre.IN else []:
            ends += end if member is sre.RANGE else [end] if member is sre.LITERAL else []
        codes = {*range(129), 0x10FFFF, *(code + step for code in ends for step in (-1, 0, 1))}
        samples = [chr(code) for code in sorted(codes) if 0 <= code <= 0x10FFFF]
        pattern = compile_for_re2(_Writer().write([node], flags))
        return {
            _kind_of_character(sample) for sample in samples if pattern.search(sample.encode(errors="surrogatepass"))
        }


def _repetition(at_least: int, at_most: int) -> str:
    return f"{{{at_least},{'' if at_most == sre.MAXREPEAT else at_most}}}"


def _literal(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"


def _grouped(pattern: str) -> str:
    return f"(?:{pattern})" if pattern else ""


def _kind_of_character(character: str) -> _CharacterKind:
    if character == "\n":
        return _NEWLINE
    return _WORD if character.isascii() and (character.isalnum() or character == "_") else _OTHER
