"""The lines of one run, made in the writer's thread from observed items."""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from pydantic_core import from_json

from agentrt import __version__
from agentrt.event import (
    AgentEvent,
    SubagentStartEvent,
    TaskStartedEvent,
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.hooks import HOOKS, LayerRecord
from agentrt.message import Msg, ToolCallBlock, ToolResultState
from agentrt.model import ChatResponse, ChatUsage, WireRecord
from agentrt.model.estimate import estimated_usage
from agentrt.runs.changes import FoundChange, changes_between
from agentrt.runs.contents import Scrubber, SessionContents, dump_json, dump_response
from agentrt.state.records.rows import RunRow
from agentrt.state.state import dump_head
from agentrt.types import PermissionDecision

FORMAT = 1
"""The format of the lines that this version writes; it reads older ones."""

_MAX_TITLE_LENGTH = 120
_MAX_TITLE_SOURCE = 10_000  # characters that are searched for its words
_STATUS_BY_REASON = {"parked": "waiting", "error": "failed", "died": "died"}
_LEFT = ("interrupted", "closed", "cancelled")
_DELTA_IDS: dict[type, str] = {
    TextBlockDeltaEvent: "block_id",
    ThinkingBlockDeltaEvent: "block_id",
    ToolCallDeltaEvent: "tool_call_id",
    ToolResultTextDeltaEvent: "tool_call_id",
}
_TRANSFORMERS = frozenset(spec.name for spec in HOOKS if spec.shape == "transformer")


def status_of(reason: str) -> str:
    """Return the status of a run that ended for this reason."""
    return "interrupted" if reason in _LEFT else _STATUS_BY_REASON.get(reason, "completed")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a recorder."""

    scrubber: Scrubber
    cost_of: Callable[[Any, ChatUsage], float | None]
    keep_ns: int
    max_bytes: int
    sign: bytes | None


@dataclass(slots=True)  # not frozen, since setting a field of a frozen one takes five times as long
class StepState:
    """The state at a step: its JSON without messages, the context, and the reply's blocks with their states."""

    kind: str
    seq: int
    head: bytes
    context: list[Msg]
    blocks: list[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: its reason, its message, and the last messages of the conversation."""

    reason: str
    message: Msg | None = None
    context: Sequence[Msg] = ()


@dataclass(slots=True)
class _MergedDelta:
    """Consecutive deltas of one block."""

    event: Any
    time: int
    first_seq: int
    count: int = 1
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class BatchContext:
    """The contents that the lines of a batch share, and the tool calls that started sub-agents."""

    contents: dict[str, SessionContents] = field(default_factory=dict)
    calls: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, root: str) -> SessionContents:
        return self.contents.setdefault(root, SessionContents())


class RunLog:
    """One run while it is recorded: its initial values and, for the writer's thread, the lines so far."""

    def __init__(
        self, settings: RunSettings, agent: Any, session_id: str, reply_id: str, parent: "RunLog | None", now: int
    ) -> None:
        self.settings = settings
        self.agent_name: str = agent.name
        self.session_id, self.reply_id = session_id, reply_id
        self.parent = parent
        # The ids remain when the parent's record is finished.
        self.parent_key = None if parent is None else (parent.session_id, parent.reply_id)
        self.is_task = False  # whether it is that of a background call
        self.call: str | None = None
        # All runs below one session share its contents, which are deleted with it.
        self.root: str = session_id if parent is None else parent.root
        self.labels: dict[str, str] = dict(agent.state.labels)
        # A copy of the list: the conversation may grow before the thread writes it.
        self.context: list[Msg] | None = list(agent.state.context)
        reply = agent.state.reply_context
        # Of a reply that continues, as that of a fork; without the results of calls that begin now.
        self.blocks = [
            (block, getattr(block, "state", None))
            for block in ([] if reply is None else reply.blocks)
            if getattr(block, "state", None) is not ToolResultState.RUNNING
        ]
        self.chains: bytes = b""
        self.head = dump_head(agent.state) if settings.scrubber.content else b"{}"
        self.begun_at = now
        self.core_call: int | None = None  # the latest call of on_model_call's core
        self.running: set[str] = set()  # tool calls without a result; no step until all have one
        self.lost = 0  # items that found no room
        self.last: Any = None  # the end, once that is known
        self.tries = 0
        self._reset()
        task = agent.state.task
        # A fork of its session has the task as well. An older state does not know the reply.
        if task is not None and (task.session_id, task.id) == (session_id, reply_id) and task.parent_reply:
            # The log of that reply may be in another process, so this run does not count in its totals.
            self.parent_key, self.root = (task.parent, task.parent_reply), task.parent
            self.is_task, self.title, self.call = True, task.tool, task.call_id

    @classmethod
    def of_row(cls, row: RunRow, other: "RunLog") -> "RunLog":
        """Return the log of a run of another process, from its row and with the settings of `other`."""
        log = cls.__new__(cls)
        # Without its constructor, which needs an agent.
        log.__dict__.update(vars(other), session_id=row.session_id, reply_id=row.reply_id, root=row.root)
        log._reset()
        log.resume_from(row)
        log.labels, log.agent_name = dict(row.labels), from_json(row.about)["agent"]
        log.parent_key, log.parent = row.parent, None
        log.is_task = from_json(row.about).get("is_task", False)
        return log

    def _reset(self) -> None:
        self.row: RunRow | None = None
        self.pending: list[bytes] = []
        self.count, self.hash = 0, ""
        self.written = self.count, self.hash
        self.unwritten = 0
        self.size = 0
        self.usage, self.calls, self.cost = ChatUsage(), 0, 0.0
        self.is_cost_known = True
        self.tools: dict[str, None] = {}
        self.tasks: dict[tuple[str, str], None] = {}  # the runs of calls that were let go
        self.layers: dict[str, None] = {}  # that changed something
        self.title = ""
        self.status = "running"
        self.ended_at: int | None = None
        self.is_cut = False
        self.why_gap = ""
        self._deltas: dict[tuple[str, str, str], _MergedDelta] = {}
        self._inner_ends: dict[int, list[LayerRecord]] = {}
        self._request_changes: list[dict[str, Any]] = []

    def forget_unwritten(self, why: str) -> int:
        """Go back to the last written line; returns how many lines are lost."""
        lost = self.unwritten
        self.count, self.hash = self.written
        self.status, self.ended_at = "running", None
        self.why_gap = why
        return lost

    # The start and the end.

    def resume_from(self, row: RunRow) -> None:
        """Continue the lines of a run that this process did not start, or whose log it no longer has."""
        about = from_json(row.about)
        self.row, self.count, self.hash = row, row.lines, row.hash
        self.accept()
        self.begun_at, self.title, self.size = row.begun_at, row.title, about["size"]
        self.usage, self.calls = ChatUsage(**about["usage"]), about["calls"]
        self.is_cost_known, self.cost = about["cost"] is not None, about["cost"] or 0.0
        self.tools, self.call = dict.fromkeys(about["tools"]), about["call"]
        self.layers = dict.fromkeys(about.get("layers", ()))
        self.tasks = dict.fromkeys(map(tuple, about.get("tasks", ())))

    def begin(self, now: int, previous: RunRow | None, batch: BatchContext) -> None:
        """Write the first line, with the initial values."""
        scrubber, contents = self.settings.scrubber, batch.of(self.root)
        context = self.context or []
        if scrubber.content:  # else kept as they are: a list finds runs by their labels
            self.labels = scrubber.value(self.labels)
        body = {
            "format": FORMAT,
            "version": __version__,
            "session_id": self.session_id,
            "reply_id": self.reply_id,
            "root": self.root,
            "agent": self.agent_name,
            "labels": self.labels,
            "parent": self.parent_key,
            "resumed": self.row is not None,
            "chains": contents.add(self.chains, _KEPT_WHOLE),
            "context": contents.of_list("context", context, scrubber),
            "state": contents.add(self.head, scrubber),
            # If a whole run is removed, the next run shows that it is missing.
            "previous": None if previous is None else [previous.reply_id, previous.hash],
        }
        if self.blocks:
            body["blocks"] = [contents.of_block(block, state, scrubber) for block, state in self.blocks]
        self._add("begin", now, dump_json(body))
        self.status, self.ended_at = "running", None

    def end(self, now: int, end: RunEnd, batch: BatchContext) -> None:
        """Write the last line, with the count of lines and the hash of those before it."""
        self._flush_deltas()
        if not self.title:
            self.title = title_of(end.context, self.settings.scrubber)
        reason, message = end.reason, end.message
        body: dict[str, Any] = {"reason": reason, "lines": self.count + 1, "before": self.hash}
        if message is not None:
            body["message"] = batch.of(self.root).of_message(message, self.settings.scrubber)
        # The hash covers all earlier lines, so only the ends need a signature.
        if self.settings.sign is not None:
            signed = f"{self.session_id}\n{self.reply_id}\n{self.count + 1}\n{self.hash}\n{reason}".encode()
            body["mac"] = hmac.new(self.settings.sign, signed, sha256).hexdigest()
        self._add("end", now, dump_json(body))
        self.status, self.ended_at = status_of(reason), now

    def gap(self, now: int, reason: str, count: int) -> None:
        """Write that items are missing here."""
        self._add("gap", now, dump_json({"reason": reason, "count": count}))

    # Observed items.

    def event(self, now: int, event: AgentEvent, batch: BatchContext) -> None:
        name = _DELTA_IDS.get(event.__class__)
        if name is not None:
            self._add_delta(now, event, (event.type, getattr(event, name), getattr(event, "block_id", "")))
            return
        if self.settings.scrubber.redact:  # a secret may be split over deltas, so they wait for the block's end
            names = {getattr(event, name, None) for name in ("block_id", "tool_call_id")}
            self._flush_deltas(names)
        else:
            self._flush_deltas()
        if event.__class__ is ToolCallStartEvent:
            # As a dict, in the order of their first calls.
            self.tools[event.tool_call_name] = None
        elif event.__class__ is SubagentStartEvent:
            # The child's record may have started already; its row gets the call with the next batch.
            started: Any = event
            batch.calls[started.child_session_id, started.child_reply_id] = started.tool_call_id
        elif isinstance(event, TaskStartedEvent):
            self.tasks[event.session_id, event.task_id] = None
        self._add_event(now, event, b"")

    def step(self, now: int, step: StepState, batch: BatchContext) -> None:
        self._flush_deltas()
        scrubber, contents = self.settings.scrubber, batch.of(self.root)
        if not self.title:
            self.title = title_of(step.context, scrubber)
        body = {
            "seq": step.seq,
            "step": step.kind,
            "state": contents.add(step.head, scrubber),
            "context": contents.of_list("context", step.context, scrubber),
            "blocks": [contents.of_block(block, state, scrubber) for block, state in step.blocks],
        }
        self._add("step", now, dump_json(body))

    def request(self, now: int, sent: tuple[WireRecord, int | None], batch: BatchContext) -> None:
        self._flush_deltas()
        record, core_call = sent
        scrubber, contents = self.settings.scrubber, batch.of(self.root)
        # Changes of the system prompt and of the tools belong to the next request.
        changes, self._request_changes = self._request_changes, []
        choice = record.tool_choice
        body = {
            "call_id": record.call_id,
            "core": core_call,
            "purpose": record.purpose,
            "model": record.model.model,
            "messages": contents.of_list(f"request {record.purpose}", record.messages, scrubber),
            "count": len(record.messages),
            "tools": contents.of_value(record.tools, scrubber),
            "tool_choice": None if choice is None else {"mode": choice.mode, "tools": choice.tools},
            "changes": changes,
        }
        self._add("request", now, dump_json(body))

    def answer(self, now: int, record: WireRecord, batch: BatchContext) -> None:
        self._flush_deltas()
        scrubber, contents = self.settings.scrubber, batch.of(self.root)
        response, usage, cost = record.response, reported_usage(record), None
        if usage is not None and not usage.replayed:
            cost = self.settings.cost_of(record.model, usage)
            self._count(usage, cost)
        body = {
            "call_id": record.call_id,
            "answer": None if response is None else contents.add(dump_response(response), scrubber),
            "is_last": None if response is None else response.is_last,
            "usage": None if usage is None else usage_json(usage),
            "cost": cost,
            "error": None if record.error is None else type(record.error).__name__,
            "pieces": record.pieces,
            "seconds": record.seconds,
        }
        self._add("answer", now, dump_json(body))

    def layer(self, now: int, record: LayerRecord, batch: BatchContext) -> None:
        """Write the end of a layer's call, with its changes to the values on the way in and to the result."""
        self._flush_deltas()
        # Inner layers end first, so their values and results are known when the outer layer ends.
        inner = self._inner_ends.pop(record.call_id, [])
        if record.parent is not None:
            # Kept until the outer layer ends; a reply that dies leaves only its own.
            self._inner_ends.setdefault(record.parent, []).append(record)
        changes = [self._describe(record, change, batch) for change in _changes_of(record, inner)]
        body: dict[str, Any] = {
            "call": record.call_id,
            "parent": record.parent,
            "hook": record.hook,
            "layer": record.layer,
            "place": record.place,
            "own_ns": record.own_ns,
            "total_ns": record.total_ns,
            "outcome": record.outcome,
            "changes": changes,
        }
        call = record.values.get("tool_call") or getattr(record.values.get("content"), "tool_call", None)
        if isinstance(call, ToolCallBlock):
            body["tool_call"] = call.id
        if isinstance(record.result, PermissionDecision):
            decision = record.result
            reason = decision.message or decision.decision_reason or ""
            body["decision"], body["reason"] = decision.behavior.value, self.settings.scrubber.text(str(reason))
        if changes:
            self.layers[str(record.layer)] = None
            if record.hook in ("on_system_prompt", "on_tools"):
                self._request_changes += changes
        self._add("layer", now, dump_json(body))

    # Lines.

    def end_early(self, now: int) -> None:
        """Record only the end of the run from here on, since it is too long."""
        self.is_cut = True
        self.gap(now, "max_bytes", 0)

    def take_lines(self) -> list[bytes]:
        """Return the lines of the batch."""
        if not self.settings.scrubber.redact:
            self._flush_deltas()
        lines, self.pending = self.pending, []
        self.unwritten = len(lines)
        return lines

    def take_row(self, call: str | None = None) -> RunRow:
        """Return the row after the lines so far; `call` is the tool call that started this run."""
        self.call = call or self.call
        about = {
            "agent": self.agent_name,
            "usage": usage_json(self.usage),
            "cost": self.cost if self.is_cost_known else None,
            "calls": self.calls,
            "tools": list(self.tools),
            "layers": list(self.layers),
            "size": self.size,
            "call": self.call,
            "is_task": self.is_task,
            "tasks": list(self.tasks),
        }
        return RunRow(
            self.session_id,
            self.reply_id,
            self.root,
            self.parent_key,
            self.begun_at,
            self.ended_at,
            self.begun_at + self.settings.keep_ns,
            self.status,
            self.title,
            self.labels,
            self.count,
            self.hash,
            dump_json(about),
        )

    def accept(self) -> None:
        """Note that all lines so far were written."""
        self.written = self.count, self.hash

    def _add(self, kind: str, now: int, body: bytes) -> None:
        self.count += 1
        line, self.hash = encode_line(self.count, now, kind, body, self.hash)
        self.pending.append(line)
        self.size += len(line)

    def _add_event(self, now: int, event: AgentEvent, more: bytes) -> None:
        try:
            # With the event's own serializer, which is faster than building a dict first.
            text = event.to_json().encode()
        except Exception:  # noqa: BLE001  # a program may put anything into an event of its own
            text = dump_json({"type": event.type, "reply_id": event.reply_id, "seq": event.seq, "unreadable": True})
        self._add("event", now, b'{"event":' + self.settings.scrubber.json(text) + more + b"}")

    def _add_delta(self, now: int, event: Any, key: tuple[str, str, str]) -> None:
        delta = self._deltas.get(key)
        if delta is None:
            if not self.settings.scrubber.redact:
                self._flush_deltas()
            self._deltas[key] = _MergedDelta(event, now, event.seq, 1, [event.delta])
        else:
            delta.event, delta.count = event, delta.count + 1
            delta.texts.append(event.delta)

    def _flush_deltas(self, only: set[Any] | None = None) -> None:
        if not self._deltas:
            return
        for key in [key for key in self._deltas if only is None or key[1] in only]:
            delta = self._deltas.pop(key)
            # The last event, with the text of all: a reader continues after its number.
            event = replace(delta.event, delta="".join(delta.texts))
            more = b',"count":%d,"first_seq":%d,"last_t":%d' % (delta.count, delta.first_seq, delta.event.created_at)
            self._add_event(delta.time, event, more)

    def _count(self, usage: ChatUsage, cost: float | None) -> None:
        """Add a call to this run and to its parents."""
        # A run has the totals of its tree, so that a list need not read the runs below.
        log: RunLog | None = self
        while log is not None:
            log.usage = log.usage + usage
            log.calls += 1
            log.is_cost_known = log.is_cost_known and cost is not None
            log.cost += cost or 0.0
            log = log.parent

    def _describe(self, record: LayerRecord, change: FoundChange, batch: BatchContext) -> dict[str, Any]:
        scrubber, contents = self.settings.scrubber, batch.of(self.root)

        def reference(value: Any) -> str | None:
            # A message that was added or removed exists on one side only.
            if value is None:
                return None
            if isinstance(value, Msg):
                return contents.of_message(value, scrubber)
            if isinstance(value, ChatResponse):
                return contents.add(dump_response(value), scrubber)
            return contents.of_value(value, scrubber)

        kind = "message" if isinstance(change.after or change.before, Msg) else type(change.after).__name__
        return {
            "layer": record.layer,
            "where": change.where,
            "kind": kind,
            "before": reference(change.before),
            "after": reference(change.after),
        }


def encode_line(number: int, now: int, kind: str, body: bytes, before: str) -> tuple[bytes, str]:
    """Return a line with its hash at the end, and that hash; `before` is the hash of the previous line."""
    text = b'{"n":%d,"t":%d,"kind":"%s",' % (number, now, kind.encode()) + body[1:]
    # Of the text as written, byte for byte: a reader need not encode the JSON again.
    digest = sha256(before.encode() + text).hexdigest()
    return b'%s,"hash":"%s"}' % (text[:-1], digest.encode()), digest


_KEPT_WHOLE = Scrubber((), content=True)
"""For chains, which contain only names."""


def usage_json(usage: ChatUsage) -> dict[str, int | bool]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_input_tokens": usage.cache_input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "estimated": usage.estimated,
        "replayed": usage.replayed,
    }


def title_of(context: Sequence[Msg], scrubber: Scrubber) -> str:
    """Return the first words of the last message that did not come from an agent."""
    for message in reversed(context):
        if message.role == "user":
            # Redacted first: a secret may be cut here, or have more than one space.
            text = scrubber.text(message.get_text_content() or "")
            return " ".join(text[:_MAX_TITLE_SOURCE].split())[:_MAX_TITLE_LENGTH]
    return ""


def reported_usage(record: WireRecord) -> ChatUsage | None:
    """Return the usage of a call in whole numbers, reported or estimated; `None` without a response."""
    response = record.response
    if response is None:
        return None
    usage = response.usage
    if not isinstance(usage, ChatUsage):
        return estimated_usage(record.messages, response.content, record.model.text_length)
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_input_tokens, usage.cache_creation_input_tokens)
    try:
        inputs, outputs, cached, created = (int(count or 0) for count in counts)
    except (TypeError, ValueError, OverflowError):  # a custom model may report anything
        return None
    return ChatUsage(inputs, outputs, cached, created, bool(usage.estimated), bool(usage.replayed))


def _changes_of(record: LayerRecord, inner: Sequence[LayerRecord]) -> list[FoundChange]:
    if record.layer is None:
        return []
    if record.hook in _TRANSFORMERS:
        [(key, value)] = record.values.items()
        return list(changes_between(key, value, record.result)) if record.outcome == "returned" else []
    changes: list[FoundChange] = []
    # A layer that calls its next handler several times, such as a retry, has changes for each call.
    for call in inner:
        for key, value in record.values.items():
            changes += changes_between(key, value, call.values.get(key))
    if inner and record.outcome == "returned":
        where = "answer" if record.hook == "on_model_call" else "result"
        changes += changes_between(where, inner[-1].result, record.result)
    return changes
