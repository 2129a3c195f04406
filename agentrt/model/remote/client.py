"""The base class of chat models behind an HTTP API."""

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from agentrt._runtime.block import JSONObject
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.capabilities import ModelCapabilities, ModelPrices
from agentrt._runtime.model_interface.estimate import CountTokens
from agentrt.errors import Refused, Rejected
from agentrt.message import Msg
from agentrt.model.catalog.lookup import known_capabilities
from agentrt.model.catalog.prices import PublishedPrices
from agentrt.model.refused_parts import RefusedParts
from agentrt.model.remote.endpoint import RemoteEndpoint
from agentrt.model.remote.native_schema import NativeReader, NativeRequest, StructuredMode, native_request
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.settings import ConnectionOptions
from agentrt.types import JSONSchema, ToolChoice

__all__ = ["RemoteChatModel"]

_logger = logging.getLogger("agentrt")

_BAD_REQUEST = (400, 422)


class RemoteChatModel(RemoteEndpoint, ChatModelBase):
    """A model behind an HTTP API.

    A subclass defines the API (`_api`), the request (`_body`), the path (`_path`) and the reader of the answer
    (`_reader`). One model may be used by any number of conversations at once, and in one event loop after the other: it
    keeps one client per event loop, which `aclose` closes; a model that is used again opens a new one, and a copy has
    clients of its own. There are no retries, which are left to middlewares, and redirects are not followed.

    `prices` are the prices of its calls, as in `TokenPrices(0.5, 1.5)`, if the published ones are wrong or missing.
    `connection` takes the `ConnectionOptions`, which say how the model is reached. Raises `ConfigError` when the key is
    missing, for a `base_url` with a password or a query in it, and for an option that does not exist.
    """

    _completes_streams = True

    structured_output: StructuredMode = "tool"
    """How structured output is requested."""
    _refuses_schemas = False
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
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        RemoteEndpoint.__init__(self, model, connection)
        known: ModelCapabilities | Collection[str] = (
            known_capabilities(model, self.base_url) if capabilities is None else capabilities
        )
        ChatModelBase.__init__(
            self, model=model, stream=stream, context_size=context_size, capabilities=known, count_tokens=count_tokens
        )
        self._refused_parts = RefusedParts(self._refused_thoughts)
        if prices is not None:
            self.capabilities = replace(self.capabilities, prices=prices)
        # They cost nothing until they are used.
        elif self.capabilities.prices is None:
            self.capabilities = replace(self.capabilities, prices=PublishedPrices(model, self.base_url))

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

    def _new_reader(self, messages: Sequence[Msg]) -> AnswerReader:
        reader = self._reader(messages)
        reader.text_length = self.text_length
        return reader

    async def _ask(self, body: JSONObject, reader: AnswerReader) -> ModelResult:
        stream = await self._open(body, reader, streams=self.stream)
        return stream if self.stream else await stream.read_whole()  # type: ignore[return-value]  # as good as a generator
