"""OpenAI's Responses API: reasoning that is carried from round to round, and tools that OpenAI runs."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    JSONObject,
    ProviderBlock,
    citations_block,
    new_citation,
)
from agentrt._runtime.model_interface.base import ModelResult
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError, Malformed, Refused, Rejected, Transient
from agentrt.formatter import Formatter, format_openai_responses
from agentrt.formatter.openai_responses import HOSTED_ITEMS, OPENAI, pack_reasoning
from agentrt.message import Msg
from agentrt.model.batch.openai import OpenAIBatches
from agentrt.model.openai import STRICT_SCHEMAS
from agentrt.model.remote.accumulator import is_whole_object
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import OPENAI_API
from agentrt.model.remote.provider_errors import ProviderErrors
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.settings import check_option, check_request_options, check_server_tools
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatResponse, ChatUsage, DeferredSchema, JSONSchema, ToolChoice

_logger = logging.getLogger("agentrt")

_ENCRYPTED = "reasoning.encrypted_content"
# The API's errors for a model that does not reason, and for reasoning of another account or from too long ago.
_NOT_ENCRYPTED = lazy_pattern(r"encrypted content is not supported|reasoning\.encrypted_content")
_LOST_REASONING = lazy_pattern(r"\brs_\w|encrypted[_ ]content|\breasoning' was|\breasoning items?\b")
_MAX_LOST = 10_000
# Models that search tools, from the guide to tool search of developers.openai.com: GPT-5.4 and later, but its nano.
_SEARCHES_TOOLS = lazy_pattern(r"^gpt-(?:5\.(?!4-nano)(?:[4-9]|\d{2})|[6-9]|\d{2})(?![\da-z])")
_SEARCH_TOOL = {"type": "tool_search"}
# Tools whose calls this program would have to execute, in a format of their own.
_TOOLS_OF_CLIENTS = frozenset(
    {"apply_patch", "computer", "computer_use_preview", "custom", "function", "local_shell", "namespace"}
)
# The kinds of streamed parts, and the lists of an item that hold them complete.
_LISTS_OF_PARTS = {"text": "content", "content": "content", "summary": "summary"}
_END_OF_RESPONSE = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class OpenAIResponsesModel(RemoteChatModel):
    """A model of OpenAI through its Responses API, or of a server that speaks it, whose URL is given as `base_url`.

    The whole conversation goes with each request, reasoning included. Unless `store` is true, OpenAI keeps nothing, and
    reasoning comes and goes encrypted. `reasoning_summary` ("auto", "concise", "detailed") asks for a summary, which is
    the text of the thinking. `server_tools` are tools that OpenAI runs, in its API's format; their work stays in
    the conversation and goes back. `structured_output` says whether structured output is asked for in the API's
    JSON-schema mode or through a tool; "auto" uses that mode with OpenAI's own server.

    The key comes from OPENAI_API_KEY unless `api_key` or another `key_variable` is given, the URL from OPENAI_BASE_URL
    unless it is given; `common` takes these and the other `ModelOptions`. A setting that is left out is not
    sent.
    """

    _api = OPENAI_API
    _path = "/responses"
    _batch_api = OpenAIBatches
    _forms = frozenset({"image", "pdf"})

    def __init__(
        self,
        model: str,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        reasoning_effort: str | None = None,
        reasoning_summary: str | None = None,
        verbosity: str | None = None,
        parallel_tool_calls: bool | None = None,
        server_tools: Sequence[Mapping[str, Any]] = (),
        store: bool = False,
        formatter: Formatter | None = None,
        **common: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **common)
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        texts = {"reasoning_effort": reasoning_effort, "reasoning_summary": reasoning_summary, "verbosity": verbosity}
        check_request_options(type(self).__name__, numbers, None, formatter, **texts)
        check_option(
            parallel_tool_calls, bool, f"{type(self).__name__}(parallel_tool_calls=...)", "parallel_tool_calls=True"
        )
        check_option(store, bool, f"{type(self).__name__}(store=...)", "store=True")
        self.store = store
        self.supports_allowed_tools = self._is_own_server
        self.supports_deferred_tools = self._is_own_server and _SEARCHES_TOOLS.search(model) is not None
        self._formatter = formatter or format_openai_responses
        if formatter is not None:
            self._forget_forms(common.get("capabilities"))
        self._server_tools = _check_hosted_work(server_tools, self._extra_body)
        self._is_encrypted = not store  # stored reasoning is found by its id
        self._lost_reasoning: dict[str, None] = {}  # ids that the API no longer knows, oldest first
        reasoning = {"effort": reasoning_effort, "summary": reasoning_summary}
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            "max_output_tokens": max_tokens,
            "parallel_tool_calls": parallel_tool_calls,
            "reasoning": {name: value for name, value in reasoning.items() if value is not None} or None,
            "text": None if verbosity is None else {"verbosity": verbosity},
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        functions = [self._function_tool(tool) for tool in tools or ()]
        # A call of a tool that was searched goes back with its namespace, but not where the tool is always shown.
        listed = {tool["name"] for tool in functions if "defer_loading" not in tool}
        items = [
            _without_namespace(item) if not self.supports_deferred_tools or item.get("name") in listed else item
            for item in self._formatter(messages)
            if item.get("id") not in self._lost_reasoning
        ]
        body = {"model": self.model, "input": items, "stream": self.stream, "store": self.store, **self.settings}
        if self._is_encrypted:
            body["include"] = [_ENCRYPTED]
        search = [_SEARCH_TOOL] if any("defer_loading" in tool for tool in functions) else []
        if offered := [*functions, *search, *self._server_tools]:
            body["tools"] = offered
            if tool_choice is not None:
                allowed = self._allowed_names(tools or (), tool_choice)
                body["tool_choice"] = _choice_to_send(tool_choice.mode, allowed, offered)
        if not tools:
            body.pop("parallel_tool_calls", None)  # refused without tools
        return body

    def _function_tool(self, schema: JSONSchema) -> JSONObject:
        function = schema.get("function", schema)
        tool = {
            "type": "function",
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
            "strict": False,  # otherwise the API takes only schemas of the strict dialect
        }
        is_deferred = self.supports_deferred_tools and isinstance(schema, DeferredSchema)
        return {**tool, "defer_loading": True} if is_deferred else tool

    def _has_schema_mode(self) -> bool:
        return self._is_own_server

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        strict = STRICT_SCHEMAS.translate(schema)
        if strict is None:
            return None
        answer = {"type": "json_schema", "name": "answer", "schema": strict, "strict": True}
        return {"text": {**self.settings.get("text", {}), "format": answer}}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return _ResponseReader(messages, self._errors, keeps_reasoning=self.store)

    async def _ask(self, body: JSONObject, reader: AnswerReader) -> ModelResult:
        try:
            return await super()._ask(body, reader)
        except Rejected as error:
            mended = self._without_what_was_refused(body, error)
            if mended is None:
                raise
        # The request was refused before any answer was read.
        return await self._ask(mended, reader)

    def _without_what_was_refused(self, body: JSONObject, error: Rejected) -> JSONObject | None:
        """Return the request without the refused reasoning, `None` if something else was refused."""
        if error.status_code not in (400, 404):
            return None
        why = str(error)
        if "include" in body and _NOT_ENCRYPTED.search(why.lower()):
            self._is_encrypted = False
            return {name: value for name, value in body.items() if name != "include"}
        lost = [item["id"] for item in body["input"] if item.get("type") == "reasoning"]
        if not lost or not _LOST_REASONING.search(why):
            return None
        # The API mostly names one, and sometimes none. Older reasoning is most likely lost as well, and
        # asking about each would take a request and a warning each.
        known_after = max((place + 1 for place, id in enumerate(lost) if id in why), default=len(lost))
        for id in lost[:known_after]:
            self._lost_reasoning[id] = None
        while len(self._lost_reasoning) > _MAX_LOST:
            del self._lost_reasoning[next(iter(self._lost_reasoning))]
        _logger.warning("reasoning of earlier rounds is left out from now on: %s", why)
        return {**body, "input": [item for item in body["input"] if item.get("id") not in self._lost_reasoning]}


def _check_hosted_work(tools: object, extra_body: Mapping[str, object]) -> list[JSONObject]:
    if extra_body.get("background"):
        raise ConfigError(
            "OpenAIResponsesModel(extra_body={'background': ...}) is not supported, since each answer is awaited: "
            "leave it out, and give timeouts=Timeouts(total=...) for long answers"
        )
    hosted = check_server_tools(
        "OpenAIResponsesModel",
        tools,
        "OpenAI",
        '{"type": "web_search"}',
        lambda tool: isinstance(tool.get("type"), str) and tool["type"] not in _TOOLS_OF_CLIENTS,
    )
    for tool in hosted:
        if tool["type"] == "mcp" and tool.get("require_approval") != "never":
            raise ConfigError(
                f"OpenAIResponsesModel(server_tools=...) holds the MCP server {tool.get('server_label')!r:.100}, whose "
                f"calls OpenAI asks to approve: "
                f'give "require_approval": "never", or connect to the server from here to be asked'
            )
    return hosted


def _without_namespace(item: JSONObject) -> JSONObject:
    return {name: value for name, value in item.items() if name != "namespace"} if "namespace" in item else item


def _choice_to_send(mode: str, allowed: list[str] | None, offered: list[JSONObject]) -> JSONObject | str:
    if mode not in ("auto", "none", "required"):
        return {"type": "function", "name": mode}
    if allowed is None or mode == "none":
        return mode
    # OpenAI's own tools stay allowed, as they are where the others are left out.
    named = [
        {field: tool[field] for field in ("type", "name", "server_label") if field in tool}
        for tool in offered
        if tool["type"] != "function" or tool["name"] in allowed
    ]
    return {"type": "allowed_tools", "mode": mode, "tools": named} if named else "none"


def _fingerprint_of(item: dict[str, object]) -> str:
    """Return a key that identifies an item even where a server changes its id from event to event."""
    match item.get("type"):
        case "function_call":
            fields: object = item.get("call_id")
        case "message":
            fields = [text_in(part, "text") for part in list_in(item, "content")]
        case _:
            fields = {name: value for name, value in item.items() if name not in ("id", "status")}
    return json.dumps([item.get("type"), fields], sort_keys=True)


@dataclass(slots=True)
class _ItemProgress:
    """The progress of one item of the answer."""

    texts: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """The pieces of its parts, by their kind and position."""
    is_over: bool = False
    whole: dict[str, object] = field(default_factory=dict)
    """The item in its last event."""


class _ResponseReader(AnswerReader):
    """Makes an answer of the events of a stream, or of a whole response."""

    is_complete = False
    has_progressed = False

    def __init__(self, messages: Sequence[Msg], errors: ProviderErrors, *, keeps_reasoning: bool) -> None:
        super().__init__(messages)
        self._errors = errors
        self._keeps_reasoning = keeps_reasoning
        self._items: dict[int, _ItemProgress] = {}  # those that only the last event has are below 0
        self._order: list[int] = []  # of the items that go back, as they came
        self._annotations: dict[tuple[int, int], list[dict[str, object]]] = {}  # by item and part
        self._refusal: list[str] = []

    @property
    def has_ended(self) -> bool:
        return self.is_complete

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Read one event of a stream, and return the new pieces; unknown events are ignored."""
        kind = text_in(event, "type")
        index = count_in(event, "output_index")
        self.has_progressed = kind.startswith("response.") and kind not in ("response.created", "response.in_progress")
        match kind:
            case "response.output_text.delta":
                part = ("text", count_in(event, "content_index"))
                self.accumulator.add_text(self._count(index, part, text_in(event, "delta")))
            case "response.function_call_arguments.delta":
                arguments = self._count(index, ("arguments", 0), text_in(event, "delta"))
                self.accumulator.add_call(index, "", "", arguments)
            case "response.reasoning_summary_text.delta":
                self._add_thinking(index, ("summary", count_in(event, "summary_index")), text_in(event, "delta"))
            case "response.reasoning_text.delta":
                self._add_thinking(index, ("content", count_in(event, "content_index")), text_in(event, "delta"))
            case "response.output_text.annotation.added":
                self._begin_item(index, {})
                place = (index, count_in(event, "content_index"))
                self._annotations.setdefault(place, []).append(dict_in(event, "annotation"))
            case "response.refusal.delta":
                self._refusal.append(text_in(event, "delta"))
            case "response.output_item.added":
                self._begin_item(index, dict_in(event, "item"))
            case "response.output_item.done":
                self._end_item(index, dict_in(event, "item"))
            case "response.created":
                self.id = text_in(dict_in(event, "response"), "id") or None
            case "error":
                raise self._errors.error_for_event(event)
            case _ if kind in _END_OF_RESPONSE:
                self._finish(dict_in(event, "response"))
        return self.accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if not isinstance(body.get("output"), list):
            raise Malformed("it answered without 'output': does base_url lead to a server with a Responses API?")
        self._finish(body)

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when the model declined."""
        if self._refusal:
            raise Refused(f"it declined to answer: {''.join(self._refusal)}")
        if self.reason == "content_filter":
            raise Refused("its content filter stopped the answer (incomplete_details 'content_filter')")
        if not self.is_complete:
            raise Transient("its answer ended without 'response.completed', so it was cut")
        content = self.accumulator.content()
        reason = "length" if self.reason == "max_output_tokens" else self.reason
        reason = reason or ("tool_calls" if self.accumulator.has_calls else "stop")
        return self.respond(content, reason, self.usage)

    def _finish(self, response: dict[str, object]) -> None:
        self.id = text_in(response, "id") or self.id
        status = text_in(response, "status")
        if status == "failed" or response.get("error"):
            raise self._errors.error_for_event(response)
        if status not in ("", "completed", "incomplete"):
            raise Transient(f"its answer is {status!r}, not completed")
        # Text already received in events adds nothing; servers may omit any of them.
        self._end_items(list_in(response, "output"))
        # Some servers call an answer incomplete without saying why; a filter would say so.
        if status == "incomplete":
            self.reason = text_in(dict_in(response, "incomplete_details"), "reason") or "max_output_tokens"
        usage = dict_in(response, "usage")
        if count_in(usage, "input_tokens"):  # some servers send zeros where they do not count
            details = dict_in(usage, "input_tokens_details")
            self.usage = ChatUsage(
                count_in(usage, "input_tokens"),
                count_in(usage, "output_tokens"),
                count_in(details, "cached_tokens"),
                count_in(details, "cache_write_tokens"),
            )
        self.is_complete = True

    def _end_items(self, output: list[dict[str, object]]) -> None:
        """Read the items of the last event, and record their order if it differs from the stream's."""
        # Some servers omit or renumber items in the last event, so that positions change; others add items there that
        # they never streamed.
        known = {
            name: index
            for index, progress in self._items.items()
            if progress.is_over
            for name in (text_in(progress.whole, "id"), _fingerprint_of(progress.whole))
        }
        positions: dict[int, int] = {}
        for position, item in enumerate(output):
            index = known.get(text_in(item, "id") or _fingerprint_of(item), known.get(_fingerprint_of(item)))
            if index is None or index in positions:
                is_new = position in positions or self._is_another(position, item)
                index = -1 - position if is_new else position
            positions[index] = position
            self._end_item(index, item)
        if not self._items.keys() <= positions.keys():
            positions = {index: index if index >= 0 else len(self._items) - index for index in self._items}
        places = [positions[index] for index in self._order]
        if places != sorted(places):
            self.accumulator.add_block(ProviderBlock(OPENAI, json.dumps({"type": "order", "places": places})))

    def _is_another(self, index: int, item: dict[str, object]) -> bool:
        begun = self._items.get(index)
        if begun is None or not begun.is_over:
            return False
        kind = item.get("type")
        return kind not in ("function_call", "message", "reasoning") or begun.whole.get("type") != kind

    def _note_order(self, index: int) -> None:
        if self._order[-1:] != [index]:
            self._order.append(index)

    def _begin_item(self, index: int, item: dict[str, object]) -> None:
        if index in self._items:
            return
        self._items[index] = _ItemProgress()
        self.accumulator.end_block()  # two messages in one answer are two texts
        if item.get("type") == "function_call":
            self.accumulator.add_call(index, text_in(item, "call_id"), text_in(item, "name"), "")

    def _end_item(self, index: int, item: dict[str, object]) -> None:
        self._begin_item(index, item)
        begun = self._items[index]
        if begun.is_over:
            return
        begun.is_over, begun.whole = True, item
        self._number_parts(index, item)
        match item.get("type"):
            case "message":
                self._end_message(index, item)
            case "reasoning":
                for name in ("summary", "content"):
                    for position, part in enumerate(list_in(item, name)):
                        self._add_thinking(index, (name, position), text_in(part, "text"), is_whole=True)
                # Without its content, and with nothing stored at OpenAI, the next request would be refused.
                can_go_back = self._keeps_reasoning or item.get("encrypted_content") or item.get("content")
                signature = pack_reasoning(item) if can_go_back else None
                self.accumulator.add_thinking("", signature)
                if signature is not None:
                    self._note_order(index)
            case "function_call":
                arguments = self._rest(index, ("arguments", 0), text_in(item, "arguments"))
                self._note_order(index)
                call_id = text_in(item, "call_id")
                self.accumulator.add_call(index, call_id, text_in(item, "name"), arguments)
                if namespace := text_in(item, "namespace"):
                    kept = {"type": "namespace", "call_id": call_id, "namespace": namespace}
                    self.accumulator.add_block(ProviderBlock(OPENAI, json.dumps(kept)))
            case "image_generation_call":
                self._add_picture(index, item)
            case str(kind):
                if kind in HOSTED_ITEMS:
                    self._note_order(index)
                self.accumulator.add_block(ProviderBlock(OPENAI, json.dumps(item, ensure_ascii=False)))

    def _add_picture(self, index: int, item: dict[str, object]) -> None:
        data = text_in(item, "result")
        if data:
            self._note_order(index)
            kind = (text_in(item, "output_format") or "png").replace("svg", "svg+xml")
            self.accumulator.add_block(DataBlock(Base64Source(data, f"image/{kind}")))
        # With which the picture goes back as the one that it made, so that it can be asked to change it.
        rest = {name: value for name, value in item.items() if name != "result"}
        self.accumulator.add_block(ProviderBlock(OPENAI, json.dumps(rest, ensure_ascii=False)))

    def _end_message(self, index: int, item: dict[str, object]) -> None:
        citations: list[JSONObject] = []
        texts: list[str] = []
        for position, part in enumerate(list_in(item, "content")):
            if part.get("type") == "refusal":
                self._refusal = self._refusal or [text_in(part, "refusal")]
                continue
            text = text_in(part, "text")
            self.accumulator.add_text(self._rest(index, ("text", position), text))
            annotations = list_in(part, "annotations") or self._annotations.get((index, position), [])
            offset = sum(map(len, texts))  # of the part in the text of the message
            for annotation in annotations:
                # A generated file has a position in the text; a searched one has none.
                start, end = (
                    offset + place if isinstance(place, int) else None
                    for place in (annotation.get("start_index"), annotation.get("end_index"))
                )
                title = annotation.get("title") or annotation.get("filename")
                citations.append(new_citation(annotation, url=annotation.get("url"), title=title, start=start, end=end))
            texts.append(text)
        if citations:
            self.accumulator.add_block(citations_block(OPENAI, citations, "".join(texts)))
        # Whether it was said on the way or is the answer; the API wants to be told again.
        if phase := text_in(item, "phase"):
            self.accumulator.add_block(ProviderBlock(OPENAI, json.dumps({"type": "phase", "phase": phase})))

    def _number_parts(self, index: int, item: dict[str, object]) -> None:
        """Renumber the streamed parts of the item by their places in it.

        vLLM (with gpt-oss) and Bedrock continue the numbers of parts from item to item, older versions with each piece.
        """
        for kind, name in _LISTS_OF_PARTS.items():
            places = [place for streamed_kind, place in self._items[index].texts if streamed_kind == kind]
            last = len(list_in(item, name)) - 1
            if last < 0 or all(place <= last for place in places):
                continue
            texts: dict[tuple[str, int], list[str]] = {}
            for number, place in enumerate(places):
                part = (kind, min(number, last))
                texts.setdefault(part, []).extend(self._items[index].texts.pop((kind, place)))
                if kind == "text":
                    annotations = self._annotations.pop((index, place), [])
                    self._annotations.setdefault((index, part[1]), []).extend(annotations)
            self._items[index].texts |= texts

    def _add_thinking(self, index: int, part: tuple[str, int], text: str, *, is_whole: bool = False) -> None:
        self._begin_item(index, {})
        texts = self._items[index].texts
        break_before = "\n\n" if texts and part not in texts else ""
        text = self._rest(index, part, text) if is_whole else self._count(index, part, text)
        if text:
            self.accumulator.add_thinking(break_before + text)

    def _count(self, index: int, part: tuple[str, int], text: str) -> str:
        """Record a piece of a part, and return it."""
        self._begin_item(index, {})
        self._items[index].texts.setdefault(part, []).append(text)
        if text and part[0] in ("text", "arguments"):
            self._note_order(index)
        return text

    def _rest(self, index: int, part: tuple[str, int], whole: str) -> str:
        """Return the rest of a part: servers may omit its pieces, or the complete part."""
        known = "".join(self._items[index].texts.get(part, ()))
        if len(whole) <= len(known) or whole.startswith(known):
            return self._count(index, part, whole[len(known) :])
        # Some servers repeat the same arguments with other white space.
        if part[0] == "arguments" and is_whole_object(known):
            return ""
        raise Transient("a piece of its answer was lost on the way")
