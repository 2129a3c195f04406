"""How many tokens a call of a model is expected to take, and how many it has taken."""

import logging
from collections import deque
from math import inf
from typing import Any

from pydantic_core import to_json

from agentrt.hooks import ModelCallValues
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.model.estimate import characters_of, estimated_usage
from agentrt.text import repr_of

__all__ = ["AnswerLengths", "CallTokens"]

_CHARACTERS_PER_TOKEN = 4
_FIRST_GUESS = 256  # tokens of an answer, as long as none has been seen
_REMEMBERED = 32  # answers, whose lengths say what to expect of the next
_LIMITS_OF_ANSWERS = ("max_completion_tokens", "max_tokens", "max_output_tokens")  # in the settings of models

_logger = logging.getLogger("agentrt")


class AnswerLengths:
    """How long the answers of one model are: nine in ten of the last ones had no more than `expected` tokens."""

    __slots__ = ("_last", "expected")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_REMEMBERED)
        self.expected: float = _FIRST_GUESS

    def learn(self, tokens: float) -> None:
        self._last.append(tokens)
        self.expected = sorted(self._last)[len(self._last) * 9 // 10]


class CallTokens:
    """The tokens of one call: how many are `expected`, and what has been seen of its answer."""

    __slots__ = ("_asked", "_characters", "_is_whole", "_lengths", "_model", "_usage", "expected")

    def __init__(self, values: ModelCallValues, lengths: AnswerLengths) -> None:
        model = values["current_model"]
        schemas = len(to_json(values["tools"])) // _CHARACTERS_PER_TOKEN if values["tools"] else 0
        self._asked = estimated_usage(values["messages"], ()).input_tokens + schemas
        self._model = model.model
        self._lengths = lengths
        self._usage: ChatUsage | None = None
        self._characters = 0
        self._is_whole = False
        self.expected = self._asked + min(lengths.expected, _longest_answer(model))

    def see(self, response: ChatResponse) -> None:
        """Take note of the whole answer, or of one piece of it."""
        if isinstance(response.usage, ChatUsage):
            self._usage = response.usage
        if response.is_last:
            self._is_whole, self._characters = True, 0
        for block in response.content:
            self._characters += characters_of(block)

    def finish(self) -> None:
        """Take note that a stream came to its end, also where none of its pieces was marked as the last."""
        self._is_whole = True

    def count(self, most: float) -> float:
        """Return how many tokens the call took, and learn from it, when it is over; a report above `most` is capped.

        An answer that was left or broken off took at least what was seen of it. A whole answer without reported usage
        may have taken more than was seen, so it counts with no less than was expected.
        """
        seen = -(-self._characters // _CHARACTERS_PER_TOKEN)
        usage = self._usage
        if usage is None:
            return self._count_seen(seen)
        asked, said = usage.input_tokens, usage.output_tokens
        if not (_is_number(asked) and _is_number(said)):
            return self._warn(self._count_seen(seen))
        if not self._is_whole:
            said = max(said, seen)
        if min(asked, said) < 0 or max(asked, said) > most or asked + said > most:  # one may be too large to be added
            return self._warn(min(min(max(asked, 0), most) + min(max(said, 0), most), most))
        self._lengths.learn(said)
        return asked + said

    def _count_seen(self, seen: int) -> float:
        if self._is_whole:
            return max(self.expected, self._asked + seen)
        if seen:
            self._lengths.learn(seen)
        return self._asked + seen

    def _warn(self, counted: float) -> float:
        _logger.warning(
            "model %r reports %s, which cannot be: the call counts as %.0f tokens in its rate limit",
            self._model,
            repr_of(self._usage),
            counted,
        )
        return counted


def _longest_answer(model: ChatModelBase) -> float:
    limits = [model.settings.get(name) for name in _LIMITS_OF_ANSWERS]
    return min((limit for limit in limits if isinstance(limit, (int, float)) and limit > 0), default=inf)


def _is_number(count: Any) -> bool:
    return isinstance(count, (int, float)) and not isinstance(count, bool) and count == count  # not nan
