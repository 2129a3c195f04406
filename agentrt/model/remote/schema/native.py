"""Structured answers in a provider's own JSON-schema mode, though the loop asks for them through a tool.

The tool is removed from the request, its schema binds the text of the answer instead, and that text is read as a call
of the tool: hooks, events and states are the same in both modes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentrt._runtime.block import ContentBlock, HintBlock, TextBlock, ToolCallBlock
from agentrt.message import Msg
from agentrt.model.remote.reader import AnswerReader
from agentrt.types import STRUCTURED_OUTPUT, STRUCTURED_OUTPUT_HINT, ChatResponse, JSONSchema, ToolChoice

StructuredMode = Literal["auto", "native", "tool"]
"""How a model produces structured output: in its provider's JSON-schema mode, or through a tool.

"auto" is "native" where model and server are known to have that mode, and else "tool". A schema that does not fit that
mode goes through the tool in any case.
"""

_HINT = "Give your final answer as JSON, in the form that is asked for."


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A request without the tool for structured output, and that tool's schema."""

    messages: list[Msg]
    tools: list[JSONSchema] | None
    tool_choice: ToolChoice | None
    schema: JSONSchema


def native_request(
    messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
) -> NativeRequest | None:
    """Return the request without the tool for structured output, `None` if none is requested."""
    mode = "auto" if tool_choice is None else tool_choice.mode
    # Only the runtime's own tool has that name; a caller's tools may have another form.
    answer = next((tool for tool in tools or () if tool.get("function", tool).get("name") == STRUCTURED_OUTPUT), None)
    if answer is None or mode not in ("auto", STRUCTURED_OUTPUT):
        return None
    if tool_choice is not None and tool_choice.tools is not None and STRUCTURED_OUTPUT not in tool_choice.tools:
        return None
    others = [tool for tool in tools or () if tool is not answer]
    if mode == STRUCTURED_OUTPUT:  # only the answer; the tools stay, since providers cache the beginning
        tool_choice = ToolChoice("none")
    schema: JSONSchema = answer["function"]["parameters"]
    # In every message, since layers may add messages after the hint.
    return NativeRequest([*map(_without_tool, messages)], others or None, tool_choice if others else None, schema)


def _without_tool(message: Msg) -> Msg:
    """Return the message with another hint, if it asks for a call of the tool for structured output."""
    blocks = message.get_content_blocks()
    content = [
        replace(block, hint=_HINT) if isinstance(block, HintBlock) and block.hint == STRUCTURED_OUTPUT_HINT else block
        for block in blocks
    ]
    return message if content == blocks else replace(message, content=content)


class NativeReader(AnswerReader):
    """Reads an answer whose text is JSON as a call of the tool for structured output.

    Text that is not JSON stays text: a server may not know the mode, and ignore it.
    """

    def __init__(self, reader: AnswerReader) -> None:
        super().__init__(reader.messages)
        self._reader = reader
        self._is_json: dict[str, bool] = {}  # by the id of the block of text, once it has started
        self._blanks: TextBlock | None = None  # at the start of a block: the text after them decides

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
        pieces: list[ContentBlock] = []
        for piece in self._reader.feed(event):
            if isinstance(piece, TextBlock):
                pieces += self._convert_text(piece)
                continue
            if self._blanks is not None:  # kept before a call
                pieces.append(self._blanks)
                self._is_json[self._blanks.id], self._blanks = False, None
            pieces.append(piece)
        return pieces

    def read(self, body: dict[str, object]) -> None:
        self._reader.read(body)

    def answer(self) -> ChatResponse:
        response = self._reader.answer()
        content = [_as_call(block) if _is_json_text(block) else block for block in response.content]
        has_answer = any(map(_is_json_text, response.content))
        reason = "tool_calls" if has_answer and response.finished_reason == "stop" else response.finished_reason
        return replace(response, content=content, finished_reason=reason)

    def _convert_text(self, piece: TextBlock) -> list[ContentBlock]:
        is_json = self._is_json.get(piece.id)
        if is_json is None:
            if self._blanks is not None:
                piece = TextBlock(self._blanks.text + piece.text, piece.id)
            if not piece.text.strip():
                self._blanks = piece
                return []
            self._blanks = None
            is_json = self._is_json[piece.id] = _is_json_text(piece)
        return [_as_call(piece) if is_json else piece]


def _is_json_text(block: ContentBlock) -> bool:
    return isinstance(block, TextBlock) and block.text.lstrip().startswith("{")


def _as_call(block: ContentBlock) -> ContentBlock:
    """Return the call for the text of an answer; its id is derived from that of the block, as for each piece."""
    assert isinstance(block, TextBlock)
    return ToolCallBlock(f"call_{block.id}", STRUCTURED_OUTPUT, block.text)
