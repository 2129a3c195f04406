"""Pairwise testing: a few rows of a large product of parameters, with each pair of values."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

__all__ = ["pairwise"]


def pairwise(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return a few rows of the product that have, together, each pair of values of any two parameters.

    Each row is the one with the most pairs that no earlier row has; the same parameters give the same rows.
    """
    values = [list(parameter) for parameter in parameters]
    rows = list(product(*(range(len(parameter)) for parameter in values)))
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen.append(tuple(parameter[index] for parameter, index in zip(values, best, strict=True)))
    return chosen


def _pairs(row: Sequence[int]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(row), 2))
