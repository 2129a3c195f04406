"""The places that a search has found, as tools usually write them: a line "path:number:text" for each."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentrt.model.rules.words import stem

__all__ = ["SearchHit", "best_hits", "hits_in"]


class SearchHit(NamedTuple):
    """A place that a search has found."""

    path: str
    line: int
    text: str


def hits_in(result: str) -> list[SearchHit]:
    """Return the places in the result of a search."""
    matches = (re.match(r"([^:]{1,300}):(\d{1,9}):(.*)", line) for line in result.splitlines())
    return [SearchHit(match[1], int(match[2]), match[3].strip()) for match in matches if match]


def best_hits(hits: Iterable[SearchHit], words: Sequence[str]) -> tuple[list[SearchHit], int]:
    """Return the places that hold the most of the words, and how many of them they hold."""
    patterns = [re.compile(rf"(?<![^\W_]){re.escape(stem(word))}", re.IGNORECASE) for word in words]
    counts = {hit: sum(pattern.search(hit.text) is not None for pattern in patterns) for hit in hits}
    highest = max(counts.values(), default=0)
    return ([hit for hit, count in counts.items() if count == highest] if highest else []), highest
