"""What every model adapter is."""

from collections.abc import AsyncGenerator, Awaitable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from agentrt.errors import ConfigError, InvalidInputError, UsageError
from agentrt.keywords import compute_missing, suggest_attributes, suggest_keywords
from agentrt.message import Msg
from agentrt.representation import never_raises
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

__all__ = ["ChatModelBase", "ModelResult"]

# What other frameworks call a request.
_MODEL_GUESSES = ("ainvoke", "chat", "complete", "create", "generate", "invoke", "predict", "request", "responses")

ModelResult = ChatResponse | AsyncGenerator[ChatResponse, None]
"""What a model returns: its whole answer, or a stream of its pieces."""


def _refuse_before_init(model: object) -> NoReturn:
    raise UsageError(f"{type(model).__name__}.__init__() did not call super().__init__(model=...): call it first")


@compute_missing(**dict.fromkeys(("model", "stream", "context_size"), _refuse_before_init))
@suggest_attributes(
    **dict.fromkeys(_MODEL_GUESSES, "write `await model(messages)`"),
    bind="give its options to the constructor: write chat_model(spec, temperature=...)",
    bind_tools="the agent has them: write Agent(..., model=model, tools=[...])",
    with_config="give its options to the constructor: write chat_model(spec, temperature=...)",
    with_fallbacks="write Agent(..., middlewares=[ModelFallbackMiddleware([...])])",
    with_retry="write Agent(..., middlewares=[RetryMiddleware()])",
    with_structured_output="write agent.reply(message, structured_schema=...)",
)
@suggest_keywords()
class ChatModelBase:
    """A chat model. A subclass overrides one coroutine, `_call`, and calling the model calls that.

    `_call` returns one `ChatResponse`, or an async generator of them: pieces that hold only what is new, then one with
    `is_last=True` that holds the whole content and the usage; without that one, the pieces are the answer. It raises
    the children of `ModelError`.
    """

    model: str
    stream: bool
    context_size: int

    account: str | None = None
    """Names the account whose limits calls count against; the same in every process, not the key; `None`: unknown."""

    provider: str | None = None
    """The provider's name for traces ("deepseek"), set by `chat_model`; `None` stands for the name of the class."""

    capabilities: frozenset[str] | None = None
    """What it takes besides text: "tools", "image", "audio", "video", "application"; `None`: unknown.

    Models that go to a provider name what its API has a form for; set it for a model that takes less.
    """

    settings: Mapping[str, Any] = MappingProxyType({})
    """How it asks for answers, by its provider's names ("temperature", "max_tokens", ...); nothing secret."""

    def __init__(self, *, model: str, stream: bool = True, context_size: int = 128_000) -> None:
        size: object = context_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(
                f"{type(self).__name__}(context_size=...) must be a whole number of tokens above 0, not {size!r:.100}"
            )
        self.model = model
        self.stream = stream
        self.context_size = context_size

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def __call__(
        self,
        messages: list[Msg],
        tools: list[JSONSchema] | None = None,
        tool_choice: ToolChoice | str | None = None,
    ) -> Awaitable[ModelResult]:
        """Send the conversation to the model; `tools` are JSON schemas as `Toolkit.get_json_schemas` gives them.

        A plain `str` as the `tool_choice` is its mode.
        """
        # Else a `str` would be read letter by letter, and a dict key by key, until something fails far from here.
        conversation: object = messages
        if not isinstance(conversation, (list, tuple)):
            raise InvalidInputError(
                f"a model takes a list of messages, not {conversation!r:.200}: write [UserMsg('Hi')]"
            )
        if isinstance(tool_choice, str):
            tool_choice = ToolChoice(tool_choice)
        return self._call(messages, tools, tool_choice)

    async def _call(
        self,
        messages: list[Msg],
        tools: list[JSONSchema] | None,
        tool_choice: ToolChoice | None,
    ) -> ModelResult:
        raise UsageError(f"{type(self).__name__} does not implement `_call`: define `async def _call`")

    async def aclose(self) -> None:
        """Close what the model holds open: nothing, unless a subclass overrides this."""
