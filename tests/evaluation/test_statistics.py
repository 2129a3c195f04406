"""The statistics of reports, against scipy, by counting, and against tables made by hand."""

from itertools import combinations
from random import Random

import pytest

from agentrt.evaluation.statistics import bootstrap, mcnemar, pass_at, pass_hat, wilson

# The figures of scipy, which takes two seconds to import; one slow test compares them with it.
WILSON_OF_SCIPY = {
    (0, 1): (0.0, 0.7934506856227626),
    (1, 1): (0.20654931437723745, 1.0),
    (0, 8): (0.0, 0.32440756488388023),
    (3, 8): (0.13684428582359737, 0.6942576053973728),
    (8, 8): (0.6755924351161198, 1.0),
    (1, 40): (0.004426831502681396, 0.1288136896347409),
    (499, 1_000): (0.468073488750724, 0.529934164766247),
}
SIGN_TEST_OF_SCIPY = {
    (1, 0): 1.0,
    (3, 0): 0.25,
    (8, 0): 0.0078125,
    (4, 4): 1.0,
    (5, 12): 0.143463134765625,
    (30, 9): 0.0010650196345523,
    (480, 520): 0.2174482932041415,
    (700, 610): 0.013902723449447724,
    (3_000, 9): 0.0,
}
BOOTSTRAP_OF_SCIPY = (0.37916666666666665, 0.5708333333333333)


@pytest.mark.slow
def test_figures_of_scipy_are_those_of_today() -> None:
    from scipy import stats

    for tries, ends in WILSON_OF_SCIPY.items():
        interval = stats.binomtest(*tries).proportion_ci(method="wilson")
        assert (interval.low, interval.high) == pytest.approx(ends, abs=1e-12)
    for (better, worse), p_value in SIGN_TEST_OF_SCIPY.items():
        assert stats.binomtest(better, better + worse).pvalue == pytest.approx(p_value, rel=1e-9)
    interval = stats.bootstrap(
        (some_values(),), lambda sample, axis: sample.mean(axis), n_resamples=9_999, method="percentile", random_state=1
    ).confidence_interval
    assert (interval.low, interval.high) == pytest.approx(BOOTSTRAP_OF_SCIPY, abs=0.01)


@pytest.mark.parametrize(("successes", "tries"), WILSON_OF_SCIPY)
def test_wilson_is_that_of_scipy(successes: int, tries: int) -> None:
    assert wilson(successes, tries) == pytest.approx(WILSON_OF_SCIPY[successes, tries], abs=1e-12)


@pytest.mark.parametrize(("better", "worse"), SIGN_TEST_OF_SCIPY)
def test_mcnemar_is_the_exact_sign_test_of_scipy(better: int, worse: int) -> None:
    assert mcnemar(better, worse) == pytest.approx(SIGN_TEST_OF_SCIPY[better, worse], rel=1e-9)
    assert mcnemar(better, worse) == mcnemar(worse, better)


def test_mcnemar_is_that_of_a_table_made_by_hand() -> None:
    # Of 8 pairs that differ, 7 to 1: 2 * (1 + 8) / 256.
    assert mcnemar(7, 1) == 18 / 256
    assert mcnemar(3, 0) == 0.25
    assert mcnemar(0, 0) == 1.0


@pytest.mark.parametrize("tries", [1, 2, 5, 6])
def test_estimates_are_the_share_of_all_choices(tries: int) -> None:
    for successes in range(tries + 1):
        results = [True] * successes + [False] * (tries - successes)
        for k in range(1, tries + 1):
            choices = list(combinations(results, k))
            assert pass_at(successes, tries, k) == pytest.approx(sum(map(any, choices)) / len(choices))
            assert pass_hat(successes, tries, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def some_values() -> list[float]:
    random = Random(3)
    return [random.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(60)]


def test_the_bootstrap_is_close_to_that_of_scipy() -> None:
    assert bootstrap(some_values(), seed=0) == pytest.approx(BOOTSTRAP_OF_SCIPY, abs=0.01)


def test_the_bootstrap_depends_on_its_seed_alone() -> None:
    values = [0.0, 1.0, 0.5, 1.0, 0.25]
    assert bootstrap(values, seed=7) == bootstrap(values, seed=7)
    assert bootstrap([0.5] * 9, seed=7) == (0.5, 0.5)


def test_a_bootstrap_of_many_cases_draws_less() -> None:
    low, high = bootstrap([0.0, 1.0] * 25_000, seed=0)
    assert 0.49 < low < 0.5 < high < 0.51
