"""Model router: a function chooses the model of each reply, call or conversation."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, ClassVar, Literal

import anyio

from agentrt.agent import Agent
from agentrt.errors import BudgetExceeded, MiddlewareConfigError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ChatResponse, ModelResult, chat_model
from agentrt.model.estimate import needs_of
from agentrt_middleware.attempts import make_attempts, name_model
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT
from agentrt_middleware.validation import check_choice, check_function, check_number

ChooseModel = Callable[[Agent, list[Msg]], str | Awaitable[str | None] | None]

_logger = logging.getLogger("agentrt")


class ModelRouterMiddleware(MiddlewareBase):
    """Replaces the agent's model by one of `models`, chosen by `choose`.

    `choose(agent, messages)`, a plain or coroutine function, returns a key of `models`, or `None` for the agent's own
    model; it may call a model itself, with `agent.run.ask_model`. It is called once for each "reply", "call" or
    "conversation", as `per` says, and its choice is saved with the conversation. If it raises, takes longer than
    `timeout` seconds or returns anything else, the agent's own model answers that call or reply, and the log says so;
    likewise a call whose tools or images the chosen model is known not to take. `agent.model` is never changed. An
    answer of another model names it in its `metadata["model"]`.

    A model may be a name for `chat_model`. The caller owns the models, and closes them if need be.
    """

    inherited = False
    wraps: ClassVar = INSIDE_OF_CONTEXT

    def __init__(
        self,
        choose: ChooseModel,
        models: Mapping[str, ChatModelBase | str],
        *,
        per: Literal["reply", "call", "conversation"] = "reply",
        timeout: float = 10,
    ) -> None:
        choices: object = models
        check_function("ModelRouterMiddleware(choose=...)", choose, "agent", "messages")
        if not isinstance(choices, Mapping) or not choices:
            raise MiddlewareConfigError(
                f"ModelRouterMiddleware(models=...) must be a dict of names and models, not {choices!r:.200}: write "
                f"models={{'small': 'openai:gpt-5-mini'}}"
            )
        for name, model in choices.items():
            if not (isinstance(name, str) and name) or not isinstance(model, (ChatModelBase, str)):
                raise MiddlewareConfigError(
                    f"ModelRouterMiddleware(models=...) has {model!r:.200} for {name!r:.100}: give a chat model, or a "
                    f"name such as 'openai:gpt-5-mini'"
                )
        check_choice("ModelRouterMiddleware(per=...)", per, ("reply", "call", "conversation"))
        self.models: dict[str, ChatModelBase] = {name: chat_model(model) for name, model in models.items()}
        check_number("ModelRouterMiddleware(timeout=...)", timeout, finite=True)
        self.choose, self.per, self.timeout = choose, per, timeout

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if agent.run.is_internal:  # summaries and judges use the model of their request
            return await next_handler(**input_kwargs)
        name = await self._name_for(agent, input_kwargs["messages"])
        if name is None:
            return await next_handler(**input_kwargs)
        model = self.models[name]
        if model is input_kwargs["current_model"]:
            return await next_handler(**input_kwargs)
        # Its refusal would end the reply, while the agent's own model may take the call.
        missing = sorted(filter(model.lacks, needs_of(input_kwargs["messages"], input_kwargs["tools"])))
        if missing:
            _logger.warning(
                "ModelRouterMiddleware: the model %r is known to take no %s, so the agent's model answers",
                name,
                ", ".join(missing),
            )
            return await next_handler(**input_kwargs)
        return await make_attempts(_RoutedCall(model, next_handler))

    async def _name_for(self, agent: Agent, messages: list[Msg]) -> str | None:
        if self.per == "call":
            return (await self._ask(agent, messages))[0]
        # By the reply's id, so that a parked reply is resumed with the same model.
        data, period = agent.state_of(self), agent.run.id if self.per == "reply" else "conversation"
        # The models may have changed since the conversation was saved.
        if data.get("period") not in (period, agent.run.id) or data.get("model") not in [None, *self.models]:
            choice, has_chosen = await self._ask(agent, messages)
            # A failure holds for this reply; the next one tries again.
            data.update(period=period if has_chosen else agent.run.id, model=choice)
        name: str | None = data.get("model")
        return name

    async def _ask(self, agent: Agent, messages: list[Msg]) -> tuple[str | None, bool]:
        """Return the choice, and whether the function succeeded."""
        problem = f"took longer than {self.timeout:g} s"
        with anyio.move_on_after(self.timeout):
            try:
                choice: Any = self.choose(agent, list(messages))
                if isawaitable(choice):
                    choice = await choice
            except BudgetExceeded:  # not a failure of the function: its model call was refused
                raise
            except Exception as error:  # noqa: BLE001  # a function of the user's own; a reply does not fail for a choice
                problem = f"failed ({type(error).__name__})"
            else:
                if choice is None or (isinstance(choice, str) and choice in self.models):
                    return choice, True
                problem = f"returned {choice!r:.100}, which is not in models"
        _logger.warning("ModelRouterMiddleware: choose() %s, so the agent's model answers", problem)
        return None, False


class _RoutedCall:
    """The single attempt at a call, with the chosen model."""

    def __init__(self, model: ChatModelBase, next_handler: NextModelCall) -> None:
        self._model = model
        self._next_handler = next_handler

    async def start(self) -> ModelResult:
        return await self._next_handler(current_model=self._model)

    def wait_after(self, error: Exception) -> float | None:
        return None

    def accept(self, response: ChatResponse) -> ChatResponse:
        return name_model(response, self._model)
