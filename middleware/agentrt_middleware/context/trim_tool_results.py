"""Trim tool results: sends a long request without the oldest results of tools."""

from typing import ClassVar

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.message import Msg, ToolResultBlock
from agentrt.model import ModelResult
from agentrt.model.estimate import CHARACTERS_PER_TOKEN, TextLength, characters_of, estimated_usage
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT, REMOVED, drop_outputs
from agentrt_middleware.validation import check_number


class TrimToolResultsMiddleware(MiddlewareBase):
    """Replaces the oldest results of tools by a note when a request has more than about `above` tokens.

    The last `keep_last` results stay. Others are removed until the request is below `above` by the share
    `step`, and they stay out, so that between these steps the beginning of requests does not change, which providers
    cache. Calls and the conversation itself are unchanged: the request is a copy.
    """

    inherited = False
    wraps: ClassVar = INSIDE_OF_CONTEXT
    rewrites = ("history",)

    def __init__(self, above: int = 100_000, *, keep_last: int = 3, step: float = 0.25) -> None:
        check_number("TrimToolResultsMiddleware(above=...)", above, finite=True)
        check_number("TrimToolResultsMiddleware(keep_last=...)", keep_last, least=0, whole=True)
        check_number("TrimToolResultsMiddleware(step=...)", step, finite=True)
        if step > 1:
            raise MiddlewareConfigError(
                f"TrimToolResultsMiddleware(step=...) is a share of `above`, so at most 1, not {step!r}: write 0.25"
            )
        self.above, self.keep_last, self.step = above, keep_last, step

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        messages = input_kwargs["messages"]
        if agent.run.is_internal:
            return await next_handler(**input_kwargs)
        places = [(message.id, result) for message in messages for result in message.get_content_blocks("tool_result")]
        results = [block for _, block in places]
        data = agent.state_of(self)
        # Only the last place is stored: when that result is summarised, everything before it is gone too. With
        # the message, since calls of two replies may have one id.
        last_removed = data.get("last_removed")
        removed = next((n for n, (message, block) in enumerate(places, 1) if [message, block.id] == last_removed), 0)
        length = input_kwargs["current_model"].text_length
        removed = self._advance(messages, results, removed, length)
        if not removed:
            return await next_handler(**input_kwargs)
        message_id, last = places[removed - 1]
        data["last_removed"] = [message_id, last.id]
        dropped = {id(block) for block in results[:removed]}  # by identity, as two calls may have one id
        return await next_handler(messages=[drop_outputs(message, lambda b: id(b) in dropped) for message in messages])

    def _advance(
        self, messages: list[Msg], results: list[ToolResultBlock], removed: int, length: TextLength | None
    ) -> int:
        """Return how many of the results to remove, from the oldest on."""
        tokens = estimated_usage(messages, (), length).input_tokens
        # As it will be sent, without the results removed so far.
        tokens -= sum(_saved_tokens(result, length) for result in results[:removed])
        if tokens <= self.above:
            return removed
        while removed < len(results) - self.keep_last and tokens > self.above * (1 - self.step):
            tokens -= _saved_tokens(results[removed], length)
            removed += 1
        return removed


def _saved_tokens(result: ToolResultBlock, length: TextLength | None) -> int:
    return max(0, characters_of(result, length) - len(REMOVED)) // CHARACTERS_PER_TOKEN
