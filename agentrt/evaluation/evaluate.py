"""Evaluations: all cases of a data set, several times, with all layers and without each of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio

from agentrt.errors import ConfigError
from agentrt.evaluation.ablation import Ablate, chosen_layers, worth_of
from agentrt.evaluation.case import Dataset, name_evaluators
from agentrt.evaluation.report import Report
from agentrt.evaluation.spending import open_budget
from agentrt.evaluation.trial import Build, Trial, TrialRunner, check_steps
from agentrt.hooks import MiddlewareBase
from agentrt.middleware import Budget
from agentrt.state import InMemoryStateStore
from agentrt.testing import cassette, cassette_scope

OnTrial = Callable[[Trial, int, int], object]
"""Called after each trial, with the numbers of finished trials and of all trials known so far."""

_MAX_REPEATS = 10_000


async def evaluate(
    build: Build,
    dataset: Dataset,
    *,
    repeats: int = 1,
    max_concurrency: int = 8,
    ablate: Ablate = False,
    budget: Budget | None = None,
    seed: int = 0,
    timeout: float = 600.0,  # noqa: ASYNC109  # of each step of a trial, not of the call
    on_trial: OnTrial | None = None,
) -> Report:
    """Run all cases `repeats` times, and return the report; failures and errors are in it, and do not raise.

    `build` is an agent, or a function of a case that returns an agent, or an agent and its world. It is called for each
    trial, so that no trial sees the effects of another. With `ablate=True`, all cases also run without each layer, or
    without the given keys and classes of layers. `budget` limits judges and simulated users together. `seed` is for
    the intervals. The replies of a trial, and each of its evaluators, have `timeout` seconds.
    """
    _check_options(build, dataset, repeats, max_concurrency, seed, timeout)
    chosen_layers(ablate, {})  # raises for a wrong value before anything is spent
    layer = open_budget(budget)
    evaluators = name_evaluators("Dataset(evaluators)", dataset.evaluators)
    # A new case, or a layer left out, sends requests that the file does not have yet.
    tape: AbstractContextManager[Any] = nullcontext()
    if dataset.cassette is not None:
        tape = cassette(dataset.cassette, mode="new")
    trials = [Trial(case, repeat) for case in dataset for repeat in range(repeats)]
    with tape as recorded:
        try:
            async with InMemoryStateStore() as store:
                runner = TrialRunner(build, evaluators, store, layer, timeout)
                progress = _TrialCount(on_trial, len(trials))
                await _run_all(runner, trials, max_concurrency, progress)
                # Agents of different cases may have different layers.
                known: dict[str, type[MiddlewareBase]] = {}
                for trial in trials:
                    known.update(trial.layers)
                keys = chosen_layers(ablate, known)
                without = {key: [Trial(trial.case, trial.repeat, key) for trial in trials] for key in keys}
                ablated = [trial for key in keys if key in known for trial in without[key]]
                progress.total += len(ablated)
                await _run_all(runner, ablated, max_concurrency, progress)
        except BaseException:  # what was paid for is kept
            if recorded is not None:
                recorded.close(is_interrupted=True)
            raise
    # Outside the cassette: from here on, no model is called.
    ablation = [worth_of(key, trials, without[key], seed) for key in keys]
    return Report(dataset.name, trials, ablation, repeats=repeats, seed=seed)


class _TrialCount:
    def __init__(self, on_trial: OnTrial | None, total: int) -> None:
        self._on_trial, self.total, self.finished = on_trial, total, 0

    def note(self, trial: Trial) -> None:
        self.finished += 1
        if self._on_trial is not None:
            self._on_trial(trial, self.finished, self.total)


async def _run_all(runner: TrialRunner, trials: Sequence[Trial], max_concurrency: int, progress: _TrialCount) -> None:
    # One iterator for all workers, instead of a task for each of perhaps a million trials.
    rest = iter(trials)

    async def work() -> None:
        for trial in rest:
            with cassette_scope(f"{trial.without or ''}/{trial.case}/{trial.repeat}"):
                await runner.run(trial)
            progress.note(trial)

    async with anyio.create_task_group() as group:
        for _ in range(min(max_concurrency, len(trials))):
            group.start_soon(work)


def _check_options(build: Any, dataset: Any, repeats: Any, max_concurrency: Any, seed: Any, timeout: Any) -> None:
    check_steps("evaluate", build, timeout)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"evaluate(dataset) must be a Dataset, such as Dataset('name', cases), not {dataset!r:.100}")
    for name, value, largest in (("repeats", repeats, _MAX_REPEATS), ("max_concurrency", max_concurrency, 1_000)):
        if type(value) is not int or not 1 <= value <= largest:
            raise ConfigError(f"evaluate({name}=...) must be an int from 1 to {largest:,}, not {value!r:.50}")
    if type(seed) is not int:  # None would give other intervals each time
        raise ConfigError(f"evaluate(seed=...) must be an int, not {seed!r:.50}")
