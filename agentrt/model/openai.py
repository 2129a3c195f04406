"""OpenAI's chat completions API, and the many servers that speak it."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from agentrt.block import ContentBlock, JSONObject, TextBlock, citations_block, new_citation
from agentrt.errors import Malformed, Refused, Transient
from agentrt.formatter import Formatter, format_openai
from agentrt.formatter.openai_responses import OPENAI
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg
from agentrt.model.remote.accumulator import StreamAccumulator
from agentrt.model.remote.client import RemoteChatModel
from agentrt.model.remote.native_schema import StructuredMode, check_mode
from agentrt.model.remote.provider_errors import ProviderErrors
from agentrt.model.remote.schema_dialect import TEXT_FORMATS, SchemaDialect
from agentrt.model.remote.settings import ConnectionOptions, check_option, check_request_options, is_local
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.model_interface.capabilities import ModelCapabilities, ModelPrices
from agentrt.model_interface.estimate import CountTokens, estimated_usage
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice

__all__ = ["OPENAI_URL", "STRICT_SCHEMAS", "OpenAIChatModel", "Quirks"]

OPENAI_URL = "https://api.openai.com/v1"
# An answer does not name its format, so that of the request counts. `pcm16` is not a file, but 24,000 samples a second
# of 16 bits each.
_AUDIO_TYPES = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "pcm16": "audio/pcm;rate=24000",
}
# Of OpenAI's older models, and of Mistral's.
_OTHER_REASONS = {"function_call": "tool_calls", "model_length": "length"}
# Of DeepSeek, of OpenRouter and Mistral, and of vLLM: what came is not the whole answer, and the next may well be.
_FAILED_REASONS = {
    "insufficient_system_resource": "for lack of resources",
    "error": "with an error",
    "abort": "on its own",
}


@suggest_keywords()
@dataclass(frozen=True, slots=True)
class Quirks:
    """How a server differs from the others that speak OpenAI's API.

    `max_tokens_name` is its name for the limit on an answer. `stream_usage`: it knows `stream_options`, with which a
    stream says how many tokens it took. `reasoning_back`: it wants the thinking of the rounds since the user's last
    message back, even where it is empty. `must_call`: it can be made to call a tool; if not, "required" and the name of
    a tool become "auto". `named_choice`: it can be made to call one tool by its name; if not, it is shown that tool
    alone and made to call one, as by default with servers on this machine and its network. `says_reason`: each of its
    answers says why it ended, so a stream that ends without a reason was cut, and raises `Transient`; if not, such an
    answer counts as whole. `json_schema`: it can bind an answer to a JSON schema, also beside tools. `names`: its
    messages may name their speaker. `nine_letter_ids`: it takes ids of tool calls of nine letters or digits only, as
    Mistral does.
    """

    max_tokens_name: str = "max_tokens"
    stream_usage: bool = True
    reasoning_back: bool = False
    must_call: bool = True
    named_choice: bool = True
    says_reason: bool = False
    json_schema: bool = False
    names: bool = True
    nine_letter_ids: bool = False


_OPENAI = Quirks("max_completion_tokens", says_reason=True, json_schema=True)
# From the guide to structured outputs of platform.openai.com, in November 2026: what its strict mode accepts.
STRICT_SCHEMAS = SchemaDialect(
    frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "maxItems", "minimum", "minItems", "multipleOf"}),
    TEXT_FORMATS,
    all_required=True,
    recursive=True,
)


@suggest_keywords()
class OpenAIChatModel(RemoteChatModel):
    """A model of OpenAI, or of any server that speaks its chat completions API, whose URL is given as `base_url`.

    The key comes from OPENAI_API_KEY unless `api_key` or another `key_variable` is given, the URL from OPENAI_BASE_URL
    unless it is given; `connection` takes these and the other `ConnectionOptions`. A setting that is not given is not
    sent. `formatter` makes the messages of a request. `structured_output` says whether structured output is asked for
    in the API's JSON-schema mode or through a tool; "auto" uses that mode with OpenAI's own server.
    """

    _sdk = "openai"
    _client_class = "AsyncOpenAI"
    _path = "/chat/completions"
    _default_url = OPENAI_URL
    _url_variable = "OPENAI_BASE_URL"
    _key_variable = "OPENAI_API_KEY"
    _forms = frozenset({"image", "audio", "pdf"})

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        context_size: int | None = None,
        capabilities: ModelCapabilities | Collection[str] | None = None,
        count_tokens: CountTokens | None = None,
        prices: ModelPrices | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        reasoning_effort: str | None = None,
        parallel_tool_calls: bool | None = None,
        quirks: Quirks | None = None,
        formatter: Formatter | None = None,
        structured_output: StructuredMode = "auto",
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(
            model,
            stream=stream,
            context_size=context_size,
            capabilities=capabilities,
            count_tokens=count_tokens,
            prices=prices,
            **connection,
        )
        check_option(quirks, Quirks, f"{type(self).__name__}(quirks=...)", "quirks=Quirks(must_call=False)")
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        check_request_options(type(self).__name__, numbers, stop, formatter, reasoning_effort=reasoning_effort)
        check_option(
            parallel_tool_calls, bool, f"{type(self).__name__}(parallel_tool_calls=...)", "parallel_tool_calls=True"
        )
        is_own = self.base_url.rstrip("/") == OPENAI_URL
        # Many local servers refuse a request that names the tool to call, and all take the other form.
        self.quirks = quirks or (_OPENAI if is_own else Quirks(named_choice=not is_local(self.base_url)))
        check_mode(structured_output, type(self).__name__)
        self.structured_output = structured_output
        self._formatter = formatter
        if formatter is not None:
            self._forget_forms(capabilities)
        self._parallel_tool_calls = parallel_tool_calls
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            self.quirks.max_tokens_name: max_tokens,
            "stop": stop if stop is None or isinstance(stop, str) else list(stop),
            "seed": seed,
            "reasoning_effort": reasoning_effort,
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        # Looked up now, since a program may set `model.quirks` when it has learned more about its server.
        formatter = self._formatter or partial(
            format_openai,
            reasoning=self.quirks.reasoning_back,
            names=self.quirks.names,
            nine_letter_ids=self.quirks.nine_letter_ids,
        )
        body = {"model": self.model, "messages": formatter(messages), "stream": self.stream, **self.settings}
        if self.stream and self.quirks.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if tools:
            body |= self._tool_fields(tools, None if tool_choice is None else tool_choice.mode)
        return body

    def _has_schema_mode(self) -> bool:
        return self.quirks.json_schema

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        strict = STRICT_SCHEMAS.translate(schema)
        if strict is None:
            return None
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": strict, "strict": True},
            }
        }

    def _tool_fields(self, tools: list[JSONSchema], mode: str | None) -> JSONObject:
        body: JSONObject = {"tools": tools}
        if self._parallel_tool_calls is not None:
            body["parallel_tool_calls"] = self._parallel_tool_calls
        if mode is None:
            return body
        if mode not in ("auto", "none") and not self.quirks.must_call:
            mode = "auto"  # the model may still call the tool; its server would refuse the request
        if mode in ("auto", "none", "required"):
            return {**body, "tool_choice": mode}
        if self.quirks.named_choice:
            return {**body, "tool_choice": {"type": "function", "function": {"name": mode}}}
        named = [tool for tool in tools if tool["function"]["name"] == mode]
        return {**body, "tools": named or tools, "tool_choice": "required"}

    def _reader(self, messages: Sequence[Msg]) -> "_OpenAIReader":
        audio = self._extra_body.get("audio")
        audio_format = str(audio.get("format")) if isinstance(audio, Mapping) else ""
        says_reason = self.quirks.says_reason
        return _OpenAIReader(messages, self._errors, is_cut_without_reason=says_reason, audio_format=audio_format)


class _OpenAIReader:
    """Reads a chat completion, whole or in chunks."""

    def __init__(
        self, messages: Sequence[Msg], errors: ProviderErrors, *, is_cut_without_reason: bool, audio_format: str
    ) -> None:
        self._messages = messages
        self._errors = errors
        self._audio_type = _AUDIO_TYPES.get(audio_format, "audio/wav")
        self._is_cut_without_reason = is_cut_without_reason
        self._accumulator = StreamAccumulator()
        self._refusal: list[str] = []
        self._citations: list[JSONObject] = []
        self._cited_urls: list[object] = []
        self._reason: str | None = None
        self._usage: ChatUsage | None = None
        self._id: str | None = None
        self._has_answered = False

    @property
    def is_complete(self) -> bool:
        return self._reason is not None

    @property
    def has_ended(self) -> bool:
        return False  # its stream says so with "[DONE]"

    @property
    def has_progressed(self) -> bool:
        return False  # whatever comes is a piece

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        self._take_fields(event, "delta", are_whole=False)
        return self._accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if not list_in(body, "choices"):
            raise Malformed("it answered without 'choices': does base_url end in the API's path, often /v1?")
        self._is_cut_without_reason = False  # an HTTP body that was cut is not valid JSON
        self._take_fields(body, "message", are_whole=True)

    def answer(self) -> ChatResponse:
        if self._refusal:
            raise Refused(f"it declined to answer: {''.join(self._refusal)}")
        if self._reason == "content_filter":
            raise Refused("its content filter stopped the answer (finish_reason 'content_filter')")
        if self._reason in _FAILED_REASONS:
            raise Transient(f"it stopped {_FAILED_REASONS[self._reason]} (finish_reason {self._reason!r})")
        if not self._has_answered:
            raise Malformed("its answer has no choices")
        if self._reason is None and self._is_cut_without_reason:
            raise Transient("its answer ended without a finish_reason, so it was cut")
        # Of a search that the server has done itself. xAI and Perplexity give no more than the addresses.
        citations = self._citations or [new_citation({}, url=url) for url in self._cited_urls]
        content = self._accumulator.content()
        if citations:
            text = next((block.text for block in reversed(content) if isinstance(block, TextBlock)), "")
            content.append(citations_block(OPENAI, citations, text))
        usage = self._usage or estimated_usage(self._messages, content)
        return ChatResponse(content, True, usage, self._finished_reason(), self._id)

    def _finished_reason(self) -> str | None:
        if self._reason is None and self._accumulator.ends_in_half_a_call:
            return "length"  # the server does not say so, but more was to come
        if self._reason == "stop" and self._accumulator.has_calls:
            return "tool_calls"
        return _OTHER_REASONS.get(self._reason or "", self._reason)

    def _take_fields(self, fields: dict[str, object], name: str, *, are_whole: bool) -> None:
        self._id = self._id or text_in(fields, "id") or None
        self._count_tokens(dict_in(fields, "usage") or dict_in(dict_in(fields, "x_groq"), "usage"))
        if isinstance(cited := fields.get("citations"), list):
            self._cited_urls = cited  # repeated with each chunk
        # Only one choice is asked for; a server that gives more numbers them.
        for choice in list_in(fields, "choices"):
            if count_in(choice, "index") == 0:
                if choice.get("error"):  # OpenRouter's, when the provider behind it fails
                    raise self._errors.error_for_event(choice)
                self._has_answered = True
                self._count_tokens(dict_in(choice, "usage"))  # Moonshot's
                self._take_message(dict_in(choice, name), are_whole=are_whole)
                self._reason = text_in(choice, "finish_reason") or self._reason

    def _count_tokens(self, usage: dict[str, object]) -> None:
        if usage:
            details = dict_in(usage, "prompt_tokens_details")
            self._usage = ChatUsage(
                count_in(usage, "prompt_tokens"),
                count_in(usage, "completion_tokens"),
                count_in(details, "cached_tokens") or count_in(usage, "prompt_cache_hit_tokens"),  # DeepSeek's
                count_in(details, "cache_write_tokens"),
            )

    def _take_message(self, message: dict[str, object], *, are_whole: bool) -> None:
        self._accumulator.add_thinking(text_in(message, "reasoning_content") or text_in(message, "reasoning"))
        content = message.get("content")
        if isinstance(content, list):
            self._take_parts(list_in(message, "content"))
        elif are_whole and isinstance(content, dict):  # Cloudflare's, of an answer in the JSON-schema mode
            self._accumulator.add_text(json.dumps(content, ensure_ascii=False))
        else:
            self._accumulator.add_text(text_in(message, "content"))
        if message.get("audio") is not None:
            audio = dict_in(message, "audio")
            self._accumulator.add_text(text_in(audio, "transcript"))
            self._accumulator.add_data(text_in(audio, "data"), self._audio_type)
        refusal = text_in(message, "refusal")
        if refusal:
            self._refusal.append(refusal)
        self._take_annotations(message.get("annotations"))
        for position, call in enumerate(list_in(message, "tool_calls")):
            index: int | None = position
            if not are_whole:
                index = None if call.get("index") is None else count_in(call, "index")
            self._take_function(index, text_in(call, "id"), dict_in(call, "function"))
        function = dict_in(message, "function_call")  # the older form, which some servers still have
        if function.get("name") or function.get("arguments"):
            self._take_function(0, "", function)

    def _take_function(self, index: int | None, id: str, function: dict[str, object]) -> None:
        arguments = function.get("arguments")
        if not isinstance(arguments, dict):  # some servers send the object itself and not its text
            arguments = text_in(function, "arguments")
        self._accumulator.add_call(index, id, text_in(function, "name"), arguments)

    def _take_annotations(self, annotations: object) -> None:
        for annotation in annotations if isinstance(annotations, list) else []:
            fields = annotation.get("url_citation") if isinstance(annotation, dict) else None
            if isinstance(fields, dict):
                url, title, quote = (fields.get(name) for name in ("url", "title", "content"))
                start, end = fields.get("start_index"), fields.get("end_index")
                self._citations.append(new_citation(fields, url=url, title=title, quote=quote, start=start, end=end))

    def _take_parts(self, parts: list[dict[str, object]]) -> None:
        """Take an answer in parts, the form in which some servers answer."""
        for part in parts:
            inner = part.get("thinking")
            if part.get("type") != "thinking":
                self._accumulator.add_text(text_in(part, "text"))
            elif isinstance(inner, list):  # Mistral's
                self._accumulator.add_thinking("".join(text_in(text, "text") for text in list_in(part, "thinking")))
            else:
                self._accumulator.add_thinking(text_in(part, "thinking"))
