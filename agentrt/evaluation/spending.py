"""The spending of judges and simulated users: a common budget, and their usage, apart from the agents'."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.middleware import Budget, BudgetMiddleware, UsageMiddleware
from agentrt.model import ChatModelBase, ChatUsage, PublishedPrices, chat_model

_ENDLESS_PERIOD = 1e12  # seconds
_FormT = TypeVar("_FormT")


def is_text(value: object) -> bool:
    """Say whether a value is a str with more than white space; callers may ignore annotations."""
    return isinstance(value, str) and bool(value.strip())


def published_cost(model: ChatModelBase, usage: ChatUsage) -> float | None:
    """Return the cost of a call by the published price of its model, `None` if there is none."""
    prices = model.capabilities.prices or PublishedPrices(model.model, getattr(model, "base_url", None), model.provider)
    cost = prices.cost(usage)
    return None if cost is None else float(cost)


def open_budget(budget: Budget | None) -> BudgetMiddleware | None:
    """Return the layer that all judges and simulated users of an evaluation share."""
    if budget is None:
        return None
    if not isinstance(budget, Budget):
        raise ConfigError(f"budget=... must be a Budget, such as Budget(tokens=100_000), not {budget!r:.100}")
    # The budget of an owner needs a period: one that is longer than any evaluation.
    owner = budget if budget.per is not None else replace(budget, per=_ENDLESS_PERIOD)
    # Without a warning, since its hint would be one more text for the judge.
    return BudgetMiddleware(owner=owner, owner_id="evaluation", prices=published_cost, warn_at=None, on_exceed="raise")


@dataclass(slots=True)
class SpendingAccount:
    """The usage of one side in a trial, and the budget that it spends from; an unknown price makes the cost `None`."""

    budget: BudgetMiddleware | None = None
    usage: ChatUsage = field(default_factory=ChatUsage)
    cost: float | None = 0.0

    def add(self, usage: ChatUsage, cost: float | None) -> None:
        """Add the usage of some calls."""
        self.usage += usage
        self.cost = None if self.cost is None or cost is None else self.cost + cost


class Asker:
    """A model that gives structured output without tools, for a judge or a simulated user."""

    def __init__(self, option: str, model: ChatModelBase | str) -> None:
        # Untyped, since callers may ignore the annotations.
        wrong: Any = model
        if not isinstance(wrong, (ChatModelBase, str)) or not wrong:
            raise ConfigError(f"{option} must be a model, or a str such as 'openai:gpt-5-mini', not {wrong!r:.100}")
        self.model = model

    async def ask(self, name: str, prompt: str, text: str, form: type[_FormT], account: SpendingAccount) -> _FormT:
        """Return the answer to `text`; raises what a reply raises, `BudgetExceeded` too."""
        # Created at its first use, since a data set may be loaded without an API key.
        if isinstance(self.model, str):
            self.model = chat_model(self.model)
        counter = UsageMiddleware(cost_of=published_cost)
        layers = [counter, *([] if account.budget is None else [account.budget])]
        try:
            message = await Agent(name, prompt, self.model, middlewares=layers).reply(text, structured_schema=form)
        finally:  # a failed answer costs, too
            total = counter.total()
            account.add(total.tokens, total.cost)
        answer = message.structured_output
        assert isinstance(answer, form)  # anything else has raised
        return answer
