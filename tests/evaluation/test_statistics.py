"""The statistics of reports, against scipy, by counting, and against tables made by hand."""

from itertools import combinations
from random import Random
from typing import Any

import pytest

from agentrt.evaluation.statistics import bootstrap, mcnemar, pass_at, pass_hat, wilson


@pytest.fixture(scope="module")
def stats() -> Any:
    """Import it for these tests alone: that takes most of a second."""
    from scipy import stats

    return stats


@pytest.mark.parametrize(("successes", "tries"), [(0, 1), (1, 1), (0, 8), (3, 8), (8, 8), (1, 40), (499, 1_000)])
def test_wilson_is_that_of_scipy(stats: Any, successes: int, tries: int) -> None:
    expected = stats.binomtest(successes, tries).proportion_ci(method="wilson")
    assert wilson(successes, tries) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(
    ("better", "worse"), [(0, 0), (1, 0), (3, 0), (8, 0), (4, 4), (5, 12), (30, 9), (480, 520), (700, 610), (3_000, 9)]
)
def test_mcnemar_is_the_exact_sign_test_of_scipy(stats: Any, better: int, worse: int) -> None:
    expected = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert mcnemar(better, worse) == pytest.approx(expected, rel=1e-9)
    assert mcnemar(better, worse) == mcnemar(worse, better)


def test_mcnemar_is_that_of_a_table_made_by_hand() -> None:
    # Of 8 pairs that differ, 7 to 1: 2 * (1 + 8) / 256.
    assert mcnemar(7, 1) == 18 / 256
    assert mcnemar(3, 0) == 0.25


@pytest.mark.parametrize("tries", [1, 2, 5, 6])
def test_estimates_are_the_share_of_all_choices(tries: int) -> None:
    for successes in range(tries + 1):
        results = [True] * successes + [False] * (tries - successes)
        for k in range(1, tries + 1):
            choices = list(combinations(results, k))
            assert pass_at(successes, tries, k) == pytest.approx(sum(map(any, choices)) / len(choices))
            assert pass_hat(successes, tries, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_the_bootstrap_is_close_to_that_of_scipy(stats: Any) -> None:
    random = Random(3)
    values = [random.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(60)]
    expected = stats.bootstrap(
        (values,), lambda sample, axis: sample.mean(axis), n_resamples=9_999, method="percentile", random_state=1
    ).confidence_interval
    assert bootstrap(values, seed=0) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_the_bootstrap_depends_on_its_seed_alone() -> None:
    values = [0.0, 1.0, 0.5, 1.0, 0.25]
    assert bootstrap(values, seed=7) == bootstrap(values, seed=7)
    assert bootstrap([0.5] * 9, seed=7) == (0.5, 0.5)


def test_a_bootstrap_of_many_cases_draws_less() -> None:
    low, high = bootstrap([0.0, 1.0] * 25_000, seed=0)
    assert 0.49 < low < 0.5 < high < 0.51
