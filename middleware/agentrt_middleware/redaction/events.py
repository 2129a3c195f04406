"""Redaction of the events of a reply, in the order in which they come."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    DataBlockDeltaEvent,
    DataBlockEndEvent,
    DataBlockStartEvent,
    HintBlockEvent,
    ModelCallRetryEvent,
    ProviderBlockEvent,
    ReplyResumedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import ContentBlock, ToolResultBlock
from agentrt_middleware.redaction.content import (
    ChangeText,
    change_block,
    change_content,
    change_data,
    change_json,
    change_url,
    change_value,
    may_hold_text,
)

_Handlers = Mapping[type, Callable[["EventRedactor", Any], Iterable[AgentEvent]]]
_Delta = TextBlockDeltaEvent | ThinkingBlockDeltaEvent


class GrowingText(Protocol):
    """Some text that is changed while it comes."""

    @property
    def has_replaced(self) -> bool: ...
    def feed(self, piece: str) -> str: ...
    def end(self, piece: str = "") -> str: ...


class EventRedactor:
    """Takes the events of a stream, and gives those that may leave.

    Text leaves as soon as nothing in it can grow into a find. The input of a call, and a file that may be text, are
    held until they are whole. What is
    held when the stream breaks off never leaves. `redacted_ids` are those of blocks and calls that have been redacted
    further in; these pass. `output` and `tools` say whether what
    models write, and what tools give, is changed.
    """

    def __init__(
        self,
        change: ChangeText,
        begin_text: Callable[[], GrowingText],
        redacted_ids: Container[str] = frozenset(),
        *,
        output: bool = True,
        tools: bool = True,
    ) -> None:
        self._change = change
        self._begin_text = begin_text
        self._redacted_ids = redacted_ids
        self._changes_output, self._changes_results = output, tools
        self._handlers = {**(self._OUTPUT_HANDLERS if output else {}), **(self._RESULT_HANDLERS if tools else {})}
        # The open parts.
        self._texts: dict[str, tuple[GrowingText, _Delta]] = {}  # by the id of the block, with its last delta
        self._inputs: dict[str, list[ToolCallDeltaEvent]] = {}
        self._data: dict[str, list[DataBlockDeltaEvent]] = {}
        self._results: dict[str, dict[str, tuple[GrowingText, ToolResultTextDeltaEvent]]] = {}

    def take(self, event: AgentEvent) -> Iterable[AgentEvent]:
        """Take in the next event; returns what may leave."""
        handler = self._handlers.get(event.__class__)
        return (event,) if handler is None else handler(self, event)

    def end(self) -> Iterable[AgentEvent]:
        """Return what is left where the stream has ended without the ends of some blocks."""
        events: list[AgentEvent] = []
        for block_id in list(self._texts):
            events += self._end_text(block_id)
        for deltas in self._inputs.values():
            events += self._input_events(deltas)
        for block_id in list(self._data):
            events += self._data_events(block_id)
        for call_id in list(self._results):
            events += self._end_result(call_id)
        self._inputs.clear()
        return events

    def _take_delta(self, event: _Delta) -> Iterable[AgentEvent]:
        block_id = event.block_id
        if block_id in self._redacted_ids:
            return (event,)
        known = self._texts.get(block_id)
        text = self._begin_text() if known is None else known[0]
        self._texts[block_id] = text, event
        return _with_delta(event, text.feed(event.delta))

    def _end_text(self, block_id: str) -> Iterable[AgentEvent]:
        text, last = self._texts.pop(block_id)
        return _with_delta(last, text.end())

    def _take_text_end(self, event: TextBlockEndEvent) -> Iterable[AgentEvent]:
        if event.block_id in self._redacted_ids:
            return (event,)
        if event.text is not None:
            self._texts.pop(event.block_id, None)
            return (self._with(event, text=self._begin_text().end(event.text)),)
        return (*(self._end_text(event.block_id) if event.block_id in self._texts else ()), event)

    def _take_thinking_end(self, event: ThinkingBlockEndEvent) -> Iterable[AgentEvent]:
        known = self._texts.get(event.block_id)
        if known is None:
            return (event,)
        rest = self._end_text(event.block_id)
        # A signature of other words would be refused, and may hold them.
        return (*rest, replace(event, signature=None) if known[0].has_replaced else event)

    def _take_call_start(self, event: ToolCallStartEvent) -> Iterable[AgentEvent]:
        return (self._with(event, tool_call_name=self._change(event.tool_call_name)),)

    def _take_call_delta(self, event: ToolCallDeltaEvent) -> Iterable[AgentEvent]:
        if event.tool_call_id in self._redacted_ids:
            return (event,)
        self._inputs.setdefault(event.tool_call_id, []).append(event)
        return ()

    def _take_call_end(self, event: ToolCallEndEvent) -> Iterable[AgentEvent]:
        event = self._with(event, tool_call_name=self._change(event.tool_call_name))
        return (*self._input_events(self._inputs.pop(event.tool_call_id, [])), event)

    def _input_events(self, deltas: list[ToolCallDeltaEvent]) -> Iterable[AgentEvent]:
        if not deltas:
            return ()
        # Whole, since a string may be in two pieces, and a character may be escaped: "bob\\u0040example.com".
        text = change_json("".join(delta.delta for delta in deltas), self._change)
        return (self._with(deltas[0], delta=text, tool_call_name=self._change(deltas[0].tool_call_name)),)

    def _take_result_start(self, event: ToolResultStartEvent) -> Iterable[AgentEvent]:
        return (self._with(event, tool_call_name=self._change(event.tool_call_name)),)

    def _take_result_text(self, event: ToolResultTextDeltaEvent) -> Iterable[AgentEvent]:
        blocks = self._results.setdefault(event.tool_call_id, {})
        known = blocks.get(event.block_id)
        text = self._begin_text() if known is None else known[0]
        blocks[event.block_id] = text, event
        return _with_delta(event, text.feed(event.delta))

    def _take_result_data(self, event: ToolResultDataDeltaEvent) -> Iterable[AgentEvent]:
        changed = self._with(event, name=event.name and self._change(event.name))
        if event.data is not None:
            changed = self._with(changed, data=change_data(event.data, event.media_type, self._change))
        return (self._with(changed, url=event.url and change_url(event.url, self._change)),)

    def _take_result_end(self, event: ToolResultEndEvent) -> Iterable[AgentEvent]:
        if event.output is not None:  # it replaces what the deltas said
            self._results.pop(event.tool_call_id, None)
            return (replace(event, output=[change_block(block, self._change) for block in event.output]),)
        return (*self._end_result(event.tool_call_id), event)

    def _end_result(self, call_id: str) -> Iterable[AgentEvent]:
        events: list[AgentEvent] = []
        for text, last in self._results.pop(call_id, {}).values():
            events += _with_delta(last, text.end())
        return events

    def _withdraw(self, event: ModelCallRetryEvent | BlocksWithdrawnEvent) -> Iterable[AgentEvent]:
        """Forget what is held of the blocks that no longer count."""
        for block_id in event.block_ids:
            self._texts.pop(block_id, None)
            self._inputs.pop(block_id, None)
            self._data.pop(block_id, None)
        if isinstance(event, ModelCallRetryEvent):
            event = self._with(event, reason=self._change(event.reason))
        return (event,)

    def _take_data_start(self, event: DataBlockStartEvent) -> Iterable[AgentEvent]:
        return (self._with(event, name=event.name and self._change(event.name)),)

    def _take_data(self, event: DataBlockDeltaEvent) -> Iterable[AgentEvent]:
        if event.block_id in self._redacted_ids:
            return (event,)
        if event.data is not None and may_hold_text(event.media_type):
            self._data.setdefault(event.block_id, []).append(event)
            return ()
        return (self._with(event, url=event.url and change_url(event.url, self._change)),)

    def _take_data_end(self, event: DataBlockEndEvent) -> Iterable[AgentEvent]:
        return (*self._data_events(event.block_id), event)

    def _data_events(self, block_id: str) -> Iterable[AgentEvent]:
        deltas = self._data.pop(block_id, [])
        if not deltas:
            return ()
        try:  # each piece is base64 by itself, and what is to be found may be in two of them
            content = b"".join(b64decode(delta.data or "") for delta in deltas)
        except ValueError:  # nobody can read it
            return deltas
        changed = change_content(content, deltas[0].media_type, self._change)
        return deltas if changed == content else (replace(deltas[0], data=b64encode(changed).decode()),)

    def _take_provider_block(self, event: ProviderBlockEvent) -> Iterable[AgentEvent]:
        return (self._with(event, content=change_json(event.content, self._change)),)

    def _take_hint(self, event: HintBlockEvent) -> Iterable[AgentEvent]:
        return (self._with(event, hint=self._change(event.hint)),)

    def _take_custom(self, event: CustomEvent) -> Iterable[AgentEvent]:
        return (self._with(event, value=change_value(event.value, self._change)),)

    def _take_question(self, event: RequireUserConfirmEvent | RequireExternalExecutionEvent) -> Iterable[AgentEvent]:
        calls = [
            call if call.id in self._redacted_ids else change_block(call, self._change) for call in event.tool_calls
        ]
        event = replace(event, tool_calls=calls)
        if isinstance(event, RequireUserConfirmEvent):
            questions = {
                call_id: replace(
                    decision,
                    message=decision.message and self._change(decision.message),
                    decision_reason=decision.decision_reason and self._change(decision.decision_reason),
                )
                for call_id, decision in event.questions.items()
            }
            event = replace(event, questions=questions)
        return (event,)

    def _take_resumed(self, event: ReplyResumedEvent) -> Iterable[AgentEvent]:
        # It has all that stands, and the text that is held as well.
        for held in (self._texts, self._inputs, self._data, self._results):
            held.clear()
        blocks = [change_block(block, self._change) if self._is_changed(block) else block for block in event.blocks]
        return (replace(event, blocks=blocks),)

    def _is_changed(self, block: ContentBlock) -> bool:
        return self._changes_results if isinstance(block, ToolResultBlock) else self._changes_output

    def _with(self, event: Any, **fields: object) -> Any:
        """Return the event with these values; the same one if it has them."""
        is_same = all(getattr(event, name) == value for name, value in fields.items())
        return event if is_same else replace(event, **fields)

    _RESULT_HANDLERS: ClassVar[_Handlers] = {
        ToolResultStartEvent: _take_result_start,
        ToolResultTextDeltaEvent: _take_result_text,
        ToolResultDataDeltaEvent: _take_result_data,
        ToolResultEndEvent: _take_result_end,
        ReplyResumedEvent: _take_resumed,
    }
    _OUTPUT_HANDLERS: ClassVar[_Handlers] = {
        TextBlockDeltaEvent: _take_delta,
        ThinkingBlockDeltaEvent: _take_delta,
        TextBlockEndEvent: _take_text_end,
        ThinkingBlockEndEvent: _take_thinking_end,
        ToolCallStartEvent: _take_call_start,
        ToolCallDeltaEvent: _take_call_delta,
        ToolCallEndEvent: _take_call_end,
        ModelCallRetryEvent: _withdraw,
        BlocksWithdrawnEvent: _withdraw,
        DataBlockStartEvent: _take_data_start,
        DataBlockDeltaEvent: _take_data,
        DataBlockEndEvent: _take_data_end,
        ProviderBlockEvent: _take_provider_block,
        HintBlockEvent: _take_hint,
        CustomEvent: _take_custom,
        RequireUserConfirmEvent: _take_question,
        RequireExternalExecutionEvent: _take_question,
        ReplyResumedEvent: _take_resumed,
    }


def _with_delta(event: Any, delta: str) -> Iterable[AgentEvent]:
    if not delta:
        return ()
    return (event,) if delta == event.delta else (replace(event, delta=delta),)
