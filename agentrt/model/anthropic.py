"""Anthropic's messages API, through the official SDK."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Unpack

from agentrt.block import ContentBlock, ProviderBlock
from agentrt.errors import ConfigError, Malformed, Refused, Transient
from agentrt.formatter import Formatter, format_anthropic
from agentrt.formatter.anthropic import PROVIDER, pack_thinking
from agentrt.message import Msg
from agentrt.model.claude import ClaudeRules, rules_of
from agentrt.model.estimate import estimated_usage
from agentrt.model.remote.accumulator import StreamAccumulator
from agentrt.model.remote.client import RemoteChatModel
from agentrt.model.remote.settings import ConnectionOptions, check_option
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.model.remote.stream import AnswerReader
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice

__all__ = ["AnthropicChatModel"]

_MAX_TOKENS = 8192
_ROOM_TO_THINK = 16_384
_THOUGHTS = ("thinking", "redacted_thinking")
_BINDING_CONTROLS = "thinking-binding-controls-2026-08-01"  # the beta that `block_binding` needs
_OVERRIDE = "if the API accepts it by now, give rules=ClaudeRules(...)"
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
}
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_COUNTED_TOGETHER = (("output_tokens",), ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))


class AnthropicChatModel(RemoteChatModel):
    """Claude, or a model of any server that speaks Anthropic's messages API, given as `base_url`.

    The key comes from ANTHROPIC_API_KEY unless `api_key` or another `key_variable` is given, the URL from
    ANTHROPIC_BASE_URL unless it is given.

    `thinking` is what the API takes, `{"type": "adaptive"}` or, for models up to Claude 4.6,
    `{"type": "enabled", "budget_tokens": 4000}`; it is left out of a call for which the API would refuse it: one that
    forces a tool, or goes on with a round of tools that another model began. `effort` is how hard the model tries:
    "low", "medium", "high", "xhigh" or "max". The API wants a limit: `max_tokens` is 8192 unless given, and thinking
    comes on top of that, with its budget or else with 16,384. What differs from model to model is in `rules`, which
    are known for Anthropic's own; what they rule out is a `ConfigError`.

    `server_tools` are tools that Anthropic runs itself, such as
    `{"type": "web_search_20250305", "name": "web_search"}`, and go with the agent's own; what they did is kept in
    `ProviderBlock`s. `formatter` makes `messages` and `system` of a request.
    """

    _sdk = "anthropic"
    _client_class = "AsyncAnthropic"
    _path = "/v1/messages"
    _default_url = "https://api.anthropic.com"
    _url_variable = "ANTHROPIC_BASE_URL"
    _key_variable = "ANTHROPIC_API_KEY"
    _client_options: ClassVar[Mapping[str, Any]] = {"open_telemetry": False}  # tracing is a middleware's affair
    capabilities: frozenset[str] | None = frozenset({"tools", "image", "application"})

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        context_size: int = 200_000,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] | None = None,
        thinking: Mapping[str, Any] | None = None,
        effort: str | None = None,
        server_tools: Sequence[Mapping[str, Any]] = (),
        rules: ClaudeRules | None = None,
        formatter: Formatter = format_anthropic,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(model, stream=stream, context_size=context_size, **connection)
        check_option(rules, ClaudeRules, f"{type(self).__name__}(rules=...)", "rules=ClaudeRules(must_call=False)")
        self.rules = rules or rules_of(model)
        _check_sampling(model, self.rules, temperature=temperature, top_p=top_p)
        self._thinking = _bind_thinking(_checked_thinking(model, thinking, self.rules), self.rules)
        self._server_tools = _checked_tools(server_tools)
        self._formatter = formatter
        if formatter is not format_anthropic:
            self.capabilities = None  # it may have a form for anything
        settings = {
            "max_tokens": _MAX_TOKENS + _room_for(self._thinking, self.rules) if max_tokens is None else max_tokens,
            "temperature": temperature if self.rules.samples else None,
            "top_p": top_p if self.rules.samples else None,
            "stop_sequences": [stop] if isinstance(stop, str) else stop,
            "output_config": {"effort": effort} if effort is not None else None,
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> dict[str, Any]:
        body = {"model": self.model, "stream": self.stream, **self.settings, **self._formatter(messages)}
        body |= self._tools(tools, tool_choice, body["messages"])
        if self._thinking and _may_think(body, self._thinking["type"]):
            body["thinking"] = self._thinking
        if self.rules.binds_thinking and "block_binding" not in self._thinking:
            body["messages"] = _without_thinking(body["messages"])
        return body

    def _tools(
        self, schemas: list[JSONSchema] | None, choice: ToolChoice | None, turns: list[dict[str, Any]]
    ) -> dict[str, Any]:
        if schemas:
            tools = {"tools": [*(_tool(schema["function"]) for schema in schemas), *self._server_tools]}
            return {**tools, "tool_choice": _choice(choice, self.rules)} if choice else tools
        # A conversation with calls in it is refused unless tools are declared.
        called = {part["name"] for turn in turns for part in _parts(turn) if part["type"] == "tool_use"}
        gone = [_tool({"name": name, "description": "No longer available."}) for name in sorted(called)]
        fields: dict[str, Any] = {"tools": [*gone, *self._server_tools]}
        if not self._server_tools or (choice is not None and choice.mode == "none"):
            fields["tool_choice"] = {"type": "none"}
        return fields if fields["tools"] else {}

    def _headers(self) -> dict[str, str]:
        headers = super()._headers()
        if "block_binding" not in self._thinking:
            return headers
        given = [headers.pop(name) for name in list(headers) if name.lower() == "anthropic-beta"]
        return {**headers, "anthropic-beta": ",".join([*given, _BINDING_CONTROLS])}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return _Reader(messages)


def _checked_thinking(model: str, thinking: Mapping[str, Any] | None, rules: ClaudeRules) -> dict[str, Any]:
    checked = dict(thinking) if isinstance(thinking, Mapping) else {}
    is_typed = isinstance(checked.get("type"), str) and isinstance(checked.get("budget_tokens", 0), int)
    if thinking is not None and not is_typed:
        raise ConfigError(
            f"AnthropicChatModel(thinking=...) is what the API takes, as in "
            f'{{"type": "enabled", "budget_tokens": 4000}} or {{"type": "adaptive"}}, not {thinking!r:.100}'
        )
    if checked and checked["type"] not in rules.thinking:
        remedy = "" if "enabled" in rules.thinking else ", and effort=... for how much"
        raise ConfigError(
            f"{model!r} does not take thinking of the type {checked['type']!r:.100}: give one of "
            f"{', '.join(sorted(rules.thinking))}{remedy}; {_OVERRIDE}"
        )
    return checked


def _check_sampling(model: str, rules: ClaudeRules, **settings: float | None) -> None:
    for name, value in settings.items():
        if not rules.samples and value is not None and value != 1:
            raise ConfigError(f"{model!r} takes no {name} but its default, not {value!r}: leave it out; {_OVERRIDE}")


def _checked_tools(tools: Any) -> list[dict[str, Any]]:
    example = '{"type": "web_search_20250305", "name": "web_search"}'
    if not isinstance(tools, (list, tuple)):
        raise ConfigError(f"AnthropicChatModel(server_tools=...) is a list, as in [{example}], not {tools!r:.100}")
    for tool in tools:
        if not (isinstance(tool, Mapping) and isinstance(tool.get("type"), str)):
            raise ConfigError(
                f"AnthropicChatModel(server_tools=...) holds {tool!r:.100}: give tools that Anthropic runs, as in "
                f"{example}, and those of your own to the toolkit"
            )
    return [dict(tool) for tool in tools]


def _bind_thinking(thinking: dict[str, Any], rules: ClaudeRules) -> dict[str, Any]:
    """Let the API drop thoughts that no longer fit, as after compression or a change of the system prompt."""
    thinking = thinking or ({"type": "adaptive"} if rules.binds_thinking else {})
    if not rules.binds_thinking or thinking["type"] not in ("adaptive", "enabled"):
        return thinking
    return {"block_binding": {"prefix_mismatch_behavior": "drop_block"}, **thinking}


def _room_for(thinking: dict[str, Any], rules: ClaudeRules) -> int:
    kind = thinking.get("type", "adaptive" if rules.thinks else "disabled")
    return _ROOM_TO_THINK if kind == "adaptive" else int(thinking.get("budget_tokens", 0))


def _without_thinking(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**turn, "content": [part for part in _parts(turn) if part["type"] not in _THOUGHTS]} for turn in turns]


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
    }


def _choice(choice: ToolChoice, rules: ClaudeRules) -> dict[str, Any]:
    known = _CHOICES.get(choice.mode)
    if known in ("auto", "none") or not rules.must_call:
        return {"type": known if known == "none" else "auto"}
    return {"type": known} if known else {"type": "tool", "name": choice.mode}


def _may_think(body: dict[str, Any], kind: str) -> bool:
    """Say whether the API takes `thinking` of this type with this request."""
    if kind not in ("enabled", "adaptive"):
        return True
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        return False
    *earlier, last = body["messages"]
    if earlier and _parts(last)[0]["type"] == "tool_result":
        last = earlier[-1]
    goes_on = last["role"] == "assistant"  # with a turn that another model may have begun, without thinking
    return kind == "adaptive" or not goes_on or _parts(last)[0]["type"] in _THOUGHTS


def _parts(turn: dict[str, Any]) -> list[dict[str, Any]]:
    content = turn["content"]  # a plain str, if the formatter is the user's own
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


@dataclass(slots=True)
class _Thought:
    """A block of thinking, or one that is encrypted as a whole."""

    texts: list[str] = field(default_factory=list)
    signature: str = ""
    data: str = ""

    def part(self) -> dict[str, Any]:
        """Return the block as it came."""
        if self.data:
            return {"type": "redacted_thinking", "data": self.data}
        return {"type": "thinking", "thinking": "".join(self.texts), "signature": self.signature}


@dataclass(slots=True)
class _Part:
    """A part of the answer of a kind that we have no block for, kept as the API gives it: mostly of its own tools."""

    fields: dict[str, Any]
    input: list[str] = field(default_factory=list)
    more: dict[str, list[str]] = field(default_factory=dict)

    def add(self, delta: dict[str, Any]) -> bool:
        """Take a delta, JSON text of the input or more of other fields; returns whether it held any."""
        if delta.get("type") == "input_json_delta":
            self.input.append(text_in(delta, "partial_json"))
            return bool(self.input[-1])
        more = {name: value for name, value in delta.items() if name != "type" and value}
        for name, value in more.items():
            if isinstance(value, str):
                self.more.setdefault(name, []).append(value)
            else:
                self.fields[name] = value
        return bool(more)

    def block(self) -> ProviderBlock:
        """Return the whole part."""
        whole = dict(self.fields)
        for name, texts in self.more.items():
            before = whole.get(name)
            whole[name] = (before if isinstance(before, str) else "") + "".join(texts)
        text = "".join(self.input)
        if text.strip():
            whole["input"] = _object(text)
        return ProviderBlock(PROVIDER, json.dumps(whole, ensure_ascii=False))


class _Reader:
    """Makes an answer of the events of a stream, or of a whole message."""

    def __init__(self, messages: Sequence[Msg]) -> None:
        self.is_complete = False
        self.has_ended = False
        self.has_progressed = False
        self._messages = messages
        self._assembly = StreamAccumulator()
        self._thoughts: dict[int, _Thought] = {}  # those since the last text or call
        self._inputs: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, _Part] = {}  # those that are not over
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._reason = ""
        self._id: str | None = None

    def feed(self, event: dict[str, Any]) -> list[ContentBlock]:
        """Take one event of a stream, and return the new pieces; events that are not known are passed over."""
        kind = event.get("type")
        self.has_progressed = False
        if kind == "content_block_delta":
            self._delta(_index(event), dict_in(event, "delta"))
        elif kind == "content_block_start":
            self._start(_index(event), dict_in(event, "content_block"))
        elif kind == "content_block_stop":
            self._stop(_index(event))
        elif kind == "message_start":
            self._begin_stream(dict_in(event, "message"))
        elif kind == "message_delta":
            self._count(dict_in(event, "usage"))
            self._end(dict_in(event, "delta"))
        elif kind == "message_stop":
            self.is_complete = self.has_ended = True
        return self._assembly.take()

    def read(self, body: dict[str, Any]) -> None:
        """Take a whole message."""
        if "content" not in body:
            raise Malformed(f"it answered with {body}, which is no message")
        self._begin(body)
        for index, block in enumerate(list_in(body, "content")):
            self._start(index, block)
            self._stop(index)
        self._end(body)
        self.is_complete = True

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when the model declined."""
        if self._reason == "refusal":
            raise Refused("it declined to answer (stop_reason 'refusal')")
        if not self.is_complete:
            raise Malformed("it ended with '[DONE]' and no stop_reason: does base_url lead to Anthropic's API?")
        for index in sorted(self._parts):
            self._stop(index)
        self._end_thinking()
        content = self._assembly.content()
        unsaid = "length" if self._assembly.ends_in_half_a_call else None  # more was to come
        reason = _REASONS.get(self._reason, self._reason) or unsaid
        return ChatResponse(content, True, self._usage(content), reason, self._id)

    def _begin_stream(self, message: dict[str, Any]) -> None:
        # A proxy whose own connection broke may ask again, and send the second answer behind what it sent of the first.
        if self.is_complete:
            self.has_ended = True
        elif self._assembly.has_begun or self._thoughts or self._parts:
            raise Transient("it began a second answer before the first was over")
        else:
            self._begin(message)

    def _begin(self, message: dict[str, Any]) -> None:
        self._id = text_in(message, "id") or None
        self._count(dict_in(message, "usage"))

    def _end(self, delta: dict[str, Any]) -> None:
        self._reason = text_in(delta, "stop_reason") or self._reason
        self.is_complete = self.is_complete or bool(self._reason)

    def _start(self, index: int, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if index in self._parts:
            self._stop(index)
        if kind == "text":
            self._text(text_in(block, "text"))
        elif kind == "thinking":
            self._thinking(index, text_in(block, "thinking"), text_in(block, "signature"))
        elif kind == "redacted_thinking":
            self._thoughts[index] = _Thought(data=text_in(block, "data"))
        elif kind == "tool_use":
            self._end_thinking()
            self._inputs[index] = dict_in(block, "input")
            self._assembly.call(index, text_in(block, "id"), text_in(block, "name"), "")
        elif text_in(block, "type"):
            self._parts[index] = _Part(block)

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if index in self._parts:
            self.has_progressed = self._parts[index].add(delta)
        elif kind == "text_delta":
            self._text(text_in(delta, "text"))
        elif kind == "input_json_delta":
            self._input(index, text_in(delta, "partial_json"))
        elif kind == "thinking_delta":
            self._thinking(index, text_in(delta, "thinking"))
        elif kind == "signature_delta":
            self._thinking(index, "", text_in(delta, "signature"))

    def _stop(self, index: int) -> None:
        # The input comes in deltas after an empty one, or else as a whole with the start.
        whole = self._inputs.pop(index, None)
        if whole:
            self._assembly.call(index, "", "", whole)
        part = self._parts.pop(index, None)
        if part:
            self._end_thinking()
            self._assembly.add(part.block())

    def _text(self, text: str) -> None:
        if text:
            self._end_thinking()
            self._assembly.text(text)

    def _input(self, index: int, text: str) -> None:
        if text:
            self._inputs.pop(index, None)
            self._assembly.call(index, "", "", text)

    def _thinking(self, index: int, text: str, signature: str = "") -> None:
        thought = self._thoughts.setdefault(index, _Thought())
        thought.texts.append(text)
        thought.signature = signature or thought.signature
        self._assembly.thinking(text)

    def _end_thinking(self) -> None:
        # Blocks of thinking in a row are one in the conversation, so they are signed together.
        if self._thoughts:
            self._assembly.thinking("", pack_thinking([each.part() for each in self._thoughts.values()]))
            self._thoughts = {}

    def _count(self, usage: dict[str, Any]) -> None:
        # Each event counts all that was taken so far, so what a later one leaves out still holds. Zeros do not replace
        # an earlier count, since some servers send them where they do not count.
        for names in _COUNTED_TOGETHER:
            counts = {name: count_in(usage, name) for name in names if usage.get(name) is not None}
            if any(counts.values()):
                self._counts |= counts

    def _usage(self, content: list[ContentBlock]) -> ChatUsage:
        fresh, output, cached, created = (self._counts[name] for name in _COUNTS)
        asked = fresh + cached + created
        if asked and (output or not content):
            return ChatUsage(asked, output, cached, created)
        guess = estimated_usage(self._messages, content)
        return ChatUsage(asked or guess.input_tokens, output or guess.output_tokens, cached, created, estimated=True)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


def _index(event: dict[str, Any]) -> int:
    return count_in(event, "index")
