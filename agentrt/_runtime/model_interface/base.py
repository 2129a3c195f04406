"""The base class of all model adapters."""

from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

from agentrt._runtime.keywords.attributes import compute_missing, suggest_attributes
from agentrt._runtime.model_interface.batch import BATCH_SECONDS, POLL_SECONDS, Batch, BatchRequest
from agentrt._runtime.model_interface.capabilities import CAPABILITIES, INPUTS, ModelCapabilities, inputs_of
from agentrt._runtime.model_interface.estimate import CountedLength, CountTokens
from agentrt._runtime.model_interface.pieces import CompletedStream
from agentrt._runtime.options import check_bool, check_whole
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError, InvalidInputError, Unsupported, UsageError
from agentrt.message import Msg
from agentrt.types import STRUCTURED_OUTPUT, ChatResponse, JSONSchema, ToolChoice

# The names of a request in other frameworks.
_MODEL_GUESSES = ("ainvoke", "chat", "complete", "create", "generate", "invoke", "predict", "request", "responses")

ModelResult = ChatResponse | AsyncGenerator[ChatResponse, None]
"""The result of a model: its whole answer, or a stream of its pieces."""


_UNKNOWN = ModelCapabilities()
_ANSWER_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")  # in the settings of models
# Parts of a request, and the remedy if a model does not support them.
_LACKING = {
    "image": ("images", "leave them out of what is said and of agent.state.context, which keeps them"),
    "audio": ("sound", "write down what is said, in agent.state.context, too, which keeps it"),
    "video": ("video", "leave it out of what is said and of agent.state.context, which keeps it"),
    "pdf": ("PDF files", "give their text, in agent.state.context, too, which keeps them"),
    "tools": ("tools", "leave them out, or for structured output alone give structured_output='native'"),
    "schema": ("JSON schemas", "leave out structured_schema, or give structured_output='tool' if it has tools"),
}


def _read_capabilities(value: object, cls: str) -> ModelCapabilities:
    """Return the capabilities, which may also be a set of words."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, ModelCapabilities):
        return value
    # A str is one word, not a set of letters. A dict is refused, since its values might deny capabilities.
    words: list[Any] = [value]
    if isinstance(value, Collection) and not isinstance(value, (str, Mapping)):
        words = list(value)
    if not all(word == "application" or word in CAPABILITIES for word in words):
        raise ConfigError(
            f"{cls}(capabilities=...) must be ModelCapabilities(...), or a set of {', '.join(CAPABILITIES)}, not "
            f"{value!r:.200}"
        )
    inputs = {"pdf" if word == "application" else word for word in words}
    # Requests may be answered without the last two, so a set without these words says nothing about them.
    return ModelCapabilities(
        inputs=frozenset(inputs & {*INPUTS}),
        tools="tools" in words,
        schema=("schema" in words) or None,
        reasoning=("reasoning" in words) or None,
    )


def _refuse_before_init(model: object) -> NoReturn:
    raise UsageError(f"{type(model).__name__}.__init__() did not call super().__init__(model=...): call it first")


def narrow(tools: list[JSONSchema], tool_choice: ToolChoice | None, model: "ChatModelBase") -> list[JSONSchema]:
    """Return the tools that the model is to get: those that the choice names, or all if it can be held to these."""
    allowed = None if tool_choice is None else tool_choice.tools
    if allowed is None or (allowed and model.supports_allowed_tools):
        return tools
    return [tool for tool in tools if tool.get("function", tool).get("name") in allowed]


def check_request(messages: Any, tools: Any, tool_choice: object) -> None:
    """Raise `InvalidInputError` for arguments of the wrong kind, whose errors would come from far inside of a model.

    Of the messages and the tools only the last is looked at, since both may be many, and each turn comes by here: so
    classes are compared before `isinstance` is called.
    """
    if (messages.__class__ is not list and not isinstance(messages, (list, tuple))) or (
        messages and messages[-1].__class__ is not Msg and not isinstance(messages[-1], Msg)
    ):
        raise InvalidInputError(f"a model takes a list of messages, not {repr_of(messages)}: write [UserMsg('Hi')]")
    if tools is not None:
        try:
            last = tools[-1]
            is_tool = (last.__class__ is dict or isinstance(last, dict)) and ("function" in last or "name" in last)
        except IndexError:  # there are none
            is_tool = True
        except (TypeError, KeyError):
            is_tool = False
        if not is_tool:
            raise InvalidInputError(
                f"a model takes tools as a list of JSON schemas with names, not {repr_of(tools)}: write "
                f"Toolkit(tools=[...]).get_json_schemas()"
            )
    if tool_choice is not None and not isinstance(tool_choice, (ToolChoice, str)):
        raise InvalidInputError(
            f'a model takes a tool_choice such as "required" or ToolChoice("auto"), not {repr_of(tool_choice)}'
        )


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
    """A name for the account whose limits its calls use: the same in every process, not the key; `None`: unknown."""

    provider: str | None = None
    """The provider's name for traces ("deepseek"), set by `chat_model`; `None` stands for the name of the class."""

    settings: Mapping[str, Any] = MappingProxyType({})
    """The settings of its requests by the provider's names ("temperature", "max_tokens", ...); nothing secret."""

    known_by_settings: ClassVar[bool] = False
    """Whether its answers depend only on its `answer_settings`, so that a cache may share answers where they are equal.

    Subclasses do not inherit it, and the shipped models need not state it. Other models share no answers.
    """

    text_length: CountedLength | None = None
    """The length of text by its `count_tokens`; middlewares give it to the functions of `agentrt.model.estimate`."""

    supports_deferred_tools: bool = False
    """Whether it sends a `DeferredSchema` so that the provider shows the tool only where the model looks for it."""

    supports_allowed_tools: bool = False
    """Whether it gets all tools with a `ToolChoice` that names some, and has its provider hold the model to these.

    Other models get only the tools that are named, so their providers read nothing of such a request from their caches.
    """

    is_remote_agent: ClassVar[bool] = False
    """Whether its answers are the words of an agent elsewhere, and so untrusted to `InformationFlowMiddleware`."""

    _default_context_size: ClassVar[int] = 128_000
    """The default, for unknown models."""
    _forms: frozenset[str] | None = None
    """The inputs that its API supports: others are never sent; `None`: unknown."""
    _capabilities = _UNKNOWN
    _completes_streams: ClassVar[bool] = False
    """Whether the streams of its `_call` end with the whole answer, so that it need not be added."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "_call" in cls.__dict__ and "_completes_streams" not in cls.__dict__:
            cls._completes_streams = False  # the new `_call` may differ
        declared = cls.__dict__.get("capabilities", _UNKNOWN)
        # A class may set it for all instances. The attribute would hide the property, so it is removed.
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
        if context_size is not None:
            check_whole(f"{type(self).__name__}(context_size=...)", context_size)
        check_bool(f"{type(self).__name__}(stream=...)", stream)
        self.model = model
        self.stream = stream
        if count_tokens is not None:
            self.count_tokens = count_tokens
        if capabilities is not None:
            self.capabilities = capabilities
        self.context_size = context_size or self.capabilities.context_size or self._default_context_size

    @property
    def capabilities(self) -> ModelCapabilities:
        """The known capabilities of the model; a request that needs a missing one is not sent.

        It may be set to a collection of words, such as {"tools", "image"}: the model can do only these.
        """
        return self._capabilities

    @capabilities.setter
    def capabilities(self, capabilities: ModelCapabilities | Collection[str] | None) -> None:
        self._capabilities = _read_capabilities(capabilities, type(self).__name__)

    @property
    def count_tokens(self) -> CountTokens | None:
        """The user's function that counts the tokens of a str, instead of the estimate; else `None`.

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
    def answer_settings(self) -> Mapping[str, Any]:
        """All that its answer to a request depends on: `settings`, unless a subclass has more; nothing secret."""
        return self.settings

    @property
    def max_output_tokens(self) -> int | None:
        """The maximum tokens of an answer, by settings and capabilities; `None` if unknown."""
        # A setting above the model's limit has no effect.
        known = self._capabilities.max_output_tokens
        limit = self._answer_limit() if self.settings else None
        return known if limit is None or (known is not None and known < limit) else limit

    @property
    def max_input_tokens(self) -> int:
        """The maximum tokens of a request: `context_size`, or less if the answer needs room or the model takes less.

        Half of `context_size` is always for the request.
        """
        if not self.settings and self._capabilities is _UNKNOWN:  # fast path: read in each round
            return self.context_size
        room = self.context_size - (self._answer_limit() or 0)
        return min(max(room, self.context_size // 2), self.capabilities.max_input_tokens or self.context_size)

    def lacks(self, capability: str) -> bool:
        """Say whether the model or its API is known to lack a capability, such as "image" or "tools"."""
        # Inputs that the API does not support are never sent, even if the model could take them.
        has_no_form = self._forms is not None and capability in INPUTS and capability not in {"text", *self._forms}
        return self.capabilities.lacks(capability) or has_no_form

    def _answer_limit(self) -> int | None:
        limits = [(self.settings or {}).get(name) for name in _ANSWER_LIMITS]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def __call__(
        self, messages: list[Msg], tools: list[JSONSchema] | None = None, tool_choice: ToolChoice | str | None = None
    ) -> Awaitable[ModelResult]:
        """Send the conversation to the model; `tools` are JSON schemas as `Toolkit.get_json_schemas` gives them.

        A plain `str` as the `tool_choice` is its mode.
        """
        check_request(messages, tools, tool_choice)
        if isinstance(tool_choice, str):
            tool_choice = ToolChoice(tool_choice)
        if tools and tool_choice is not None:
            tools = narrow(tools, tool_choice, self)
        if self._capabilities is not _UNKNOWN:
            self._refuse_unsupported(messages, tools or (), tool_choice)
        answer: Any = self._call(messages, tools, tool_choice)
        # The agent refuses a result that cannot be awaited, and names the model.
        return answer if self._completes_streams or not hasattr(answer, "__await__") else CompletedStream.wrap(answer)

    def _refuse_unsupported(
        self, messages: Sequence[Msg], tools: Sequence[JSONSchema], tool_choice: ToolChoice | None
    ) -> None:
        """Raise `Unsupported` if the request needs a capability that the model lacks."""
        known = self.capabilities
        # Tools first, since that does not need the messages.
        if known.tools is False and self._needs_tools(messages, tools, tool_choice):
            names = {tool.get("function", tool).get("name") for tool in tools}
            # The only tool is the runtime's own, for a schema.
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
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        raise UsageError(f"{type(self).__name__} does not implement `_call`: define `async def _call`")

    async def batch(
        self,
        requests: Iterable[BatchRequest | Sequence[Msg]],
        *,
        name: str | None = None,
        poll_seconds: float = POLL_SECONDS,
        max_wait: float = BATCH_SECONDS,
    ) -> Batch:
        """Submit requests that the provider answers within a day, at a lower price, and return the batch.

        No agent and no middleware sees them: a batch is for programs that make their own requests, such as an
        evaluation or a classification of many texts. Each request is a list of messages, or a `BatchRequest` with
        tools. Save `batch.id`: with it `resume_batch` finds the batch in any process.

        The requests are submitted once, and that is not repeated. A program that was killed before it saved the id, and
        runs again, submits them again, unless it gives a `name`: then a batch of that name that is in progress or
        completed is returned in its place. `poll_seconds` is the first pause between two questions for the status,
        which grow to a minute, and `max_wait` the limit for the wait, both in seconds.

        Raises `Unsupported` for a model without batches, and for a name where the provider keeps none, and
        `InvalidInputError` for more requests, or more bytes, than the provider takes.
        """
        raise self._no_batches()

    def resume_batch(self, id: str, *, poll_seconds: float = POLL_SECONDS, max_wait: float = BATCH_SECONDS) -> Batch:
        """Return a batch that was submitted earlier, here or in another process, by a model of the same kind."""
        raise self._no_batches()

    def _no_batches(self, problem: str = "") -> Unsupported:
        return Unsupported(
            f"{problem or f'{self!r} has no batches'}: OpenAIChatModel, OpenAIResponsesModel, AnthropicChatModel and "
            f"GeminiChatModel have them, on their providers' own servers",
            capability="batch",
        )

    async def aclose(self) -> None:
        """Close the model's open resources: none, unless a subclass overrides this."""
