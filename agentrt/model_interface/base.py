"""The base class of all model adapters."""

from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

from agentrt.errors import ConfigError, InvalidInputError, Unsupported, UsageError
from agentrt.keywords import compute_missing, suggest_attributes, suggest_keywords
from agentrt.message import Msg
from agentrt.model_interface.capabilities import CAPABILITIES, INPUTS, ModelCapabilities, inputs_of
from agentrt.model_interface.estimate import CountedLength, CountTokens
from agentrt.model_interface.pieces import CompletedStream
from agentrt.representation import never_raises
from agentrt.types import STRUCTURED_OUTPUT, ChatResponse, JSONSchema, ToolChoice

__all__ = ["ChatModelBase", "ModelResult"]

# What other frameworks call a request.
_MODEL_GUESSES = ("ainvoke", "chat", "complete", "create", "generate", "invoke", "predict", "request", "responses")

ModelResult = ChatResponse | AsyncGenerator[ChatResponse, None]
"""What a model returns: its whole answer, or a stream of its pieces."""


_UNKNOWN = ModelCapabilities()
_ANSWER_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")  # in the settings of models
# What a request holds, and what to do where a model does not take it.
_LACKING = {
    "image": ("images", "leave them out of what is said and of agent.state.context, which keeps them"),
    "audio": ("sound", "write down what is said, in agent.state.context, too, which keeps it"),
    "video": ("video", "leave it out of what is said and of agent.state.context, which keeps it"),
    "pdf": ("PDF files", "give their text, in agent.state.context, too, which keeps them"),
    "tools": ("tools", "leave them out, or for structured output alone give structured_output='native'"),
    "schema": ("JSON schemas", "leave out structured_schema, or give structured_output='tool' if it has tools"),
}


def _read_capabilities(value: object, cls: str) -> ModelCapabilities:
    """Return the capabilities, which may be given as a set of words."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, ModelCapabilities):
        return value
    # A str is one word, and is not read as letters. A dict is refused, since its values might say what it cannot do.
    words: list[Any] = [value]
    if isinstance(value, Collection) and not isinstance(value, (str, Mapping)):
        words = list(value)
    if not all(word == "application" or word in CAPABILITIES for word in words):
        raise ConfigError(
            f"{cls}(capabilities=...) must be ModelCapabilities(...), or a set of {', '.join(CAPABILITIES)}, not "
            f"{value!r:.200}"
        )
    inputs = {"pdf" if word == "application" else word for word in words}
    # A request may be answered without the last two, so words that leave them out say nothing about them.
    return ModelCapabilities(
        inputs=frozenset(inputs & {*INPUTS}),
        tools="tools" in words,
        schema=("schema" in words) or None,
        reasoning=("reasoning" in words) or None,
    )


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
    `is_last=True` that holds the whole content and the usage. If `_call` leaves that one out, calling the model
    adds it. It raises the children of `ModelError`.
    """

    model: str
    stream: bool
    context_size: int

    account: str | None = None
    """A name for the account whose limits its calls use: the same in each process, and not the key; `None`: unknown."""

    provider: str | None = None
    """The provider's name for traces ("deepseek"), set by `chat_model`; `None` stands for the name of the class."""

    settings: Mapping[str, Any] = MappingProxyType({})
    """The settings of its requests by the provider's names ("temperature", "max_tokens", ...); nothing secret."""

    known_by_settings: ClassVar[bool] = False
    """Whether its `settings` hold all that its answers depend on, so that a cache may share answers by equal settings.

    Subclasses do not inherit it, and the models that ship need not state it. Other models share no answers.
    """

    text_length: CountedLength | None = None
    """The length of text by its `count_tokens`; middlewares give it to the functions of `agentrt.model.estimate`."""

    _default_context_size: ClassVar[int] = 128_000
    """For models of which nothing is known."""
    _forms: frozenset[str] | None = None
    """The inputs that its API has a form for: others are never sent; `None`: unknown."""
    _capabilities = _UNKNOWN
    _completes_streams: ClassVar[bool] = False
    """Whether the streams of its `_call` end with the whole answer, so that it need not be added."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "_call" in cls.__dict__ and "_completes_streams" not in cls.__dict__:
            cls._completes_streams = False  # this `_call` may differ from the inherited one
        declared = cls.__dict__.get("capabilities", _UNKNOWN)
        # A class may state it for all of its instances. The attribute would hide the property, so it is taken away.
        if declared is not _UNKNOWN and not isinstance(declared, property):
            cls._capabilities = _read_capabilities(declared, cls.__name__)
            del cls.capabilities

    def __init__(
        self,
        *,
        model: str,
        stream: bool = True,
        context_size: int | None = None,
        capabilities: ModelCapabilities | Collection[str] | None = None,
        count_tokens: CountTokens | None = None,
    ) -> None:
        size: object = context_size
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ConfigError(
                f"{type(self).__name__}(context_size=...) must be a whole number of tokens above 0, not {size!r:.100}"
            )
        streams: object = stream
        if not isinstance(streams, bool):  # such as "no"
            raise ConfigError(f"{type(self).__name__}(stream=...) must be True or False, not {stream!r:.100}")
        self.model = model
        self.stream = stream
        if count_tokens is not None:
            self.count_tokens = count_tokens
        if capabilities is not None:
            self.capabilities = capabilities
        self.context_size = context_size or self.capabilities.context_size or self._default_context_size

    @property
    def capabilities(self) -> ModelCapabilities:
        """What the model can do, as far as that is known; a request for what it is known to lack is not sent.

        A collection of words may be set, such as {"tools", "image"}: the model can do that, and no more.
        """
        return self._capabilities

    @capabilities.setter
    def capabilities(self, capabilities: ModelCapabilities | Collection[str] | None) -> None:
        self._capabilities = _read_capabilities(capabilities, type(self).__name__)

    @property
    def count_tokens(self) -> CountTokens | None:
        """A function of the user's that returns how many tokens some text has, in place of the estimate; else `None`.

        It is a plain function, since estimates are made in code that cannot await, and is called once for each text.
        """
        return None if self.text_length is None else self.text_length.count

    @count_tokens.setter
    def count_tokens(self, count_tokens: CountTokens | None) -> None:
        count: object = count_tokens
        if count is not None and (not callable(count) or iscoroutinefunction(count)):
            raise ConfigError(
                f"{type(self).__name__}(count_tokens=...) must be a plain function of a str that returns a number, not "
                f"{count_tokens!r:.100}: write count_tokens=lambda text: len(encoding.encode(text))"
            )
        self.text_length = None if count_tokens is None else CountedLength(count_tokens)

    @property
    def max_output_tokens(self) -> int | None:
        """The most tokens of an answer, by the settings and by what is known; `None` if neither says so."""
        # A setting above what the model can do does not make it do more.
        known = self._capabilities.max_output_tokens
        limit = self._answer_limit() if self.settings else None
        return known if limit is None or (known is not None and known < limit) else limit

    @property
    def max_input_tokens(self) -> int:
        """The most tokens of a request: `context_size`, or less if the answer needs room or the model takes less.

        Half of `context_size` is always for the request.
        """
        if not self.settings and self._capabilities is _UNKNOWN:  # asked for in each round
            return self.context_size
        room = self.context_size - (self._answer_limit() or 0)
        return min(max(room, self.context_size // 2), self.capabilities.max_input_tokens or self.context_size)

    def lacks(self, capability: str) -> bool:
        """Say whether the model is known to lack a capability, or its API a form for it, such as "image" or "tools"."""
        # What the API has no form for is never sent, even if the model could take it.
        has_no_form = self._forms is not None and capability in INPUTS and capability not in {"text", *self._forms}
        return self.capabilities.lacks(capability) or has_no_form

    def _answer_limit(self) -> int | None:
        limits = [(self.settings or {}).get(name) for name in _ANSWER_LIMITS]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

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
        # Else a `str` would be read letter by letter, and a dict key by key, with an error far from here.
        conversation: object = messages
        if not isinstance(conversation, (list, tuple)):
            raise InvalidInputError(
                f"a model takes a list of messages, not {conversation!r:.200}: write [UserMsg('Hi')]"
            )
        if isinstance(tool_choice, str):
            tool_choice = ToolChoice(tool_choice)
        if self._capabilities is not _UNKNOWN:
            self._refuse_unsupported(messages, tools or (), tool_choice)
        answer: Any = self._call(messages, tools, tool_choice)
        # The agent refuses an answer that cannot be awaited, and names the model.
        return answer if self._completes_streams or not hasattr(answer, "__await__") else CompletedStream.wrap(answer)

    def _refuse_unsupported(
        self, messages: Sequence[Msg], tools: Sequence[JSONSchema], tool_choice: ToolChoice | None
    ) -> None:
        """Raise `Unsupported` if the request needs what the model is known to lack."""
        known = self.capabilities
        # Tools first, since that needs no reading of the messages.
        if known.tools is False and self._needs_tools(messages, tools, tool_choice):
            names = {tool.get("function", tool).get("name") for tool in tools}
            # The only tool is the runtime's own, which stands for a schema.
            raise self._unsupported("schema" if names == {STRUCTURED_OUTPUT} and known.schema is False else "tools")
        if known.inputs is None or (self._forms is not None and self._forms <= known.inputs):
            return  # before the messages are looked through
        lacking = inputs_of(messages, of_models=False) - known.inputs
        for capability in sorted(lacking if self._forms is None else lacking & self._forms):
            raise self._unsupported(capability)

    def _needs_tools(
        self, messages: Sequence[Msg], tools: Sequence[JSONSchema], tool_choice: ToolChoice | None
    ) -> bool:
        return bool(tools)

    def _unsupported(self, capability: str) -> Unsupported:
        description, remedy = _LACKING[capability]
        return Unsupported(
            f"model {self.model!r} is known to take no {description} (capability {capability!r}), so it was not asked: "
            f"{remedy}, ask another model, or give {type(self).__name__}(capabilities=...) if it does by now",
            capability=capability,
        )

    async def _call(
        self,
        messages: list[Msg],
        tools: list[JSONSchema] | None,
        tool_choice: ToolChoice | None,
    ) -> ModelResult:
        raise UsageError(f"{type(self).__name__} does not implement `_call`: define `async def _call`")

    async def aclose(self) -> None:
        """Close what the model holds open: nothing, unless a subclass overrides this."""
