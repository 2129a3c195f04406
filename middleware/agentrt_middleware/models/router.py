"""Model router: each reply, call or conversation is answered by the model that a function chooses."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, ClassVar, Literal

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ModelResult, chat_model
from agentrt_middleware.validation import check_choice

__all__ = ["ChooseModel", "ModelRouterMiddleware"]

ChooseModel = Callable[[Agent, list[Msg]], str | Awaitable[str | None] | None]

_logger = logging.getLogger("agentrt")


@suggest_keywords(router="choose", function="choose", candidates="models")
class ModelRouterMiddleware(MiddlewareBase):
    """Has one of `models` answer in place of the agent's model, as `choose` says.

    `choose(agent, messages)`, a plain or coroutine function, returns a key of `models`, or `None` for the agent's own
    model; it may ask a model itself, with `agent.run.ask_model`. It is asked once for each "reply", "call" or
    "conversation", as `per` says, and its choice is saved with the conversation. If it raises, or returns something
    else, the agent's own model answers, and the log says so. `agent.model` is never changed.

    A model may be given by name, as `chat_model` takes it. The caller owns the models, and closes them if need be.
    """

    wraps: ClassVar = (
        "CacheMiddleware",
        "ModelFallbackMiddleware",
        "RefusalMiddleware",
        "RetryMiddleware",
        "CircuitBreakerMiddleware",
        "RateLimitMiddleware",
        "TimeoutMiddleware",
    )
    wrapped_by: ClassVar = ("TracingMiddleware",)

    def __init__(
        self,
        choose: ChooseModel,
        models: Mapping[str, ChatModelBase | str],
        *,
        per: Literal["reply", "call", "conversation"] = "reply",
    ) -> None:
        choices: object = models
        if not callable(choose):
            raise MiddlewareConfigError(
                f"ModelRouterMiddleware(choose=...) must be a function of an agent and messages, not {choose!r:.200}"
            )
        if not isinstance(choices, Mapping) or not choices:
            raise MiddlewareConfigError(
                f"ModelRouterMiddleware(models=...) must be a dict of names and models, not {choices!r:.200}: write "
                f"models={{'small': 'openai:gpt-5-mini'}}"
            )
        for name, model in choices.items():
            if not isinstance(name, str) or not isinstance(model, (ChatModelBase, str)):
                raise MiddlewareConfigError(
                    f"ModelRouterMiddleware(models=...) has {model!r:.200} for {name!r:.100}: give a chat model, or a "
                    f"name such as 'openai:gpt-5-mini'"
                )
        check_choice("ModelRouterMiddleware(per=...)", per, ("reply", "call", "conversation"))
        self.models: dict[str, ChatModelBase] = {name: chat_model(model) for name, model in models.items()}
        self.choose, self.per = choose, per

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if agent.run.is_internal:  # summaries and judges have the model that they ask for
            return await next_handler(**input_kwargs)
        name = await self._name_for(agent, input_kwargs["messages"])
        if name is None:
            return await next_handler(**input_kwargs)
        return await next_handler(current_model=self.models[name])

    async def _name_for(self, agent: Agent, messages: list[Msg]) -> str | None:
        if self.per == "call":
            return await self._ask(agent, messages)
        # Kept by the reply's id, so that a reply which was parked is resumed with the same model.
        data, period = agent.state_of(self), agent.run.id if self.per == "reply" else "conversation"
        # The models may have changed since the conversation was saved.
        if data.get("period") != period or data.get("model") not in (None, *self.models):
            choice = await self._ask(agent, messages)
            data.update(period=period, model=choice)
        name: str | None = data["model"]
        return name

    async def _ask(self, agent: Agent, messages: list[Msg]) -> str | None:
        try:
            choice: Any = self.choose(agent, list(messages))
            if isawaitable(choice):
                choice = await choice
        except Exception as error:  # noqa: BLE001  # a function of the user's own; a reply does not fail for a choice
            _logger.warning(
                "ModelRouterMiddleware: choose() failed (%s), so the agent's model answers", type(error).__name__
            )
            return None
        if choice is None or (isinstance(choice, str) and choice in self.models):
            return choice
        _logger.warning("ModelRouterMiddleware: choose() returned %.100r, which is not in models", choice)
        return None
