"""Texts about a nearly or fully used-up scope: for listeners, for the model, and for the caller."""

from dataclasses import dataclass

from agentrt.agent import Run
from agentrt.errors import BudgetExceeded
from agentrt.event import CustomEvent
from agentrt_middleware.budget.limits import Excess

_WORDS = {
    "tokens": "tokens",
    "cost": "of money",
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "seconds": "seconds of work",
}


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """The reason for refusing a call: the reply of the used-up scope, and its used-up limit."""

    scope: str
    run: Run
    excess: Excess


def error_of(refusal: BudgetRefusal) -> BudgetExceeded:
    """Return the error that ends the reply."""
    excess = refusal.excess
    return BudgetExceeded(
        f"the budget of the {refusal.scope} is used up: {_share(excess)}; give it more in BudgetMiddleware(...)",
        scope=refusal.scope,
        counter=excess.counter,
        limit=excess.limit,
        spent=excess.spent,
        reply_id=refusal.run.id,
    )


def warning_of(scope: str, near: Excess, reply_id: str) -> CustomEvent:
    """Return the event for listeners."""
    value = {"scope": scope, "counter": near.counter, "limit": near.limit, "spent": near.spent}
    return CustomEvent("budget_warning", value, reply_id=reply_id)


def hint_of(scope: str, near: Excess) -> str:
    """Return the hint for the model."""
    return (
        f"The budget of this {scope} is nearly used up: {_share(near)}. Come to an end: say what you have found, and "
        f"call no tool that you can do without."
    )


def question_of(refusal: BudgetRefusal, amount: float) -> str:
    """Return the question to the user."""
    words = _WORDS[refusal.excess.counter]
    return f"The {refusal.scope} has spent {_share(refusal.excess)}. Allow {amount:,.6g} {words} more?"


def _share(excess: Excess) -> str:
    return f"{excess.spent:,.6g} of {excess.limit:,.6g} {_WORDS[excess.counter]}"
