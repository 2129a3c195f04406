"""Anthropic's messages API, and the servers that speak it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Unpack

from agentrt._runtime.block import ContentBlock, JSONObject, ProviderBlock, citations_block, new_citation
from agentrt._runtime.model_interface.batch import BatchRequest
from agentrt._runtime.model_interface.estimate import estimated_usage
from agentrt.errors import ConfigError, Malformed, Refused, Transient
from agentrt.formatter import Formatter, format_anthropic
from agentrt.formatter.anthropic import ANTHROPIC, pack_thinking
from agentrt.formatter.conventions import text_part
from agentrt.message import Msg
from agentrt.model.batch.anthropic import AnthropicBatches
from agentrt.model.claude import (
    CLAUDE_SCHEMAS,
    REFUSED_THOUGHTS,
    ClaudeRules,
    Thought,
    check_sampling,
    check_thinking,
    count_passing_hints,
    rules_of,
)
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import ANTHROPIC_API
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.settings import check_option, check_request_options, check_server_tools, is_local
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatResponse, ChatUsage, DeferredSchema, JSONSchema, ToolChoice

_DEFAULT_MAX_TOKENS = 8192
_ROOM_TO_THINK = 16_384  # adaptive thinking has no budget, and uses up `max_tokens`
_VERTEX_VERSION = "vertex-2023-10-16"  # which platform.claude.com demands; newer clients of Anthropic send another
_SERVER_TOOL = '{"type": "web_search_20250305", "name": "web_search"}'
_THOUGHTS = ("thinking", "redacted_thinking")
_CACHED = {"type": "ephemeral"}  # for five minutes, renewed by each use
_BINDING_CONTROLS = "thinking-binding-controls-2026-08-01"  # the beta that `block_binding` needs
_FINISHED_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
}
# Any other mode is the name of a tool.
_TOOL_SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
_CHOICE_TYPES = {"auto": "auto", "none": "none", "required": "any"}
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
# Some events count only the output, and omit the three counts of the input or send them as zeros.
_COUNTED_TOGETHER = (("output_tokens",), ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))


class AnthropicChatModel(RemoteChatModel):
    """Claude, or a model of any server that speaks Anthropic's messages API, whose URL is given as `base_url`.

    The key comes from ANTHROPIC_API_KEY unless `api_key` or another `key_variable` is given, the URL from
    ANTHROPIC_BASE_URL unless it is given; `common` takes these and the other `ModelOptions`.

    `thinking` is the API's parameter, `{"type": "adaptive"}` or, for models up to Claude 4.6,
    `{"type": "enabled", "budget_tokens": 4000}`; it is left out of a call for which the API would refuse it: one that
    forces a tool, or continues a round of tools that another model began. `effort` is how hard the model tries:
    "low", "medium", "high", "xhigh" or "max". The API wants a limit: `max_tokens` is 8192 unless given, and thinking
    comes on top of that, with its budget or else with 16,384. Differences between models are in `rules`, which
    are known for Anthropic's own; a setting that they rule out is a `ConfigError`.

    `server_tools` are tools that Anthropic runs itself, such as
    `{"type": "web_search_20250305", "name": "web_search"}`, and go with the agent's own; their work is kept in
    `ProviderBlock`s. `formatter` makes the `messages` and `system` of a request. `structured_output` says whether
    structured output is asked for in the API's JSON-schema mode or through a tool; "auto" uses that mode on Anthropic's
    own server, with models that are known to have it. `cache="auto"` marks tools, system prompt and conversation, so
    that the repeated beginning of the next request costs a tenth; "off" marks nothing.

    With a `base_url` that ends in `/publishers/anthropic`, requests are those of Claude on Vertex AI.
    """

    _api = ANTHROPIC_API
    _path = "/v1/messages"
    _batch_api = AnthropicBatches
    _forms = frozenset({"image", "pdf"})
    _refused_thoughts = REFUSED_THOUGHTS
    _default_context_size = 200_000

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] | None = None,
        thinking: Mapping[str, object] | None = None,
        effort: str | None = None,
        server_tools: Sequence[Mapping[str, object]] = (),
        rules: ClaudeRules | None = None,
        cache: Literal["auto", "off"] = "auto",
        formatter: Formatter = format_anthropic,
        **common: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **common)
        check_option(rules, ClaudeRules, f"{type(self).__name__}(rules=...)", "rules=ClaudeRules(must_call=False)")
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        check_request_options(type(self).__name__, numbers, stop, formatter, effort=effort)
        self.rules = rules = rules or replace(rules_of(model), named_choice=not is_local(self.base_url))
        temperature, top_p = check_sampling(model, temperature, top_p, rules)
        self.supports_deferred_tools = rules.searches_tools and self._is_own_server
        self._thinking = check_thinking("AnthropicChatModel", model, thinking, rules)
        self._server_tools = check_server_tools("AnthropicChatModel", server_tools, "Anthropic", _SERVER_TOOL)
        if cache not in ("auto", "off"):
            raise ConfigError(f"{type(self).__name__}(cache=...) must be 'auto' or 'off', not {cache!r:.100}")
        self.cache, self._formatter = cache, formatter
        if formatter is not format_anthropic:
            self._forget_forms(common.get("capabilities"))
        kind = self._thinking.get("type", "adaptive" if rules.thinks else "disabled")
        room_to_think = _ROOM_TO_THINK if kind == "adaptive" else int(self._thinking.get("budget_tokens", 0))
        settings = {
            "max_tokens": _DEFAULT_MAX_TOKENS + room_to_think if max_tokens is None else max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "stop_sequences": [stop] if isinstance(stop, str) else stop,
            "thinking": self._thinking or None,
            "output_config": {"effort": effort} if effort is not None else None,
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        # On Vertex AI the model is a part of the path, and the version one of the body.
        head = {"anthropic_version": _VERTEX_VERSION} if self._is_on_vertex else {"model": self.model}
        body = {**head, "stream": self.stream, **self.settings, **self._formatter(messages)}
        body |= self._tool_fields(tools, tool_choice, body["messages"])
        if self._thinking and not self._may_think(body):
            del body["thinking"]
        if self.rules.binds_thinking and "block_binding" not in self._thinking:
            # The API cannot be asked to drop outdated thoughts, and would refuse the whole request for one.
            body["messages"] = [
                {**turn, "content": [part for part in _parts_of(turn) if part["type"] not in _THOUGHTS]}
                for turn in body["messages"]
            ]
        if self.cache == "auto":
            _mark_prefix(body, messages)
        return body

    def _batch_body(self, request: BatchRequest) -> JSONObject:
        body = super()._batch_body(request)
        # No round follows that would read the conversation from the cache, and to write it there costs more.
        for turn in body["messages"]:
            turn["content"] = [
                {name: value for name, value in part.items() if value is not _CACHED} for part in _parts_of(turn)
            ]
        return body

    def _has_schema_mode(self) -> bool:
        # Another server may ignore the schema, which the model would then never see.
        return self.rules.json_schema and self._is_own_server

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        translated = CLAUDE_SCHEMAS.translate(schema)
        if translated is None:
            return None
        config = self.settings.get("output_config", {})
        return {"output_config": {**config, "format": {"type": "json_schema", "schema": translated}}}

    def _tool_fields(
        self, schemas: list[JSONSchema] | None, choice: ToolChoice | None, turns: list[JSONObject]
    ) -> JSONObject:
        if schemas:
            offered = [*map(self._tool_to_send, schemas)]
            sent = self._choice_to_send(choice) if choice else None
            if sent is not None and sent["type"] == "tool" and not self.rules.named_choice:
                offered = [tool for tool in offered if tool["name"] == sent["name"]] or offered
                sent = {"type": "any"}
            search = [_TOOL_SEARCH] if any("defer_loading" in tool for tool in offered) else []
            fields: JSONObject = {"tools": [*offered, *search, *self._server_tools]}
            return fields if sent is None else {**fields, "tool_choice": sent}
        # The API refuses a conversation with calls unless tools are declared.
        called = {part["name"] for turn in turns for part in _parts_of(turn) if part["type"] == "tool_use"}
        declared = [
            self._tool_to_send({"name": name, "description": "No longer available."}) for name in sorted(called)
        ]
        fields = {"tools": [*declared, *self._server_tools]}
        if not self._server_tools or (choice is not None and choice.mode == "none"):
            fields["tool_choice"] = {"type": "none"}
        return fields if fields["tools"] else {}

    def _tool_to_send(self, schema: JSONSchema) -> JSONObject:
        function = schema.get("function", schema)
        tool = {
            "name": function["name"],
            "description": function.get("description") or "",
            "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
        }
        is_deferred = self.supports_deferred_tools and isinstance(schema, DeferredSchema)
        return {**tool, "defer_loading": True} if is_deferred else tool

    def _choice_to_send(self, choice: ToolChoice) -> JSONObject:
        kind = _CHOICE_TYPES.get(choice.mode)
        if kind in ("auto", "none") or not self.rules.must_call:
            return {"type": kind if kind == "none" else "auto"}
        return {"type": kind} if kind else {"type": "tool", "name": choice.mode}

    def _may_think(self, body: JSONObject) -> bool:
        """Say whether the API accepts the configured type of `thinking` in this request."""
        kind = self._thinking["type"]
        if kind not in ("enabled", "adaptive"):
            return True
        if body.get("tool_choice", {}).get("type") in ("any", "tool"):
            return False
        # Results and the turn that asked for them are one round, whose beginning counts.
        *earlier, last = body["messages"]
        if earlier and _parts_of(last)[0]["type"] == "tool_result":
            last = earlier[-1]
        continues = last["role"] == "assistant"  # another model may have started the turn, without thinking
        return kind == "adaptive" or not continues or _parts_of(last)[0]["type"] in _THOUGHTS

    @property
    def _is_on_vertex(self) -> bool:
        return self.base_url.rstrip("/").endswith("/publishers/anthropic")

    def _path_for(self, body: JSONObject) -> str:
        if not self._is_on_vertex:
            return self._path
        return f"/models/{self.model}:{'streamRawPredict' if self.stream else 'rawPredict'}"

    def _headers(self) -> dict[str, str]:
        headers = super()._headers()
        if "block_binding" not in self._thinking:
            return headers
        # One header names all betas, so ours joins those of the user.
        betas = [headers.pop(name) for name in list(headers) if name.lower() == "anthropic-beta"]
        return {**headers, "anthropic-beta": ",".join([*betas, _BINDING_CONTROLS])}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return _AnthropicReader(messages)


def _mark_prefix(body: JSONObject, messages: Sequence[Msg]) -> None:
    """Set the API's cache marks: on tools, on the system prompt, and on the last part that will be repeated."""
    if body.get("tools"):
        tools = body["tools"]
        # The API refuses the mark on a deferred tool, which is not part of the prefix.
        place = max((n for n, tool in enumerate(tools) if "defer_loading" not in tool), default=0)
        body["tools"] = [*tools[:place], {**tools[place], "cache_control": _CACHED}, *tools[place + 1 :]]
    if isinstance(body.get("system"), str):
        body["system"] = [{**text_part(body["system"]), "cache_control": _CACHED}]
    passing = count_passing_hints(messages)
    places = ((turn, place) for turn in reversed(body["messages"]) for place in reversed(range(len(_parts_of(turn)))))
    for number, (turn, place) in enumerate(places):
        parts = _parts_of(turn)
        if number >= passing and parts[place]["type"] not in _THOUGHTS:  # which cannot be marked
            parts[place] = {**parts[place], "cache_control": _CACHED}
            turn["content"] = parts
            return


def _parts_of(turn: JSONObject) -> list[JSONObject]:
    content = turn["content"]  # a plain str, if the formatter is the user's own
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


@dataclass(slots=True)
class _ProviderPart:
    """A part of the answer without a block class of its own, mostly of a server tool; kept as the API sends it."""

    fields: dict[str, object]
    input: list[str] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    """The pieces of fields that are `str` and come in deltas."""

    def add(self, delta: dict[str, object]) -> bool:
        """Take a delta, JSON text of the input or more of other fields; returns whether it held any."""
        if delta.get("type") == "input_json_delta":
            self.input.append(text_in(delta, "partial_json"))
            return bool(self.input[-1])
        fields = {name: value for name, value in delta.items() if name != "type" and value}
        for name, value in fields.items():
            if isinstance(value, str):
                self.texts.setdefault(name, []).append(value)
            else:
                self.fields[name] = value
        return bool(fields)

    def block(self) -> ProviderBlock:
        whole = dict(self.fields)
        for name, texts in self.texts.items():
            start = whole.get(name)
            whole[name] = (start if isinstance(start, str) else "") + "".join(texts)
        text = "".join(self.input)
        if text.strip():
            try:
                whole["input"] = json.loads(text)
            except (ValueError, RecursionError):
                whole["input"] = None
            if not isinstance(whole["input"], dict):  # shown to the model unchanged
                whole["input"] = {"INVALID_JSON": text}
        return ProviderBlock(ANTHROPIC, json.dumps(whole, ensure_ascii=False))


class _AnthropicReader(AnswerReader):
    """Makes an answer of the events of a stream, or of a whole message."""

    is_complete = False
    has_ended = False
    has_progressed = False

    def __init__(self, messages: Sequence[Msg]) -> None:
        super().__init__(messages)
        self._thoughts: dict[int, Thought] = {}  # since the last text or call; they are signed together
        self._inputs: dict[int, dict[str, object]] = {}  # complete inputs, unless a delta follows
        self._parts: dict[int, _ProviderPart] = {}  # parts that are still being written
        self._citations: list[JSONObject] = []  # of the text since the last block of another kind
        self._open_citations: list[JSONObject] = []  # of the block of text that is being written
        self._text_start = 0
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._why = ""

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Read one event of a stream, and return the new pieces; unknown events are ignored."""
        self.has_progressed = False
        match event.get("type"):
            case "content_block_delta":
                self._take_delta(count_in(event, "index"), dict_in(event, "delta"))
            case "content_block_start":
                self._start_block(count_in(event, "index"), dict_in(event, "content_block"))
            case "content_block_stop":
                self._stop_block(count_in(event, "index"))
            case "message_start":
                self._start_message(dict_in(event, "message"))
            case "message_delta":
                self._count_tokens(dict_in(event, "usage"))
                self._take_reason(dict_in(event, "delta"))
            case "message_stop":
                self.is_complete = self.has_ended = True
                self._end_open_parts()
        return self.accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if "content" not in body:
            raise Malformed(f"it answered with {body}, which is not a message")
        self._take_head(body)
        for index, block in enumerate(list_in(body, "content")):
            self._start_block(index, block)
            self._stop_block(index)
        self._take_reason(body)
        self.is_complete = True

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when the model declined."""
        if self.reason == "refusal":
            raise Refused(f"it declined to answer (stop_reason 'refusal'){self._why}")
        if not self.is_complete:
            raise Malformed("it ended with '[DONE]' and no stop_reason: does base_url lead to Anthropic's API?")
        self._end_open_parts()
        content = self.accumulator.content()
        reason = _FINISHED_REASONS.get(self.reason, self.reason)
        if not reason and self.accumulator.ends_in_half_a_call:
            reason = "length"  # the server does not say so, but more was to come
        return self.respond(content, reason or None, self._usage_for(content))

    def _end_open_parts(self) -> None:
        for index in sorted(self._parts):
            self._stop_block(index)
        self._end_thinking()
        self._add_citations()

    def _start_message(self, message: dict[str, object]) -> None:
        # A proxy whose own connection broke may retry, and append the second answer to the first part of the first.
        if self.is_complete:
            self.has_ended = True
        elif self.accumulator.has_begun or self._thoughts or self._parts:
            raise Transient("it began a second answer before the first was over")
        else:
            self._take_head(message)

    def _take_head(self, message: dict[str, object]) -> None:
        self.id = text_in(message, "id") or None
        self._count_tokens(dict_in(message, "usage"))

    def _take_reason(self, delta: dict[str, object]) -> None:
        self.reason = text_in(delta, "stop_reason") or self.reason
        explanation = text_in(dict_in(delta, "stop_details"), "explanation")
        self._why = f": {explanation}" if explanation else self._why
        self.is_complete = self.is_complete or bool(self.reason)
        if self.reason:
            self._add_citations()

    def _start_block(self, index: int, block: dict[str, object]) -> None:
        if index in self._parts:
            self._stop_block(index)
        if block.get("type") != "text":
            self._add_citations()
        match block.get("type"):
            case "text":
                self._text_start = self.accumulator.open_text_length
                self._add_text(text_in(block, "text"))
                citations = block.get("citations")
                for citation in citations if isinstance(citations, list) else []:
                    self._cite(citation)
            case "thinking":
                self._add_thinking(index, text_in(block, "thinking"), text_in(block, "signature"))
            case "redacted_thinking":
                self._thoughts[index] = Thought(data=[text_in(block, "data")])
            case "tool_use":
                self._end_thinking()
                self._inputs[index] = dict_in(block, "input")
                self.accumulator.add_call(index, text_in(block, "id"), text_in(block, "name"), "")
            case _ if text_in(block, "type"):
                self._parts[index] = _ProviderPart(block)

    def _take_delta(self, index: int, delta: dict[str, object]) -> None:
        if index in self._parts:
            self.has_progressed = self._parts[index].add(delta)
            return
        match delta.get("type"):
            case "text_delta":
                self._add_text(text_in(delta, "text"))
            case "input_json_delta":
                if text := text_in(delta, "partial_json"):
                    self._inputs.pop(index, None)
                    self.accumulator.add_call(index, "", "", text)
            case "thinking_delta":
                self._add_thinking(index, text_in(delta, "thinking"))
            case "signature_delta":
                self._add_thinking(index, "", text_in(delta, "signature"))
            case "citations_delta":
                self.has_progressed = True
                self._cite(delta.get("citation"))

    def _stop_block(self, index: int) -> None:
        self._end_citations()
        # The input comes in deltas after an empty one, or else complete with the start.
        whole = self._inputs.pop(index, None)
        if whole:
            self.accumulator.add_call(index, "", "", whole)
        part = self._parts.pop(index, None)
        if part:
            self._end_thinking()
            self.accumulator.add_block(part.block())

    def _cite(self, citation: object) -> None:
        """Record a citation of the current block of text, whose end is not known yet."""
        if isinstance(citation, dict):
            url, quote = citation.get("url") or citation.get("source"), citation.get("cited_text")
            title = citation.get("title") or citation.get("document_title")
            kept = new_citation(citation, url=url, title=title, quote=quote)
            self._open_citations.append({**kept, "start": self._text_start})

    def _end_citations(self) -> None:
        """Let what was cited since the block of text began be about all of that."""
        end = self.accumulator.open_text_length
        self._citations += [{**citation, "end": end} for citation in self._open_citations]
        self._open_citations = []

    def _add_citations(self) -> None:
        # After all of the text, which comes in one block per cited passage, and is a single block here.
        self._end_citations()
        if self._citations:
            self.accumulator.add_block(citations_block(ANTHROPIC, self._citations, self.accumulator.open_text))
            self._citations = []

    def _add_text(self, text: str) -> None:
        if text:
            self._end_thinking()
            self.accumulator.add_text(text)

    def _add_thinking(self, index: int, text: str, signature: str = "") -> None:
        thought = self._thoughts.setdefault(index, Thought())
        thought.texts.append(text)
        thought.signature = signature or thought.signature
        self.accumulator.add_thinking(text)

    def _end_thinking(self) -> None:
        # Consecutive blocks of thinking are one in the conversation, so they share one signature.
        if self._thoughts:
            self.accumulator.add_thinking("", pack_thinking([thought.part() for thought in self._thoughts.values()]))
            self._thoughts = {}

    def _count_tokens(self, usage: dict[str, object]) -> None:
        # Each event has the totals so far, so a count missing in a later one still holds. Zeros do not replace
        # an earlier count, since some servers send them where they do not count.
        for names in _COUNTED_TOGETHER:
            counts = {name: count_in(usage, name) for name in names if usage.get(name) is not None}
            if any(counts.values()):
                self._counts |= counts

    def _usage_for(self, content: list[ContentBlock]) -> ChatUsage:
        fresh, output, cached, created = (self._counts[name] for name in _COUNTS)
        read = fresh + cached + created  # the API counts them separately, others together
        if read and (output or not content):
            return ChatUsage(read, output, cached, created)
        guess = estimated_usage(self.messages, content)
        return ChatUsage(read or guess.input_tokens, output or guess.output_tokens, cached, created, estimated=True)
