"""What of a reply's events is shown, and in which words."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrt.console.render.call_description import describe_call
from agentrt.console.render.view import Kind, View
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    DataBlockDeltaEvent,
    DataBlockStartEvent,
    ExceedMaxItersEvent,
    HintBlockEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    ProviderBlockEvent,
    ReplyResumedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import TextBlock, ToolCallBlock, ToolResultState
from agentrt.text import one_line
from agentrt.types import ChatUsage

__all__ = ["Transcript"]

_MOST_LINES = 20  # of one tool's output


@dataclass(slots=True)
class _Call:
    name: str
    input: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    block_id: str = ""
    lines: int = 0


class Transcript:
    """Shows the events of a reply on a view, one by one.

    Text is shown as it comes, and so are the lines of a tool's output, each with the tool's name, since several may
    run at once. `spoke` says whether there was any text.
    """

    def __init__(self, view: View) -> None:
        self.spoke = False
        self._view = view
        self._block_id = ""
        self._said: list[str] = []
        self._calls: dict[str, _Call] = {}

    def take(self, event: AgentEvent) -> None:
        """Show an event; one that says nothing to a reader is passed over."""
        tell = _TELL.get(event.__class__)
        if tell is not None:
            tell(self, event)

    def usage(self, usage: ChatUsage) -> None:
        """Show what the reply used."""
        cached = f" ({usage.cache_input_tokens} cached)" if usage.cache_input_tokens else ""
        about = "about " if usage.estimated else ""
        self._view.line("tokens", f"{about}{usage.input_tokens} in{cached}, {usage.output_tokens} out")

    def _model_call(self, event: ModelCallStartEvent) -> None:
        self._view.wait(f"waiting for {event.model_name}")

    def _retry(self, event: ModelCallRetryEvent) -> None:
        void = "what was said above is void; " if event.block_ids else ""
        after = f", after {event.wait_seconds:g} s" if event.wait_seconds else ""
        reason = f" ({one_line(event.reason)})" if event.reason else ""
        self._view.line("retry", f"{void}another attempt follows{after}{reason}")

    def _resumed(self, event: ReplyResumedEvent) -> None:
        self._view.line("resumed", "what was said above is void but for this:")
        for block in event.blocks:
            if isinstance(block, TextBlock) and block.text:
                self.spoke = True
                self._begin(block.id)
                self._view.stream("text", block.text)
            elif isinstance(block, ToolCallBlock):
                self._view.end()
                self._calls[block.id] = _Call(block.name)
                self._view.line("call", f"{block.name}({one_line(block.input)})")
        self._view.end()

    def _withdrawn(self, event: BlocksWithdrawnEvent) -> None:
        self._view.line("replaced", "what was said above is void")

    def _start(self, event: TextBlockStartEvent | ThinkingBlockStartEvent) -> None:
        self._begin(event.block_id)

    def _begin(self, block_id: str) -> None:
        self._view.end()
        self._block_id = block_id
        self._said = []

    def _text(self, event: TextBlockDeltaEvent) -> None:
        self.spoke = True
        self._stream("text", event.block_id, event.delta)

    def _thinking(self, event: ThinkingBlockDeltaEvent) -> None:
        self._stream("thinking", event.block_id, event.delta)

    def _stream(self, kind: Kind, block_id: str, delta: str) -> None:
        if block_id != self._block_id:  # another agent speaks in between
            self._begin(block_id)
        self._said.append(delta)
        self._view.stream(kind, delta)

    def _text_end(self, event: TextBlockEndEvent) -> None:
        if event.text is not None and event.text != "".join(self._said):
            self._view.line("replaced", "what was said above is void; instead:")
            self._view.stream("text", event.text)
        self._view.end()

    def _end(self, event: ThinkingBlockEndEvent) -> None:
        self._view.end()

    def _data(self, event: DataBlockStartEvent) -> None:
        self._view.line("data", f"{event.media_type} {event.name or ''}".rstrip())

    def _data_url(self, event: DataBlockDeltaEvent) -> None:
        if event.url is not None:
            self._view.line("data", one_line(event.url))

    def _hint(self, event: HintBlockEvent) -> None:
        self._view.line("hint", one_line(event.hint))

    def _provider(self, event: ProviderBlockEvent) -> None:
        self._view.line("provider", f"{one_line(event.provider)}: {_cut(one_line(event.content))}")

    def _call(self, event: ToolCallStartEvent) -> None:
        self._calls[event.tool_call_id] = _Call(event.tool_call_name)
        self._view.wait(f"{event.tool_call_name} ...")

    def _call_input(self, event: ToolCallDeltaEvent) -> None:
        self._called(event.tool_call_id).input.append(event.delta)

    def _call_end(self, event: ToolCallEndEvent) -> None:
        call = self._called(event.tool_call_id)
        self._view.line("call", f"{call.name}({one_line(''.join(call.input))})")

    def _result(self, event: ToolResultStartEvent) -> None:
        self._calls.setdefault(event.tool_call_id, _Call(event.tool_call_name))
        self._view.wait(f"running {event.tool_call_name}")

    def _result_text(self, event: ToolResultTextDeltaEvent) -> None:
        call = self._called(event.tool_call_id)
        if call.block_id != event.block_id:
            self._flush(call)
            call.block_id = event.block_id
        self._put(call, event.delta)

    def _put(self, call: _Call, text: str) -> None:
        *lines, rest = text.split("\n")
        for line in lines:
            self._tell_line(call, "".join([*call.output, line]))
            call.output = []
        call.output.append(rest)

    def _flush(self, call: _Call) -> None:
        if any(call.output):
            self._tell_line(call, "".join(call.output))
        call.output = []

    def _tell_line(self, call: _Call, line: str) -> None:
        call.lines += 1
        if call.lines <= _MOST_LINES:
            self._view.line("result", f"{call.name}: {_cut(line)}")

    def _result_data(self, event: ToolResultDataDeltaEvent) -> None:
        call = self._called(event.tool_call_id)
        if call.block_id != event.block_id:
            call.block_id = event.block_id
            self._flush(call)
            self._tell_line(call, f"{event.media_type} {event.url or event.name or ''}".rstrip())

    def _result_end(self, event: ToolResultEndEvent) -> None:
        call = self._called(event.tool_call_id)
        self._flush(call)
        if event.output is not None:
            self._tell_instead(call, event.output)
        if call.lines > _MOST_LINES:
            self._view.line("result", f"{call.name}: ... and {call.lines - _MOST_LINES} more lines")
        if event.state is not ToolResultState.SUCCESS:
            self._view.line("error", f"{call.name}: {event.state}")
        elif not call.lines:
            self._view.line("result", f"{call.name}: done")

    def _tell_instead(self, call: _Call, output: list[Any]) -> None:
        if call.lines:
            self._view.line("replaced", f"{call.name}: the result above is void; instead:")
        call.lines = 0
        for block in output:
            self._put(call, block.text if isinstance(block, TextBlock) else block.source.media_type)
            self._flush(call)

    def _called(self, call_id: str) -> _Call:
        return self._calls.setdefault(call_id, _Call("?"))

    def _exceeded(self, event: ExceedMaxItersEvent) -> None:
        self._view.line("error", f"{event.name} used up the rounds of one reply")

    def _confirm(self, event: RequireUserConfirmEvent) -> None:
        self._view.line("waiting", f"for a decision on {_calls(event.tool_calls)}")

    def _external(self, event: RequireExternalExecutionEvent) -> None:
        self._view.line("waiting", f"for somebody to run {_calls(event.tool_calls)}")

    def _custom(self, event: CustomEvent) -> None:
        self._view.line(_cut(event.name), one_line(str(event.value)))


def _cut(line: str) -> str:
    return line if len(line) <= 500 else line[:500] + "..."


def _calls(calls: list[ToolCallBlock]) -> str:
    return ", ".join(map(describe_call, calls))


_TELL: dict[type[AgentEvent], Callable[[Transcript, Any], None]] = {
    ModelCallStartEvent: Transcript._model_call,
    ModelCallRetryEvent: Transcript._retry,
    ReplyResumedEvent: Transcript._resumed,
    BlocksWithdrawnEvent: Transcript._withdrawn,
    TextBlockStartEvent: Transcript._start,
    TextBlockDeltaEvent: Transcript._text,
    TextBlockEndEvent: Transcript._text_end,
    ThinkingBlockStartEvent: Transcript._start,
    ThinkingBlockDeltaEvent: Transcript._thinking,
    ThinkingBlockEndEvent: Transcript._end,
    DataBlockStartEvent: Transcript._data,
    DataBlockDeltaEvent: Transcript._data_url,
    HintBlockEvent: Transcript._hint,
    ProviderBlockEvent: Transcript._provider,
    ToolCallStartEvent: Transcript._call,
    ToolCallDeltaEvent: Transcript._call_input,
    ToolCallEndEvent: Transcript._call_end,
    ToolResultStartEvent: Transcript._result,
    ToolResultTextDeltaEvent: Transcript._result_text,
    ToolResultDataDeltaEvent: Transcript._result_data,
    ToolResultEndEvent: Transcript._result_end,
    ExceedMaxItersEvent: Transcript._exceeded,
    RequireUserConfirmEvent: Transcript._confirm,
    RequireExternalExecutionEvent: Transcript._external,
    CustomEvent: Transcript._custom,
}
