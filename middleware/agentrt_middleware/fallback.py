"""Fallback: asks another model when one fails."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time
from typing import Any, ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import AgentRTError, Malformed, MiddlewareConfigError, RateLimited, Rejected, Timeout, Transient
from agentrt.event import ModelCallRetryEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatModelBase, ChatResponse, ModelResult, chat_model
from agentrt.model.estimate import CAPABILITIES, needs_of
from agentrt_middleware.attempts import add_note_once, make_attempts, name_model
from agentrt_middleware.validation import ErrorChoice, check_number, choose_errors

_NEEDS = {*CAPABILITIES, "application"}  # the last one for PDF files, as programs wrote earlier
_FAILURES = (RateLimited, Timeout, Transient, Rejected, Malformed)


def _is_model_failure(error: Exception) -> bool:
    # Any other error comes from a custom model, which may raise anything.
    return isinstance(error, _FAILURES) or not isinstance(error, AgentRTError)


class ModelFallbackMiddleware(MiddlewareBase):
    """Asks `models`, one after the other, when the agent's own model fails with an error of `fallback_on`.

    `fallback_on` is one or several error classes, or a function of the error. By default every failure counts, except a
    refused request and a request that is too long for the model: another model might answer what this one must not, and
    the runtime shortens what is too long. A stream that breaks off fails as well: its text is withdrawn, and the next
    model's answer continues the same stream. A `ModelCallRetryEvent` announces each change of model. If all models
    fail, the last error is raised with a note about the others.

    With `sticky=True` a conversation stays with the model that answered; a number limits that time in seconds. The
    other models come after it. `needs` names what each model must be capable of; a model that is known to lack one of
    them raises `MiddlewareConfigError`. A model that is known to lack the tools or images of a call is skipped.
    An answer from another model than the agent's own names it in its `metadata` as "model".

    A model may also be a name for `chat_model` ("openai:gpt-5-mini"). The caller owns the models and
    closes those in `models` with `aclose()` if need be. `clock` is in seconds since the epoch, as a conversation may be
    saved and resumed elsewhere.
    """

    inherited = False
    emits = True
    wraps: ClassVar = {
        "RetryMiddleware": "each model is retried by itself",
        "CircuitBreakerMiddleware": "the failures of each model count by themselves",
        "RateLimitMiddleware": "each model waits for its own turn",
        "TimeoutMiddleware": "each model has its own time",
    }

    def __init__(
        self,
        models: ChatModelBase | str | Sequence[ChatModelBase | str],
        *,
        fallback_on: ErrorChoice = _is_model_failure,
        sticky: bool | float = False,
        needs: Sequence[str] = (),
        clock: Callable[[], float] = time,
    ) -> None:
        choices: Any = models
        if isinstance(choices, (ChatModelBase, str)) or not isinstance(choices, Iterable):
            choices = [choices]
        choices = list(choices)  # a generator can be read only once
        for model in choices:
            if not isinstance(model, (ChatModelBase, str)):
                raise MiddlewareConfigError(
                    f"ModelFallbackMiddleware(models=...) takes chat models, or their names, such as "
                    f"'openai:gpt-5-mini', not {model!r:.200}"
                )
        self.models: tuple[ChatModelBase, ...] = tuple(map(chat_model, choices))
        # A plain `str` would pass for a list of its letters, and a single capability needs no list.
        names: Any = [needs] if isinstance(needs, str) else needs
        is_list = isinstance(names, (list, tuple, set, frozenset))
        if not is_list or not all(isinstance(name, str) and name in _NEEDS for name in names):
            raise MiddlewareConfigError(
                f"ModelFallbackMiddleware(needs=...) must be a list of capabilities, as ['tools'] is, of "
                f"{', '.join(CAPABILITIES)}, not {needs!r:.200}"
            )
        self._check_models(["pdf" if name == "application" else name for name in names])
        if not isinstance(sticky, bool):
            check_number("ModelFallbackMiddleware(sticky=...)", sticky)
        self.sticky = sticky
        self.fallback_on = fallback_on  # for `repr`, which finds options by their names
        self.falls_back_on = choose_errors("ModelFallbackMiddleware(fallback_on=...)", fallback_on, our_refusals=True)
        self._clock = clock

    def _check_models(self, needs: Sequence[str]) -> None:
        if not self.models:
            raise MiddlewareConfigError(
                "ModelFallbackMiddleware has no models: give those to call when the agent's own model fails"
            )
        for place, model in enumerate(self.models):
            if any(model is other for other in self.models[:place]):
                raise MiddlewareConfigError(
                    f"ModelFallbackMiddleware has the model {model.model!r} twice: the second call would fail as well, "
                    f"so list it once"
                )
            missing = [name for name in sorted(needs) if model.lacks(name)]
            if missing:
                raise MiddlewareConfigError(
                    f"ModelFallbackMiddleware(needs=...) asks for {', '.join(missing)}, which the model "
                    f"{model.model!r} cannot take: leave out the model or the need"
                )

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        return await make_attempts(_FallbackCall(self, agent, input_kwargs, next_handler))

    def sticky_model(self, agent: AgentBase) -> ChatModelBase | None:
        """Return the conversation's sticky model, `None` for the agent's own."""
        if self.sticky is False:
            return None
        data = agent.state_of(self)
        place, until = data.get("place", -1), data.get("until")
        # The list may have changed since the conversation was saved.
        if not 0 <= place < len(self.models) or self.models[place].model != data["model"]:
            return None
        return self.models[place] if until is None or self._clock() < until else None

    def stick_to(self, agent: AgentBase, model: ChatModelBase) -> None:
        """Set the conversation's sticky model; its time starts when the model changes."""
        if self.sticky is False or model is self.sticky_model(agent):
            return
        data = agent.state_of(self)
        data.clear()
        place = next((place for place, candidate in enumerate(self.models) if candidate is model), None)
        if place is not None:
            until = None if self.sticky is True else self._clock() + self.sticky
            data.update(place=place, model=model.model, until=until)


class _FallbackCall:
    """The attempts at one model call, each with another model."""

    def __init__(
        self, fallback: ModelFallbackMiddleware, agent: AgentBase, values: ModelCallValues, next_handler: NextModelCall
    ) -> None:
        self._fallback = fallback
        self._agent = agent
        self._values = values
        self._next_handler = next_handler
        self._failures: list[str] = []
        self._models = self._models_in_order()
        self._model = next(self._models)

    async def start(self) -> ModelResult:
        return await self._next_handler(current_model=self._model)

    def wait_after(self, error: Exception) -> float | None:
        next_model = next(self._models, None) if self._fallback.falls_back_on(error) else None
        if next_model is None:
            if self._failures:
                failed = ", ".join(self._failures)
                add_note_once(error, f"agentrt: this is from model {self._model.model!r}; before it failed {failed}")
            return None
        error_type = type(error).__name__
        self._failures.append(f"{self._model.model!r} with {error_type}")
        self._model = next_model
        # The error's type, not its text: that is the provider's, and may hold a secret.
        reason = f"{error_type}, falling back to {next_model.model!r}"
        self._agent.run.emit(ModelCallRetryEvent(reason, len(self._failures)))
        return 0.0

    def accept(self, response: ChatResponse) -> ChatResponse:
        self._fallback.stick_to(self._agent, self._model)
        if self._model is self._values["current_model"]:
            return response
        return name_model(response, self._model)

    def _models_in_order(self) -> Iterator[ChatModelBase]:
        """Yield the sticky model, the agent's own, and then the others in list order."""
        # Lazy, so that a call whose first model answers does not scan its messages.
        agent_model = self._values["current_model"]
        sticky = self._fallback.sticky_model(self._agent)
        first = agent_model if sticky is None or not self._suits(sticky) else sticky
        yield first
        if first is not agent_model:
            yield agent_model
        for model in self._fallback.models:
            if model is not first and self._suits(model):
                yield model

    def _suits(self, model: ChatModelBase) -> bool:
        """Say whether a model may be called: it is not the agent's own, and supports the call's inputs besides text."""
        if model is self._values["current_model"]:
            return False
        return not any(map(model.lacks, needs_of(self._values["messages"], self._values["tools"])))
