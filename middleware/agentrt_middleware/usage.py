"""How many tokens were taken, and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, ClassVar

from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.message import ContentBlock, Msg
from agentrt.model import ChatResponse, ChatUsage, ModelResult
from agentrt.model.estimate import estimated_usage
from agentrt_middleware.attempts import usage_of, watch
from agentrt_middleware.validation import check_number

__all__ = ["UsageMiddleware", "UsageReport"]

_PER_PRICE = 1_000_000  # tokens that a price is for
_Tallies = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What some model calls took; `cost` is `None` when the price of any of them is not known.

    `tokens.estimated` says that some were not counted by a provider. `models` has a report for each model by its name.
    """

    calls: int
    tokens: ChatUsage
    cost: float | None
    models: "dict[str, UsageReport]" = field(default_factory=dict)


class UsageMiddleware(MiddlewareBase):
    """Counts the tokens of each reply, each conversation and of all, and what they cost.

    `prices` are for a million tokens: `{"gpt-5-mini": (input, output, cached_input)}`, in whatever currency; cached
    input is priced as other input if its price is left out. A model without a price has the cost `None`, and so has
    everything that it is part of. Where the provider does not say how many tokens there were, or an answer is cut
    short, they are estimated. The runtime's own calls, for summaries, count as well.

    What a conversation took is saved with its state, what all took is not.
    """

    wrapped_by: ClassVar = ("ModelFallbackMiddleware", "RetryMiddleware")  # each attempt takes tokens

    def __init__(self, prices: Mapping[str, Sequence[float]] | None = None) -> None:
        self._prices = {name: _checked(name, price) for name, price in (prices or {}).items()}
        self._all: _Tallies = {}
        self._lock = Lock()

    def of_reply(self, agent: Any) -> UsageReport:
        """Return what the reply in progress took so far, between replies what the last one did."""
        return self._report(agent.state_of(self).get("reply", {}))

    def of_conversation(self, agent: Any) -> UsageReport:
        """Return what all replies of the conversation took."""
        return self._report(agent.state_of(self).get("conversation", {}))

    def total(self) -> UsageReport:
        """Return what all calls took that went through this middleware."""
        with self._lock:
            return self._report(dict(self._all))

    async def on_model_call(
        self, agent: Any, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        data = agent.state_of(self)
        if data.get("reply_id") != agent.run.id:
            data.update(reply_id=agent.run.id, reply={})
        tallies = [data["reply"], data.setdefault("conversation", {})]
        call = _Call(self, tallies, input_kwargs["current_model"].model, input_kwargs["messages"])
        return await watch(next_handler, input_kwargs, call)

    def _add(self, tallies: list[_Tallies], model: str, usage: ChatUsage) -> None:
        for each in tallies:
            _add(each, model, usage)
        with self._lock:  # event loops in other threads may use it too
            _add(self._all, model, usage)

    def _report(self, tallies: _Tallies) -> UsageReport:
        models = {name: self._report_of(name, tally) for name, tally in tallies.items()}
        calls, tokens, cost = 0, ChatUsage(), 0.0
        for report in models.values():
            calls += report.calls
            tokens += report.tokens
            cost += report.cost or 0.0
        is_known = all(report.cost is not None for report in models.values())
        return UsageReport(calls, tokens, cost if is_known else None, models)

    def _report_of(self, model: str, tally: dict[str, Any]) -> UsageReport:
        tokens = ChatUsage(**tally["tokens"])
        price = self._prices.get(model)
        if price is None:
            return UsageReport(tally["calls"], tokens, None)
        cached = min(tokens.cache_input_tokens, tokens.input_tokens)
        counts = (tokens.input_tokens - cached, tokens.output_tokens, cached)
        cost = sum(count * each for count, each in zip(counts, price, strict=True)) / _PER_PRICE
        return UsageReport(tally["calls"], tokens, cost)


class _Call:
    """What one model call took."""

    def __init__(self, layer: UsageMiddleware, tallies: list[_Tallies], model: str, messages: list[Msg]) -> None:
        self._layer = layer
        self._tallies = tallies
        self._model = model
        self._messages = messages
        self._usage: ChatUsage | None = None
        self._said: list[ContentBlock] = []

    def see(self, response: ChatResponse) -> None:
        self._usage = usage_of(response) or self._usage
        if response.is_last:
            self._said = list(response.content)
        else:
            self._said += response.content

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        usage = self._usage
        if usage is None:
            if not (is_whole or self._said):
                return  # nobody answered
            usage = estimated_usage(self._messages, self._said)
        self._layer._add(self._tallies, self._model, usage)


def _add(tallies: _Tallies, model: str, usage: ChatUsage) -> None:
    before = tallies.get(model)
    if before is None:
        tallies[model] = {"calls": 1, "tokens": asdict(usage)}
    else:
        tokens = ChatUsage(**before["tokens"]) + usage
        tallies[model] = {"calls": before["calls"] + 1, "tokens": asdict(tokens)}


def _checked(name: str, price: Sequence[float]) -> tuple[float, float, float]:
    if not isinstance(price, (list, tuple)) or len(price) not in (2, 3):
        raise MiddlewareConfigError(
            f"UsageMiddleware(prices=...) has {price!r:.200} for {name!r}: give (input, output) or (input, output, "
            f"cached input), for a million tokens"
        )
    for each in price:
        check_number(f"UsageMiddleware(prices=...) for {name!r}", each, least=0)
    return (price[0], price[1], price[2] if len(price) == 3 else price[0])
