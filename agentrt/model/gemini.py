"""Google's Gemini, through its `generateContent` API."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack
from urllib.parse import urlsplit

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    JSONObject,
    ProviderBlock,
    URLSource,
    citations_block,
    new_citation,
)
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import Malformed, MalformedCall, Refused, Rejected, Transient
from agentrt.formatter import Formatter, format_gemini
from agentrt.formatter.gemini import GEMINI, pack_signature
from agentrt.message import Msg
from agentrt.model.batch.gemini import GeminiBatches
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import GEMINI_API
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.schema.dialect import SchemaDialect
from agentrt.model.remote.settings import check_option, check_request_options, check_server_tools
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice

_CALLING_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_API_NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_output_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "seed": "seed",
    "thinking": "thinkingConfig",
}
_BLOCKED = frozenset(
    {
        "BLOCKLIST",
        "ESCALATION",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "IMAGE_SAFETY",
        "LANGUAGE",
        "MODEL_ARMOR",
        "PROHIBITED_CONTENT",
        "RECITATION",
        "SAFETY",
        "SPII",
    }
)
_MISCALLED = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS", "UNEXPECTED_TOOL_CALL"})
_NOT_TAKEN = frozenset({"MISSING_THOUGHT_SIGNATURE", "PUP_LIMITED_DISABLED"})
# The sources of an answer, in Google's own format: for example, it requires the `searchEntryPoint` to be shown.
_GROUNDS = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_REASONS = {"STOP": "stop", "MAX_TOKENS": "length"}
# The keywords of its schemas, from the guide to structured output of ai.google.dev, in November 2026.
_SCHEMAS = SchemaDialect(
    frozenset({"maximum", "maxItems", "minimum", "minItems"}),
    frozenset({"date", "date-time", "time"}),
    all_required=False,
    recursive=True,
)


class GeminiChatModel(RemoteChatModel):
    """A model of Google's Gemini API, on asyncio and trio.

    `thinking` is the API's `thinkingConfig`, such as `{"thinkingLevel": "low", "includeThoughts": True}`;
    without `includeThoughts`, thinking is empty. Signatures of thoughts are kept and sent back in any case.
    `server_tools` are tools that Google runs, as the API takes them, such as `{"googleSearch": {}}`.
    `structured_output` says whether structured output is asked for in the API's JSON-schema mode or through a tool;
    "auto" uses that mode with models that support it together with tools, which are Gemini 3 and later.

    The key comes from GEMINI_API_KEY, or else GOOGLE_API_KEY, unless `api_key` or another `key_variable` is given;
    `common` takes these and the other `ModelOptions`. A setting that is left out is not sent.
    """

    _api = GEMINI_API
    _batch_api = GeminiBatches
    _forms = frozenset({"image", "audio", "video", "pdf"})
    _refused_thoughts = lazy_pattern(
        r"(?:corrupted|invalid) thought[ _]signature|thought[ _]signature is (?:not valid|invalid)", re.IGNORECASE
    )
    _default_context_size = 1_000_000

    def __init__(
        self,
        model: str,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        thinking: Mapping[str, object] | None = None,
        server_tools: Sequence[Mapping[str, Any]] = (),
        formatter: Formatter | None = None,
        **common: Unpack[ModelOptions],
    ) -> None:
        super().__init__(plain_name(model), **common)
        name = type(self).__name__
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        check_request_options(name, numbers, stop, formatter)
        check_option(thinking, Mapping, f"{name}(thinking=...)", 'thinking={"thinkingLevel": "low"}')
        if formatter is not None:
            self._forget_forms(common.get("capabilities"))
        # For Gemini models, the version number tells what is supported; nothing is known of other names.
        version = re.search(r"gemini-(\d+)", self.model)
        self._is_3_or_later = version is not None and int(version[1]) >= 3
        self.supports_allowed_tools = self._is_3_or_later and self._is_own_server
        self._formatter = formatter or partial(format_gemini, signs_calls=self._is_3_or_later)
        self._server_tools = check_server_tools(
            "GeminiChatModel",
            server_tools,
            "Google",
            '{"googleSearch": {}}',
            lambda tool: "functionDeclarations" not in tool,
        )
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            "max_output_tokens": max_tokens,
            "stop_sequences": [stop] if isinstance(stop, str) else stop if stop is None else list(stop),
            "seed": seed,
            "thinking": None if thinking is None else dict(thinking),
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _path_for(self, body: JSONObject) -> str:
        return f"/models/{self.model}:{'streamGenerateContent?alt=sse' if self.stream else 'generateContent'}"

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        body: JSONObject = {**self._formatter(messages)}
        if self.settings:
            body["generationConfig"] = {_API_NAMES[name]: value for name, value in self.settings.items()}
        declared = [{"functionDeclarations": [*map(_declaration, tools)]}] if tools else []
        if offered := [*declared, *self._server_tools]:
            body["tools"] = offered
        if tools and (config := self._tool_config(tools, tool_choice)):
            body["toolConfig"] = config
        return body

    def _tool_config(self, tools: list[JSONSchema], choice: ToolChoice | None) -> JSONObject:
        config: JSONObject = {}
        allowed = self._allowed_names(tools, choice)
        if allowed == []:
            choice = ToolChoice("none")
        if choice is not None:
            mode = _CALLING_MODES.get(choice.mode)
            named = {"mode": "ANY", "allowedFunctionNames": [choice.mode]}
            config["functionCallingConfig"] = named if mode is None else {"mode": mode}
        # Without it, tools of both kinds are a 400; older models and Vertex do not know it.
        is_on_vertex = str(urlsplit(self.base_url).hostname).endswith("aiplatform.googleapis.com")
        if self._server_tools and self._is_3_or_later and not is_on_vertex:
            config["includeServerSideToolInvocations"] = True
            if choice is not None and choice.mode == "auto":
                config["functionCallingConfig"] = {"mode": "VALIDATED"}  # not allowed with AUTO
        if allowed and choice is not None and choice.mode in ("auto", "required"):
            mode = "VALIDATED" if choice.mode == "auto" else "ANY"  # AUTO knows no names
            config["functionCallingConfig"] = {"mode": mode, "allowedFunctionNames": allowed}
        return config

    def _has_schema_mode(self) -> bool:
        return self._is_3_or_later and self._is_own_server

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        translated = _SCHEMAS.translate(schema)
        if translated is None:
            return None
        settings = {_API_NAMES[name]: value for name, value in self.settings.items()}
        answer = {"responseMimeType": "application/json", "responseJsonSchema": translated}
        return {"generationConfig": {**settings, **answer}}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return _GeminiReader(messages)


def _declaration(schema: JSONSchema) -> JSONObject:
    function = schema.get("function", schema)
    declaration = {"name": function["name"], "description": function.get("description") or ""}
    parameters = function.get("parameters")
    # The API refuses an object without properties, but not a function without parameters.
    return (
        {**declaration, "parametersJsonSchema": parameters}
        if parameters and parameters.get("properties")
        else declaration
    )


class _GeminiReader(AnswerReader):
    """Builds an answer from the chunks of a stream, each a response of its own, or from one whole response."""

    def __init__(self, messages: Sequence[Msg]) -> None:
        super().__init__(messages)
        self._why = ""
        self._calls = 0
        self._texts: list[str] = []
        self._grounds: dict[str, dict[str, object]] = {}

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Take one chunk, and return the new pieces."""
        self.id = text_in(event, "responseId") or self.id
        self._count_tokens(dict_in(event, "usageMetadata"))
        feedback = dict_in(event, "promptFeedback")
        blocked = text_in(feedback, "blockReason")
        if blocked:
            raise Refused(
                f"it refused the request (blockReason {blocked!r}){_explanation(feedback, 'blockReasonMessage')}"
            )
        for candidate in list_in(event, "candidates"):
            if count_in(candidate, "index") == 0:  # only one is requested
                self._take_candidate(candidate)
        return self.accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if not body.keys() & {"candidates", "promptFeedback"}:
            raise Malformed("it answered without 'candidates': does base_url end in the API's version, as in /v1beta?")
        self.feed(body)

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when a filter stopped it."""
        stopped = f"(finishReason {self.reason!r}){self._why}"
        if self.reason in _BLOCKED:
            raise Refused(f"its filter stopped the answer {stopped}")
        if self.reason in _MISCALLED:
            raise MalformedCall(f"it called a tool in a form that cannot be read {stopped}")
        if self.reason in _NOT_TAKEN:
            raise Rejected(f"it did not take the request {stopped}")
        if not self.reason:
            raise Transient("its answer ended without a finishReason, so it was cut")
        self._add_citations()
        content = self.accumulator.content()
        reason = _REASONS.get(self.reason, self.reason.lower())
        # The API says that it stopped, whatever it stopped for.
        if reason == "stop" and self.accumulator.has_calls:
            reason = "tool_calls"
        return self.respond(content, reason, self.usage)

    def _take_candidate(self, candidate: dict[str, object]) -> None:
        for part in list_in(dict_in(candidate, "content"), "parts"):
            self._take_part(part)
        for name in _GROUNDS:
            if grounds := dict_in(candidate, name):
                self._grounds[name] = {**self._grounds.get(name, {}), **grounds}
        self.reason = text_in(candidate, "finishReason") or self.reason
        self._why = _explanation(candidate, "finishMessage") or self._why
        if self.reason:
            self._add_citations()

    def _add_citations(self) -> None:
        """Add the sources of the answer, which come with its end, or in some streams after it."""
        grounds, self._grounds = self._grounds, {}
        # Answers without a search have an empty one.
        if not any(any(fields.values()) for fields in grounds.values()):
            return
        text = "".join(self._texts)
        grounding = grounds.get("groundingMetadata", {})
        chunks = _objects(grounding.get("groundingChunks"))
        citations: list[JSONObject] = []
        cited: set[int] = set()
        for support in _objects(grounding.get("groundingSupports")):
            start, end = _place(support.get("segment"), text)
            numbers = support.get("groundingChunkIndices")
            for number in numbers if isinstance(numbers, list) else []:
                if isinstance(number, int) and 0 <= number < len(chunks):
                    cited.add(number)
                    citations.append(_chunk_citation(chunks[number], start, end))
        citations += [_chunk_citation(chunk, None, None) for number, chunk in enumerate(chunks) if number not in cited]
        recited = grounds.get("citationMetadata", {})
        for source in _objects(recited.get("citationSources") or recited.get("citations")):
            start, end = _place(source, text)
            citations.append(
                new_citation(source, url=source.get("uri"), title=source.get("title"), start=start, end=end)
            )
        for page in _objects(grounds.get("urlContextMetadata", {}).get("urlMetadata")):
            citations.append(new_citation(page, url=page.get("retrievedUrl")))
        self.accumulator.add_block(citations_block(GEMINI, citations, text, **grounds))

    def _take_part(self, part: dict[str, object]) -> None:
        signature = text_in(part, "thoughtSignature")
        if "functionCall" in part:
            call = dict_in(part, "functionCall")
            if "partialArgs" in call:
                raise Malformed("it sent the arguments of a call in parts: turn streamFunctionCallArguments off")
            # Before its call, so that it is known when the call is sent back.
            if signature:
                self.accumulator.add_thinking("", pack_signature(signature, is_of_call=True))
            # A call comes as a whole, and each is one of its own, whatever its id.
            self._calls += 1
            self.accumulator.add_call(self._calls, text_in(call, "id"), text_in(call, "name"), dict_in(call, "args"))
            return
        if "inlineData" in part or "fileData" in part:
            if not part.get("thought"):  # a draft of the picture is not part of the answer
                self._add_file(part, signature)
            return
        if "text" in part and part.get("thought"):
            self.accumulator.add_thinking(text_in(part, "text"))
        elif "text" in part:
            self._add_text(text_in(part, "text"))
        elif part.keys() - {"thoughtSignature", "thought"}:
            # Of Google's own tools; it goes back as it is, its signature included.
            self.accumulator.add_block(ProviderBlock(GEMINI, json.dumps(part, ensure_ascii=False)))
            return
        if signature:
            self.accumulator.add_thinking("", pack_signature(signature, is_of_call=False))

    def _add_text(self, text: str) -> None:
        if text and not self.accumulator.open_text_length:
            self._texts = []
        self._texts.append(text)
        self.accumulator.add_text(text)

    def _add_file(self, part: dict[str, object], signature: str) -> None:
        # Before its file, as with calls.
        if signature:
            self.accumulator.add_thinking("", pack_signature(signature, is_of_call=True))
        inline, elsewhere = dict_in(part, "inlineData"), dict_in(part, "fileData")
        media_type = text_in(inline or elsewhere, "mimeType") or "application/octet-stream"
        if inline:
            self.accumulator.add_block(DataBlock(Base64Source(text_in(inline, "data"), media_type)))
        else:
            self.accumulator.add_block(DataBlock(URLSource(text_in(elsewhere, "fileUri"), media_type)))

    def _count_tokens(self, usage: dict[str, object]) -> None:
        # Each chunk has the totals so far.
        counted = count_in(usage, "promptTokenCount") + count_in(usage, "toolUsePromptTokenCount")
        if counted:
            written = count_in(usage, "candidatesTokenCount") + count_in(usage, "thoughtsTokenCount")
            self.usage = ChatUsage(counted, written, count_in(usage, "cachedContentTokenCount"))


def _explanation(fields: dict[str, object], name: str) -> str:
    text = text_in(fields, name)
    return f": {text}" if text else ""


def _chunk_citation(chunk: dict[str, object], start: int | None, end: int | None) -> JSONObject:
    fields = next((value for value in chunk.values() if isinstance(value, dict)), {})  # web, maps, ...
    url = fields.get("uri") or fields.get("sourceUri")
    return new_citation(chunk, url=url, title=fields.get("title"), quote=fields.get("text"), start=start, end=end)


def _place(segment: object, text: str) -> tuple[int | None, int | None]:
    """Return the range of the segment in characters; the API counts in bytes."""
    if not isinstance(segment, dict):
        return None, None
    start, end, words = segment.get("startIndex", 0), segment.get("endIndex"), segment.get("text")
    if isinstance(start, int) and isinstance(end, int) and 0 <= start <= end:
        content = text.encode(errors="surrogatepass")
        before, cited = (part.decode(errors="replace") for part in (content[:start], content[start:end]))
        if end <= len(content) and words in (None, "", cited):
            return len(before), len(before) + len(cited)
    # From another block of the text, or counted differently.
    place = text.find(words) if isinstance(words, str) and words else -1
    return (place, place + len(str(words))) if place >= 0 else (None, None)


def _objects(values: object) -> list[dict[str, object]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def plain_name(model: str) -> str:
    """Return the name of a model without the "models/" with which Google's API lists it."""
    name: object = model
    # Other types are refused where all options of a model are checked.
    return name.removeprefix("models/") if isinstance(name, str) else model
