"""The base class of chat models behind an HTTP API."""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Unpack

from agentrt._runtime.block import JSONObject
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult, narrow
from agentrt._runtime.model_interface.batch import BATCH_SECONDS, POLL_SECONDS, Batch, BatchRequest, check_wait
from agentrt._runtime.model_interface.capabilities import ModelCapabilities, ModelPrices
from agentrt._runtime.model_interface.estimate import CountTokens
from agentrt.errors import ConfigError, Refused, Rejected
from agentrt.formatter import Formatter
from agentrt.message import Msg
from agentrt.model.catalog.lookup import known_capabilities
from agentrt.model.catalog.prices import PublishedPrices
from agentrt.model.remote.batches import BatchConnection, BatchEndpoint, read_requests
from agentrt.model.remote.endpoint import RemoteEndpoint, fingerprint
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.refused_parts import RefusedParts
from agentrt.model.remote.schema.native import NativeReader, NativeRequest, StructuredMode, native_request
from agentrt.model.remote.settings import ConnectionOptions
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice

_logger = logging.getLogger("agentrt")

_BAD_REQUEST = (400, 422)
_NO_SUCH_PATH = (404, 405, 501)


class ModelOptions(ConnectionOptions, total=False):
    """The options of every chat model behind an HTTP API, besides its own; each may be left out."""

    stream: bool
    """Whether answers are streamed; they are unless this is false."""

    context_size: int | None
    """The longest request and answer together, in tokens. Left out, it is that of the `capabilities`."""

    capabilities: ModelCapabilities | Collection[str] | None
    """The capabilities of the model, if the known ones are wrong or missing; also words, as in {"tools", "image"}."""

    count_tokens: CountTokens | None
    """A plain function that counts the tokens of a str, instead of the estimate."""

    prices: ModelPrices | None
    """The prices of its calls, as in `TokenPrices(0.5, 1.5)`, if the published ones are wrong or missing."""

    structured_output: StructuredMode
    """How structured output is requested; "auto" unless given."""


class RemoteChatModel(RemoteEndpoint, ChatModelBase):
    """A model behind an HTTP API.

    A subclass defines the API (`_api`), the request (`_body`), the path (`_path`) and the reader of the answer
    (`_reader`). One model may be used by any number of conversations at once, and in one event loop after the other: it
    keeps one client per event loop, which `aclose` closes; a model that is used again opens a new one, and a copy has
    clients of its own. There are no retries, which are left to middlewares, and redirects are not followed.

    Its keywords are the `ModelOptions`, which a subclass passes on. Raises `ConfigError` when the key is missing, for a
    `base_url` with a password or a query in it, and for an option that does not exist.
    """

    _completes_streams = True

    structured_output: StructuredMode
    """How structured output is requested."""
    _server_tools: Sequence[JSONObject] = ()
    _refuses_schemas = False
    _batch_api: ClassVar[type[BatchEndpoint] | None] = None
    """The batch API of its provider; `None` if it has none."""
    _refused_thoughts: ClassVar[re.Pattern[str] | None] = None
    """Matches the error of the API for a thought whose signature it refuses."""

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        context_size: int | None = None,
        capabilities: ModelCapabilities | Collection[str] | None = None,
        count_tokens: CountTokens | None = None,
        prices: ModelPrices | None = None,
        structured_output: StructuredMode = "auto",
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        RemoteEndpoint.__init__(self, model, connection)
        known: ModelCapabilities | Collection[str] = (
            known_capabilities(model, self.base_url) if capabilities is None else capabilities
        )
        ChatModelBase.__init__(
            self, model=model, stream=stream, context_size=context_size, capabilities=known, count_tokens=count_tokens
        )
        if structured_output not in ("auto", "native", "tool"):
            mode = f"{structured_output!r:.100}"
            raise ConfigError(
                f"{type(self).__name__}(structured_output=...) must be 'auto', 'native' or 'tool', not {mode}"
            )
        self.structured_output = structured_output
        self._refused_parts = RefusedParts(self._refused_thoughts)
        if prices is not None:
            self.capabilities = replace(self.capabilities, prices=prices)
        # They cost nothing until they are used.
        elif self.capabilities.prices is None:
            self.capabilities = replace(self.capabilities, prices=PublishedPrices(model, self.base_url))

    @property
    def answer_settings(self) -> Mapping[str, Any]:
        others = {
            **self._answer_fields,
            "server_tools": fingerprint(self._server_tools),
            "formatter": _name_of_custom(getattr(self, "_formatter", None)),
            "structured_output": "" if self.structured_output == "auto" else self.structured_output,
        }
        # Without the usual values, so that a new option leaves the keys of earlier requests as they are.
        return {**self.settings, **{name: value for name, value in others.items() if value}}

    def _forget_forms(self, capabilities: object) -> None:
        """Treat the inputs as unknown unless they were given: a custom formatter may support any."""
        self._forms = None
        if capabilities is None:
            self.capabilities = replace(self.capabilities, inputs=None)

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        """Return the body of a request, including the fields for streaming if `self.stream` is true."""
        raise NotImplementedError

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        """Return a reader for the answer; `messages` serve to estimate the usage."""
        raise NotImplementedError

    def _has_schema_mode(self) -> bool:
        """Say whether model and server are known to have a JSON-schema mode."""
        return False

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        """Return the fields of a body that bind the answer to the schema, `None` if the provider has none for it."""
        return None

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        messages = self._refused_parts.remove_from(messages)
        try:
            return await self._answer_to(messages, tools, tool_choice)
        except (Refused, Rejected) as error:
            if not self._refused_parts.note(messages, error):
                raise
            _logger.warning("thoughts or pictures are left out from now on: %s", error)
        # No answer was read yet. The loop ends, since each attempt has fewer parts than the one before.
        return await self._call(messages, tools, tool_choice)

    async def _answer_to(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        body = self._native_body(messages, tools, tool_choice)
        refusal: Rejected | None = None
        if body is not None:
            # The server may be older than expected, or may not accept this schema.
            try:
                return await self._ask(body, NativeReader(self._new_reader(messages)))
            except Rejected as error:
                if error.status_code not in _BAD_REQUEST:
                    raise
                refusal = error
        answer = await self._ask(self._body(messages, tools, tool_choice), self._new_reader(messages))
        if refusal is not None:  # with the tool the request is taken, so it was refused for the schema
            self._refuses_schemas = True
            _logger.warning("structured output is asked for through a tool from now on: %s", refusal)
        return answer

    def _native_body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject | None:
        """Return the body of a request in the JSON-schema mode, `None` to use the tool."""
        request = self._native_request(messages, tools, tool_choice)
        fields = None if request is None else self._schema_fields(request.schema)
        # The user's own fields replace ours, and would remove the schema.
        if request is None or fields is None or not fields.keys().isdisjoint(self._extra_body):
            return None
        return {**self._body(request.messages, request.tools, request.tool_choice), **fields}

    def _native_request(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> NativeRequest | None:
        """Return the request without the tool for structured output, `None` to use the tool."""
        mode, known = self.structured_output, self.capabilities.schema
        if self._refuses_schemas or mode == "tool":
            return None
        # Not for a server without the mode, nor for a model that lacks it: the request would be refused.
        if mode == "auto" and (known is False or not self._has_schema_mode()):
            return None
        request = native_request(messages, tools, tool_choice)
        if request is not None and known is False:
            raise self._unsupported("schema")
        return request

    def _needs_tools(
        self, messages: Sequence[Msg], tools: Sequence[JSONSchema], tool_choice: ToolChoice | None
    ) -> bool:
        # In the JSON-schema mode the runtime's own tool is not offered, so there may be no tool at all.
        request = self._native_request(messages, list(tools), tool_choice)
        return bool(tools if request is None else request.tools)

    def _allowed_names(self, tools: Sequence[JSONSchema], tool_choice: ToolChoice | None) -> list[str] | None:
        """Return the names of the tools to which the choice narrows them, `None` if it allows all."""
        if tool_choice is None or tool_choice.tools is None or not self.supports_allowed_tools:
            return None
        # Only tools that are sent: providers refuse other names.
        names = [tool.get("function", tool)["name"] for tool in tools]
        allowed = [name for name in names if name in tool_choice.tools]
        return None if len(allowed) == len(names) else allowed

    async def batch(
        self,
        requests: Iterable[BatchRequest | Sequence[Msg]],
        *,
        name: str | None = None,
        poll_seconds: float = POLL_SECONDS,
        max_wait: float = BATCH_SECONDS,
    ) -> Batch:
        check_wait(poll_seconds, max_wait)  # before anything is sent: afterwards the id would be lost
        api = self._batch_endpoint()
        checked = read_requests(requests, api.max_requests, api.source)
        lines = [
            self._encode(api.line(f"request-{index}", self._batch_body(request)))
            for index, request in enumerate(checked)
        ]
        try:
            id = await api.submit_once(lines, name)
        except Rejected as error:
            if error.status_code not in _NO_SUCH_PATH or self._is_own_server:  # which misses the model, say
                raise
            problem = self._no_batches(f"{error}; a server without batches answers so")
            problem.status_code = error.status_code
            raise problem from error
        return Batch(api, id, total=len(lines), poll_seconds=poll_seconds, max_wait=max_wait)

    def resume_batch(self, id: str, *, poll_seconds: float = POLL_SECONDS, max_wait: float = BATCH_SECONDS) -> Batch:
        check_wait(poll_seconds, max_wait)
        api = self._batch_endpoint()
        return Batch(api, api.check_id(id), total=0, poll_seconds=poll_seconds, max_wait=max_wait)

    def _batch_endpoint(self) -> BatchEndpoint:
        # Vertex AI takes batches from Cloud Storage alone.
        if self._batch_api is None or "/publishers/" in self.base_url:
            raise self._no_batches()
        connection = BatchConnection(
            self.model,
            self.base_url,
            self._path,
            self.timeouts,
            self.max_bytes,
            self._errors,
            self._send,
            self._read_whole,
            self._batch_cost,
        )
        return self._batch_api(connection)

    def _batch_body(self, request: BatchRequest) -> JSONObject:
        """Return the body of a request that is answered as a whole."""
        choice = ToolChoice(request.tool_choice) if isinstance(request.tool_choice, str) else request.tool_choice
        tools = None if request.tools is None else narrow([*request.tools], choice, self)
        self._refuse_unsupported(request.messages, tools or (), choice)
        messages = self._refused_parts.remove_from([*request.messages])
        body = {**self._body(messages, tools, choice), **self._extra_body}
        return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}

    def _read_whole(self, body: dict[str, object]) -> ChatResponse:
        # Another process may have sent the request, so its messages are unknown.
        reader = self._new_reader([])
        reader.read(body)
        return reader.answer()

    def _batch_cost(self, usage: ChatUsage) -> float | None:
        prices = self.capabilities.prices
        if isinstance(prices, PublishedPrices):
            return prices.batch_cost(usage)
        cost = None if prices is None else prices.cost(usage)
        return None if cost is None else cost / 2

    def _new_reader(self, messages: Sequence[Msg]) -> AnswerReader:
        reader = self._reader(messages)
        reader.text_length = self.text_length
        return reader

    async def _ask(self, body: JSONObject, reader: AnswerReader) -> ModelResult:
        stream = await self._open(body, reader, streams=self.stream)
        return stream if self.stream else await stream.read_whole()  # type: ignore[return-value]  # as good as a generator


def _name_of_custom(formatter: Formatter | None) -> str:
    """Return a name that a user's formatter has in each process; "" for one of ours."""
    while isinstance(formatter, partial):
        formatter = formatter.func
    name = f"{getattr(formatter, '__module__', '')}.{getattr(formatter, '__qualname__', type(formatter).__qualname__)}"
    return "" if formatter is None or name.startswith("agentrt.") else name
