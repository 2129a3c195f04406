"""Ollama, through its own API."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

from agentrt._runtime.block import ContentBlock, JSONObject
from agentrt.errors import ConfigError, Malformed
from agentrt.formatter import Formatter, format_ollama
from agentrt.message import Msg
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import OLLAMA_API
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.schema.native import NativeRequest
from agentrt.model.remote.settings import check_option, check_request_options, read_url
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatUsage, JSONSchema, ToolChoice

_KEYLESS = "none"  # a server of one's own asks for none
_NAMES_OF_OLLAMA = {"max_tokens": "num_predict"}
# The options of the server that have arguments of their own, by their names.
_OPTION_ARGUMENTS = {
    **{name: name for name in ("seed", "stop", "temperature", "think", "top_p")},
    "num_ctx": "context_size",
    "num_predict": "max_tokens",
}
_REASONS_OF_OLLAMA = {"load": "stop", "unload": "stop"}


class OllamaChatModel(RemoteChatModel):
    """A model of an Ollama server, on asyncio and trio.

    The server is the one at `base_url`, else the one that OLLAMA_HOST names, else "http://localhost:11434".

    `context_size` is also what the server is asked for, as `num_ctx`, so that neither side takes the context for longer
    than it is: the server drops the beginning of a longer request without a word. It is 32,768 tokens unless given;
    more take more memory, and another size than the last request's has the server load the model again.

    `think` turns the thinking of a model on or off, or says how much: "low", "medium" or "high". `keep_alive` is how
    long the server keeps the model loaded: seconds, or a str such as "30m"; below 0 is for ever. `options` are other
    options of the server by its own names, such as `{"top_k": 20}`. `structured_output` says whether structured output
    is bound to its schema or asked for through a tool; "auto" binds it where no other tool is offered, since the server
    knows only one of the two, and not for models of Ollama's cloud. No request makes a model call a tool.

    OLLAMA_API_KEY is sent if it is set, unless `api_key` is given; `common` takes these and the other
    `ModelOptions`.
    """

    _api = OLLAMA_API
    _path = "/api/chat"
    _forms = frozenset({"image"})
    _default_context_size = 32_768

    def __init__(
        self,
        model: str,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        think: bool | str | None = None,
        keep_alive: float | str | None = None,
        options: Mapping[str, Any] | None = None,
        formatter: Formatter | None = None,
        **common: Unpack[ModelOptions],
    ) -> None:
        variable = common.get("key_variable") or OLLAMA_API.key_variable
        if common.get("api_key") is None and common.get("auth") is None:
            common["api_key"] = os.environ.get(variable, "").strip() or _KEYLESS
        if isinstance(url := common.get("base_url") or read_url("OLLAMA_HOST", _url_of_host), str):
            common["base_url"] = url.rstrip("/").removesuffix("/v1")  # under which it speaks OpenAI's API
        super().__init__(model, **common)
        name = type(self).__name__
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        check_request_options(name, numbers, stop, formatter)
        check_option(options, Mapping, f"{name}(options=...)", 'options={"top_k": 20}')
        options = options or {}
        for key in _OPTION_ARGUMENTS.keys() & options.keys():
            raise ConfigError(f"{name}(options=...) holds {key!r}: write {_OPTION_ARGUMENTS[key]}={options[key]!r:.99}")
        if think is not None and not isinstance(think, (bool, str)):
            raise ConfigError(f"{name}(think=...) must be True, False or a str such as 'low', not {think!r:.100}")
        if keep_alive is not None and (isinstance(keep_alive, bool) or not isinstance(keep_alive, (int, float, str))):
            raise ConfigError(f"{name}(keep_alive=...) must be seconds or a str such as '30m', not {keep_alive!r:.100}")
        self._formatter = formatter or format_ollama
        if formatter is not None:
            self._forget_forms(common.get("capabilities"))
        self._keep_alive = keep_alive
        settings = {
            **options,
            **numbers,
            "stop": [stop] if isinstance(stop, str) else stop if stop is None else list(stop),
            "num_ctx": self.context_size,
            "think": think,
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        body: JSONObject = {"model": self.model, "messages": self._formatter(messages), "stream": self.stream}
        if offered := _tools_to_send(tools or [], "auto" if tool_choice is None else tool_choice.mode):
            body["tools"] = offered
        if "think" in self.settings:
            body["think"] = self.settings["think"]
        if self._keep_alive is not None:
            body["keep_alive"] = self._keep_alive
        options = {_NAMES_OF_OLLAMA.get(name, name): value for name, value in self.settings.items() if name != "think"}
        return {**body, "options": options}

    def _has_schema_mode(self) -> bool:
        # The cloud ignores schemas without a word, also behind one's own server, where the tag names it.
        host = urlsplit(self.base_url).hostname or ""
        return not (host.endswith("ollama.com") or self.model.endswith(("-cloud", ":cloud")))

    def _native_request(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> NativeRequest | None:
        request = super()._native_request(messages, tools, tool_choice)
        if request is None or _tools_to_send(
            request.tools or [], "auto" if not request.tool_choice else request.tool_choice.mode
        ):
            return None
        return request

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        return {"format": schema}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return _OllamaReader(messages)


def _url_of_host(host: str) -> str:
    """Return the URL of a server that was started with this OLLAMA_HOST, such as "0.0.0.0", "box:80" or a URL."""
    scheme, _, rest = host.rpartition("://")
    # An IPv6 address without brackets: its last part would pass for the port.
    if rest.count(":") > 1 and not {"[", "@"} & {*rest}:
        rest = f"[{rest}]"
    parts = urlsplit(f"//{rest.rstrip('/')}")
    # A server that listens on every address is reached at this one.
    name = "localhost" if parts.hostname in (None, "0.0.0.0", "::") else parts.netloc.removesuffix(f":{parts.port}")
    port = parts.port or {"http": 80, "https": 443}.get(scheme, 11434)
    return f"{scheme or 'http'}://{name}:{port}{parts.path}"


def _tools_to_send(tools: list[JSONSchema], mode: str) -> list[JSONSchema]:
    """Return the tools that the model is shown, which is all that the API has for a choice."""
    if mode == "none":
        return []
    return [tool for tool in tools if tool.get("function", tool)["name"] == mode] or tools


class _OllamaReader(AnswerReader):
    """Builds an answer from the lines of a stream, or from one whole response, which looks like a line."""

    def __init__(self, messages: Sequence[Msg]) -> None:
        super().__init__(messages)
        self._calls = 0

    @property
    def has_ended(self) -> bool:
        return bool(self.reason)

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Take one line, and return the new pieces."""
        message = dict_in(event, "message")
        self.accumulator.add_thinking(text_in(message, "thinking"))
        self.accumulator.add_text(text_in(message, "content"))
        for call in list_in(message, "tool_calls"):
            function = dict_in(call, "function")
            # A call comes as a whole, and most servers give it no id.
            self._calls += 1
            self.accumulator.add_call(
                self._calls, text_in(call, "id"), text_in(function, "name"), dict_in(function, "arguments")
            )
        if event.get("done"):
            reason = text_in(event, "done_reason") or "stop"
            self.reason = _REASONS_OF_OLLAMA.get(reason, reason)
            # Left out where all of it was read from the cache.
            if read := count_in(event, "prompt_eval_count"):
                self.usage = ChatUsage(read, count_in(event, "eval_count"))
        return self.accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if "message" not in body:
            raise Malformed("it answered without 'message': does base_url lead to an Ollama server?")
        self.feed({**body, "done": True})
