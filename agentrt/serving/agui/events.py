"""The events of a reply as the events of a run of AG-UI."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from agentrt import Msg
from agentrt._runtime.block import HIDDEN_CALL
from agentrt.event import (
    AnyEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
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
    ToolResultEndEvent,
)
from agentrt.message import (
    CALL_EVENTS,
    Base64Source,
    DataBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)
from agentrt.serving.agui.input import approval_id
from agentrt.serving.agui.typed_state import TypedState
from agentrt.serving.reply_blocks import ReplyBlocks
from agentrt.serving.sse import public_error
from agentrt.types import ChatUsage

_RunEvent = dict[str, Any]
AGUI_VERSION = "1.0"
_DECISION = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "feedback": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["approved"],
}
"""The schema of an answer to a question about a call."""


class RunTranslator:
    """Translates the events of one run.

    `messages` and `state` are what the client has, `said_before` is what the reply had said when it was resumed. What
    was sent and counts no longer, such as an attempt at the model that was given up, is corrected by a snapshot of all
    messages: those of the client, and those of the reply as it stands. Questions about the calls in `answered` are left
    out: the client had them in an earlier run.
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        reply_id: str,
        *,
        agent_name: str,
        messages: list[_RunEvent],
        state: Mapping[str, Any],
        said_before: Msg | None,
        answered: Collection[str] = (),
    ) -> None:
        self._answered = answered
        self._run = {"threadId": thread_id, "runId": run_id}
        self._reply_id = reply_id
        self._agent_name = agent_name
        self._client_messages = messages
        own = {"session_id": thread_id, "reply_id": reply_id}
        self._state = TypedState(dict(state), own)
        self._message = Msg(agent_name, [], "assistant", id=reply_id) if said_before is None else said_before
        # The open parts, by their ids: the type of the event that ends each.
        self._open: dict[str, str] = {}
        # The calls that tools make: no message of the reply has them.
        self._inner = ReplyBlocks()
        # The message that further calls of this round belong to.
        self._parent: str | None = None
        # Calls of this run without a result: only these may be named as pending.
        self._started_calls: set[str] = set()
        self._used_before = self._message.usage or ChatUsage()
        self.is_over = False
        # What is not in here, such as a hint to the model, has no place in the protocol.
        self._translations: dict[type, Callable[[Any], Iterator[_RunEvent]]] = {
            TextBlockStartEvent: self._open_text,
            TextBlockDeltaEvent: self._extend_text,
            TextBlockEndEvent: self._close_text,
            ThinkingBlockStartEvent: self._open_reasoning,
            ThinkingBlockDeltaEvent: self._extend_reasoning,
            ThinkingBlockEndEvent: self._close_reasoning,
            ToolCallStartEvent: self._open_call,
            ToolCallDeltaEvent: self._extend_call,
            ToolCallEndEvent: self._close_call,
            ToolResultEndEvent: self._result,
            ModelCallStartEvent: self._begin_round,
            ModelCallRetryEvent: self._drop,
            BlocksWithdrawnEvent: self._drop,
            ReplyResumedEvent: self._replace,
            CustomEvent: self._custom,
            SubagentStartEvent: self._begin_subagent,
            SubagentEndEvent: self._end_subagent,
            RequireUserConfirmEvent: self._ask,
            RequireExternalExecutionEvent: self._hand_out,
            ReplyEndEvent: self._end_reply,
        }

    def begin(self) -> _RunEvent:
        return {"type": "RUN_STARTED", **self._run, "protocolVersion": AGUI_VERSION}

    def translate(self, event: AnyEvent) -> Iterator[_RunEvent]:
        """Return the events of the run that say the same, in order; none for what the protocol has no place for."""
        if event.reply_id != self._reply_id:
            return  # of a sub-agent, whose answer is the result of a call of this reply
        if getattr(event, "tool_call_id", "").startswith(HIDDEN_CALL):
            return  # of a layer, and no model sees it either
        self._message.append_event(event)
        if event.__class__ in CALL_EVENTS and "/" in getattr(event, "tool_call_id", ""):
            self._inner.read(event)
        translation = self._translations.get(event.__class__)
        if translation is not None:
            yield from translation(event)
        changed = self._state.read(event)
        if changed is not None:
            yield changed

    def end(self, status: str) -> Iterator[_RunEvent]:
        """End a run whose reply ended before it could be followed."""
        yield from self._finish(status, {"type": "cancelled"} if status == "interrupted" else {"type": "success"})

    def fail(self, code: str, message: str) -> _RunEvent:
        """Return the event of a run that ends by a failure, whatever it has open."""
        self.is_over = True
        return {"type": "RUN_ERROR", "message": message, "code": code}

    def snapshot(self) -> _RunEvent:
        """Return all messages: those of the client, and those of the reply as it stands."""
        own = list(self._own_messages())
        names = {message["id"] for message in own}
        prefix = f"{self._reply_id}-"  # of all ids that this reply has given
        # A client drops what a snapshot leaves out, so its own messages have to be in it.
        kept = [
            message
            for message in self._client_messages
            if message.get("role") == "user"
            or (message.get("id") not in names and not str(message.get("id")).startswith(prefix))
        ]
        return {"type": "MESSAGES_SNAPSHOT", "messages": [*kept, *own]}

    def _open_text(self, event: TextBlockStartEvent) -> Iterator[_RunEvent]:
        self._parent = event.block_id
        yield from self._begin_item(event.block_id, "TEXT_MESSAGE_END")
        yield {
            "type": "TEXT_MESSAGE_START",
            "messageId": event.block_id,
            "role": "assistant",
            "name": self._agent_name,
        }

    def _extend_text(self, event: TextBlockDeltaEvent) -> Iterator[_RunEvent]:
        yield from self._delta("TEXT_MESSAGE_CONTENT", event.block_id, event.delta)

    def _close_text(self, event: TextBlockEndEvent) -> Iterator[_RunEvent]:
        yield from self._close([event.block_id])
        if event.text is not None:
            yield self.snapshot()  # it replaces what the deltas said

    def _open_reasoning(self, event: ThinkingBlockStartEvent) -> Iterator[_RunEvent]:
        yield from self._begin_item(event.block_id, "REASONING_MESSAGE_END")
        yield {"type": "REASONING_START", "messageId": event.block_id}
        yield {"type": "REASONING_MESSAGE_START", "messageId": event.block_id, "role": "reasoning"}

    def _extend_reasoning(self, event: ThinkingBlockDeltaEvent) -> Iterator[_RunEvent]:
        yield from self._delta("REASONING_MESSAGE_CONTENT", event.block_id, event.delta)

    def _close_reasoning(self, event: ThinkingBlockEndEvent) -> Iterator[_RunEvent]:
        yield from self._close([event.block_id])

    def _open_call(self, event: ToolCallStartEvent) -> Iterator[_RunEvent]:
        # All calls of one round belong to one message, as in the requests to a model.
        outer_id = event.tool_call_id.rpartition("/")[0]
        if not outer_id:
            self._parent = self._parent or self._calls_id(event.tool_call_id)
        self._started_calls.add(event.tool_call_id)
        yield from self._begin_item(event.tool_call_id, "TOOL_CALL_END")
        yield {
            "type": "TOOL_CALL_START",
            "toolCallId": event.tool_call_id,
            "toolCallName": event.tool_call_name,
            # Those that a tool makes belong to one of their own, below its call.
            "parentMessageId": f"{self._reply_id}-inside-{outer_id}" if outer_id else self._parent,
        }

    def _extend_call(self, event: ToolCallDeltaEvent) -> Iterator[_RunEvent]:
        if event.delta and event.tool_call_id in self._open:
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": event.tool_call_id, "delta": event.delta}

    def _close_call(self, event: ToolCallEndEvent) -> Iterator[_RunEvent]:
        yield from self._close([event.tool_call_id])

    def _result(self, event: ToolResultEndEvent) -> Iterator[_RunEvent]:
        self._started_calls.discard(event.tool_call_id)
        # The block has it whole; what came in pieces may have been replaced at the end.
        call_id = event.tool_call_id
        inner = self._inner.find(call_id, ToolResultBlock)
        for block in self._message.get_content_blocks("tool_result") if inner is None else [inner]:
            if block.id == call_id:
                yield {"type": "TOOL_CALL_RESULT", "messageId": self._result_id(call_id), **_result_fields(block)}

    def _begin_round(self, _: ModelCallStartEvent) -> Iterator[_RunEvent]:
        self._parent = None
        yield from ()

    def _drop(self, event: ModelCallRetryEvent | BlocksWithdrawnEvent) -> Iterator[_RunEvent]:
        if event.block_ids:
            yield from self._close(event.block_ids)
            yield self.snapshot()

    def _replace(self, event: ReplyResumedEvent) -> Iterator[_RunEvent]:
        self._used_before = event.usage or ChatUsage()
        yield from self._close(list(self._open))
        yield self.snapshot()

    def _custom(self, event: CustomEvent) -> Iterator[_RunEvent]:
        yield {"type": "CUSTOM", "name": event.name, "value": event.value}

    def _begin_subagent(self, event: SubagentStartEvent) -> Iterator[_RunEvent]:
        started: _RunEvent = {"type": "SUBAGENT_STARTED", "subagentRunId": event.child_reply_id, "name": event.name}
        yield {**started, "parentToolCallId": event.tool_call_id}

    def _end_subagent(self, event: SubagentEndEvent) -> Iterator[_RunEvent]:
        # It waits for an answer, which belongs to a later run.
        outcome = "suspended" if event.state == ToolResultState.RUNNING else "success"
        yield {"type": "SUBAGENT_FINISHED", "subagentRunId": event.child_reply_id, "outcome": {"type": outcome}}

    def _skip_answered(self, event: RequireUserConfirmEvent | RequireExternalExecutionEvent) -> bool:
        """Say whether an earlier run asked this, and leave what was used until then to that run."""
        if not all(call.id in self._answered for call in event.tool_calls):
            return False
        self._used_before = self._message.usage or ChatUsage()
        return True

    def _ask(self, event: RequireUserConfirmEvent) -> Iterator[_RunEvent]:
        if self._skip_answered(event):
            return
        interrupts = []
        for call in event.tool_calls:
            question = event.questions.get(call.id)
            interrupt: _RunEvent = {
                "id": approval_id(self._reply_id, call.id),
                "reason": "tool_approval",
                "message": (question and question.message) or f"May {call.name} run?",
                # The path of a call inside of a sub-agent is not the id of a call that the client has.
                **({} if call.id in event.inside else {"toolCallId": call.id}),
                "responseSchema": _DECISION,
                "metadata": {"name": call.name, "input": call.input, "inside": event.inside.get(call.id, [])},
            }
            interrupts.append(interrupt)
        yield from self._finish("waiting", {"type": "interrupt", "interrupts": interrupts})

    def _hand_out(self, event: RequireExternalExecutionEvent) -> Iterator[_RunEvent]:
        if self._skip_answered(event):
            return
        # The list must agree with the run, which may have started after the call.
        pending = [call.id for call in event.tool_calls if call.id in self._started_calls]
        yield from self._finish("waiting", {"type": "success", **({"pendingToolCallIds": pending} if pending else {})})

    def _end_reply(self, event: ReplyEndEvent) -> Iterator[_RunEvent]:
        reason = event.finished_reason
        if reason in ("error", "failed"):
            yield from self._close(list(self._open))
            code = public_error(reason, event.error) or reason
            yield {**self.fail(code, f"the reply failed: {code}"), **self._usage_field()}
            return
        outcome = {"type": "cancelled"} if reason == "interrupted" else {"type": "success"}
        yield from self._finish(reason, outcome, event.structured_output)

    def _finish(self, status: str, outcome: _RunEvent, result: Any = None) -> Iterator[_RunEvent]:
        yield from self._close(list(self._open))
        yield self._state.snapshot(status, result)
        self.is_over = True
        finished: _RunEvent = {"type": "RUN_FINISHED", **self._run, "outcome": outcome, **self._usage_field()}
        yield finished if result is None else {**finished, "result": result}

    def _usage_field(self) -> _RunEvent:
        used, before = self._message.usage, self._used_before
        if used is None:
            return {}
        counts = (used.input_tokens - before.input_tokens, used.output_tokens - before.output_tokens)
        return {"usage": [dict(zip(("inputTokens", "outputTokens"), counts, strict=True))]}

    def _begin_item(self, item_id: str, closing_type: str) -> Iterator[_RunEvent]:
        # The same block may begin again when a reply is resumed, and a client takes no second beginning.
        yield from self._close([item_id])
        self._open[item_id] = closing_type

    def _delta(self, kind: str, item_id: str, delta: str) -> Iterator[_RunEvent]:
        # A client that came in the middle of a block has no message to extend, and the protocol has no empty deltas.
        if delta and item_id in self._open:
            yield {"type": kind, "messageId": item_id, "delta": delta}

    def _close(self, item_ids: Iterable[str]) -> Iterator[_RunEvent]:
        for item_id in item_ids:
            closing_type = self._open.pop(item_id, None)
            if closing_type is not None:
                key = "toolCallId" if closing_type == "TOOL_CALL_END" else "messageId"
                yield {"type": closing_type, key: item_id}
                if closing_type == "REASONING_MESSAGE_END":
                    yield {"type": "REASONING_END", "messageId": item_id}

    def _own_messages(self) -> Iterator[_RunEvent]:
        """Return the messages that the events of the reply, as it stands, would have built."""
        last: _RunEvent | None = None  # which further calls belong to
        for block in self._message.get_content_blocks():
            if isinstance(block, (ToolCallBlock, ToolResultBlock)) and block.is_hidden:
                continue
            if isinstance(block, TextBlock):
                last = {"id": block.id, "role": "assistant", "content": block.text, "name": self._agent_name}
                yield last
            elif isinstance(block, ThinkingBlock):
                yield {"id": block.id, "role": "reasoning", "content": block.thinking}
            elif isinstance(block, ToolCallBlock):
                call = {"id": block.id, "type": "function"}
                if last is None:
                    last = {"id": self._calls_id(block.id), "role": "assistant"}
                    yield last
                function = {"name": block.name, "arguments": block.input}
                last.setdefault("toolCalls", []).append({**call, "function": function})
            elif isinstance(block, ToolResultBlock):
                last = None  # the next round has messages of its own
                yield {"id": self._result_id(block.id), "role": "tool", **_result_fields(block)}

    def _calls_id(self, call_id: str) -> str:
        return f"{self._reply_id}-calls-{call_id}"

    def _result_id(self, call_id: str) -> str:
        return f"{self._reply_id}-result-{call_id}"


def _result_fields(block: ToolResultBlock) -> _RunEvent:
    content: Any = block.text
    if any(isinstance(part, DataBlock) for part in block.blocks):
        content = [_content_part(part) for part in block.blocks]
    return {"toolCallId": block.id, "content": content}


def _content_part(part: TextBlock | DataBlock) -> _RunEvent:
    if isinstance(part, TextBlock):
        return {"type": "text", "text": part.text}
    kind = part.source.media_type.partition("/")[0]
    value = part.source.data if isinstance(part.source, Base64Source) else part.source.url
    source = {
        "type": "data" if isinstance(part.source, Base64Source) else "url",
        "value": value,
        "mimeType": part.source.media_type,
    }
    return {"type": kind if kind in ("image", "audio", "video") else "document", "source": source}
