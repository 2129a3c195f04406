"""The capabilities of a model, as far as they are known before a request."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Protocol

from agentrt._runtime.options import check_whole
from agentrt.errors import ConfigError
from agentrt.message import ContentBlock, DataBlock, Msg, ToolResultBlock
from agentrt.types import ChatUsage, JSONSchema

INPUTS = ("text", "image", "audio", "video", "pdf")
"""The possible inputs of a model."""
_ABILITIES = ("tools", "schema", "reasoning")
CAPABILITIES = (*INPUTS, *_ABILITIES)
"""The possible requirements of a call."""

_TOKENS_OF_A_PRICE = 1_000_000


class ModelPrices(Protocol):
    """The prices of a model's calls."""

    def cost(self, usage: ChatUsage) -> float | None:
        """Return the cost of a call with this usage in US dollars, `None` if unknown."""


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """The prices of a million tokens in US dollars: of input, of output, and of input that the provider had cached.

    Without a price of its own, cached input costs as much as other input.
    """

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            price: object = getattr(self, field.name)
            is_number = isinstance(price, (int, float)) and not isinstance(price, bool) and 0 <= price < inf
            if not is_number and not (price is None and field.name == "cached_input"):
                raise ConfigError(
                    f"TokenPrices({field.name}=...) must be a price of a million tokens, as in 0.25, not {price!r:.99}"
                )

    def cost(self, usage: ChatUsage) -> float | None:
        """Return the cost of a call with this usage in US dollars."""
        # The input includes the cached tokens; a server that reports more of these must not make the rest negative.
        cached = min(max(usage.cache_input_tokens, 0), max(usage.input_tokens, 0))
        cached_price = self.input if self.cached_input is None else self.cached_input
        cost = (usage.input_tokens - cached) * self.input + usage.output_tokens * self.output + cached * cached_price
        return cost / _TOKENS_OF_A_PRICE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """The capabilities of a model; `None` means unknown, and no request is refused for an unknown one.

    `context_size` is the maximum of tokens of request and answer together. `max_input_tokens` is that of a request, if
    it is less, and `max_output_tokens` that of an answer. `inputs` are the kinds of input that it takes, of
    "text", "image", "audio", "video" and "pdf"; "text" is always among them. `schema` says whether its provider can
    bind an answer to a JSON schema. `prices` are the prices of its calls.
    """

    context_size: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    inputs: frozenset[str] | None = None
    tools: bool | None = None
    schema: bool | None = None
    reasoning: bool | None = None
    prices: ModelPrices | None = None

    def __post_init__(self) -> None:
        for name in ("context_size", "max_input_tokens", "max_output_tokens"):
            if getattr(self, name) is not None:
                check_whole(f"ModelCapabilities({name}=...)", getattr(self, name))
        for name in _ABILITIES:
            ability: object = getattr(self, name)
            if ability is not None and not isinstance(ability, bool):
                raise ConfigError(f"ModelCapabilities({name}=...) must be True, False or None, not {ability!r:.100}")
        # A str would be read as letters, a dict may have values that say False, and an iterator can be read only once.
        # Kept as a frozenset, since a frozen object must be hashable and a list is not.
        if self.inputs is not None:
            words: object = self.inputs
            is_set = isinstance(words, Collection) and not isinstance(words, (str, Mapping))
            if not is_set or not all(word in INPUTS for word in self.inputs):
                raise ConfigError(
                    f"ModelCapabilities(inputs=...) must be a set of {', '.join(INPUTS)}, as in "
                    f"{{'text', 'image'}}, not {words!r:.100}"
                )
            object.__setattr__(self, "inputs", frozenset({"text", *self.inputs}))
        # Any object with the method will do, but not the class of prices itself.
        is_class = isinstance(self.prices, type)
        if self.prices is not None and (is_class or not callable(getattr(self.prices, "cost", None))):
            raise ConfigError(
                f"ModelCapabilities(prices=...) must be TokenPrices(input, output), or an object with a method "
                f"cost(usage), not {self.prices!r:.100}"
            )

    def lacks(self, capability: str) -> bool:
        """Say whether the model is known to lack a capability: an input, "tools", "schema" or "reasoning"."""
        # `None` is unknown, not lacking.
        if capability in _ABILITIES:
            return getattr(self, capability) is False
        if capability not in INPUTS:
            raise ConfigError(f"{capability!r:.100} is not a capability: write one of {', '.join(CAPABILITIES)}")
        return self.inputs is not None and capability not in self.inputs


def inputs_of(messages: Iterable[Msg], *, of_models: bool = True) -> set[str]:
    """Return the inputs in the messages besides text: "image", "audio", "video" and "pdf".

    With `of_models=False`, files made by models do not count.
    """
    found: set[str] = set()
    for message in messages:
        if isinstance(message.content, str):  # most are, and `get_content_blocks` would make blocks of them
            continue
        for block in message.content:
            parts: Sequence[ContentBlock] = ()
            # Formatters only name files made by a model, but send those returned by a tool.
            if isinstance(block, DataBlock) and (of_models or message.role != "assistant"):
                parts = (block,)
            elif isinstance(block, ToolResultBlock) and not isinstance(block.output, str):
                parts = block.output
            for part in parts:
                if isinstance(part, DataBlock):
                    kind_of_data, _, subtype = part.source.media_type.strip().lower().partition("/")
                    if kind_of_data in INPUTS and kind_of_data != "text":
                        found.add(kind_of_data)
                    # Other files are text, or unsupported by all models, which read a note instead.
                    elif subtype.startswith("pdf"):
                        found.add("pdf")
    return found


def needs_of(messages: Sequence[Msg], tools: Sequence[JSONSchema] | None) -> set[str]:
    """Return the capabilities that a call needs besides "text"."""
    needs = inputs_of(messages)
    return needs | {"tools"} if tools else needs
