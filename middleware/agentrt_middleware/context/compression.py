"""Compression: how a conversation that is too long for its model is shortened."""

from typing import ClassVar, Literal

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import (
    CompressContextValues,
    MiddlewareBase,
    ModelCallValues,
    NextCompressContext,
    NextModelCall,
)
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ModelResult, chat_model
from agentrt.model.estimate import (
    CHARACTERS_PER_TOKEN,
    TextLength,
    characters_of,
    estimated_usage,
    text_length,
)
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT, drop_outputs, exchange_starts
from agentrt_middleware.validation import check_choice

__all__ = ["CompressionMiddleware"]

_SHORT_RESULT = 200  # characters


@suggest_keywords(strategy="how", mode="how", method="how")
class CompressionMiddleware(MiddlewareBase):
    """Says how a conversation is shortened when it fills its model's context, or with `agent.compress_context()`.

    "summary" puts a summary in the place of the older messages, as the runtime does by itself; `model` then writes it
    in place of the agent's own model. "trim" first takes the results of tools out of the older messages, and "window"
    leaves out the oldest exchanges, both without asking a model. Where that is not enough, a summary follows. No tool
    call is left without its result, and the reserve of `ContextConfig` stays as it is.
    """

    wraps: ClassVar = INSIDE_OF_CONTEXT

    def __init__(
        self, how: Literal["summary", "trim", "window"] = "summary", *, model: ChatModelBase | str | None = None
    ) -> None:
        check_choice("CompressionMiddleware(how=...)", how, ("summary", "trim", "window"))
        spec: object = model
        if not (spec is None or isinstance(spec, (ChatModelBase, str))):
            raise MiddlewareConfigError(
                f"CompressionMiddleware(model=...) must be a chat model, or a name such as 'openai:gpt-5-mini', not "
                f"{spec!r:.200}"
            )
        self.how = how
        self.model = None if spec is None else chat_model(spec)

    async def on_compress_context(
        self, agent: Agent, input_kwargs: CompressContextValues, next_handler: NextCompressContext
    ) -> None:
        config, size = input_kwargs["context_config"], agent.model.max_input_tokens
        reserve = int(config.reserve_ratio * size)
        context = agent.state.context
        older = _older_part(context, reserve, agent.model.text_length)
        if self.how == "trim":
            # Less than this is not worth a note.
            shortened = [
                drop_outputs(message, lambda result: characters_of(result) > _SHORT_RESULT)
                for message in context[:older]
            ]
            agent.state.context = [*shortened, *context[older:]]
        elif self.how == "window":
            agent.state.context = context[older:]
        # A reply in progress may be too long by itself, and then only the runtime can shorten it.
        if self.how != "summary" and _tokens_left(agent) <= config.trigger_ratio * size:
            # As the core does, so that a process which dies now resumes with the shorter history.
            if agent.state_store is not None:
                await agent.save()
            return
        scratch = agent.run.scratch(self)
        scratch["is_compressing"] = True
        try:
            await next_handler(**input_kwargs)
        finally:
            del scratch["is_compressing"]

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        # The request for a summary comes through this hook like any other; one of a judge about it has another purpose.
        is_summary = agent.run.purpose == "summary" and "is_compressing" in agent.run.scratch(self)
        if self.model is not None and is_summary:
            return await next_handler(current_model=self.model)
        return await next_handler(**input_kwargs)


def _tokens_left(agent: Agent) -> int:
    reply = agent.state.reply_context
    messages = [*agent.state.context, *([] if reply is None else [reply.message])]
    summary = text_length(agent.state.summary) // CHARACTERS_PER_TOKEN
    return estimated_usage(messages, (), agent.model.text_length).input_tokens + summary


def _older_part(context: list[Msg], reserve: int, length: TextLength | None) -> int:
    """Return how many messages do not fit into the reserve, to the begin of an exchange; the last exchange fits."""
    starts = exchange_starts(context, 0)
    # From the end, as it is the newest part that stays.
    for start in reversed(starts):
        if estimated_usage(context[start:], (), length).input_tokens > reserve:
            later = [other for other in starts if other > start]
            return later[0] if later else start
    return 0
