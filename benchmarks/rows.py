"""The lines of the table: numbers read out of rounds, and what they are compared with."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression, median

from benchmarks.clock import Sample

__all__ = [
    "Line",
    "Quantity",
    "Row",
    "added",
    "as_counts",
    "constant",
    "exit_code",
    "make_rows",
    "markdown",
    "per",
    "render",
    "slope",
    "total",
    "undivided",
    "verdict",
]

SLACK = 1.25  # a missed target is an error from here on: shared machines are not steadier than that


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that one round gives, and the series that it is made of."""

    keys: frozenset[str]
    read: Callable[[Sample], float]


def per(key: str, count: float = 1) -> Quantity:
    """Return what one of `count` equal parts of an iteration takes."""
    return Quantity(frozenset({key}), lambda sample: sample[key] / count)


def constant(number: float) -> Quantity:
    """Return a number to compare with that is not measured."""
    return Quantity(frozenset(), lambda sample: number)


def slope(keys: Mapping[int, str], count: float) -> Quantity:
    """Return what one more layer takes: the line through these depths."""

    def read(sample: Sample) -> float:
        times = [sample[key] for key in keys.values()]
        return float(linear_regression(list(keys), times).slope) / count

    return Quantity(frozenset(keys.values()), read)


def added(key: str, beyond: str, count: float = 1) -> Quantity:
    """Return what one workload takes beyond another one."""
    return Quantity(frozenset({key, beyond}), lambda sample: (sample[key] - sample[beyond]) / count)


def total(*parts: Quantity) -> Quantity:
    """Return what these take together."""
    keys: frozenset[str] = frozenset().union(*(part.keys for part in parts))
    return Quantity(keys, lambda sample: sum(part.read(sample) for part in parts))


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of the table compares. `target` is the most that the ratio may be; `to` says to what."""

    name: str
    unit: str
    agentrt: Quantity
    base: Quantity | None = None
    rich: Quantity | None = None
    target: float | None = None
    to: str = "F"
    per_unit: float = 1.0
    """What a number is divided by to get the unit; ratios do not depend on it."""

    @property
    def keys(self) -> frozenset[str]:
        """The series that it is made of."""
        return frozenset().union(*(one.keys for one in (self.agentrt, self.base, self.rich) if one is not None))


@dataclass(frozen=True, slots=True)
class Row:
    """A line with its numbers; a ratio is the median of each round's own ratio."""

    name: str
    unit: str
    to: str
    base: float | None
    agentrt: float
    ratio: float | None
    rich_ratio: float | None
    target: float | None = None


def make_rows(lines: Iterable[Line], samples: Sequence[Sample]) -> list[Row]:
    """Return the rows, each of the rounds that have all of its numbers; none where no round has."""
    rows = []
    for line in lines:
        whole = [sample for sample in samples if line.keys <= sample.keys()]
        if whole:
            rows.append(_make_row(line, whole))
    return rows


def undivided(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that are not made of differences, for what does not add up, such as peaks."""
    return [line for line in lines if len(line.agentrt.keys) == 1]


def as_counts(lines: Iterable[Line]) -> list[Line]:
    """Return the lines for counts in place of times: units and targets of time do not apply to them."""
    return [replace(line, unit=line.unit.partition("/")[2], per_unit=1.0, target=None) for line in lines]


def _make_row(line: Line, samples: Sequence[Sample]) -> Row:
    def number(quantity: Quantity) -> float:
        return median(quantity.read(sample) for sample in samples) / line.per_unit

    def ratio(base: Quantity) -> float:
        return median(line.agentrt.read(sample) / (base.read(sample) or float("nan")) for sample in samples)

    return Row(
        line.name,
        line.unit,
        line.to,
        None if line.base is None else number(line.base),
        number(line.agentrt),
        None if line.base is None else ratio(line.base),
        None if line.rich is None else ratio(line.rich),
        line.target,
    )


def verdict(row: Row) -> str:
    """Say in a word how the row stands to its target; "near" is worse than the target, but within the slack."""
    if row.target is None or row.ratio is None:
        return ""
    if row.ratio <= row.target:
        return "met"
    return "near" if row.ratio <= row.target * SLACK else "MISSED"


def exit_code(rows: Sequence[Row]) -> int:
    """Return 1 when a row misses its target by more than the slack."""
    return int(any(verdict(row) == "MISSED" for row in rows))


HEAD = ("workload", "unit", "to", "base", "agentrt", "ratio", "/R", "target", "")


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (_number(row.base), _number(row.agentrt), _number(row.ratio), _number(row.rich_ratio))
    return row.name, row.unit, row.to, *numbers, "" if row.target is None else f"{row.target:g}", verdict(row)


def _number(value: float | None) -> str:
    """Return three significant digits, and all digits of what is larger."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def render(rows: Sequence[Row]) -> str:
    """Return the table as text."""
    lines = [
        f"{name:<34}{unit:<10}{to:<9}" + "".join(f"{cell:>10}" for cell in rest)
        for name, unit, to, *rest in [HEAD, *map(_cells, rows)]
    ]
    head, *body = [line.rstrip() for line in lines]
    return "\n".join([head, "-" * max(map(len, lines)), *body])


def markdown(rows: Sequence[Row]) -> str:
    """Return the table as a page of the documentation has it; an indented line begins with the group of the one above.

    The group of a line is its first word, since spaces at the beginning of a cell are not shown.
    """
    names = ("", "unit", "compared with", "base", "agentrt", "ratio", "to R", "target")
    cells = [names, ("---", "---", "---", *["--:"] * 5)]
    group = ""
    for row in rows:
        name, *others = _cells(row)[:-1]
        if name.startswith(" "):
            name = f"{group} {name.strip()}"
        else:
            group = name.partition(" ")[0]
        cells.append((name, *others))
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
