"""The statistics of reports: unbiased estimators, intervals and exact p values, without a dependency."""

import math
from collections.abc import Sequence
from random import Random

Interval = tuple[float, float]
"""The lower and the upper end."""

_RESAMPLES = 2_000
_MAX_DRAWS = 4_000_000  # so that a huge data set takes seconds
_MIN_RESAMPLES = 200
_MAX_EXACT = 1_000  # up to here in whole numbers, beyond by logarithms
_Z = 1.959963984540054  # of 95 %


def pass_at(successes: int, tries: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of `k` tries passes."""
    # Of all ways to choose k of the tries, those with only failures.
    return 1.0 - math.comb(tries - successes, k) / math.comb(tries, k)


def pass_hat(successes: int, tries: int, k: int) -> float:
    """Return the unbiased estimate of the chance that all of `k` tries pass."""
    return math.comb(successes, k) / math.comb(tries, k)


def wilson(successes: int, tries: int) -> Interval:
    """Return Wilson's interval at 95 % of a share, without a correction for continuity."""
    share, z2 = successes / tries, _Z * _Z
    centre = share + z2 / (2 * tries)
    margin = _Z * math.sqrt(share * (1 - share) / tries + z2 / (4 * tries * tries))
    scale = 1 + z2 / tries
    # The ends are exact where all or none pass, but not in floating point.
    low = 0.0 if successes == 0 else (centre - margin) / scale
    high = 1.0 if successes == tries else (centre + margin) / scale
    return low, high


def bootstrap(values: Sequence[float], seed: int) -> Interval:
    """Return the percentile interval at 95 % of the mean, by resampling the values."""
    count = len(values)
    if len(set(values)) == 1:  # every sample has the same mean
        return values[0], values[0]
    random = Random(seed)
    resamples = max(_MIN_RESAMPLES, min(_RESAMPLES, _MAX_DRAWS // count))
    # `fsum`, so that the order of the cases does not matter.
    means = sorted(math.fsum(random.choices(values, k=count)) / count for _ in range(resamples))
    return _quantile(means, 0.025), _quantile(means, 0.975)


def mcnemar(better: int, worse: int) -> float:
    """Return McNemar's exact p value, two-sided: the sign test over the pairs that differ."""
    count, fewer = better + worse, min(better, worse)
    if count > _MAX_EXACT:
        logs = (
            math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1) - count * math.log(2)
            for number in range(fewer + 1)
        )
        return min(1.0, 2 * math.fsum(map(math.exp, logs)))
    return min(1.0, math.ldexp(2 * sum(math.comb(count, number) for number in range(fewer + 1)), -count))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated as NumPy does it."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
