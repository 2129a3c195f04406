"""Budgets: limits in tokens, money, calls and seconds, and the check of a further call."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from agentrt.errors import MiddlewareConfigError
from agentrt_middleware.validation import check_choice, check_number

COUNTERS = ("tokens", "cost", "model_calls", "tool_calls", "seconds")
"""The counters of a budget."""

ESTIMATED = ("tokens", "cost")
"""The counters that are known only after a call, and estimated until then."""

Amounts = Mapping[str, float]
"""Amounts by counter; in the spending, "raised_tokens" and the like are additions to a limit."""

_CALLS = ("model_calls", "tool_calls")
MAX_AMOUNT = 1e15
"""The largest limit: up to here a float counts in steps of 1."""
_PERIODS = ("hour", "day", "month")
_ROUNDING_ERROR = 1e-6  # of sums of reserves


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget with at least one limit: tokens, cost, calls of models and of tools, and seconds of their work.

    `per` is for the budget of an owner, which is renewed with each "hour", "day" or "month" of UTC, or after a number
    of seconds.
    """

    tokens: float | None = None
    cost: float | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    per: str | float | None = None

    def __post_init__(self) -> None:
        # Untyped, since callers may ignore the annotations.
        for counter in COUNTERS:
            value: object = getattr(self, counter)
            if value is None:
                continue
            option = f"Budget({counter}=...)"
            check_number(option, value, whole=counter in _CALLS)
            if value > MAX_AMOUNT:  # type: ignore[operator]  # a number, as was checked
                raise MiddlewareConfigError(
                    f"{option} must be at most {MAX_AMOUNT:g}, not {value!r:.200}: leave it out for no limit"
                )
        if not self.limits:
            raise MiddlewareConfigError(
                f"Budget() has no limit, so that nothing would ever be used up: give at least one of "
                f"{', '.join(COUNTERS)}, as in Budget(tokens=50_000)"
            )
        if isinstance(self.per, str):
            check_choice("Budget(per=...)", self.per, _PERIODS)
        elif self.per is not None:
            check_number("Budget(per=...)", self.per, least=1)
            if self.per > MAX_AMOUNT:
                raise MiddlewareConfigError(
                    f"Budget(per=...) must be at most {MAX_AMOUNT:g} seconds, not {self.per!r:.200}: limit the "
                    f"conversation if it need not end"
                )

    @property
    def limits(self) -> dict[str, float]:
        """The given limits, by counter."""
        return {counter: limit for counter in COUNTERS if (limit := getattr(self, counter)) is not None}


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that does not allow a further call; `amount` is that call's share."""

    counter: str
    limit: float
    spent: float
    amount: float = 0.0

    def raise_in_steps(self, step: float) -> float:
        """Return the addition that makes the limit allow the call: as many steps as needed, at least one."""
        step = float(ceil(step)) if self.counter in _CALLS else step
        beyond = self.spent - self.limit
        return step * max(1, floor(beyond / step) + 1, ceil((beyond + self.amount) / step))


def find_excess(limits: Amounts, spent: Amounts, amounts: Amounts) -> Excess | None:
    """Return the first limit that is used up, or that the amounts would exceed; `None` if they are allowed."""
    for counter in limits:
        limit, before = limit_of(limits, spent, counter), spent.get(counter, 0.0)
        # Without a reserve, only the first check applies, since the amount of a call is then unknown.
        if before >= limit or before + amounts.get(counter, 0.0) > limit:
            return Excess(counter, limit, before, amounts.get(counter, 0.0))
    return None


def find_near(limits: Amounts, spent: Amounts, share: float) -> Excess | None:
    """Return the first limit whose share is spent."""
    for counter in limits:
        limit, before = limit_of(limits, spent, counter), spent.get(counter, 0.0)
        if before >= share * limit:
            return Excess(counter, limit, before)
    return None


def without(spent: Amounts, amounts: Amounts) -> Amounts:
    """Return the spending before these amounts."""
    return {**spent, **{counter: spent.get(counter, 0.0) - amount for counter, amount in amounts.items()}}


def add_amounts(counted: dict[str, Any], amounts: Amounts) -> None:
    """Add spending to the counters; negative amounts are subtracted."""
    for counter, amount in amounts.items():
        # A returned amount was counted before, but float sums depend on the order and may fall short.
        counted[counter] = max(0.0, counted.get(counter, 0) + amount)


def limits_for(limits: Amounts, call: str) -> Amounts:
    """Return the limits for calls of that kind: the number of tool calls does not limit model calls."""
    return {counter: limit for counter, limit in limits.items() if counter == call or counter not in _CALLS}


def limit_of(limits: Amounts, spent: Amounts, counter: str) -> float:
    """Return the limit including its raises."""
    return limits[counter] + spent.get(raised(counter), 0)


def raised(counter: str) -> str:
    """Return the counter of a limit's raises."""
    return f"raised_{counter}"


def is_amounts(value: object, names: Iterable[str] = (*COUNTERS, *map(raised, COUNTERS))) -> bool:
    """Say whether the value is valid spending: finite numbers of at least 0."""
    if not isinstance(value, Mapping):
        return False
    for name in names:
        amount = value.get(name, 0.0)
        # An int may be too large for a float.
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not -_ROUNDING_ERROR <= amount < 1e300:
            return False
    return True
