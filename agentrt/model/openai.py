"""OpenAI's chat completions API, and the many servers that speak it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from agentrt._runtime.block import ContentBlock, JSONObject, TextBlock, citations_block, new_citation
from agentrt.errors import Malformed, Refused, Transient
from agentrt.formatter import Formatter, format_openai
from agentrt.formatter.openai_responses import OPENAI
from agentrt.message import Msg
from agentrt.model.batch.openai import OpenAIBatches
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import OPENAI_API
from agentrt.model.remote.provider_errors import ProviderErrors
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.schema.dialect import TEXT_FORMATS, SchemaDialect
from agentrt.model.remote.settings import check_option, check_request_options, is_local
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice

# An answer does not name its format, so the requested one counts. `pcm16` is not a file, but 24,000 samples a second
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
# Of DeepSeek, of OpenRouter and Mistral, and of vLLM: the answer was cut short; a retry may succeed.
_FAILED_REASONS = {
    "insufficient_system_resource": "for lack of resources",
    "error": "with an error",
    "abort": "on its own",
}


@dataclass(frozen=True, slots=True)
class Quirks:
    """The differences of a server that speaks OpenAI's API.

    `max_tokens_name` is its name for the limit on an answer. `stream_usage`: it knows `stream_options`, with which a
    stream reports its tokens. `reasoning_back`: it requires the thinking of the rounds since the user's last message,
    even if empty. `must_call`: it can be made to call a tool; if not, "required" and the name of a tool become "auto".
    `named_choice`: it can be made to call one tool by its name; if not, it is shown that tool alone and made to call
    one, as by default with servers on this machine and its network. `says_reason`: each of its answers says why it
    ended, so a stream that ends without a reason was cut, and raises `Transient`; if not, such an answer counts as
    whole. `json_schema`: it can bind an answer to a JSON schema, also together with tools. `names`: its messages may
    name their speaker. `nine_letter_ids`: it takes ids of tool calls of nine letters or digits only, as Mistral does.
    `allowed_tools`: it can be told which of the tools of a request may be called.
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
    allowed_tools: bool = False


_OPENAI = Quirks("max_completion_tokens", says_reason=True, json_schema=True, allowed_tools=True)
# The keywords of its strict mode, from the guide to structured outputs of platform.openai.com, in November 2026.
STRICT_SCHEMAS = SchemaDialect(
    frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "maxItems", "minimum", "minItems", "multipleOf"}),
    TEXT_FORMATS,
    all_required=True,
    recursive=True,
)


class OpenAIChatModel(RemoteChatModel):
    """A model of OpenAI, or of any server that speaks its chat completions API, whose URL is given as `base_url`.

    The key comes from OPENAI_API_KEY unless `api_key` or another `key_variable` is given, the URL from OPENAI_BASE_URL
    unless it is given; `common` takes these and the other `ModelOptions`. A setting that is left out is not
    sent. `formatter` makes the messages of a request. `structured_output` says whether structured output is asked for
    in the API's JSON-schema mode or through a tool; "auto" uses that mode with OpenAI's own server.
    """

    _api = OPENAI_API
    _path = "/chat/completions"
    _batch_api = OpenAIBatches
    _forms = frozenset({"image", "audio", "pdf"})

    def __init__(
        self,
        model: str,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        reasoning_effort: str | None = None,
        parallel_tool_calls: bool | None = None,
        quirks: Quirks | None = None,
        formatter: Formatter | None = None,
        **common: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **common)
        check_option(quirks, Quirks, f"{type(self).__name__}(quirks=...)", "quirks=Quirks(must_call=False)")
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        check_request_options(type(self).__name__, numbers, stop, formatter, reasoning_effort=reasoning_effort)
        check_option(
            parallel_tool_calls, bool, f"{type(self).__name__}(parallel_tool_calls=...)", "parallel_tool_calls=True"
        )
        # Many local servers refuse a request that names the tool to call; all accept the other form.
        self.quirks = quirks or (_OPENAI if self._is_own_server else Quirks(named_choice=not is_local(self.base_url)))
        self.supports_allowed_tools = self.quirks.allowed_tools
        self._formatter = formatter
        if formatter is not None:
            self._forget_forms(common.get("capabilities"))
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            self.quirks.max_tokens_name: max_tokens,
            "stop": stop if stop is None or isinstance(stop, str) else list(stop),
            "seed": seed,
            "reasoning_effort": reasoning_effort,
            "parallel_tool_calls": parallel_tool_calls,
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        # Read now, since a program may set `model.quirks` once it knows its server.
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
            return body | self._tool_fields(tools, tool_choice)
        body.pop("parallel_tool_calls", None)  # an error without tools
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

    def _tool_fields(self, tools: list[JSONSchema], tool_choice: ToolChoice | None) -> JSONObject:
        body: JSONObject = {"tools": tools}
        if tool_choice is None:
            return body
        mode = tool_choice.mode
        if mode not in ("auto", "none") and not self.quirks.must_call:
            mode = "auto"  # the model may still call the tool; its server would refuse the request
        allowed = self._allowed_names(tools, tool_choice)
        if allowed == []:
            mode = "none"
        if allowed and mode in ("auto", "required"):
            named = [{"type": "function", "function": {"name": name}} for name in allowed]
            return {**body, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}}
        if mode in ("auto", "none", "required"):
            return {**body, "tool_choice": mode}
        if self.quirks.named_choice:
            return {**body, "tool_choice": {"type": "function", "function": {"name": mode}}}
        alone = [tool for tool in tools if tool.get("function", tool)["name"] == mode]
        return {**body, "tools": alone or tools, "tool_choice": "required"}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        audio = self._extra_body.get("audio")
        audio_format = str(audio.get("format")) if isinstance(audio, Mapping) else ""
        says_reason = self.quirks.says_reason
        return _OpenAIReader(messages, self._errors, is_cut_without_reason=says_reason, audio_format=audio_format)


class _OpenAIReader(AnswerReader):
    """Reads a chat completion, whole or in chunks."""

    def __init__(
        self, messages: Sequence[Msg], errors: ProviderErrors, *, is_cut_without_reason: bool, audio_format: str
    ) -> None:
        super().__init__(messages)
        self._errors = errors
        self._audio_type = _AUDIO_TYPES.get(audio_format, "audio/wav")
        self._is_cut_without_reason = is_cut_without_reason
        self._refusal: list[str] = []
        self._citations: list[JSONObject] = []
        self._cited_urls: list[object] = []
        self._has_answered = False

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        self._take_fields(event, "delta", are_whole=False)
        return self.accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if not list_in(body, "choices"):
            raise Malformed("it answered without 'choices': does base_url end in the API's path, often /v1?")
        self._is_cut_without_reason = False  # an HTTP body that was cut is not valid JSON
        self._take_fields(body, "message", are_whole=True)

    def answer(self) -> ChatResponse:
        if self._refusal:
            raise Refused(f"it declined to answer: {''.join(self._refusal)}")
        if self.reason == "content_filter":
            raise Refused("its content filter stopped the answer (finish_reason 'content_filter')")
        if self.reason in _FAILED_REASONS:
            raise Transient(f"it stopped {_FAILED_REASONS[self.reason]} (finish_reason {self.reason!r})")
        if not self._has_answered:
            raise Malformed("its answer has no choices")
        if not self.reason and self._is_cut_without_reason:
            raise Transient("its answer ended without a finish_reason, so it was cut")
        # From the server's own search. xAI and Perplexity send only the addresses.
        citations = self._citations or [new_citation({}, url=url) for url in self._cited_urls]
        content = self.accumulator.content()
        if citations:
            text = next((block.text for block in reversed(content) if isinstance(block, TextBlock)), "")
            content.append(citations_block(OPENAI, citations, text))
        return self.respond(content, self._finished_reason(), self.usage)

    def _finished_reason(self) -> str | None:
        if not self.reason and self.accumulator.ends_in_half_a_call:
            return "length"  # the server does not say so, but more was to come
        if self.reason == "stop" and self.accumulator.has_calls:
            return "tool_calls"
        return _OTHER_REASONS.get(self.reason, self.reason) or None

    def _take_fields(self, fields: dict[str, object], name: str, *, are_whole: bool) -> None:
        self.id = self.id or text_in(fields, "id") or None
        self._count_tokens(dict_in(fields, "usage") or dict_in(dict_in(fields, "x_groq"), "usage"))
        if isinstance(cited := fields.get("citations"), list):
            self._cited_urls = cited  # repeated with each chunk
        # Only one choice is requested; a server that sends more numbers them.
        for choice in list_in(fields, "choices"):
            if count_in(choice, "index") == 0:
                if choice.get("error"):  # OpenRouter's, when the provider behind it fails
                    raise self._errors.error_for_event(choice)
                self._has_answered = True
                self._count_tokens(dict_in(choice, "usage"))  # Moonshot's
                self._take_message(dict_in(choice, name), are_whole=are_whole)
                self.reason = text_in(choice, "finish_reason") or self.reason

    def _count_tokens(self, usage: dict[str, object]) -> None:
        if usage:
            details = dict_in(usage, "prompt_tokens_details")
            self.usage = ChatUsage(
                count_in(usage, "prompt_tokens"),
                count_in(usage, "completion_tokens"),
                count_in(details, "cached_tokens") or count_in(usage, "prompt_cache_hit_tokens"),  # DeepSeek's
                count_in(details, "cache_write_tokens"),
            )

    def _take_message(self, message: dict[str, object], *, are_whole: bool) -> None:
        self.accumulator.add_thinking(text_in(message, "reasoning_content") or text_in(message, "reasoning"))
        content = message.get("content")
        if isinstance(content, list):
            self._take_parts(list_in(message, "content"))
        elif are_whole and isinstance(content, dict):  # Cloudflare's, of an answer in the JSON-schema mode
            self.accumulator.add_text(json.dumps(content, ensure_ascii=False))
        else:
            self.accumulator.add_text(text_in(message, "content"))
        if message.get("audio") is not None:
            audio = dict_in(message, "audio")
            self.accumulator.add_text(text_in(audio, "transcript"))
            self.accumulator.add_data(text_in(audio, "data"), self._audio_type)
        refusal = text_in(message, "refusal")
        if refusal:
            self._refusal.append(refusal)
        self._take_annotations(message.get("annotations"))
        for position, call in enumerate(list_in(message, "tool_calls")):
            index: int | None = position
            if not are_whole:
                index = None if call.get("index") is None else count_in(call, "index")
            self._take_function(index, text_in(call, "id"), dict_in(call, "function"))
        function = dict_in(message, "function_call")  # the older format, which some servers still use
        if function.get("name") or function.get("arguments"):
            self._take_function(0, "", function)

    def _take_function(self, index: int | None, id: str, function: dict[str, object]) -> None:
        arguments = function.get("arguments")
        if not isinstance(arguments, dict):  # some servers send an object instead of JSON text
            arguments = text_in(function, "arguments")
        self.accumulator.add_call(index, id, text_in(function, "name"), arguments)

    def _take_annotations(self, annotations: object) -> None:
        for annotation in annotations if isinstance(annotations, list) else []:
            fields = annotation.get("url_citation") if isinstance(annotation, dict) else None
            if isinstance(fields, dict):
                url, title, quote = (fields.get(name) for name in ("url", "title", "content"))
                start, end = fields.get("start_index"), fields.get("end_index")
                self._citations.append(new_citation(fields, url=url, title=title, quote=quote, start=start, end=end))

    def _take_parts(self, parts: list[dict[str, object]]) -> None:
        """Read an answer in parts, the format of some servers."""
        for part in parts:
            inner = part.get("thinking")
            if part.get("type") != "thinking":
                self.accumulator.add_text(text_in(part, "text"))
            elif isinstance(inner, list):  # Mistral's
                self.accumulator.add_thinking("".join(text_in(text, "text") for text in list_in(part, "thinking")))
            else:
                self.accumulator.add_thinking(text_in(part, "thinking"))
