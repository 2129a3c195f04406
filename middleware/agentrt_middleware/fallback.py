"""Ask another model when one fails."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import time
from typing import Any, ClassVar

from agentrt.errors import (
    AgentRTError,
    Malformed,
    MiddlewareConfigError,
    RateLimited,
    Rejected,
    Timeout,
    Transient,
)
from agentrt.event import ModelCallRetryEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.message import DataBlock, Msg, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt_middleware.attempts import make_attempts
from agentrt_middleware.validation import ErrorChoice, check_number, choose_errors

__all__ = ["ModelFallbackMiddleware"]


_FAILURES = (RateLimited, Timeout, Transient, Rejected, Malformed)


def _has_failed(error: Exception) -> bool:
    # What is none of our errors comes from a model that somebody wrote.
    return isinstance(error, _FAILURES) or not isinstance(error, AgentRTError)


class ModelFallbackMiddleware(MiddlewareBase):
    """Asks `models`, one after the other, when the agent's own model fails with an error of `fallback_on`.

    `fallback_on` is one or several error classes, or a function of the error. By default every failure counts, except
    a refused request and a request that is too long for the model: another model might say what this one must not, and
    the runtime shortens what is too long. A stream that breaks off fails as well: its text is withdrawn, and the next
    model's answer continues the same stream. A `ModelCallRetryEvent` announces each change of model. If all models
    fail, the last error is raised with a note about the others.

    With `sticky=True` a conversation stays with the model that answered; a number limits that to so many seconds. The
    other models come after it. `needs` names what each model must be capable of; a model whose `capabilities` lack one
    of them raises `MiddlewareConfigError`. A model whose `capabilities` lack the tools or images of a call is skipped.
    An answer from another model than the agent's own names it in its `metadata` as "model".

    The caller owns the models and closes them with `aclose()` if need be. `clock` is in seconds since the epoch, as a
    conversation may be saved and resumed elsewhere.
    """

    emits = True
    wrapped_by: ClassVar = ("TracingMiddleware",)
    wraps: ClassVar = (
        "RetryMiddleware",
        "CircuitBreakerMiddleware",
        "RateLimitMiddleware",
        "TimeoutMiddleware",
        "UsageMiddleware",
    )

    def __init__(
        self,
        models: ChatModelBase | Sequence[ChatModelBase],
        *,
        fallback_on: ErrorChoice = _has_failed,
        sticky: bool | float = False,
        needs: Sequence[str] = (),
        clock: Callable[[], float] = time,
    ) -> None:
        self.models = (models,) if isinstance(models, ChatModelBase) else tuple(models)
        _check_models(self.models, {needs} if isinstance(needs, str) else set(needs))
        if not isinstance(sticky, bool):
            check_number("ModelFallbackMiddleware(sticky=...)", sticky)
        self.sticky = sticky
        self._falls_back = choose_errors("ModelFallbackMiddleware(fallback_on=...)", fallback_on, our_own=True)
        self._clock = clock

    async def on_model_call(
        self, agent: Any, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        return await make_attempts(_Call(self, agent, input_kwargs, next_handler))

    def _kept(self, agent: Any) -> ChatModelBase | None:
        """Return the model that the conversation stays with."""
        if self.sticky is False:
            return None
        data = agent.state_of(self)
        place, until = data.get("place", -1), data.get("until")
        if not 0 <= place < len(self.models) or self.models[place].model != data["model"]:
            return None  # the list has changed since the conversation was saved
        return self.models[place] if until is None or self._clock() < until else None

    def _keep(self, agent: Any, model: ChatModelBase) -> None:
        """Have the conversation stay with a model, from the time when it changed to it."""
        if self.sticky is False or model is self._kept(agent):
            return
        data = agent.state_of(self)
        data.clear()
        place = next((place for place, each in enumerate(self.models) if each is model), None)
        if place is not None:
            until = None if self.sticky is True else self._clock() + self.sticky
            data.update(place=place, model=model.model, until=until)


class _Call:
    """The attempts at one model call, each with another model."""

    def __init__(
        self, layer: ModelFallbackMiddleware, agent: Any, values: ModelCallValues, next_handler: NextModelCall
    ) -> None:
        self._layer = layer
        self._agent = agent
        self._values = values
        self._next_handler = next_handler
        self._failed: list[str] = []
        self._models = self._in_order()
        self._model = next(self._models)

    async def start(self) -> ModelResult:
        return await self._next_handler(current_model=self._model)

    def wait_after(self, error: Exception) -> float | None:
        following = next(self._models, None) if self._layer._falls_back(error) else None
        if following is None:
            self._note(error)
            return None
        failed = type(error).__name__
        self._failed.append(f"{self._model.model!r} with {failed}")
        self._model = following
        reason = f"{failed}, going on with {following.model!r}"
        self._agent.run.emit(ModelCallRetryEvent(reason, len(self._failed)))
        return 0.0

    def answered(self, response: ChatResponse) -> ChatResponse:
        self._layer._keep(self._agent, self._model)
        if self._model is self._values["current_model"]:
            return response
        return replace(response, metadata={"model": self._model.model, **(response.metadata or {})})

    def _in_order(self) -> Iterator[ChatModelBase]:
        own = self._values["current_model"]
        kept = self._layer._kept(self._agent)
        first = own if kept is None or not self._suits(kept) else kept
        yield first
        if first is not own:
            yield own
        for model in self._layer.models:
            if model is not first and self._suits(model):  # the agent's own is not asked again
                yield model

    def _suits(self, model: ChatModelBase) -> bool:
        return model is not self._values["current_model"] and (
            model.capabilities is None or _needs(self._values) <= model.capabilities
        )

    def _note(self, error: Exception) -> None:
        if self._failed:
            note = f"agentrt: this is from model {self._model.model!r}; before it failed {', '.join(self._failed)}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


def _needs(values: ModelCallValues) -> set[str]:
    """Return what a model must take besides text, to take this call."""
    needed = {"tools"} if values["tools"] else set()
    for message in values["messages"]:
        needed |= {block.source.media_type.partition("/")[0].lower() for block in _data_in(message)}
    return needed - {"text"}


def _data_in(message: Msg) -> Iterator[DataBlock]:
    for block in message.get_content_blocks():
        inside = block.output if isinstance(block, ToolResultBlock) else (block,)
        yield from (each for each in inside if isinstance(each, DataBlock))


def _check_models(models: Sequence[ChatModelBase], needs: set[str]) -> None:
    if not models:
        raise MiddlewareConfigError("ModelFallbackMiddleware has no models: give those to ask when the agent's fails")
    for place, model in enumerate(models):
        if not isinstance(model, ChatModelBase):
            raise MiddlewareConfigError(
                f"ModelFallbackMiddleware(models=...) takes chat models, such as OpenAIChatModel('...'), "
                f"not {model!r:.200}"
            )
        if any(model is other for other in models[:place]):
            raise MiddlewareConfigError(
                f"ModelFallbackMiddleware has the model {model.model!r} twice: the second time it would fail as well"
            )
        missing = set() if model.capabilities is None else needs - model.capabilities
        if missing:
            raise MiddlewareConfigError(
                f"ModelFallbackMiddleware needs models that take {', '.join(sorted(missing))}, which {model.model!r} "
                f"does not: leave it out, or the need"
            )
