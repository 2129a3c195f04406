"""Claude, Nova and other models on AWS, through Bedrock's Converse API."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, Unpack
from urllib.parse import quote, urlsplit

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    JSONObject,
    TextBlock,
    citations_block,
    new_citation,
)
from agentrt.errors import ConfigError, Malformed, MalformedCall, Refused, Transient
from agentrt.formatter import Formatter, format_bedrock
from agentrt.formatter.anthropic import pack_thinking
from agentrt.formatter.openai import valid_name
from agentrt.message import Msg
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
from agentrt.model.cloud.aws import AWSAuth
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import BEDROCK_API
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.settings import ConnectionOptions, check_option, check_option_names, check_request_options
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice

_BEDROCK = "bedrock"
_CACHE_POINT: JSONObject = {"cachePoint": {"type": "default"}}
_INFERENCE_NAMES = {
    "max_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
"""The API's names of the settings that its `inferenceConfig` holds."""
_REASONS_OF_BEDROCK = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_STOPPED = {"content_filtered": "its filter", "guardrail_intervened": "its guardrail"}
_MALFORMED_ANSWERS = frozenset({"malformed_model_output", "malformed_tool_use"})
# Which models can be made to call a tool, from the page on `ToolChoice` of docs.aws.amazon.com, in November 2026.
_CALLED_BY_NAME = ("claude", "amazon.nova")
_MADE_TO_CALL = ("mistral", *_CALLED_BY_NAME)


class BedrockChatModel(RemoteChatModel):
    """A model on AWS, through the Converse API of Bedrock, which is the same for all of its models.

    `model` is the id of a model or an inference profile, or its ARN. The key comes from AWS_BEARER_TOKEN_BEDROCK
    unless `api_key` or another `key_variable` is given. Without a key, requests are signed with the credentials of AWS,
    as by `auth=AWSAuth()`, which needs the extra `bedrock`. The region comes from AWS_REGION, AWS_DEFAULT_REGION or the
    profile unless it is given, and the URL from the region unless that is given, too.

    `thinking` and `effort` are as in `AnthropicChatModel`; for Nova, `thinking` is its `reasoningConfig`. `guardrail`
    is the API's `guardrailConfig`, as in `{"guardrailIdentifier": "abc", "guardrailVersion": "1"}`; an answer that it
    stops is `Refused`. `rules` say what a model accepts. They are known for Claude, Nova and Mistral; any other is only
    asked to call a tool, never made to. `cache="auto"` sets cache points for Claude and Nova, "off" none. `formatter`
    makes the `messages` and `system` of a request. Other fields go into `extra_body`, such as
    `{"additionalModelRequestFields": {"top_k": 50}}`.
    """

    _api = BEDROCK_API
    _forms = frozenset({"image", "audio", "video", "pdf"})
    _refused_thoughts = REFUSED_THOUGHTS

    def __init__(
        self,
        model: str,
        *,
        region: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] | None = None,
        thinking: Mapping[str, object] | None = None,
        effort: str | None = None,
        guardrail: Mapping[str, object] | None = None,
        rules: ClaudeRules | None = None,
        cache: Literal["auto", "off"] = "auto",
        formatter: Formatter | None = None,
        **common: Unpack[ModelOptions],
    ) -> None:
        # First: a slip in an option should not show up as a missing key.
        check_option_names(BedrockChatModel, common, ModelOptions.__annotations__)
        complete_connection(common, region, "BedrockChatModel")
        super().__init__(model, **common)
        cls = type(self).__name__
        check_option(rules, ClaudeRules, f"{cls}(rules=...)", "rules=ClaudeRules(must_call=False)")
        numbers = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        check_request_options(cls, numbers, stop, formatter, effort=effort)
        check_option(guardrail, Mapping, f"{cls}(guardrail=...)", 'guardrail={"guardrailIdentifier": "abc"}')
        if cache not in ("auto", "off"):
            raise ConfigError(f"{cls}(cache=...) must be 'auto' or 'off', not {cache!r:.100}")
        self.cache = cache
        self.rules = rules = rules or self._usual_rules()
        temperature, top_p = check_sampling(model, temperature, top_p, rules)
        self._is_nova = "amazon.nova" in model
        self._thinking = self._check_thinking(thinking)
        # An ARN does not show its model. Thoughts that are bound to their conversation would be refused.
        thoughts = ("claude" in model or model.startswith("arn:")) and not rules.binds_thinking
        self._formatter = formatter or partial(format_bedrock, thoughts=thoughts)
        if formatter is not None:
            self._forget_forms(common.get("capabilities"))
        settings = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "stop_sequences": [stop] if isinstance(stop, str) else stop if stop is None else list(stop),
            "thinking": self._thinking or None,
            "guardrailConfig": dict(guardrail) if guardrail else None,
            "outputConfig": {"effort": effort} if effort is not None else None,
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}

    def _usual_rules(self) -> ClaudeRules:
        rules = rules_of(self.model)
        if self.model.startswith("arn:") or any(name in self.model for name in _CALLED_BY_NAME):
            return rules  # an inference profile of the user's own does not show its model
        return replace(rules, named_choice=False, must_call=any(name in self.model for name in _MADE_TO_CALL))

    def _check_thinking(self, thinking: Mapping[str, object] | None) -> JSONObject:
        """Return the thinking fields of a request, {} for none; raises `ConfigError` for what Claude would refuse."""
        cls = type(self).__name__
        if not self._is_nova:
            return check_thinking(cls, self.model, thinking, replace(self.rules, binds_thinking=False))
        check_option(thinking, Mapping, f"{cls}(thinking=...)", 'thinking={"type": "enabled"}')
        return dict(thinking or {})

    @property
    def _is_own_server(self) -> bool:
        return str(urlsplit(self.base_url).hostname).endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def _path_for(self, body: JSONObject) -> str:
        # An ARN holds slashes and colons.
        return f"/model/{quote(self.model, safe='')}/{'converse-stream' if self.stream else 'converse'}"

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> JSONObject:
        configs = {name: value for name, value in self.settings.items() if name.endswith("Config")}
        body: JSONObject = {**self._formatter(messages), **configs}
        inference = {name: self.settings[key] for key, name in _INFERENCE_NAMES.items() if key in self.settings}
        if inference:
            body["inferenceConfig"] = inference
        config = self._tool_config(tools or [], tool_choice, body["messages"])
        if config["tools"]:
            body["toolConfig"] = config
        if self._thinking and (self._is_nova or self._may_think(body)):
            body["additionalModelRequestFields"] = {"reasoningConfig" if self._is_nova else "thinking": self._thinking}
        if self.cache == "auto" and (self._is_nova or "claude" in self.model):
            self._mark_prefix(body, messages)
        return body

    def _tool_config(self, schemas: list[JSONSchema], choice: ToolChoice | None, turns: list[JSONObject]) -> JSONObject:
        mode = choice.mode if choice is not None else "auto"
        if not schemas or mode == "none":
            # The API refuses a conversation with calls unless tools are declared, and has no other word for "none".
            parts = [part for turn in turns for part in turn["content"]]
            called = sorted({part["toolUse"]["name"] for part in parts if "toolUse" in part})
            return {"tools": [_tool_spec({"name": name, "description": "No longer available."}) for name in called]}
        config: JSONObject = {"tools": [*map(_tool_spec, schemas)]}
        if mode == "auto" or not self.rules.must_call:
            return config
        if mode == "required":
            return {**config, "toolChoice": {"any": {}}}
        name = valid_name(mode)
        if self.rules.named_choice:
            return {**config, "toolChoice": {"tool": {"name": name}}}
        named = [tool for tool in config["tools"] if tool["toolSpec"]["name"] == name]
        return {"tools": named or config["tools"], "toolChoice": {"any": {}}}

    def _may_think(self, body: JSONObject) -> bool:
        """Say whether Claude accepts the configured type of `thinking` in this request."""
        kind = self._thinking["type"]
        if kind not in ("enabled", "adaptive"):
            return True
        if "toolChoice" in body.get("toolConfig", {}):
            return False
        # Results and the turn that asked for them are one round, whose beginning counts.
        *earlier, last = body["messages"]
        if earlier and "toolResult" in last["content"][0]:
            last = earlier[-1]
        # Another model may have started the turn, without thinking.
        return kind == "adaptive" or last["role"] != "assistant" or "reasoningContent" in last["content"][0]

    def _mark_prefix(self, body: JSONObject, messages: Sequence[Msg]) -> None:
        """Set cache points: behind the tools, the system prompt, and the last part that will be repeated."""
        if "toolConfig" in body and not self._is_nova:  # which does not take them there
            body["toolConfig"] = {**body["toolConfig"], "tools": [*body["toolConfig"]["tools"], _CACHE_POINT]}
        if "system" in body:
            body["system"] = [*body["system"], _CACHE_POINT]
        turns = body["messages"]
        places = ((turn, place) for turn in reversed(turns) for place in reversed(range(len(turn["content"]))))
        passing = count_passing_hints(messages)
        for number, (turn, place) in enumerate(places):
            parts = turn["content"]
            if number >= passing and "reasoningContent" not in parts[place]:
                turn["content"] = [*parts[: place + 1], _CACHE_POINT, *parts[place + 1 :]]
                return

    def _has_schema_mode(self) -> bool:
        return self.rules.json_schema and self._is_own_server

    def _schema_fields(self, schema: JSONSchema) -> JSONObject | None:
        translated = CLAUDE_SCHEMAS.translate(schema)
        if translated is None:
            return None
        structure = {"jsonSchema": {"name": "answer", "schema": json.dumps(translated, ensure_ascii=False)}}
        config = self.settings.get("outputConfig", {})
        return {"outputConfig": {**config, "textFormat": {"type": "json_schema", "structure": structure}}}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return _BedrockReader(messages)


def complete_connection(options: ConnectionOptions, region: object, cls: str) -> None:
    """Add the signature and the URL to the options, if these were left out."""
    if region is not None and (not isinstance(region, str) or not re.fullmatch(r"[a-z0-9-]+", region)):
        raise ConfigError(f"{cls}(region=...) must be as in 'eu-central-1', not {region!r:.100}")
    key_variable = options.get("key_variable", BEDROCK_API.key_variable)
    has_key = options.get("api_key") is not None or os.environ.get(key_variable or "", "").strip()
    auth = options.get("auth")
    problem = ""
    if auth is None and not has_key:
        try:
            auth = options["auth"] = AWSAuth(region=region)
        except ConfigError as error:
            problem = str(error)
    if problem:
        key = f"set {key_variable} or give api_key=..." if key_variable else "give api_key=..."
        raise ConfigError(f"{cls} has no key: {key}; to sign with the credentials of AWS: {problem}")
    if options.get("base_url") or os.environ.get(BEDROCK_API.url_variable):
        return
    region = region or (auth.region if isinstance(auth, AWSAuth) else None)
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigError(f"{cls} has no region: set AWS_REGION, or give region=... or base_url=...")
    options["base_url"] = f"https://bedrock-runtime.{region}.amazonaws.com"


def _tool_spec(schema: JSONSchema) -> JSONObject:
    function = schema.get("function", schema)
    description = {"description": function["description"]} if function.get("description") else {}
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"toolSpec": {"name": function["name"], **description, "inputSchema": {"json": parameters}}}


class _BedrockReader(AnswerReader):
    """Makes an answer of the events of a stream, or of a whole response."""

    has_ended = False
    has_progressed = False

    def __init__(self, messages: Sequence[Msg]) -> None:
        super().__init__(messages)
        self._thoughts: dict[int, Thought] = {}  # since the last text or call; they are signed together
        self._foreign: set[int] = set()  # blocks of tools that AWS runs itself
        self._citations: list[JSONObject] = []  # of the text since the last block of another kind
        self._open_citations: list[JSONObject] = []  # of the block of text that is being written
        self._text_start = 0
        self._why = ""

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Take one event, and return the new pieces; unknown events are ignored."""
        self.has_progressed = False
        for name in event:
            fields = dict_in(event, name)
            index = count_in(fields, "contentBlockIndex")
            match name:
                case "contentBlockDelta":
                    self._take_delta(index, dict_in(fields, "delta"))
                case "contentBlockStart":
                    self._start_block(index, dict_in(fields, "start"))
                case "contentBlockStop":
                    self._end_block()
                case "messageStart":
                    self._start_message()
                case "messageStop":
                    self.reason = text_in(fields, "stopReason") or "end_turn"
                    self._end_parts()
                case "metadata":
                    self._take_metadata(fields)
                    self.has_ended = self.is_complete
        return self.accumulator.take_pieces()

    def read(self, body: dict[str, object]) -> None:
        if "output" not in body:
            raise Malformed(f"it answered with {body}, which is not an answer of the Converse API")
        for index, block in enumerate(list_in(dict_in(dict_in(body, "output"), "message"), "content")):
            self._take_block(index, block)
            self._end_block()
        self._end_parts()
        self._take_metadata(body)
        self.reason = text_in(body, "stopReason")

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when a filter or a guardrail stopped it."""
        if not self.is_complete:
            raise Transient("its answer was cut: it ended without a stopReason")
        content = self.accumulator.content()
        if self.reason in _STOPPED:
            # A guardrail puts its own words in place of the answer.
            words = self._why or " ".join(block.text for block in content if isinstance(block, TextBlock))
            explanation = f": {words}" if words else ""
            raise Refused(f"{_STOPPED[self.reason]} stopped the answer (stopReason {self.reason!r}){explanation}")
        if self.reason in _MALFORMED_ANSWERS:
            raise MalformedCall(f"it answered in a form that cannot be read (stopReason {self.reason!r})")
        return self.respond(content, _REASONS_OF_BEDROCK.get(self.reason, self.reason), self.usage)

    def _start_message(self) -> None:
        # A proxy whose own connection broke may append a second answer.
        if self.accumulator.has_begun or self._thoughts:
            raise Transient("it began a second answer before the first was over")

    def _take_metadata(self, fields: dict[str, object]) -> None:
        usage = dict_in(fields, "usage")
        cached, created = count_in(usage, "cacheReadInputTokens"), count_in(usage, "cacheWriteInputTokens")
        read = count_in(usage, "inputTokens") + cached + created  # the API counts them separately, others together
        if read:
            self.usage = ChatUsage(read, count_in(usage, "outputTokens"), cached, created)
        self._why = text_in(dict_in(dict_in(fields, "trace"), "guardrail"), "actionReason")

    def _start_block(self, index: int, start: dict[str, object]) -> None:
        if "toolUse" in start:
            self._start_call(index, dict_in(start, "toolUse"))
        elif "toolResult" in start:
            self._foreign.add(index)

    def _start_call(self, index: int, call: dict[str, object]) -> None:
        if text_in(call, "type"):  # a tool that AWS runs itself
            self._foreign.add(index)
            return
        self._end_parts()
        self.accumulator.add_call(index, text_in(call, "toolUseId"), text_in(call, "name"), "")

    def _take_delta(self, index: int, delta: dict[str, object]) -> None:
        if index in self._foreign:
            self.has_progressed = True
            return
        if "text" in delta:
            self._add_text(text_in(delta, "text"))
        if "toolUse" in delta:
            self.accumulator.add_call(index, "", "", text_in(dict_in(delta, "toolUse"), "input"))
        if "citation" in delta:
            self._cite(dict_in(delta, "citation"))
        if "reasoningContent" in delta:
            thought = dict_in(delta, "reasoningContent")
            self._think(index, text_in(thought, "text"), text_in(thought, "signature"))
            self._think_secretly(index, text_in(thought, "redactedContent"))

    def _take_block(self, index: int, block: dict[str, object]) -> None:
        """Take one block of a whole response."""
        if "text" in block:
            self._add_text(text_in(block, "text"))
        elif "toolUse" in block:
            call = dict_in(block, "toolUse")
            self._start_call(index, call)
            if index not in self._foreign:
                self.accumulator.add_call(index, "", "", dict_in(call, "input"))
        elif "reasoningContent" in block:
            thought = dict_in(block, "reasoningContent")
            signed = dict_in(thought, "reasoningText")
            self._think(index, text_in(signed, "text"), text_in(signed, "signature"))
            self._think_secretly(index, text_in(thought, "redactedContent"))
        elif "citationsContent" in block:
            cited = dict_in(block, "citationsContent")
            for passage in list_in(cited, "content"):
                self._add_text(text_in(passage, "text"))
            for citation in list_in(cited, "citations"):
                self._cite(citation)
        elif "image" in block:
            self._end_parts()
            image = dict_in(block, "image")
            data = text_in(dict_in(image, "source"), "bytes")
            self.accumulator.add_block(DataBlock(Base64Source(data, f"image/{text_in(image, 'format') or 'png'}")))

    def _add_text(self, text: str) -> None:
        if text:
            self._end_thinking()
            self.accumulator.add_text(text)

    def _think(self, index: int, text: str, signature: str) -> None:
        if text or signature:
            thought = self._thoughts.setdefault(index, Thought())
            thought.texts.append(text)
            thought.signature = signature or thought.signature
            self.accumulator.add_thinking(text)

    def _think_secretly(self, index: int, data: str) -> None:
        if data:
            self._thoughts.setdefault(index, Thought()).data.append(data)

    def _end_thinking(self) -> None:
        # Consecutive blocks of thinking are one in the conversation, so they share one signature.
        if self._thoughts:
            self.accumulator.add_thinking("", pack_thinking([thought.part() for thought in self._thoughts.values()]))
            self._thoughts = {}

    def _cite(self, citation: dict[str, object]) -> None:
        """Record a citation of the current block of text, whose end is not known yet."""
        self.has_progressed = True
        quotes = [text_in(part, "text") for part in list_in(citation, "sourceContent")]
        url = dict_in(dict_in(citation, "location"), "web").get("url")
        self._open_citations.append(new_citation(citation, url=url, title=citation.get("title"), quote="".join(quotes)))

    def _end_block(self) -> None:
        """Let what was cited in this block of text be about all of it."""
        end = self.accumulator.open_text_length
        place = {"start": self._text_start, "end": end}
        self._citations += [{**citation, **place} for citation in self._open_citations]
        self._open_citations, self._text_start = [], end

    def _end_parts(self) -> None:
        """End the thinking, and add the citations behind their text."""
        self._end_thinking()
        self._end_block()
        if self._citations:
            self.accumulator.add_block(citations_block(_BEDROCK, self._citations, self.accumulator.open_text))
            self._citations = []
