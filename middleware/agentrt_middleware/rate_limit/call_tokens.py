"""The tokens of a model call: the expected and the used ones."""

import logging
from collections import deque

from agentrt._runtime.text import repr_of
from agentrt.errors import MiddlewareConfigError
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.model.estimate import CHARACTERS_PER_TOKEN, characters_of

_FIRST_ESTIMATE = 256  # tokens of an answer, until one has been seen
_REMEMBERED_ANSWERS = 32  # enough for a quantile, few enough to follow a change of subject

_logger = logging.getLogger("agentrt")


class AnswerLengths:
    """The lengths of one model's answers: nine in ten of the last ones had at most `expected` tokens."""

    __slots__ = ("_recent", "expected")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED_ANSWERS)
        self.expected: float = _FIRST_ESTIMATE

    def learn(self, tokens: float) -> None:
        self._recent.append(tokens)
        self.expected = sorted(self._recent)[len(self._recent) * 9 // 10]


class CallTokens:
    """The tokens of one call: the `expected` number, and the part of its answer seen so far.

    `request` is an estimate of the sent ones. With `reserve`, the answer is expected to have its maximum length.
    """

    __slots__ = ("_characters", "_is_whole", "_length", "_lengths", "_model", "_request", "_usage", "expected")

    def __init__(self, model: ChatModelBase, request: int, lengths: AnswerLengths, *, reserve: bool = False) -> None:
        self._request = request
        self._model = model.model
        self._length = model.text_length
        self._lengths = lengths
        self._usage: ChatUsage | None = None
        self._characters = 0
        self._is_whole = False
        answer, limit = lengths.expected, model.max_output_tokens
        if reserve:
            if limit is None:
                raise MiddlewareConfigError(
                    f"RateLimitMiddleware(reserve=True) needs the longest answer of {model.model!r}: give the model "
                    f"max_tokens, or capabilities with max_output_tokens"
                )
            answer = limit
        self.expected = request + (answer if limit is None or answer < limit else limit)

    def see(self, response: ChatResponse) -> None:
        """Observe the whole answer, or one piece of it."""
        if isinstance(response.usage, ChatUsage):
            self._usage = response.usage
        if response.is_last:
            self._is_whole, self._characters = True, 0  # a last response repeats the pieces before it
        for block in response.content:
            self._characters += characters_of(block, self._length)

    def finish(self) -> None:
        """Observe the end of a stream, even if no piece was marked as the last."""
        self._is_whole = True

    def count(self, limit: float) -> float:
        """Return the tokens of an ended call, and learn from them; a report above `limit` is capped.

        An abandoned or broken answer has used at least the part seen. A whole answer without reported
        usage may have used more, so it counts with at least the expected number.
        """
        seen = -(-self._characters // CHARACTERS_PER_TOKEN)
        usage = self._usage
        if usage is None:
            return self._count_seen(seen)
        if usage.replayed:
            return 0.0  # no provider was called
        request, answer = usage.input_tokens, usage.output_tokens
        if not (_is_number(request) and _is_number(answer)):
            return self._warn(self._count_seen(seen))
        if not self._is_whole:
            answer = max(answer, seen)
        # Each is checked before they are added: an int may be too large to be added to a float.
        if min(request, answer) < 0 or max(request, answer) > limit or request + answer > limit:
            return self._warn(min(min(max(request, 0), limit) + min(max(answer, 0), limit), limit))
        self._lengths.learn(answer)
        return request + answer

    def _count_seen(self, seen: int) -> float:
        if self._is_whole:
            return max(self.expected, self._request + seen)
        if seen:
            self._lengths.learn(seen)
        return self._request + seen

    def _warn(self, counted: float) -> float:
        _logger.warning(
            "model %r reports %s, which is impossible: the call counts as %.0f tokens in its rate limit",
            self._model,
            repr_of(self._usage),
            counted,
        )
        return counted


def _is_number(count: object) -> bool:
    return isinstance(count, (int, float)) and not isinstance(count, bool) and count == count  # nan equals nothing
