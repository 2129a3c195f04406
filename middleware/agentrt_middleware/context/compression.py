"""Compression: shortens a conversation that is too long for its model."""

from typing import ClassVar, Literal

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import CompressContextValues, MiddlewareBase, ModelCallValues, NextCompressContext, NextModelCall
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ModelResult, chat_model
from agentrt.model.estimate import CHARACTERS_PER_TOKEN, TextLength, characters_of, estimated_usage, text_length
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT, drop_outputs, exchange_starts
from agentrt_middleware.validation import check_choice

_SHORT_RESULT = 200  # characters


class CompressionMiddleware(MiddlewareBase):
    """Shortens a conversation that fills its model's context, or on `agent.compress_context()`.

    "summary" replaces the older messages by a summary, like the runtime itself; `model` then writes it
    instead of the agent's own model. "trim" first removes the results of tools from the older messages, and "window"
    removes the oldest exchanges, both without calling a model. If that is not enough, a summary follows. No tool
    call is left without its result, and the reserve of `ContextConfig` is untouched.
    """

    inherited = False
    wraps: ClassVar = INSIDE_OF_CONTEXT
    rewrites = ("history",)

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
        # A reply in progress may itself be too long, and then only the runtime can shorten it.
        if self.how != "summary":
            reply = agent.state.reply_context
            messages = [*agent.state.context, *([] if reply is None else [reply.message])]
            tokens = estimated_usage(messages, (), agent.model.text_length).input_tokens
            tokens += text_length(agent.state.summary) // CHARACTERS_PER_TOKEN
            if tokens <= config.trigger_ratio * size:
                # Like the core, so that after a crash the reply resumes with the shorter context.
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
        # The request for a summary passes this hook like any other; a judge's request has another purpose.
        is_summary = agent.run.purpose == "summary" and "is_compressing" in agent.run.scratch(self)
        if self.model is not None and is_summary:
            return await next_handler(current_model=self.model)
        return await next_handler(**input_kwargs)


def _older_part(context: list[Msg], reserve: int, length: TextLength | None) -> int:
    """Return the number of messages beyond the reserve, up to the start of an exchange; the last exchange stays."""
    starts = exchange_starts(context, 0)
    # From the end, since the newest part stays.
    for start in reversed(starts):
        if estimated_usage(context[start:], (), length).input_tokens > reserve:
            later = [other for other in starts if other > start]
            return later[0] if later else start
    return 0
