"""Renders the events of a reply as text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentrt._runtime.text import one_line
from agentrt.console.render.call_description import describe_call
from agentrt.console.render.inner_view import InnerView
from agentrt.console.render.plain import Kind, View
from agentrt.console.render.wait_description import describe_wait
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
    ReplyEndEvent,
    ReplyResumedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    SubagentEndEvent,
    SubagentStartEvent,
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
from agentrt.message import AssistantMsg, ProviderBlock, TextBlock, ToolCallBlock, ToolResultState
from agentrt.types import ChatUsage

_CallEvent = (
    ToolCallDeltaEvent
    | ToolCallEndEvent
    | ToolResultStartEvent
    | ToolResultTextDeltaEvent
    | ToolResultDataDeltaEvent
    | ToolResultEndEvent
)
_MAX_OUTPUT_LINES = 20  # of one tool's output
_MAX_OUTPUT_LINE_LENGTH = 500


@dataclass(slots=True)
class _ShownCall:
    """A tool call: where it is shown, the pieces of its input, and the incomplete last line of its output."""

    name: str
    view: View
    input: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    block_id: str = ""
    lines: int = 0


class EventRenderer:
    """Shows the events of a reply on a view.

    Text is shown as it arrives, and so are the lines of a tool's output, each with the tool's name, since several may
    run at once. The replies of sub-agents are indented under their calls. `has_shown_text` says
    whether there was any text of the reply itself, or a question instead.
    """

    def __init__(self, view: View, subagents: dict[str, "EventRenderer"] | None = None) -> None:
        self.has_shown_text = False
        self._view = view
        # At any depth, by the ids of their replies.
        self._subagents: dict[str, EventRenderer] = {} if subagents is None else subagents
        self._block_id = ""
        self._pieces: list[str] = []  # of the open block, to be compared with its end
        self._calls: dict[str, _ShownCall] = {}

    def render(self, event: AgentEvent) -> None:
        """Show an event; those without information for the user are skipped."""
        show = self._METHODS.get(event.__class__)
        if show is not None:
            show(self._subagents.get(event.reply_id, self), event)

    def end(self) -> None:
        """End the open text, if any."""
        self._view.end()

    def render_usage(self, usage: ChatUsage) -> None:
        """Show the usage of the reply."""
        cached = f" ({usage.cache_input_tokens} cached)" if usage.cache_input_tokens else ""
        estimate = "about " if usage.estimated else ""
        own = f", of which {usage.own.input_tokens} and {usage.own.output_tokens} its own" if usage.subagents else ""
        self._view.line("tokens", f"{estimate}{usage.input_tokens} in{cached}, {usage.output_tokens} out{own}")

    def _show_model_call(self, event: ModelCallStartEvent) -> None:
        self._view.wait(f"waiting for {event.model_name}")

    def _show_retry(self, event: ModelCallRetryEvent) -> None:
        withdrawal = "what was said above is void; " if event.block_ids else ""
        pause = f", after {event.wait_seconds:g} s" if event.wait_seconds else ""
        reason = f" ({one_line(event.reason)})" if event.reason else ""
        self._view.line("retry", f"{withdrawal}another attempt follows{pause}{reason}")

    def _show_resumption(self, event: ReplyResumedEvent) -> None:
        self._view.line("resumed", "what was said above is void, except this:")
        for block in event.blocks:
            if isinstance(block, TextBlock) and block.text:
                self.has_shown_text = True
                self._begin_block(block.id)
                self._view.stream("text", block.text)
            elif isinstance(block, ToolCallBlock):
                self._view.end()
                self._calls[block.id] = _ShownCall(block.name, self._view)  # its result is still to come
                self._view.line("call", f"{block.name}({one_line(block.input)})")
        self._view.end()

    def _show_withdrawal(self, event: BlocksWithdrawnEvent) -> None:
        self._view.line("replaced", "what was said above is void")

    def _show_block_start(self, event: TextBlockStartEvent | ThinkingBlockStartEvent) -> None:
        self._begin_block(event.block_id)

    def _show_text(self, event: TextBlockDeltaEvent) -> None:
        self.has_shown_text = True
        self._stream("text", event.block_id, event.delta)

    def _show_thinking(self, event: ThinkingBlockDeltaEvent) -> None:
        self._stream("thinking", event.block_id, event.delta)

    def _show_text_end(self, event: TextBlockEndEvent) -> None:
        if event.text is not None and event.text != "".join(self._pieces):
            self._view.line("replaced", "what was said above is void; instead:")
            self._view.stream("text", event.text)
        self._view.end()

    def _show_thinking_end(self, event: ThinkingBlockEndEvent) -> None:
        self._view.end()

    def _show_data(self, event: DataBlockStartEvent) -> None:
        self._view.line("data", f"{event.media_type} {event.name or ''}".rstrip())

    def _show_data_url(self, event: DataBlockDeltaEvent) -> None:
        if event.url is not None:
            self._view.line("data", one_line(event.url))

    def _show_hint(self, event: HintBlockEvent) -> None:
        self._view.line("hint", one_line(event.hint))

    def _show_provider_block(self, event: ProviderBlockEvent) -> None:
        block = ProviderBlock(event.provider, event.content)
        citations = AssistantMsg("", [block]).get_citations()
        for source in dict.fromkeys(f"{cited['title'] or ''} {cited['url'] or ''}".strip() for cited in citations):
            self._view.line("source", _shorten_line(one_line(source)))
        if not citations:
            self._view.line("provider", f"{one_line(event.provider)}: {_shorten_line(one_line(event.content))}")

    def _show_call_start(self, event: ToolCallStartEvent) -> None:
        # Shown when it is complete: nobody decides on half an input.
        self._calls[event.tool_call_id] = _ShownCall(event.tool_call_name, self._view_of(event.tool_call_id))
        self._view.wait(f"{event.tool_call_name} ...")

    def _show_call_input(self, event: ToolCallDeltaEvent) -> None:
        self._find_call(event).input.append(event.delta)

    def _show_call_end(self, event: ToolCallEndEvent) -> None:
        call = self._find_call(event)
        call.view.line("call", f"{call.name}({one_line(''.join(call.input))})")

    def _show_result_start(self, event: ToolResultStartEvent) -> None:
        self._find_call(event)
        self._view.wait(f"running {event.tool_call_name}", for_tool=True)

    def _show_result_text(self, event: ToolResultTextDeltaEvent) -> None:
        call = self._find_call(event)
        if call.block_id != event.block_id:  # a new block starts a new line
            self._end_line(call)
            call.block_id = event.block_id
        self._add_output(call, event.delta)

    def _show_result_data(self, event: ToolResultDataDeltaEvent) -> None:
        call = self._find_call(event)
        if call.block_id != event.block_id:
            call.block_id = event.block_id
            self._end_line(call)
            self._show_line(call, f"{event.media_type} {event.url or event.name or ''}".rstrip())

    def _show_result_end(self, event: ToolResultEndEvent) -> None:
        call = self._find_call(event)
        self._end_line(call)
        if event.output is not None:
            if call.lines:
                call.view.line("replaced", f"{call.name}: the result above is void; instead:")
            call.lines = 0  # the limit applies to the new output
            for block in event.output:
                self._add_output(call, block.text if isinstance(block, TextBlock) else block.source.media_type)
                self._end_line(call)
        if call.lines > _MAX_OUTPUT_LINES:
            call.view.line("result", f"{call.name}: ... and {call.lines - _MAX_OUTPUT_LINES} more lines")
        if event.state is not ToolResultState.SUCCESS:
            call.view.line("error", f"{call.name}: {event.state}")
        elif not call.lines:
            call.view.line("result", f"{call.name}: done")

    def _begin_subagent(self, event: SubagentStartEvent) -> None:
        self._view.wait(f"asking {event.name}")
        if event.child_reply_id not in self._subagents:
            view = InnerView(self._view_of(event.tool_call_id), event.name)
            self._subagents[event.child_reply_id] = EventRenderer(view, self._subagents)

    def _end_subagent(self, event: SubagentEndEvent) -> None:
        subagent = self._subagents.get(event.child_reply_id)
        if subagent is not None:
            subagent.end()

    def _show_max_iters(self, event: ExceedMaxItersEvent) -> None:
        self._view.line("error", f"{event.name} used up the rounds of one reply")

    def _show_confirmation(self, event: RequireUserConfirmEvent) -> None:
        calls = [" > ".join([*event.inside.get(call.id, ()), describe_call(call)]) for call in event.tool_calls]
        self.has_shown_text = True  # the message of a waiting reply says the same
        self._view.line("waiting", f"for a decision on {', '.join(calls)}")

    def _show_external_calls(self, event: RequireExternalExecutionEvent) -> None:
        self.has_shown_text = True
        self._view.line("waiting", f"for the result of {', '.join(map(describe_call, event.tool_calls))}")

    def _show_custom_event(self, event: CustomEvent) -> None:
        wait = describe_wait(event)
        label, text = (event.name, str(event.value)) if wait is None else ("waiting", wait)
        self._view.line(_shorten_line(label), one_line(text))

    def _show_end(self, event: ReplyEndEvent) -> None:
        # For other limits, the reason is enough, and a failure is raised to the caller of the reply.
        if event.finished_reason == "exceed_max_form_attempts":
            self._view.line("error", one_line(event.error or event.finished_reason))

    def _begin_block(self, block_id: str) -> None:
        self._view.end()
        self._block_id = block_id
        self._pieces = []

    def _stream(self, kind: Kind, block_id: str, delta: str) -> None:
        if block_id != self._block_id:  # another agent spoke in between
            self._begin_block(block_id)
        self._pieces.append(delta)
        self._view.stream(kind, delta)

    def _find_call(self, event: _CallEvent) -> _ShownCall:
        # It starts here if an earlier process, or a layer, kept its start event.
        call = self._calls.get(event.tool_call_id)
        if call is None:
            call = _ShownCall(event.tool_call_name or "?", self._view_of(event.tool_call_id))
            self._calls[event.tool_call_id] = call
        return call

    def _view_of(self, call_id: str) -> View:
        """Return the view of a call: a call that a tool makes is indented under the call of that tool."""
        outer_id = call_id.rpartition("/")[0]
        if not outer_id:
            return self._view
        outer = self._calls.get(outer_id)
        return InnerView(self._view_of(outer_id), "" if outer is None else outer.name)

    def _add_output(self, call: _ShownCall, text: str) -> None:
        # Complete lines only, since the lines of several tools may alternate.
        *lines, rest = text.split("\n")
        for line in lines:
            self._show_line(call, "".join([*call.line, line]))
            call.line = []
        call.line.append(rest)

    def _end_line(self, call: _ShownCall) -> None:
        if any(call.line):
            self._show_line(call, "".join(call.line))
        call.line = []

    def _show_line(self, call: _ShownCall, line: str) -> None:
        call.lines += 1  # even those not shown, since the end counts them
        if call.lines <= _MAX_OUTPUT_LINES:
            call.view.line("result", f"{call.name}: {_shorten_line(line)}")

    # Last, since a class body only knows the methods above.
    _METHODS: ClassVar[dict[type[AgentEvent], Callable[["EventRenderer", Any], None]]] = {
        ModelCallStartEvent: _show_model_call,
        ModelCallRetryEvent: _show_retry,
        ReplyResumedEvent: _show_resumption,
        BlocksWithdrawnEvent: _show_withdrawal,
        TextBlockStartEvent: _show_block_start,
        TextBlockDeltaEvent: _show_text,
        TextBlockEndEvent: _show_text_end,
        ThinkingBlockStartEvent: _show_block_start,
        ThinkingBlockDeltaEvent: _show_thinking,
        ThinkingBlockEndEvent: _show_thinking_end,
        DataBlockStartEvent: _show_data,
        DataBlockDeltaEvent: _show_data_url,
        HintBlockEvent: _show_hint,
        ProviderBlockEvent: _show_provider_block,
        ToolCallStartEvent: _show_call_start,
        ToolCallDeltaEvent: _show_call_input,
        ToolCallEndEvent: _show_call_end,
        ToolResultStartEvent: _show_result_start,
        ToolResultTextDeltaEvent: _show_result_text,
        ToolResultDataDeltaEvent: _show_result_data,
        ToolResultEndEvent: _show_result_end,
        SubagentStartEvent: _begin_subagent,
        SubagentEndEvent: _end_subagent,
        ExceedMaxItersEvent: _show_max_iters,
        RequireUserConfirmEvent: _show_confirmation,
        RequireExternalExecutionEvent: _show_external_calls,
        CustomEvent: _show_custom_event,
        ReplyEndEvent: _show_end,
    }


def _shorten_line(line: str) -> str:
    return line if len(line) <= _MAX_OUTPUT_LINE_LENGTH else line[:_MAX_OUTPUT_LINE_LENGTH] + "..."
