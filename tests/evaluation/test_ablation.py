"""The worth of each layer: four planted worths are found, and a layer that must stay is an error of its row."""

from collections import Counter
from itertools import repeat
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.evaluation import Case, Dataset, Judge, LayerWorth, Report, Trial, contains, evaluate
from agentrt.evaluation.ablation import worth_of
from agentrt.message import Msg
from agentrt.middleware import Budget, RetryMiddleware
from agentrt.model import ChatUsage, ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import InMemoryStateStore
from agentrt.testing import fail_model
from tests.evaluation.conftest import answering, judge_model, text_in


class Facts(MiddlewareBase):
    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return f"{current_prompt}\nThe capital of Norway is Oslo."


class ShortAnswers(MiddlewareBase):
    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return f"{current_prompt}\nBe short."


class Polite(MiddlewareBase):
    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return f"{current_prompt}\n{'Be very polite. ' * 40}"


class Helper:
    """Builds agents that need a retry in 3 cases, facts in 8, and short answers in half the tries of 4."""

    def __init__(self) -> None:
        self.builds: Counter[str] = Counter()

    def __call__(self, case: Case) -> Agent:
        self.builds[str(case)] += 1
        is_long = self.builds[str(case)] % 2 == 0

        def respond(messages: list[Msg], tools: Any) -> str:
            text, kind = text_in(messages), (case.labels or {})["kind"]
            if kind == "fact" and "Oslo" not in text:
                return "I do not know."
            return "I could tell." if kind == "long" and is_long and "Be short" not in text else "It is Oslo."

        layers = [RetryMiddleware(initial_delay=0.001, max_delay=0.001), Facts(), ShortAnswers(), Polite()]
        return Agent("helper", "You help.", ScriptedChatModel(repeat(respond)), middlewares=layers)


def planted_cases() -> list[Case]:
    kinds = ["retry"] * 3 + ["fact"] * 8 + ["long"] * 4 + ["plain"] * 5
    return [
        Case(f"Question {number}", "Oslo", labels={"kind": kind}, faults=[fail_model(at=1)] if kind == "retry" else [])
        for number, kind in enumerate(kinds)
    ]


def rows_of(report: Report) -> dict[str, LayerWorth]:
    return {worth.layer: worth for worth in report.ablation}


class Needy(MiddlewareBase):
    requires = (Facts,)


async def test_a_layer_that_another_requires_has_an_error_row() -> None:
    dataset = Dataset("d", [Case("One"), Case("Two")])
    report = await evaluate(answering("Yes.", layers=[Needy(), Facts()]), dataset, ablate=True)
    rows = rows_of(report)
    assert "requires Facts" in str(rows["Facts"].error)
    assert rows["Needy"].error is None
    assert report.quality == 1.0
    assert "requires Facts" in str(report)
    assert "requires Facts" in report.to_html()


async def test_four_planted_worths_are_found_in_400_trials() -> None:
    finished = []
    report = await evaluate(
        Helper(),
        Dataset("planted", planted_cases(), [contains()]),
        repeats=4,
        ablate=True,
        on_trial=lambda trial, count, total: finished.append((count, total)),
    )
    assert finished[-1] == (400, 400)
    assert (report.quality, report.pass_hat(4), report.errors) == (1.0, 1.0, [])
    rows = rows_of(report)
    assert list(rows) == ["RetryMiddleware", "Facts", "ShortAnswers", "Polite"]
    retry, facts, short, polite = rows.values()

    assert (retry.quality, retry.change, retry.p, retry.pass_hat) == pytest.approx((0.85, 0.15, 0.25, 0.85))
    assert retry.interval == pytest.approx((0.0, 0.3), abs=0.051)
    assert (facts.quality, facts.change, facts.p) == pytest.approx((0.6, 0.4, 2 / 256))
    assert facts.interval == pytest.approx((0.2, 0.6), abs=0.051)
    assert (short.quality, short.change, short.p, short.pass_hat) == pytest.approx((0.9, 0.1, 0.125, 0.8))
    assert 0 < short.interval[0] < short.interval[1] < 0.25
    assert (polite.quality, polite.change, polite.p, polite.interval) == (1.0, 0.0, 1.0, (0.0, 0.0))
    assert polite.cost_share > 0.6 > facts.cost_share > 0
    assert "without Facts: 0.600, worth +0.400" in str(report)


async def test_layers_are_chosen_by_class_and_key() -> None:
    dataset = Dataset("d", [Case("One")])
    build = answering("Yes.", layers=[Facts(), ShortAnswers(), Polite()])
    report = await evaluate(build, dataset, ablate=[Facts, "Polite", "Missing"])
    assert [(worth.layer, worth.error is None) for worth in report.ablation] == [
        ("Facts", True),
        ("Polite", True),
        ("Missing", False),
    ]


async def test_recorders_are_not_left_out_and_keep_their_store() -> None:
    async with InMemoryStateStore() as store:
        build = answering("Yes.", layers=[Facts(), RunRecorder(store)])
        report = await evaluate(build, Dataset("d", [Case("One")]), repeats=2, ablate=True)
        assert [worth.layer for worth in report.ablation] == ["Facts"]
        # Those with the layer, and those without it: anyone can look into them.
        assert len((await store.runs.list()).runs) == 4
        run = report.trials[0].run
        assert (await store.runs.load(run.session_id)).reply_id == run.reply_id


async def test_a_layer_that_only_some_agents_have_is_compared() -> None:
    def build(case: Case) -> Agent:
        return answering("Oslo", layers=[Facts()] if case.expected else [])(case)

    dataset = Dataset("d", [Case("One", "Oslo"), Case("Two")])
    [worth] = (await evaluate(build, dataset, ablate=True)).ablation
    assert (worth.layer, worth.change, worth.error) == ("Facts", 0.0, None)


async def test_a_spent_budget_says_nothing_of_layers() -> None:
    dataset = Dataset("d", [Case("One"), Case("Two")], [Judge(judge_model(), "Good?")])
    build = answering("Yes.", layers=[Facts()])
    report = await evaluate(build, dataset, ablate=True, budget=Budget(model_calls=2))
    assert report.quality == 1.0
    assert "budget of judges and users was spent" in str(report.ablation[0].error)


@pytest.mark.parametrize(
    ("with_it", "without", "share"),
    [
        ((0.5, 0.5), (0.0, 0.0), ("cost", 1.0)),
        ((None, 0.5), (0.5, 0.5), ("tokens", 0.5)),
        ((0.0, 0.0), (0.5, 0.5), ("tokens", 0.5)),
    ],
)
def test_a_share_is_of_money_or_of_tokens_and_says_which(with_it: Any, without: Any, share: tuple[str, float]) -> None:
    def trials(costs: Any, tokens: int) -> list[Trial]:
        return [
            Trial(Case("One"), number, cost=cost, usage=ChatUsage(tokens, 0), layers={"Facts": Facts})
            for number, cost in enumerate(costs)
        ]

    worth = worth_of("Facts", trials(with_it, 10), trials(without, 5), 0)
    assert (worth.share_of, worth.cost_share) == share
