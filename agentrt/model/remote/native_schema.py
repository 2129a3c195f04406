"""Structured answers by a provider's own JSON-schema mode, where the loop asks for them through a tool.

The tool is taken out of the request, its schema binds the text of the answer instead, and that text is read as a call
of the tool: so hooks, events and states are the same in both ways.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from agentrt.block import ContentBlock, HintBlock, TextBlock, ToolCallBlock
from agentrt.errors import ConfigError
from agentrt.message import Msg, UserMsg
from agentrt.model.remote.stream import AnswerReader
from agentrt.types import STRUCTURED_OUTPUT, STRUCTURED_OUTPUT_HINT, ChatResponse, JSONSchema, ToolChoice

__all__ = [
    "TEXT_FORMATS",
    "NativeReader",
    "NativeRequest",
    "SchemaDialect",
    "StructuredMode",
    "check_mode",
    "native_request",
]

StructuredMode = Literal["auto", "native", "tool"]
"""How a model gives structured output: by its provider's JSON-schema mode, or through a tool.

"auto" is "native" where model and server are known to have that mode, and else "tool". A schema that does not fit that
mode goes through the tool in any case.
"""

_HINT = "Give your final answer as JSON, in the form that is asked for."
TEXT_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
"""The formats of text that every dialect knows."""
_JSON_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
_DROPPED = {"$comment", "deprecated", "discriminator", "examples", "readOnly", "title", "writeOnly"}
# What says more about a value than its type. Where a dialect does not have one of these, the model reads it in words,
# and the answer is checked by the whole schema anyway.
_CHECKS = {"exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxItems", "maxLength", "minimum", "minItems"}
_CHECKS |= {"minLength", "multipleOf", "pattern", "uniqueItems"}


def check_mode(mode: object, cls: str) -> None:
    """Raise `ConfigError` for what is not a way of giving structured output."""
    if mode not in ("auto", "native", "tool"):
        raise ConfigError(f"{cls}(structured_output=...) must be 'auto', 'native' or 'tool', not {mode!r:.100}")


@dataclass(frozen=True, slots=True)
class SchemaDialect:
    """Which JSON schemas a provider binds an answer to.

    `checks` are the keywords that it knows beyond types, enums and references, and `formats` the formats of text.
    `all_required`: each property must be given. `recursive`: a type may hold itself.
    """

    checks: frozenset[str]
    formats: frozenset[str]
    all_required: bool
    recursive: bool

    def translate(self, schema: JSONSchema) -> JSONSchema | None:
        """Return the schema in this dialect, `None` where it has no words for it.

        It may be narrower than the given one, and wider only where the difference is a check of a single value.
        """
        try:
            translated = self._translate(schema)
            if translated.get("type") != "object":
                return None
            if not self.recursive:
                definitions = schema.get("$defs", {})
                [*TopologicalSorter({name: _references(part) for name, part in definitions.items()}).static_order()]
        except (_NoWordsError, CycleError, RecursionError):
            return None
        return translated

    def _translate(self, schema: object) -> JSONSchema:
        if not isinstance(schema, dict):
            raise _NoWordsError
        words: JSONSchema = {}
        notes: list[str] = []
        for name, value in schema.items():
            if name in _CHECKS:
                if name in self.checks or (name == "format" and value in self.formats):
                    words[name] = value
                else:
                    notes.append(f"{name}: {json.dumps(value)}")
            elif name == "default":
                notes.append(f"default: {json.dumps(value)}")
            elif name not in _DROPPED:
                words |= self._translate_keyword(name, value)
        if not words.keys() & {"type", "anyOf", "enum", "$ref"}:
            raise _NoWordsError  # anything may stand there
        if words.get("type") == "object":
            words |= self._closed_object(schema)  # narrower where the schema allows further properties, never wider
        if words.get("type") == "array" and "items" not in words:
            raise _NoWordsError
        description = schema.get("description", "")
        words["description"] = "; ".join(filter(None, [description, *notes]))
        if not words["description"]:
            del words["description"]
        if "$ref" in words and len(words) > 1:  # beside which nothing may stand
            words = {"anyOf": [{"$ref": words.pop("$ref")}], **words}
        return words

    def _translate_keyword(self, name: str, value: object) -> JSONSchema:
        match name, value:
            case "type", str() if value in _JSON_TYPES:
                return {"type": value}
            case "type", list() if all(kind in _JSON_TYPES - {"array", "object"} for kind in value):
                return {"type": value}
            case ("description", str()) | ("required", list()) | ("additionalProperties", False):
                return {}  # of which more is known at the end
            case "properties", dict():
                return {"properties": {key: self._translate(part) for key, part in value.items()}}
            case "$defs", dict():
                return {"$defs": {key: self._translate(part) for key, part in value.items()}}
            case "items", _:
                return {"items": self._translate(value)}
            case (("anyOf" | "oneOf"), list()):  # of a value that fits several, the whole schema decides
                return {"anyOf": [self._translate(part) for part in value]}
            case "$ref", str() if value.startswith("#/$defs/"):
                return {"$ref": value}
            case "enum", list() if all(part is None or isinstance(part, (str, int, float)) for part in value):
                return {"enum": value}
            case "const", (str() | int() | float() | None):
                return {"enum": [value]}
        raise _NoWordsError

    def _closed_object(self, schema: JSONSchema) -> JSONSchema:
        names = list(schema.get("properties", {}))
        if not names:  # it may have any, or the model could give nothing but {}
            raise _NoWordsError
        required = names if self.all_required else [name for name in schema.get("required", []) if name in names]
        return {"required": required, "additionalProperties": False}


class _NoWordsError(Exception):
    """A dialect has no words for a part of a schema."""


def _references(schema: object) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        return {name for part in schema for name in _references(part)}
    if not isinstance(schema, dict):
        return set()
    reference = schema.get("$ref")
    own = {reference.removeprefix("#/$defs/")} if isinstance(reference, str) else set()
    return own | {name for part in schema.values() for name in _references(part)}


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A request without the tool for structured output, and the schema of that."""

    messages: list[Msg]
    tools: list[JSONSchema] | None
    tool_choice: ToolChoice | None
    schema: JSONSchema


def native_request(
    messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
) -> NativeRequest | None:
    """Return the request without the tool for structured output, `None` where the model is not to give any."""
    mode = "auto" if tool_choice is None else tool_choice.mode
    answer = next((tool for tool in tools or () if tool["function"]["name"] == STRUCTURED_OUTPUT), None)
    if answer is None or mode not in ("auto", STRUCTURED_OUTPUT):
        return None
    others = [tool for tool in tools or () if tool is not answer]
    if mode == STRUCTURED_OUTPUT:  # nothing but the answer; the tools stay, since providers cache by what comes first
        tool_choice = ToolChoice("none")
    *earlier, last = messages
    blocks = last.get_content_blocks()
    if any(isinstance(block, HintBlock) and block.hint == STRUCTURED_OUTPUT_HINT for block in blocks):
        last = UserMsg(last.name, [HintBlock(_HINT)])
    schema: JSONSchema = answer["function"]["parameters"]
    return NativeRequest([*earlier, last], others or None, tool_choice if others else None, schema)


class NativeReader:
    """Reads an answer whose text is JSON as a call of the tool for structured output.

    Text that is not JSON stays text: a server may not know the mode, and pass over it.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._is_json: dict[str, bool] = {}  # by the id of the block of text, once it has begun
        self._blanks: dict[str, str] = {}

    @property
    def is_complete(self) -> bool:
        return self._reader.is_complete

    @property
    def has_ended(self) -> bool:
        return self._reader.has_ended

    @property
    def has_progressed(self) -> bool:
        return self._reader.has_progressed

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        pieces = [self._convert_piece(piece) for piece in self._reader.feed(event)]
        return [piece for piece in pieces if piece is not None]

    def read(self, body: dict[str, object]) -> None:
        self._reader.read(body)

    def answer(self) -> ChatResponse:
        response = self._reader.answer()
        content = [_as_call(block) if _is_json_text(block) else block for block in response.content]
        has_answer = any(map(_is_json_text, response.content))
        reason = "tool_calls" if has_answer and response.finished_reason == "stop" else response.finished_reason
        return replace(response, content=content, finished_reason=reason)

    def _convert_piece(self, piece: ContentBlock) -> ContentBlock | None:
        if not isinstance(piece, TextBlock):
            return piece
        is_json = self._is_json.get(piece.id)
        if is_json is None:
            text = self._blanks.pop(piece.id, "") + piece.text
            if not text.strip():
                self._blanks[piece.id] = text  # what comes after them decides
                return None
            piece = TextBlock(text, piece.id)
            is_json = self._is_json[piece.id] = _is_json_text(piece)
        return _as_call(piece) if is_json else piece


def _is_json_text(block: ContentBlock) -> bool:
    return isinstance(block, TextBlock) and block.text.lstrip().startswith("{")


def _as_call(block: ContentBlock) -> ContentBlock:
    """Return the call that text of an answer stands for; its id follows from that of the block, as for each piece."""
    assert isinstance(block, TextBlock)
    return ToolCallBlock(f"call_{block.id}", STRUCTURED_OUTPUT, block.text)
