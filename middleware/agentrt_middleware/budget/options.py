"""Checks of the options of a budget."""

from inspect import iscoroutinefunction
from typing import Any

from agentrt.errors import MiddlewareConfigError
from agentrt_middleware.budget.limits import Budget
from agentrt_middleware.budget.stores import BudgetStore
from agentrt_middleware.validation import check_choice, check_number, check_store_option


def check_budgets(reply: object, conversation: object, owner: object) -> None:
    """Raise `MiddlewareConfigError` unless there is a budget, and each of them is one."""
    budgets = {"reply": reply, "conversation": conversation, "owner": owner}
    for scope, budget in budgets.items():
        option = f"BudgetMiddleware({scope}=...)"
        if budget is None:
            continue
        if not isinstance(budget, Budget):
            raise MiddlewareConfigError(
                f"{option} must be a Budget, not {budget!r:.200}: write {scope}=Budget(tokens=50_000), say"
            )
        if scope != "owner" and budget.per is not None:
            raise MiddlewareConfigError(
                f"{option} has per={budget.per!r:.100}, which only the budget of an owner can have: leave it out, or "
                f"write owner=Budget(...)"
            )
    if all(budget is None for budget in budgets.values()):
        raise MiddlewareConfigError(
            "BudgetMiddleware() has no budget, so that nothing would ever be used up: write "
            "BudgetMiddleware(reply=Budget(tokens=50_000)), say"
        )


def check_owner(owner: Budget | None, owner_id: object, store: object) -> None:
    """Raise `MiddlewareConfigError` unless the owner and the period of its budget are given."""
    if owner is None:
        for option, value in (("owner_id", owner_id), ("store", store)):
            if value is not None:
                raise MiddlewareConfigError(
                    f"BudgetMiddleware({option}=...) is for the budget of an owner, and there is none: write "
                    f"owner=Budget(..., per='day'), or leave out {option}"
                )
        return
    if owner.per is None:
        raise MiddlewareConfigError(
            "BudgetMiddleware(owner=...) needs a period: write Budget(..., per='day'), or 'hour', 'month' or a number "
            "of seconds"
        )
    # A coroutine would never be awaited, and a class would return an object that is not a str.
    is_function = callable(owner_id) and not isinstance(owner_id, type) and not iscoroutinefunction(owner_id)
    if not (is_function or (isinstance(owner_id, str) and owner_id)):
        raise MiddlewareConfigError(
            f"BudgetMiddleware(owner_id=...) must be a str that is not empty, or a plain function of the agent that "
            f"returns one, not {owner_id!r:.200}: write owner_id=lambda agent: agent.run.deps.user, say"
        )
    stores = "a SQLiteBudgetStore or a RedisBudgetStore, or have their reserve and settle"
    check_store_option("BudgetMiddleware(store=...)", store, BudgetStore, stores)


def check_behaviour(
    weights: object,
    warn_at: object,
    on_exceed: object,
    raise_by: object,
    stop_message: object,
    reserve: object,
    on_store_error: object,
) -> None:
    """Raise `MiddlewareConfigError` for invalid reactions to a nearly or fully used-up budget."""
    option = "BudgetMiddleware({}=...)".format
    rates: Any = weights if isinstance(weights, (list, tuple)) else ()
    if len(rates) != 3:
        raise MiddlewareConfigError(
            f"{option('weights')} must be three numbers, for input, output and cached input, not {weights!r:.200}"
        )
    # Some may be 0, such as free cached input.
    for weight in rates:
        check_number(option("weights"), weight, least=0)
        _check_magnitude(option("weights"), weight)
    if not any(rates):
        raise MiddlewareConfigError(f"{option('weights')} are all 0, so that no token would count: leave them out")
    if warn_at is not None:
        check_number(option("warn_at"), warn_at, least=0)
        if warn_at > 1:  # type: ignore[operator]  # a number, as was checked
            raise MiddlewareConfigError(
                f"{option('warn_at')} must be a share from 0 to 1 of a limit, or None, not {warn_at!r:.200}"
            )
    check_choice(option("on_exceed"), on_exceed, ("stop", "raise", "ask"))
    check_number(option("raise_by"), raise_by)
    _check_magnitude(option("raise_by"), raise_by)
    if not isinstance(stop_message, str) or not stop_message:
        raise MiddlewareConfigError(f"{option('stop_message')} must be a str for the user, not {stop_message!r:.200}")
    if not isinstance(reserve, bool):
        raise MiddlewareConfigError(f"{option('reserve')} must be True or False, not {reserve!r:.200}")
    check_choice(option("on_store_error"), on_store_error, ("closed", "open"))


def _check_magnitude(option: str, number: Any) -> None:
    # Also so that no sum becomes infinite, or an int too large for a float.
    if number > 1e6:
        raise MiddlewareConfigError(f"{option} must be at most a million, not {number!r:.200}")
