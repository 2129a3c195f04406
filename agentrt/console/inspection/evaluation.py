"""`agentrt eval`: evaluates the cases of a Python file, with exit codes for continuous integration."""

import argparse
import importlib.util
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from agentrt._runtime.text import encodable_text
from agentrt.console.inspection.sessions import print_out
from agentrt.errors import ConfigError
from agentrt.evaluation import Case, Dataset, Report, Trial, evaluate

_ALL_RIGHT, _BELOW, _WITH_ERRORS = 0, 1, 3  # wrong use is 2, as for every command
_SIGNIFICANT = 0.05


def run_evaluation(options: argparse.Namespace) -> int:
    """Evaluate, print the report and write its files; returns the exit code.

    It is 1 below `--fail-under`, or if the report is significantly worse than the baseline, and 3 if a trial has an
    error. Without a baseline, every trial must pass unless `--fail-under` asks for less.
    """
    if options.fail_under is not None and not 0 <= options.fail_under <= 1:
        raise ConfigError(f"--fail-under must be from 0 to 1, not {options.fail_under!r}")
    # Read and tried before anything is spent.
    baseline = None if options.baseline is None else Report.load(options.baseline)
    for path in (options.json, options.html):
        if path is not None and (Path(path).is_dir() or not Path(path).resolve().parent.is_dir()):
            raise ConfigError(f"{path!r} cannot be written: give the path of a file in a folder that exists")
    build, dataset = _load_cases(options.file)
    if baseline is not None and set(baseline.passes).isdisjoint(map(str, dataset)):
        raise ConfigError(f"{options.baseline!r} has no case of {options.file!r}: it is the report of another data set")
    run = partial(
        evaluate,
        build,
        dataset,
        repeats=options.repeats,
        max_concurrency=options.concurrency,
        ablate=options.ablate,
        seed=options.seed,
        on_trial=_TrialProgress() if sys.stderr.isatty() else None,
    )
    report: Report = anyio.run(run, backend=options.backend)
    print_out(str(report))
    _write_files(report, options.json, options.html)
    is_worse = False
    if baseline is not None:
        comparison = report.compare(baseline)
        print_out(f"compared with {options.baseline}: {comparison}")
        is_worse = comparison.p < _SIGNIFICANT and len(comparison.worse) > len(comparison.better)
    if report.errors:
        return _WITH_ERRORS
    limit = options.fail_under if options.fail_under is not None or baseline is not None else 1.0
    return _BELOW if is_worse or (limit is not None and report.quality < limit) else _ALL_RIGHT


def _write_files(report: Report, json_path: str | None, html_path: str | None) -> None:
    try:
        if json_path is not None:
            report.save(json_path)
        if html_path is not None:
            Path(html_path).write_text(report.to_html(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written: {error}") from error


def _load_cases(spec: str) -> tuple[Any, Dataset]:
    """Return `build` and the data set of a file, named as FILE or FILE:NAME."""
    path, colon, name = spec.rpartition(":")
    # A drive of Windows has a colon as well.
    if not colon or not name.isidentifier():
        path, name = spec, "cases"
    module = _import_file(Path(path))
    for needed in ("build", name):
        if not hasattr(module, needed):
            raise ConfigError(
                f"{path!r} has no {needed!r}: it must have build, which returns an agent, and {name}, a Dataset"
            )
    cases: Any = getattr(module, name)
    if isinstance(cases, (list, tuple)) and all(isinstance(case, Case) for case in cases):
        cases = Dataset(Path(path).stem, cases, getattr(module, "evaluators", ()))
    if not isinstance(cases, Dataset):
        raise ConfigError(f"{name} of {path!r} must be a Dataset or a list of cases, not {cases!r:.100}")
    return module.build, cases


def _import_file(path: Path) -> ModuleType:
    # By a name that hides no other module, such as one of Python.
    spec = importlib.util.spec_from_file_location(f"cases_in_{path.stem}", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is not a Python file: write agentrt eval cases.py, or cases.py:NAME")
    module = importlib.util.module_from_spec(spec)
    # Modules beside the file can be imported, and hide none that are installed.
    sys.path.append(str(path.resolve().parent))
    sys.modules[spec.name] = module  # for dataclasses and pickles of the file
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file may raise anything, and its exit code is not ours
        raise ConfigError(f"{str(path)!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


class _TrialProgress:
    """Shows the number of finished and failed trials on a terminal, in one line."""

    def __init__(self) -> None:
        self._failed = 0

    def __call__(self, trial: Trial, finished: int, total: int) -> None:
        self._failed += not trial.passed
        text = f"\r{finished} of {total} trials, {self._failed} failed"
        with suppress(OSError):  # a closed terminal must not stop an evaluation
            end = "\n" if finished == total else ""
            print(encodable_text(text, sys.stderr), end=end, file=sys.stderr, flush=True)
