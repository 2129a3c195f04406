"""The page of a report: one file with plots as inline SVG, without scripts and without requests."""

from collections.abc import Iterable, Sequence
from html import escape

from agentrt._runtime.text import escape_controls
from agentrt.evaluation.report import Report
from agentrt.evaluation.trial import Trial

_MAX_TRIALS = 500  # with details, failed ones first
_MAX_SHOWN_TEXT = 2_000
_ROW_HEIGHT = 26  # pixels
_LABELS, _PLOT = 240, 400
_LONGEST_LABEL = 34
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2e8b57; --bad: #c0392b; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; }
.good { color: var(--good); } .bad { color: var(--bad); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
summary { cursor: pointer; } details { border-bottom: 1px solid var(--line); padding: .3rem 0; }
"""
# The page runs and loads nothing, even if an escape is missing.
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_Whisker = tuple[str, float, tuple[float, float], str]
"""A row of a plot: its label, its value, the interval around that, and the text beside it."""


def page_of(report: Report) -> str:
    """Return the page."""
    sides = (
        ("agents", report.usage, report.cost),
        ("judges", report.judge_usage, report.judge_cost),
        ("simulated users", report.user_usage, report.user_cost),
    )
    rows = [
        (side, f"{usage.input_tokens:,}", f"{usage.output_tokens:,}", "unknown" if cost is None else f"{cost:.4f}")
        for side, usage, cost in sides
    ]
    # Failed ones first, in the order of the report.
    chosen = sorted(report.trials, key=lambda trial: trial.passed)[:_MAX_TRIALS]
    left_out = len(report.trials) - len(chosen)
    rest = f"<p>{left_out} more passed trials are not listed.</p>" if left_out else ""
    parts = [
        f"<h1>{_safe(report.name)}</h1>",
        f"<p>{len(report.passes)} cases, {report.repeats} tries each, seed {report.seed}.</p>",
        _quality(report),
        _layers(report),
        f"<h2>Tries</h2><p>At most {_PLOT // 4} tries of {_MAX_TRIALS} cases, failed ones first.</p>",
        plot_of_tries(report),
        f"<h2>Spending</h2>{_table(('', 'input tokens', 'output tokens', 'cost'), rows)}",
        f"<h2>Trials</h2>{''.join(map(_trial, chosen))}{rest}",
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_PAGE_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_safe(report.name)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _quality(report: Report) -> str:
    groups = [*report.by_evaluator, *report.by_label]
    rows: list[_Whisker] = [("all", report.quality, report.interval, f"{report.quality:.3f}")]
    rows += [(group.name, group.quality, group.interval, f"{group.quality:.3f}") for group in groups]
    plot = _whiskers(rows, 0.0, 1.0, "Share of passes with its interval at 95 %")
    # Each is a sum over all cases.
    ks = sorted({*range(1, min(report.repeats, 10) + 1), report.repeats})
    table = _table(
        ("k", "pass@k", "pass^k"), [(k, f"{report.pass_at(k):.3f}", f"{report.pass_hat(k):.3f}") for k in ks]
    )
    return f"<h2>Quality</h2>{plot}{table if report.repeats > 1 else ''}"


def _layers(report: Report) -> str:
    if not report.ablation:
        return ""
    columns = ("without", "pass@1", "worth", "95 %", f"pass^{report.repeats}", "p", "share of spending", "seconds")
    rows: list[Sequence[object]] = [
        ("(nothing)", f"{report.quality:.3f}", "", "", f"{report.pass_hat(report.repeats):.3f}", "", "", "")
    ]
    for worth in report.ablation:
        if worth.error is not None:
            rows.append((worth.layer, worth.error, "", "", "", "", "", ""))
            continue
        interval = f"[{worth.interval[0]:.3f}, {worth.interval[1]:.3f}]"
        figures = (f"{worth.quality:.3f}", f"{worth.change:+.3f}", interval, f"{worth.pass_hat:.3f}", f"{worth.p:.3f}")
        rows.append((worth.layer, *figures, f"{worth.cost_share:.0%} of {worth.share_of}", f"{worth.seconds:+.3f}"))
    return f"<h2>Layers</h2>{plot_of_layers(report)}{_table(columns, rows)}"


def plot_of_layers(report: Report) -> str:
    """Return the worth of each layer as SVG, with its interval."""
    known = [worth for worth in report.ablation if worth.error is None]
    rows = [(worth.layer, worth.change, worth.interval, f"{worth.change:+.3f}, p {worth.p:.3f}") for worth in known]
    ends = [abs(end) for worth in known for end in worth.interval]
    # Symmetric around zero, and not so close that noise looks large.
    reach = max([0.1, *ends])
    return _whiskers(rows, -reach, reach, "Worth of each layer: quality with it minus quality without it")


def plot_of_tries(report: Report) -> str:
    """Return a square for each try as SVG, a row for each case."""
    # Many tries become small squares.
    columns = min(report.repeats, _PLOT // 4)
    size = min(18, _PLOT // columns)
    rows = []
    # Those that failed first, since a page cannot hold every case of a huge data set.
    ordered = sorted(report.passes.items(), key=lambda passed: all(passed[1]))[:_MAX_TRIALS]
    for row, (name, tries) in enumerate(ordered):
        y = row * (size + 4)
        rows.append(_label(name, y + size * 0.75))
        rows += [
            f'<rect x="{_LABELS + column * size}" y="{y}" width="{size - 1}" height="{size - 1}" '
            f'fill="{"#2e8b57" if passed else "#c0392b"}"/>'
            for column, passed in enumerate(tries[:columns])
        ]
    height = len(ordered) * (size + 4)
    return _svg(_LABELS + size * columns + 10, height, "Tries of each case: passed or failed", rows)


def _whiskers(rows: Sequence[_Whisker], low: float, high: float, title: str) -> str:
    def place(value: float) -> str:
        return f"{_LABELS + _PLOT * (min(max(value, low), high) - low) / (high - low):.1f}"

    parts = [
        f'<line x1="{place(value)}" y1="0" x2="{place(value)}" y2="{len(rows) * _ROW_HEIGHT}" stroke="#8886"/>'
        f'<text x="{place(value)}" y="{len(rows) * _ROW_HEIGHT + 16}" text-anchor="middle">{value:.2g}</text>'
        for value in (low, (low + high) / 2, high)
    ]
    for number, (name, value, interval, text) in enumerate(rows):
        y = number * _ROW_HEIGHT + _ROW_HEIGHT // 2
        ends = [place(end) for end in interval]
        parts += [
            _label(name, y + 5),
            f'<line x1="{ends[0]}" y1="{y}" x2="{ends[1]}" y2="{y}" stroke="#5b7fb8" stroke-width="3"/>',
            f'<circle cx="{place(value)}" cy="{y}" r="5" fill="#5b7fb8"/>',
            f'<text x="{_LABELS + _PLOT + 14}" y="{y + 5}">{_safe(text)}</text>',
        ]
    return _svg(_LABELS + _PLOT + 150, len(rows) * _ROW_HEIGHT + 24, title, parts)


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" '
        f'role="img" aria-label="{_safe(title)}"><title>{_safe(title)}</title>{"".join(parts)}</svg>'
    )


def _label(name: str, y: float) -> str:
    short = name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
    return f'<text x="{_LABELS - 10}" y="{y:.0f}" text-anchor="end">{_safe(short)}</text>'


def _trial(trial: Trial) -> str:
    kind, word = ("good", "passed") if trial.passed else ("bad", "failed")
    verdicts = [
        (name, "passed" if verdict.passed else "failed", f"{verdict.score:.2f}", verdict.reason)
        for name, verdict in trial.verdicts.items()
    ]
    error = "" if trial.error is None else f'<pre class="bad">{_safe(str(trial.error))}</pre>'
    title = f"{_safe(str(trial.case))}, try {trial.repeat + 1}"
    return (
        f'<details><summary><span class="{kind}">{word}</span> {title}</summary>'
        f"{error}<pre>{_safe(trial.answer)}</pre>{_table(('evaluator', '', 'score', 'reason'), verdicts)}</details>"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_safe(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_safe(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _safe(text: str) -> str:
    """Return the text escaped for an element or an attribute."""
    # Half surrogate pairs cannot be written to a file.
    return escape(escape_controls(text[:_MAX_SHOWN_TEXT])).encode("utf-8", "replace").decode()
