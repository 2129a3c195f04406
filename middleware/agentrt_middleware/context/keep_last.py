"""Keep last: sends only the newest messages of the conversation."""

from typing import ClassVar

from agentrt.agent import Agent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.message import Msg
from agentrt.model import ModelResult
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT, conversation_start, exchange_starts
from agentrt_middleware.validation import check_number


class KeepLastMiddleware(MiddlewareBase):
    """Sends at most the last `messages` messages, beside the system prompt and a summary; the conversation keeps all.

    The cut is before a message of the user where no tool call is open, so that calls keep their results, and
    one exchange always stays. It moves by a quarter at a time, so that the beginning of consecutive requests stays
    the same, which providers cache.
    """

    inherited = False
    wraps: ClassVar = INSIDE_OF_CONTEXT
    rewrites = ("history",)

    def __init__(self, messages: int = 40) -> None:
        check_number("KeepLastMiddleware(messages=...)", messages, whole=True)
        self.messages = messages

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        messages = input_kwargs["messages"]
        head = conversation_start(messages)
        surplus = len(messages) - head - self.messages
        if surplus <= 0 or agent.run.is_internal:
            return await next_handler(**input_kwargs)
        return await next_handler(messages=self._newest(messages, head, surplus))

    def _newest(self, messages: list[Msg], head: int, surplus: int) -> list[Msg]:
        step = max(1, self.messages // 4)
        # Rounded up to whole steps, so that it is the same for several consecutive requests.
        earliest = head + -(-surplus // step) * step
        starts = exchange_starts(messages, head)
        # The first one that cuts enough; otherwise only the last exchange stays, however long it is.
        start = next((start for start in starts if start >= earliest), starts[-1] if starts else head)
        return [*messages[:head], *messages[start:]]
