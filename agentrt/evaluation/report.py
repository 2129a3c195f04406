"""Reports: the figures of an evaluation, its file, and the comparison of two."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

import pydantic

from agentrt._runtime.text import escape_controls, one_line
from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation.ablation import LayerWorth, rates_of
from agentrt.evaluation.case import Case
from agentrt.evaluation.statistics import bootstrap, mcnemar, pass_at, pass_hat, wilson
from agentrt.evaluation.trial import Trial, TrialInFile
from agentrt.model import ChatUsage

_REPORT_FORMAT = 1
_MAX_FAILED_TRIALS = 20  # in the printed report


class _StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)


class _FileFormat(_StrictModel):
    format: int = pydantic.Field(ge=1)


class _CaseInFile(_StrictModel):
    name: str = pydantic.Field(min_length=1, max_length=200)
    labels: dict[str, str]


class _ReportInFile(_FileFormat):
    name: str
    repeats: int = pydantic.Field(ge=1)
    seed: int
    cases: list[_CaseInFile]
    trials: list[TrialInFile]
    ablation: list[LayerWorth]


@dataclass(frozen=True, slots=True)
class GroupScore:
    """The figures of a group of cases, or of an evaluator: its share of passes, its interval, and its mean score."""

    name: str
    cases: int
    quality: float
    interval: tuple[float, float]
    score: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The cases of a report that are `better`, `worse` or the `same` as in another one, and the p value.

    `missing` are the names of cases that only one of them has.
    """

    better: list[str]
    worse: list[str]
    same: list[str]
    p: float
    missing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"better: {len(self.better)}, worse: {len(self.worse)}, same: {len(self.same)}, p = {self.p:.3f}"]
        lines += [f"  worse: {one_line(name)}" for name in self.worse]
        # A renamed case is compared with nothing, and nobody would see it.
        lines += [f"  not compared: {one_line(name)}" for name in self.missing]
        return escape_controls("\n".join(lines))


class Report:
    """The trials of an evaluation, and their figures.

    `quality` is the share of passes, as a mean over cases; `interval` is a bootstrap over cases. `usage` and `cost` are
    those of agents, `judge_usage` and `user_usage` those of judges and simulated users. All are of the trials with all
    layers; `ablation` has a row for each layer that was left out.
    """

    def __init__(
        self, name: str, trials: Sequence[Trial], ablation: Sequence[LayerWorth] = (), *, repeats: int, seed: int
    ) -> None:
        self.name, self.repeats, self.seed = name, repeats, seed
        self.trials, self.ablation = list(trials), list(ablation)

    # Quality.

    def pass_at(self, k: int) -> float:
        """Return the chance that one of `k` tries of a case passes, without bias, as a mean over cases."""
        return self._estimate("pass_at", pass_at, k)

    def pass_hat(self, k: int) -> float:
        """Return the chance that all of `k` tries of a case pass, without bias, as a mean over cases."""
        return self._estimate("pass_hat", pass_hat, k)

    def _estimate(self, name: str, estimator: Callable[[int, int, int], float], k: int) -> float:
        if type(k) is not int or not 1 <= k <= self.repeats:
            raise UsageError(
                f"{name}({k!r:.50}) needs a k from 1 to {self.repeats}, the repeats of this report: evaluate with "
                f"repeats={k!r:.50}"
            )
        passed = self.passes.values()
        return math.fsum(estimator(sum(tries), len(tries), k) for tries in passed) / len(passed)

    @cached_property
    def passes(self) -> dict[str, list[bool]]:
        """Whether each try passed, by the name of its case."""
        return rates_of(self.trials)

    @property
    def quality(self) -> float:
        """The share of passes, as a mean over cases."""
        return self.pass_at(1)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The interval of `quality` at 95 %: a bootstrap over cases, whose tries depend on each other."""
        return bootstrap([sum(tries) / len(tries) for tries in self.passes.values()], self.seed)

    def case_interval(self, name: str) -> tuple[float, float]:
        """Return Wilson's interval at 95 % of the chance that a try of this case passes."""
        if name not in self.passes:
            raise UsageError(f"this report has no case {name!r:.100}")
        return wilson(sum(self.passes[name]), len(self.passes[name]))

    @cached_property
    def by_evaluator(self) -> list[GroupScore]:
        """The figures of each evaluator, over the trials that have its verdict."""
        groups: dict[str, list[tuple[str, bool, float]]] = {}
        for trial in self.trials:
            for name, verdict in trial.verdicts.items():
                groups.setdefault(name, []).append((str(trial.case), verdict.passed, verdict.score))
        return [self._score(name, results) for name, results in groups.items()]

    @cached_property
    def by_label(self) -> list[GroupScore]:
        """The figures of each label, as "name=value"."""
        groups: dict[str, list[tuple[str, bool, float]]] = {}
        for trial in self.trials:
            for key, value in (trial.case.labels or {}).items():
                groups.setdefault(f"{key}={value}", []).append((str(trial.case), trial.passed, trial.score))
        return [self._score(label, results) for label, results in groups.items()]

    def _score(self, name: str, results: Sequence[tuple[str, bool, float]]) -> GroupScore:
        passed: dict[str, list[bool]] = {}
        for case, is_pass, _ in results:
            passed.setdefault(case, []).append(is_pass)
        rates = [sum(tries) / len(tries) for tries in passed.values()]
        score = math.fsum(score for _, _, score in results) / len(results)
        return GroupScore(name, len(passed), math.fsum(rates) / len(rates), bootstrap(rates, self.seed), score)

    @property
    def failed_cases(self) -> list[str]:
        """The names of cases with a try that did not pass."""
        return [name for name, tries in self.passes.items() if not all(tries)]

    @property
    def errors(self) -> list[Trial]:
        """The trials in which a build, a reply or an evaluator raised."""
        return [trial for trial in self.trials if trial.error is not None]

    # Spending.

    @property
    def usage(self) -> ChatUsage:
        """The usage of the agents."""
        return sum((trial.usage for trial in self.trials), ChatUsage())

    @property
    def judge_usage(self) -> ChatUsage:
        """The usage of the judges."""
        return sum((trial.judges.usage for trial in self.trials), ChatUsage())

    @property
    def user_usage(self) -> ChatUsage:
        """The usage of the simulated users."""
        return sum((trial.users.usage for trial in self.trials), ChatUsage())

    @property
    def cost(self) -> float | None:
        """The cost of the agents, `None` if a price is unknown."""
        return _total([trial.cost for trial in self.trials])

    @property
    def judge_cost(self) -> float | None:
        """The cost of the judges."""
        return _total([trial.judges.cost for trial in self.trials])

    @property
    def user_cost(self) -> float | None:
        """The cost of the simulated users."""
        return _total([trial.users.cost for trial in self.trials])

    @property
    def seconds(self) -> float:
        """The mean duration of a trial's replies."""
        return math.fsum(trial.seconds for trial in self.trials) / len(self.trials)

    # Comparison and files.

    def compare(self, other: "Report") -> Comparison:
        """Compare with an earlier report, by the cases that both have; the p value is McNemar's."""
        if not isinstance(other, Report):
            raise ConfigError(f"compare(other) must be a Report, as in Report.load('last.json'), not {other!r:.100}")
        before, after = other.passes, self.passes
        common = [name for name in after if name in before]
        if not common:
            raise UsageError(f"the reports {self.name!r:.100} and {other.name!r:.100} have no case of one name")
        # By share and not by count, since the repeats may differ.
        change = {name: sum(after[name]) * len(before[name]) - sum(before[name]) * len(after[name]) for name in common}
        better = [name for name in common if change[name] > 0]
        worse = [name for name in common if change[name] < 0]
        same = [name for name in common if change[name] == 0]
        missing = [name for name in (*after, *before) if name not in change]
        return Comparison(better, worse, same, mcnemar(len(better), len(worse)), missing)

    def to_json(self, *, times: bool = True) -> str:
        """Return the report as JSON; without `times`, equal for equal inputs, seed and cassette, and without ids."""
        cases = {str(trial.case): trial.case for trial in self.trials}
        value = {
            "format": _REPORT_FORMAT,
            "name": self.name,
            "repeats": self.repeats,
            "seed": self.seed,
            "quality": self.quality,
            "interval": list(self.interval),
            "cases": [{"name": name, "labels": dict(case.labels or {})} for name, case in cases.items()],
            "trials": [trial.to_json(times=times) for trial in self.trials],
            "ablation": [worth.to_json(times=times) for worth in self.ablation],
        }
        return json.dumps(value, indent=1) + "\n"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report to a JSON file, which `load` reads."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Report":
        """Read a report that `save` wrote; its trials have no messages, runs and world.

        Raises `ConfigError` for a file that is not a report.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"the report {str(path)!r:.200} cannot be read: {reason:.200}") from None
        return cls.from_json(text, name=str(path))

    @classmethod
    def from_json(cls, text: str, *, name: str = "the text") -> "Report":
        """Return the report that `to_json` wrote, as `load` does; errors call it by its `name`."""
        try:
            if _FileFormat.model_validate_json(text).format > _REPORT_FORMAT:
                raise ConfigError(f"the report {name!r:.200} was written by a newer version of agentrt: update it")
            saved = _ReportInFile.model_validate_json(text)
            # Their inputs are not in the report: a data set may be private.
            cases = {case.name: Case("", name=case.name, labels=case.labels) for case in saved.cases}
            trials = [Trial.from_json(trial, cases[trial.case]) for trial in saved.trials]
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            problem = f"{place}: {first['msg']}, not {first['input']!r:.60}"
        except (KeyError, UsageError) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            report = cls(saved.name, trials, saved.ablation, repeats=saved.repeats, seed=saved.seed)
            tries = Counter((trial.case, trial.repeat) for trial in saved.trials)
            # Estimates divide by the tries of a case.
            if set(tries.values()) == {1} and all(len(passed) == saved.repeats for passed in report.passes.values()):
                return report
            problem = f"it must have {saved.repeats} trials of each case"
        raise ConfigError(f"{name!r:.200} is not a report of an evaluation: {problem:.300}")

    def to_html(self) -> str:
        """Return the report as one HTML page with plots, which loads nothing."""
        from agentrt.evaluation.html import page_of  # which needs this class

        return page_of(self)

    def plot_layers(self) -> str:
        """Return the worth of each layer, with its interval, as an SVG picture."""
        from agentrt.evaluation.html import plot_of_layers

        return plot_of_layers(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r:.100}, {len(self.trials)} trials, quality {self.quality:.3f}>"

    def __str__(self) -> str:
        low, high = self.interval
        lines = [
            f"{one_line(self.name)}: {len(self.passes)} cases x {self.repeats}, "
            f"{self.quality:.3f} passed [{low:.3f}, {high:.3f}]"
        ]
        if self.repeats > 1:
            k = self.repeats
            lines.append(f"  pass@{k} {self.pass_at(k):.3f}, pass^{k} {self.pass_hat(k):.3f}")
        lines += [
            f"  {one_line(group.name)}: {group.quality:.3f} [{group.interval[0]:.3f}, {group.interval[1]:.3f}], "
            f"score {group.score:.3f}"
            for group in (*self.by_evaluator, *self.by_label)
        ]
        lines += [f"  agents: {_spending_line(self.usage, self.cost)}, {self.seconds:.2f} s a trial"]
        for side, usage, cost in (
            ("judges", self.judge_usage, self.judge_cost),
            ("users", self.user_usage, self.user_cost),
        ):
            if usage.input_tokens or usage.output_tokens:
                lines.append(f"  {side}: {_spending_line(usage, cost)}")
        lines += [f"  {worth}" for worth in self.ablation]
        failed = [trial for trial in self.trials if not trial.passed]
        for trial in failed[:_MAX_FAILED_TRIALS]:
            problems = "; ".join(one_line(problem, 200) for problem in trial.problems())
            lines.append(f"  failed: {one_line(str(trial.case), 100)} ({trial.repeat + 1}): {problems}")
        if len(failed) > _MAX_FAILED_TRIALS:
            lines.append(f"  and {len(failed) - _MAX_FAILED_TRIALS} more failed trials")
        return escape_controls("\n".join(lines))


def _spending_line(usage: ChatUsage, cost: float | None) -> str:
    price = "of unknown price" if cost is None else f"for {cost:.4f}"
    return f"{usage.input_tokens + usage.output_tokens:,} tokens {price}"


def _total(costs: Sequence[float | None]) -> float | None:
    return None if None in costs else math.fsum(cost for cost in costs if cost is not None)
