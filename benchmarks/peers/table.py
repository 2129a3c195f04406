"""The figures of all rounds as a table of ratios to the floor, with a note on each figure that there is not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

from benchmarks.peers import script
from benchmarks.peers.measure import INTERCEPTED, Cell

__all__ = ["BLOCKS", "COLUMNS", "PROCESS", "Column", "Figure", "Round", "format_table", "make_figures"]

FLOOR = "floor"

PROCESS = "process"  # the cell of a process that measured nothing

Cells = Mapping[str, Cell]
Round = Mapping[str, Cells]
"""What each peer measured in one round."""


class MissingError(Exception):
    """A figure cannot be had; its word stands in the table, its reason below."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(reason)
        self.word = word


@dataclass(frozen=True, slots=True)
class Column:
    """One figure, read from the cells of one peer in one round; `is_ratio` if it is compared with the floor."""

    name: str
    unit: str
    read: Callable[[Cells], float]
    is_ratio: bool = True


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians over the rounds, or the word that stands in their place, and why."""

    value: float | None
    ratio: float | None = None
    word: str = ""
    reason: str = ""


def read_cell(key: str, divisor: float = 1) -> Callable[[Cells], float]:
    def read(cells: Cells) -> float:
        cell = cells[PROCESS] if PROCESS in cells else cells[key]
        if "error" in cell:
            raise MissingError("ERROR", str(cell["error"]))
        if "absent" in cell:
            raise MissingError("n/a", str(cell["absent"]))
        return float(cell["value"]) / divisor

    return read


def read_slope(workload: str, depths: Sequence[int], divisor: float) -> Callable[[Cells], float]:
    """Read what one more layer costs: the line through these depths."""

    def read(cells: Cells) -> float:
        times = [read_cell(f"{workload} N={depth}")(cells) for depth in depths]
        return linear_regression(depths, times).slope / divisor

    return read


BLOCKS = (
    (
        Column("W1", "us", read_cell("W1")),
        Column("W2", "us", read_cell("W3 N=0")),
        Column("W3 first", "us/call", read_slope("W3", script.DEPTHS[:2], INTERCEPTED)),
        Column("W3 further", "us/call", read_slope("W3", script.DEPTHS[1:], INTERCEPTED)),
        Column("W4 delta", "us", read_cell("W4 N=0", script.DELTAS)),
        Column("W4 first", "us/delta", read_slope("W4", script.DEPTHS[:2], script.DELTAS)),
        Column("W4 further", "us/delta", read_slope("W4", script.DEPTHS[1:], script.DELTAS)),
    ),
    (
        Column("W5 time", "us/run", read_cell("W5")),
        Column("W5 memory", "KB/run", read_cell("W5 memory")),
        Column("W6", "us", read_cell("W6")),
        *(Column(f"W7 {held:,}", "us", read_cell(f"W7 {held}")) for held in script.HELD),
    ),
    (
        Column("import", "ms", read_cell("import")),
        Column("memory", "MB", read_cell("RSS"), is_ratio=False),
        Column("on disk", "MB", read_cell("site-packages"), is_ratio=False),
        Column("packages", "", read_cell("distributions"), is_ratio=False),
    ),
)
COLUMNS = tuple(column for block in BLOCKS for column in block)


def make_figures(rounds: Sequence[Round], peers: Sequence[str]) -> dict[str, list[Figure]]:
    """Return a figure per column for each peer."""
    return {peer: [make_figure(rounds, peer, column) for column in COLUMNS] for peer in peers}


def make_figure(rounds: Sequence[Round], peer: str, column: Column) -> Figure:
    """Return medians; one round that went wrong is enough for a figure that is none."""
    try:
        values = [column.read(cells[peer]) for cells in rounds]
        ratios = [value / column.read(cells[FLOOR]) for value, cells in zip(values, rounds, strict=True)]
    except MissingError as missing:
        return Figure(None, word=missing.word, reason=str(missing))
    except ZeroDivisionError:
        return Figure(median(values))
    return Figure(median(values), median(ratios))


def format_table(figures: Mapping[str, Sequence[Figure]], labels: Mapping[str, str], notes: Sequence[str]) -> str:
    """Return the table in blocks that fit a terminal, the floor in units and the others as ratios to it."""
    lines: list[str] = []
    start = 0
    for block in BLOCKS:
        lines.append(format_line("", [column.name for column in block]))
        lines.append(format_line("", [column.unit for column in block]))
        for peer, row in figures.items():
            texts = [
                format_figure(figure, column, in_units=peer == FLOOR or not column.is_ratio)
                for column, figure in zip(block, row[start : start + len(block)], strict=True)
            ]
            lines.append(format_line(labels[peer], texts))
        lines.append("")
        start += len(block)
    return "\n".join([*lines, *missing_notes(figures), *notes])


def format_line(label: str, texts: Sequence[str]) -> str:
    return f"{label:<24}" + "".join(f"{text:>11}" for text in texts)


def format_figure(figure: Figure, column: Column, *, in_units: bool) -> str:
    number = figure.value if in_units else figure.ratio
    if number is None:
        return figure.word or "-"
    digits = 0 if abs(number) >= 100 or not column.unit else 1 if abs(number) >= 10 else 2
    return f"{number:,.{digits}f}"


def missing_notes(figures: Mapping[str, Sequence[Figure]]) -> list[str]:
    """Say of each peer, once per reason, why figures are missing."""
    notes: list[str] = []
    for peer, row in figures.items():
        columns_by_reason: dict[tuple[str, str], list[str]] = {}
        for column, figure in zip(COLUMNS, row, strict=True):
            if figure.word:
                columns_by_reason.setdefault((figure.word, figure.reason), []).append(column.name)
        for (word, reason), columns in columns_by_reason.items():
            notes.append(f"{peer}: {', '.join(columns)}: {word}: {reason}")
    return notes
