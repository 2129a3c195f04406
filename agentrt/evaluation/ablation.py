"""Ablation: the worth of each layer, from the trials with it and those without it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from agentrt._runtime.text import one_line
from agentrt.errors import ConfigError
from agentrt.evaluation.statistics import bootstrap, mcnemar, pass_hat
from agentrt.evaluation.trial import Trial
from agentrt.hooks import MiddlewareBase
from agentrt.types import JSONObject

_OF_AGENT = ("build", "reply", "run")  # places of errors that are not those of a judge or a user

Ablate = bool | str | type[MiddlewareBase] | Sequence[str | type[MiddlewareBase]]
"""The layers to leave out, one at a time: `True` for each of them, or keys and classes."""


ShareOf = Literal["cost", "tokens"]


@dataclass(frozen=True, slots=True)
class LayerWorth:
    """The worth of a layer: the change of quality that it makes, its cost and its time.

    `quality` and `pass_hat` are the figures without the layer, the latter over all repeats. `change` is the quality
    with the layer minus the quality without it, and `interval` is the interval of that, over cases. `p` is McNemar's
    exact p value over the cases that differ. `cost_share` is the share of the spending that the layer causes;
    `share_of` names its unit: "cost" is money, "tokens" are counted if a price is unknown. `seconds` is the time that
    it adds to a trial. A layer without figures has an `error` instead.
    """

    layer: str
    quality: float = 0.0
    change: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    pass_hat: float = 0.0
    p: float = 1.0
    cost_share: float = 0.0
    share_of: ShareOf = "cost"
    seconds: float = 0.0
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"without {self.layer}: {one_line(self.error, 200)}"
        low, high = self.interval
        return (
            f"without {self.layer}: {self.quality:.3f}, worth {self.change:+.3f} [{low:.3f}, {high:.3f}], "
            f"p {self.p:.3f}, {self.cost_share:.0%} of the {self.share_of}, {self.seconds:+.3f} s"
        )

    def to_json(self, *, times: bool) -> JSONObject:
        """Return the row as JSON."""
        value = asdict(self)
        if not times:
            del value["seconds"]
        return {**value, "interval": list(self.interval)}


def chosen_layers(ablate: Ablate, layers: Mapping[str, type[MiddlewareBase]]) -> list[str]:
    """Return the keys of the layers to leave out; an unknown name stays, and its row has an error."""
    if ablate is True:
        return list(layers)
    entries: Any = [ablate] if isinstance(ablate, (str, type)) else ablate or []
    if not isinstance(entries, (list, tuple)):
        raise ConfigError(f"evaluate(ablate=...) must be a bool, or keys and classes of layers, not {ablate!r:.100}")
    keys: dict[str, None] = {}
    for layer in entries:
        if not (isinstance(layer, str) or (isinstance(layer, type) and issubclass(layer, MiddlewareBase))):
            raise ConfigError(f"evaluate(ablate=...) must have keys and classes of layers, not {layer!r:.100}")
        # A class stands for its subclasses too, as in `agent.without`; each layer has a row of its own.
        named = [
            key
            for key, kind in layers.items()
            if (issubclass(kind, layer) if isinstance(layer, type) else key == layer)
        ]
        keys.update(dict.fromkeys(named or [layer if isinstance(layer, str) else layer.__name__]))
    return list(keys)


def rates_of(trials: Sequence[Trial]) -> dict[str, list[bool]]:
    """Return whether each trial passed, by the names of their cases."""
    passed: dict[str, list[bool]] = {}
    for trial in trials:
        passed.setdefault(str(trial.case), []).append(trial.passed)
    return passed


def worth_of(layer: str, with_layer: Sequence[Trial], without: Sequence[Trial], seed: int) -> LayerWorth:
    """Return the row of a layer; the trials have the same cases and repeats."""
    # Otherwise the layer would seem to be worth nothing.
    if not any(layer in trial.layers for trial in with_layer):
        return LayerWorth(layer, error="no agent of these cases has this layer")
    error = next((trial.error for trial in without if trial.error is not None and trial.error.where == "layer"), None)
    if error is not None:
        return LayerWorth(layer, error=error.text)
    # Unjudged trials fail, and would look as if they needed the layer.
    errors = [trial.error for trial in (*with_layer, *without) if trial.error is not None]
    if any(error.type == "BudgetExceeded" and error.where not in _OF_AGENT for error in errors):
        return LayerWorth(layer, error="the budget of judges and users was spent before all trials were judged")
    # By cases, since the tries of one case depend on each other.
    before, after = rates_of(with_layer), rates_of(without)
    rates = [math.fsum(passed) / len(passed) for passed in after.values()]
    changes = [sum(before[name]) / len(before[name]) - rate for name, rate in zip(after, rates, strict=True)]
    hats = [pass_hat(sum(passed), len(passed), len(passed)) for passed in after.values()]
    share_of, total, less = _amounts(with_layer, without)
    seconds = math.fsum(trial.seconds for trial in with_layer) - math.fsum(trial.seconds for trial in without)
    return LayerWorth(
        layer,
        math.fsum(rates) / len(rates),
        math.fsum(changes) / len(changes),
        bootstrap(changes, seed),
        math.fsum(hats) / len(hats),
        mcnemar(sum(change > 0 for change in changes), sum(change < 0 for change in changes)),
        (total - less) / total if total else 0.0,
        share_of,
        seconds / len(with_layer),
    )


def _amounts(with_layer: Sequence[Trial], without: Sequence[Trial]) -> tuple[ShareOf, float, float]:
    """Return the unit of both sides, and the spending with the layer and without it."""
    costs = [[trial.cost for trial in side if trial.cost is not None] for side in (with_layer, without)]
    # Both sides in one unit, or the share would compare money with tokens.
    if sum(map(len, costs)) == len(with_layer) + len(without) and any(costs[0]):
        return "cost", math.fsum(costs[0]), math.fsum(costs[1])
    total, less = (
        sum(trial.usage.input_tokens + trial.usage.output_tokens for trial in side) for side in (with_layer, without)
    )
    return "tokens", total, less
