"""Usage: counts tokens and their cost."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, NotRequired, TypedDict

from agentrt.agent import AgentBase, Run
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import MiddlewareBase
from agentrt.model import ChatModelBase, ChatUsage, WireRecord
from agentrt.model.catalog.rates import CostOfCall, check_price_table, cost_at
from agentrt_middleware.attempts import usage_on_wire

_logger = logging.getLogger("agentrt")


class _Tally(TypedDict):
    """The usage of one model's calls, as JSON; `tokens` are the fields of a `ChatUsage`.

    `cost` is the sum of `cost_of` for all calls, and missing if one is unknown. `moved` counts moved prefixes.
    """

    calls: int
    tokens: dict[str, Any]
    cost: NotRequired[float]
    moved: NotRequired[int]


_Tallies = dict[str, _Tally]  # by the name of the model


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The usage of some model calls; `cost` is `None` if the price of any of them is unknown.

    `moved_prefixes` counts the requests of rounds that did not begin with the one before them, see
    `WireRecord.moved`: their providers could read little or nothing of them from a cache.

    `tokens.estimated` says that some of them are estimates. `models` has a report for each model by its name.
    """

    calls: int
    tokens: ChatUsage
    cost: float | None
    models: "dict[str, UsageReport]" = field(default_factory=dict)
    moved_prefixes: int = 0


class UsageMiddleware(MiddlewareBase):
    """Counts the tokens of each reply, of each conversation and of all conversations, and their cost.

    `prices` are for a million tokens, in any currency: `{"gpt-5-mini": (input, output, cached_input)}`. Without a price
    of its own, cached input costs as much as other input. `cost_of(model, usage)` returns the cost of one call, where
    `prices` does not list the model; `genai_prices()` makes such a function. A model without a price has the cost
    `None`, and so has every sum that includes it. If the provider does not report the tokens, or an answer is cut
    short, they are estimated. All requests to a model count: each attempt and each fallback, wherever this stands in
    the list, and the runtime's own calls for summaries; answers of layers never count.

    The usage of other agents called by a reply's tools counts in that reply and its conversation too, if those agents
    have this same middleware, like sub-agents; in the total each call counts once.

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
        vars(self).update(state, _lock=Lock())  # a copy counts separately from here on

    def of_reply(self, agent: AgentBase) -> UsageReport:
        """Return the usage of the reply in progress so far; between replies, that of the last one."""
        data = agent.state_of(self)
        # A reply without model calls has used nothing.
        return self._report(data["reply"] if data.get("reply_id") == agent.reply_id and "reply" in data else {})

    def of_conversation(self, agent: AgentBase) -> UsageReport:
        """Return the usage of all replies of the conversation."""
        return self._report(agent.state_of(self).get("conversation", {}))

    def total(self) -> UsageReport:
        """Return the usage of all calls through this middleware."""
        with self._lock:
            return self._report(dict(self._total))

    def on_wire(self, agent: AgentBase, record: WireRecord) -> None:
        usage = usage_on_wire(agent, record)
        if usage is None or usage.replayed:  # a replayed answer was counted when it was paid for
            return
        data, run = agent.state_of(self), agent.run
        reply_id, parent = run.id, run.parent
        # By its id: a parked reply that is resumed, maybe in another process, keeps its count.
        if data.get("reply_id") != reply_id:
            data.update(reply_id=reply_id, reply={})
        tallies = [data["reply"], data.setdefault("conversation", {})]
        if parent is not None:
            tallies += self._tallies_above(parent)
        self._add(tallies, record.model, usage, moved=record.purpose is None and record.moved is not None)

    def _tallies_above(self, run: Run | None) -> list[_Tallies]:
        """Return the tallies of the replies whose tools started another one: its usage is theirs too."""
        tallies: list[_Tallies] = []
        while run is not None:
            if any(layer is self for layer in run.agent.middlewares):
                data = run.agent.state_of(self)
                if data.get("reply_id") != run.id and not (run.ended and "reply_id" in data):
                    data.update(reply_id=run.id, reply={})
                # An ended reply left a task behind, and another reply may be counted by now.
                if data["reply_id"] == run.id:
                    tallies.append(data["reply"])
                tallies.append(data.setdefault("conversation", {}))
            run = run.parent
        return tallies

    def _add(self, tallies: list[_Tallies], model: ChatModelBase, usage: ChatUsage, *, moved: bool) -> None:
        """Add the usage of one call to the tallies of its reply and conversation, and to the total."""
        cost = None
        if self._cost_of is not None and model.model not in self._prices:
            try:
                known = self._cost_of(model, usage)
                cost = None if known is None else float(known)
            except Exception as error:  # noqa: BLE001  # a reply that has been paid for does not fail for its price
                _logger.warning("the cost of a call of %r is not known: %s", model.model, type(error).__name__)
        for tally in tallies:
            _add_to(tally, model.model, usage, cost, moved=moved)
        with self._lock:  # event loops in other threads may add to the total too
            _add_to(self._total, model.model, usage, cost, moved=moved)

    def _report(self, tallies: _Tallies) -> UsageReport:
        models = {name: self._report_of(name, tally) for name, tally in tallies.items()}
        calls, tokens, cost, moved = 0, ChatUsage(), 0.0, 0
        for report in models.values():
            calls += report.calls
            tokens += report.tokens
            cost += report.cost or 0.0
            moved += report.moved_prefixes
        is_known = all(report.cost is not None for report in models.values())
        return UsageReport(calls, tokens, cost if is_known else None, models, moved)

    def _report_of(self, model: str, tally: _Tally) -> UsageReport:
        tokens = ChatUsage(**tally["tokens"])
        price = self._prices.get(model)
        cost = tally.get("cost") if price is None else cost_at(price, tokens)
        return UsageReport(tally["calls"], tokens, cost, moved_prefixes=tally.get("moved", 0))


def _add_to(tallies: _Tallies, model: str, usage: ChatUsage, cost: float | None, *, moved: bool) -> None:
    tally = tallies.get(model)
    if moved:
        tally = tallies.setdefault(model, {"calls": 0, "tokens": asdict(ChatUsage()), "cost": 0.0})
        tally["moved"] = tally.get("moved", 0) + 1
    if tally is None:
        tally = tallies[model] = {"calls": 1, "tokens": asdict(usage)}
        if cost is not None:
            tally["cost"] = cost
        return
    # Number by number: adding `ChatUsage`s would cost more than the rest of a call.
    tally["calls"] += 1
    tokens = tally["tokens"]
    tokens["input_tokens"] += usage.input_tokens
    tokens["output_tokens"] += usage.output_tokens
    tokens["cache_input_tokens"] += usage.cache_input_tokens
    tokens["cache_creation_input_tokens"] += usage.cache_creation_input_tokens
    tokens["estimated"] |= usage.estimated
    if cost is None:
        tally.pop("cost", None)  # one call with an unknown cost makes the sum unknown for good
    elif "cost" in tally:
        tally["cost"] += cost
