"""Refusal: asks another model when one declines to answer."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError, Refused
from agentrt.event import ModelCallRetryEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatModelBase, ChatResponse, ModelResult, chat_model
from agentrt_middleware.attempts import close, is_readable, make_attempts, name_model

# Our own adapters raise `Refused`; others may pass on the provider's reason.
_REFUSALS = ("content_filter", "refusal")


class RefusalMiddleware(MiddlewareBase):
    """Asks `models`, one after the other, when the model or its filter declines to answer.

    A refusal is the error `Refused`, or an answer whose `finished_reason` is "content_filter" or "refusal". The text of
    a refused answer is withdrawn, and a `ModelCallRetryEvent` announces the next model, which its answer names in
    `metadata["model"]`. If all decline, the last refusal stands. Other failures are left to `ModelFallbackMiddleware`.
    The caller owns the models.
    """

    inherited = False
    emits = True
    wraps: ClassVar = {
        "RetryMiddleware": "each model is retried by itself",
        "CircuitBreakerMiddleware": "the failures of each model count by themselves",
        "RateLimitMiddleware": "each model waits for its own turn",
        "TimeoutMiddleware": "each model has its own time",
    }

    def __init__(self, models: ChatModelBase | str | Sequence[ChatModelBase | str]) -> None:
        choices: Any = [models] if isinstance(models, (ChatModelBase, str)) else models
        is_list = isinstance(choices, (list, tuple)) and len(choices) > 0
        if not is_list or not all(isinstance(model, (ChatModelBase, str)) for model in choices):
            raise MiddlewareConfigError(
                f"RefusalMiddleware(models=...) must be chat models, or names such as 'openai:gpt-5-mini', not "
                f"{models!r:.200}"
            )
        self.models: tuple[ChatModelBase, ...] = tuple(map(chat_model, choices))
        if len(set(map(id, self.models))) < len(self.models):
            raise MiddlewareConfigError("RefusalMiddleware(models=...) has a model twice: it would decline twice")

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        return await make_attempts(_RefusableCall(self.models, agent, input_kwargs, next_handler))


class _RefusableCall:
    """The attempts at one call, each with another model."""

    def __init__(
        self, models: Sequence[ChatModelBase], agent: AgentBase, values: ModelCallValues, next_handler: NextModelCall
    ) -> None:
        self._agent = agent
        self._next_handler = next_handler
        own = values["current_model"]
        self._models = [own, *(model for model in models if model is not own)]
        self._attempt = 0

    # `make_attempts` withdraws an answer on an error in mid-stream, so a refusal is turned into one.
    async def start(self) -> ModelResult:
        result = await self._next_handler(current_model=self._models[self._attempt])
        if self._attempt + 1 == len(self._models):
            return result  # no other model is left, so the refusal is the answer
        if isinstance(result, ChatResponse):
            self._raise_refusal(result)
            return result
        return self._pieces(result)

    async def _pieces(self, stream: AsyncIterator[ChatResponse]) -> AsyncGenerator[ChatResponse, None]:
        try:
            async for piece in stream:
                self._raise_refusal(piece)
                yield piece
        finally:
            await close(stream)

    def _raise_refusal(self, response: ChatResponse) -> None:
        if is_readable(response) and response.finished_reason in _REFUSALS:
            raise Refused(
                f"model {self._models[self._attempt].model!r} declined to answer ({response.finished_reason})"
            )

    def wait_after(self, error: Exception) -> float | None:
        if not isinstance(error, Refused) or self._attempt + 1 == len(self._models):
            return None
        self._attempt += 1
        reason = f"Refused, asking {self._models[self._attempt].model!r}"
        self._agent.run.emit(ModelCallRetryEvent(reason, self._attempt))
        return 0.0

    def accept(self, response: ChatResponse) -> ChatResponse:
        return response if self._attempt == 0 else name_model(response, self._models[self._attempt])
