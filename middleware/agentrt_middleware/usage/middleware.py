"""Usage: counts how many tokens are used, and what they cost."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, NotRequired, TypedDict

from agentrt.agent import AgentBase, Run
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import MiddlewareBase
from agentrt.keywords import suggest_keywords
from agentrt.model import ChatModelBase, ChatUsage, WireRecord
from agentrt_middleware.attempts import usage_on_wire
from agentrt_middleware.usage.prices import CostOfCall, check_price_table, cost_at

__all__ = ["UsageMiddleware", "UsageReport"]

_logger = logging.getLogger("agentrt")


class _Tally(TypedDict):
    """What the calls of one model used, as JSON; `tokens` are the fields of a `ChatUsage`.

    `cost` is what `cost_of` said of all of them, and missing if it did not know one.
    """

    calls: int
    tokens: dict[str, Any]
    cost: NotRequired[float]


_Tallies = dict[str, _Tally]  # by the name of the model


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What some model calls used; `cost` is `None` if the price of any of them is not known.

    `tokens.estimated` says that no provider counted some of them. `models` has a report for each model by its name.
    """

    calls: int
    tokens: ChatUsage
    cost: float | None
    models: "dict[str, UsageReport]" = field(default_factory=dict)


@suggest_keywords()
class UsageMiddleware(MiddlewareBase):
    """Counts the tokens of each reply, of each conversation and of all conversations, and what they cost.

    `prices` are for a million tokens, in any currency: `{"gpt-5-mini": (input, output, cached_input)}`. Without a price
    of its own, cached input costs as much as other input. `cost_of(model, usage)` returns the cost of one call, where
    `prices` does not list the model; `genai_prices()` makes such a function. A model without a price has the cost
    `None`, and so has every sum that includes it. If the provider does not report the tokens, or an answer is cut
    short, they are estimated. What reaches a model is counted: each attempt and each fallback, wherever this stands in
    the list, and the runtime's own calls, for summaries; never an answer that a layer gives itself.

    What a reply's tools ask other agents for counts in that reply and its conversation too, where those agents have
    this same middleware, as sub-agents do; in the total each call counts once.

    The usage of a conversation is saved with its state, the total is not.
    """

    inherited = True

    def __init__(
        self, prices: Mapping[str, Sequence[float]] | None = None, *, cost_of: CostOfCall | None = None
    ) -> None:
        if cost_of is not None and not callable(cost_of):
            raise MiddlewareConfigError(
                f"UsageMiddleware(cost_of=...) must be a function of a model and a ChatUsage, not {cost_of!r:.200}: "
                f"give genai_prices(), or one of yours"
            )
        self._prices = check_price_table("UsageMiddleware(prices=...)", {} if prices is None else prices)
        self._cost_of = cost_of
        self._total: _Tallies = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())  # a copy counts for itself from here on

    def of_reply(self, agent: AgentBase) -> UsageReport:
        """Return what the reply in progress has used so far; between replies, what the last one used."""
        data = agent.state_of(self)
        # A reply that no model was asked for has used nothing.
        return self._report(data["reply"] if data.get("reply_id") == agent.reply_id and "reply" in data else {})

    def of_conversation(self, agent: AgentBase) -> UsageReport:
        """Return what all replies of the conversation have used."""
        return self._report(agent.state_of(self).get("conversation", {}))

    def total(self) -> UsageReport:
        """Return what all calls through this middleware have used."""
        with self._lock:
            return self._report(dict(self._total))

    def on_wire(self, agent: AgentBase, record: WireRecord) -> None:
        usage = usage_on_wire(agent, record)
        if usage is None or usage.replayed:  # an answer that is replayed was counted when it was paid for
            return
        data, run = agent.state_of(self), agent.run
        reply_id, parent = run.id, run.parent
        # Kept by its id: a reply that was parked and is resumed, maybe in another process, keeps its count.
        if data.get("reply_id") != reply_id:
            data.update(reply_id=reply_id, reply={})
        tallies = [data["reply"], data.setdefault("conversation", {})]
        if parent is not None:
            tallies += self._tallies_above(parent)
        self._add(tallies, record.model, usage)

    def _tallies_above(self, run: Run | None) -> list[_Tallies]:
        """Return the tallies of the replies whose tools asked for another one: what that uses, they use."""
        tallies: list[_Tallies] = []
        while run is not None:
            if any(layer is self for layer in run.agent.middlewares):
                data = run.agent.state_of(self)
                if data.get("reply_id") != run.id and not (run.ended and "reply_id" in data):
                    data.update(reply_id=run.id, reply={})
                # One that has ended left a task behind, and another reply may be counted by now.
                if data["reply_id"] == run.id:
                    tallies.append(data["reply"])
                tallies.append(data.setdefault("conversation", {}))
            run = run.parent
        return tallies

    def _add(self, tallies: list[_Tallies], model: ChatModelBase, usage: ChatUsage) -> None:
        """Add the usage of one call to the tallies of its reply and conversation, and to the total."""
        cost = None
        if self._cost_of is not None and model.model not in self._prices:
            try:
                known = self._cost_of(model, usage)
                cost = None if known is None else float(known)
            except Exception as error:  # noqa: BLE001  # a reply that has been paid for does not fail for its price
                _logger.warning("the cost of a call of %r is not known: %s", model.model, type(error).__name__)
        for tally in tallies:
            _add_to(tally, model.model, usage, cost)
        with self._lock:  # event loops in other threads may add to the total as well
            _add_to(self._total, model.model, usage, cost)

    def _report(self, tallies: _Tallies) -> UsageReport:
        models = {name: self._report_of(name, tally) for name, tally in tallies.items()}
        calls, tokens, cost = 0, ChatUsage(), 0.0
        for report in models.values():
            calls += report.calls
            tokens += report.tokens
            cost += report.cost or 0.0
        is_known = all(report.cost is not None for report in models.values())
        return UsageReport(calls, tokens, cost if is_known else None, models)

    def _report_of(self, model: str, tally: _Tally) -> UsageReport:
        tokens = ChatUsage(**tally["tokens"])
        price = self._prices.get(model)
        if price is None:
            return UsageReport(tally["calls"], tokens, tally.get("cost"))
        return UsageReport(tally["calls"], tokens, cost_at(price, tokens))


def _add_to(tallies: _Tallies, model: str, usage: ChatUsage, cost: float | None) -> None:
    tally = tallies.get(model)
    if tally is None:
        tally = tallies[model] = {"calls": 1, "tokens": asdict(usage)}
        if cost is not None:
            tally["cost"] = cost
        return
    # Number by number: sums of `ChatUsage`s would cost more than all the rest of a call.
    tally["calls"] += 1
    tokens = tally["tokens"]
    tokens["input_tokens"] += usage.input_tokens
    tokens["output_tokens"] += usage.output_tokens
    tokens["cache_input_tokens"] += usage.cache_input_tokens
    tokens["cache_creation_input_tokens"] += usage.cache_creation_input_tokens
    tokens["estimated"] |= usage.estimated
    if cost is None:
        tally.pop("cost", None)  # one call of unknown cost makes the sum unknown for good
    elif "cost" in tally:
        tally["cost"] += cost
