"""What may be spent: limits in tokens, money, calls and seconds, and whether they allow another call."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from agentrt.errors import MiddlewareConfigError
from agentrt.keywords import suggest_keywords
from agentrt_middleware.validation import check_choice, check_number

__all__ = [
    "COUNTERS",
    "ESTIMATED",
    "MAX_AMOUNT",
    "Amounts",
    "Budget",
    "Excess",
    "add_amounts",
    "find_excess",
    "find_near",
    "is_amounts",
    "limit_of",
    "limits_for",
    "raised",
    "without",
]

COUNTERS = ("tokens", "cost", "model_calls", "tool_calls", "seconds")
"""What is counted."""

ESTIMATED = ("tokens", "cost")
"""What of it is known only after a call, and is estimated until then."""

Amounts = Mapping[str, float]
"""How much, by counter; in what was spent, "raised_tokens" and the like say what was added to a limit."""

_CALLS = ("model_calls", "tool_calls")
MAX_AMOUNT = 1e15
"""The largest limit: up to here a float counts in steps of 1."""
_PERIODS = ("hour", "day", "month")
_ROUNDING_ERROR = 1e-6  # of sums of what was reserved and given back


@suggest_keywords(
    max_tokens="tokens",
    token_budget="tokens",
    total_tokens_limit="tokens",
    max_cost="cost",
    request_limit="model_calls",
    run_limit="model_calls",
    tool_calls_limit="tool_calls",
    timeout="seconds",
    max_seconds="seconds",
    period="per",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much may be spent, at least one of: tokens, cost, calls of models and of tools, and seconds of their work.

    `per` is for the budget of an owner, which begins anew with each "hour", "day" or "month" of UTC, or after so many
    seconds.
    """

    tokens: float | None = None
    cost: float | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    per: str | float | None = None

    def __post_init__(self) -> None:
        # As what they may be, whatever the annotations say.
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
        """The limits that were given, by what they count."""
        return {counter: limit for counter in COUNTERS if (limit := getattr(self, counter)) is not None}


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that does not allow another call; `amount` is what that call would take of it."""

    counter: str
    limit: float
    spent: float
    amount: float = 0.0

    def raise_in_steps(self, step: float) -> float:
        """Return what to add to the limit so that it allows the call: as many steps as it takes, one at least."""
        step = float(ceil(step)) if self.counter in _CALLS else step
        beyond = self.spent - self.limit
        return step * max(1, floor(beyond / step) + 1, ceil((beyond + self.amount) / step))


def find_excess(limits: Amounts, spent: Amounts, amounts: Amounts) -> Excess | None:
    """Return the first limit that is used up, or that the amounts would exceed; `None` if they may be spent."""
    for counter in limits:
        limit, before = limit_of(limits, spent, counter), spent.get(counter, 0.0)
        # The first of the two where nothing is reserved, since what a call will take is then not known.
        if before >= limit or before + amounts.get(counter, 0.0) > limit:
            return Excess(counter, limit, before, amounts.get(counter, 0.0))
    return None


def find_near(limits: Amounts, spent: Amounts, share: float) -> Excess | None:
    """Return the first limit of which this share is spent."""
    for counter in limits:
        limit, before = limit_of(limits, spent, counter), spent.get(counter, 0.0)
        if before >= share * limit:
            return Excess(counter, limit, before)
    return None


def without(spent: Amounts, amounts: Amounts) -> Amounts:
    """Return what was spent before these amounts were."""
    return {**spent, **{counter: spent.get(counter, 0.0) - amount for counter, amount in amounts.items()}}


def add_amounts(counted: dict[str, Any], amounts: Amounts) -> None:
    """Add what was spent to what is counted, or take away what is given back."""
    for counter, amount in amounts.items():
        # What is given back was counted, but in another order a float may fall short of it.
        counted[counter] = max(0.0, counted.get(counter, 0) + amount)


def limits_for(limits: Amounts, call: str) -> Amounts:
    """Return the limits that hold for calls of that kind: of how many tools are called, models know nothing."""
    return {counter: limit for counter, limit in limits.items() if counter == call or counter not in _CALLS}


def limit_of(limits: Amounts, spent: Amounts, counter: str) -> float:
    """Return the limit with what was added to it since."""
    return limits[counter] + spent.get(raised(counter), 0)


def raised(counter: str) -> str:
    """Return the name of what was added to a limit."""
    return f"raised_{counter}"


def is_amounts(value: object, names: Iterable[str] = (*COUNTERS, *map(raised, COUNTERS))) -> bool:
    """Say whether the value holds how much was spent: finite numbers, none of them below zero."""
    if not isinstance(value, Mapping):
        return False
    for name in names:
        amount = value.get(name, 0.0)
        # An int may be too large for a float.
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not -_ROUNDING_ERROR <= amount < 1e300:
            return False
    return True
