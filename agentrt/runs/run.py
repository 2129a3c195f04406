"""A recorded run, as readers see it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic_core import from_json

from agentrt._runtime.block import new_name
from agentrt._runtime.representation import never_raises
from agentrt.agent import Agent
from agentrt.errors import RunCorrupt, UsageError
from agentrt.event import AgentEvent, AnyEvent
from agentrt.message import ContentBlock, Msg, ToolCallBlock, ToolResultBlock
from agentrt.runs.contents import RecordedValues, dump_json, no_content
from agentrt.runs.fork import Effects, add_effects, call_key, check_called_tools, start_conversation
from agentrt.runs.inner_calls import RecordedInnerCall, read_inner_calls
from agentrt.runs.log import FORMAT
from agentrt.runs.parts import LayerCallRecord, ModelRequest, Step
from agentrt.state import AgentState
from agentrt.state.records.rows import RunRow
from agentrt.state.sessions import check_session_id
from agentrt.types import ChatUsage, JSONObject, ToolChoice

if TYPE_CHECKING:
    from agentrt.runs.replay.replay import Replay

After = Literal["stop", "keep", "ask"]
"""The end of a replay: at the first difference, at the end of the record, or where the model now ends it."""

_ForkingAgentT = TypeVar("_ForkingAgentT", bound=Agent)


class Run:
    """A recorded reply, with the replies of its sub-agents, and those of its background calls as `tasks`.

    `usage`, `cost` and `calls` are totals of the whole tree; `cost` is `None` if a price is unknown. Everything else is
    of this reply alone. `changed_by` names the layers that changed something. `lines` are dicts with `n`, `t` in
    nanoseconds, and `kind`.
    """

    def __init__(
        self, row: RunRow, lines: Sequence[bytes], contents: Mapping[str, bytes], below: "Sequence[Run]" = ()
    ) -> None:
        about = from_json(row.about)
        self.session_id: str = row.session_id
        self.reply_id: str = row.reply_id
        self.title: str = row.title
        self.agent: str = about["agent"]
        self.labels: dict[str, str] = dict(row.labels)
        self.status: str = row.status
        self.parent: tuple[str, str, str | None] | None = None if row.parent is None else (*row.parent, about["call"])
        self.is_task: bool = about.get("is_task", False)
        self.children: list[Run] = [run for run in below if not run.is_task]
        self.tasks: list[Run] = [run for run in below if run.is_task]
        self.begun_at: int = row.begun_at
        self.ended_at: int | None = row.ended_at
        self.usage: ChatUsage = ChatUsage(**about["usage"])
        self.cost: float | None = about["cost"]
        self.calls: int = about["calls"]
        self.tools: list[str] = about["tools"]
        self.changed_by: list[str] = about.get("layers", [])
        self.values = RecordedValues(contents, self._place)
        # All lines at once: a reader needs the first and the last ones.
        self.lines: list[JSONObject] = [read_line(line, number) for number, line in enumerate(lines, 1)]
        if self.lines and self.lines[0].get("format", FORMAT) > FORMAT:
            version = self.lines[0].get("version")
            raise RunCorrupt(f"{self._place} was recorded by agentrt {version}: use that version, or a newer one")

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.reply_id!r} of session {self.session_id!r}, {self.status}>"

    @property
    def seconds(self) -> float | None:
        """The duration, waits included; `None` while it runs."""
        return None if self.ended_at is None else (self.ended_at - self.begun_at) / 1e9

    @property
    def has_content(self) -> bool:
        """Whether messages were recorded, and not only their sizes."""
        return all(self.values.has(reference) for reference in self._references("begin", "context"))

    @cached_property
    def context(self) -> list[Msg]:
        """The conversation before the input messages."""
        return self._conversation[: -len(self.inputs) or None]

    @cached_property
    def inputs(self) -> list[Msg]:
        """The input messages: those at the end of the conversation that are not from an agent."""
        messages = self._conversation
        count = next(
            (index for index, message in enumerate(reversed(messages)) if message.role != "user"), len(messages)
        )
        return messages[len(messages) - count :]

    @cached_property
    def _conversation(self) -> list[Msg]:
        return list(map(self.values.message, self.conversation_references))

    @property
    def conversation_references(self) -> list[str]:
        """The references to the messages of the conversation, with the input messages at the end."""
        # The run may start before the input joins the conversation; the first step comes after that.
        # A resumed run has a second first line, with the conversation at that time.
        lines = [*self._step_lines[:1], *self.lines[:1]]
        return self.values.list_of(lines[0]["context"]) if lines else []

    @cached_property
    def message(self) -> Msg | None:
        """The answer, complete or partial; `None` if there is none yet."""
        references = self._references("end", "message")
        return self.values.message(references[-1]) if references else None

    @cached_property
    def events(self) -> list[AnyEvent]:
        """The events. Deltas of one block that were written together are one event, numbered as the last one."""
        lines = [line for line in self.lines if line["kind"] == "event"]
        if not self.has_content:
            raise no_content(self._place, "events")
        return [AgentEvent.from_json(dump_json(line["event"])) for line in lines if "unreadable" not in line["event"]]

    @cached_property
    def inner_calls(self) -> list[RecordedInnerCall]:
        """The calls that tools made, in order; those of sub-agents are in `children`."""
        return read_inner_calls(self.events)

    @cached_property
    def steps(self) -> list[Step]:
        """The points from which a fork can continue, in order."""
        return [Step(number, line["step"], line["seq"]) for number, line in enumerate(self._step_lines)]

    @cached_property
    def requests(self) -> list[ModelRequest]:
        """The requests to models, in order."""
        # An attempt that a crash cut off has no answer.
        answers = {line["call_id"]: line for line in self.lines if line["kind"] == "answer"}
        requests: list[ModelRequest] = []
        for line, changes in self.request_lines:
            answer = answers.get(line["call_id"], {})
            usage, choice = answer.get("usage"), line["tool_choice"]
            requests.append(
                ModelRequest(
                    line["call_id"],
                    line["model"],
                    line["purpose"],
                    self.values.messages(line["messages"]),
                    self.values.value(line["tools"]),
                    None if choice is None else ToolChoice(**choice),
                    self.values.response(answer.get("answer")),
                    None if usage is None else ChatUsage(**usage),
                    answer.get("cost"),
                    answer.get("error"),
                    answer.get("seconds"),
                    [self.values.change(change) for change in changes],
                )
            )
        return requests

    @cached_property
    def layers(self) -> list[LayerCallRecord]:
        """The calls of layers, in the order in which they ended."""
        return [
            LayerCallRecord(
                line["hook"],
                line["layer"],
                line["place"],
                line["own_ns"] / 1e9,
                line["total_ns"] / 1e9,
                line["outcome"],
                line.get("decision"),
                line.get("reason", ""),
                [self.values.change(change) for change in line["changes"]],
                line["call"],
                line["parent"],
            )
            for line in self.lines
            if line["kind"] == "layer"
        ]

    @cached_property
    def verdicts(self) -> list[JSONObject]:
        """The verdicts of evaluators, with `evaluator`, `score`, `passed`, `reason` and the type of an `error`."""
        names = ("evaluator", "score", "passed", "reason", "error")
        return [{name: line.get(name) for name in names} for line in self.lines if line["kind"] == "verdict"]

    def state_at(self, number: int) -> AgentState:
        """Return the state at a step, with nothing running, as a new object.

        Raises `UsageError` if the run has no step there, or its content was not recorded.
        """
        if not self._step_lines:
            raise UsageError(f"{self._place} has no step, so a fork cannot start in it")
        if type(number) is not int or not 0 <= number < len(self._step_lines):
            raise UsageError(
                f"{self._place} has no step {number!r:.50}: its steps are 0 to {len(self._step_lines) - 1}"
            )
        line = self._step_lines[number]
        if not self.values.has(line["state"]):
            raise no_content(self._place, "states")
        return self._state_of(line, self.values.list_of(line["context"]))

    def first_state(self) -> AgentState:
        """Return the state before the input, as a new object; raises `UsageError` without content.

        A fork has no input of its own: its first state is that of the step from which it continues.
        """
        if not self.lines or not self.has_content:
            raise no_content(self._place, "states")
        begin = self.lines[0]
        # An older record has only the states at steps.
        first = begin if "state" in begin else (self._step_lines or [begin])[0]
        if "state" not in first:
            raise UsageError(f"{self._place} has no step, so it cannot be replayed")
        if "blocks" in begin:
            return self._state_of(begin, self.values.list_of(begin["context"]))
        before = self.conversation_references[: -len(self.inputs) or None]
        return self._state_of({"state": first["state"]}, before)

    def _state_of(self, line: JSONObject, context: list[str]) -> AgentState:
        """Return the state of a line with this conversation, and with the reply if the line has its blocks."""
        # A copy, since another step may use the value.
        state = dict(self.values.value(line["state"]))
        state["context"] = [self.values.raw_message(reference) for reference in context]
        reply = state.get("reply_context") if "blocks" in line else None
        if reply is not None:
            # `parked` means that nothing was running: otherwise calls without a result would be in doubt.
            blocks = [self.values.value(reference) for reference in line["blocks"]]
            reply = {**reply, "message": {**reply["message"], "content": blocks}, "parked": True}
        return AgentState.model_validate_json(dump_json({**state, "reply_context": reply}))

    async def replay(self, agent: Agent, *, after: After = "stop") -> "Replay":
        """Run the agent on the input of this run, with the recorded answers and results; returns the differences.

        The agent may lack layers, or have another prompt; nothing is saved. With "stop" the replay ends at the first
        difference, with "keep" it uses the recorded answers to the end: neither calls a model, nor a tool except those
        with `changes_conversation`. With "ask" it asks the model from the first difference on, runs read-only tools
        without a recorded result, and ends where any other tool would ask.

        Raises `UsageError` for a run without content or with a gap.
        """
        from agentrt.runs.replay.replay import replay_run  # which records the replay

        return await replay_run(self, agent, after)

    def fork(
        self, agent: _ForkingAgentT, at: Step | int, *, session_id: str | None = None, effects: Effects = "ask"
    ) -> _ForkingAgentT:
        """Return the agent in a new conversation, which continues from a step of this run by `await fork.reply(None)`.

        `at` is a step, or the number of an event for the last step at or before it. Earlier steps do not run
        again, and the fork shares nothing with the record. `observe` can add a message first. At a question,
        `fork.waiting()` must be answered. Tools that are not read-only ask first; with `effects="record"` they answer
        from the record if it has the same call, and with "run" they run.

        The label "forked_from" names the session, the reply and the step. Raises `UsageError` for a point before the
        first step, for a run without content, and for an agent that lacks a tool that was called before.
        """
        if not isinstance(agent, Agent):
            raise UsageError(f"fork(agent) must be an Agent, not {agent!r:.100}")
        step = self._step_at(at)
        state = self.state_at(step.number)
        blocks = [] if state.reply_context is None else state.reply_context.blocks
        requests = [line for line in self.lines if line["kind"] == "request"]
        offered = {tool["function"]["name"] for line in requests for tool in self.values.value(line["tools"]) or ()}
        check_called_tools(agent, blocks, offered, self._place)
        new_id = new_name() if session_id is None else session_id
        check_session_id(new_id)
        if new_id == self.session_id:
            raise UsageError(
                f"fork(session_id=...) must be a new session id, not {new_id!r:.100}, which the record has"
            )
        start_conversation(state, step.seq, new_id, f"{self.session_id}/{self.reply_id}/{step.number}", effects)
        results: dict[str, list[ToolResultBlock]] = {}
        if effects == "record":
            finished = {block.id for block in blocks if isinstance(block, ToolResultBlock)}
            if state.reply_context is not None:
                # A call that was in progress makes its calls again, and gets finished ones from its journal.
                inside = state.reply_context.inner.items()
                finished -= {path.partition("/")[0] for path, _ in inside}
                finished |= {path for path, inner in inside if inner.result is not None}
            self._collect_results(finished, results)
        return add_effects(agent, effects, results).with_state(state)

    def _step_at(self, at: Step | int) -> Step:
        if isinstance(at, Step) and at in self.steps:
            return at
        if type(at) is not int:
            raise UsageError(
                f"fork(at=...) must be one of the steps of {self._place}, or the number of an event, not {at!r:.100}"
            )
        before = [step for step in self.steps if step.seq <= at]
        if not before:
            first = f"its first step is at event {self.steps[0].seq}" if self.steps else "it has no step"
            raise UsageError(f"fork(at={at}) is before the first step of {self._place}: {first}")
        return before[-1]

    def _collect_results(self, finished: set[str], results: dict[str, list[ToolResultBlock]]) -> None:
        """Add the results of this run and of its sub-agents' runs, except those of `finished` calls."""
        blocks = self._content_so_far()
        calls = {block.id: block for block in blocks if isinstance(block, ToolCallBlock) and block.id not in finished}
        let_go = {task.parent[2]: task for task in self.tasks if task.parent is not None}
        below = [child for child in self.children if child.parent and child.parent[2] not in finished]
        for block in blocks:
            if isinstance(block, ToolResultBlock) and block.id in calls:
                if block.id in let_go:  # it was made there, and this is its handle
                    below.append(let_go[block.id])
                elif "task_id" not in block.metadata:
                    results.setdefault(call_key(calls[block.id]), []).append(block)
        names = {path: call.name for path, call in calls.items()}
        for inner in self.inner_calls:
            # A call inside of one that was done before the step belongs to that.
            if inner.outer_id in names:
                names[inner.call.id] = inner.call.name
                if inner.result is not None and inner.call.id not in finished:
                    key = call_key(inner.call, names[inner.outer_id])
                    results.setdefault(key, []).append(inner.result)
        for run in below:
            run._collect_results(set(), results)

    def _content_so_far(self) -> list[ContentBlock]:
        """Return the blocks of the message, or those of the last step of a reply that has not ended."""
        last = self.message
        if last is None and self.steps:
            reply = self.state_at(len(self.steps) - 1).reply_context
            last = None if reply is None else reply.message
        return [] if last is None else last.get_content_blocks()

    # From references to values.

    @property
    def _place(self) -> str:
        return f"the run {self.reply_id!r:.100} of session {self.session_id!r:.100}"

    @cached_property
    def _step_lines(self) -> list[JSONObject]:
        return [line for line in self.lines if line["kind"] == "step"]

    def _references(self, kind: str, name: str) -> list[str]:
        return [line[name] for line in self.lines if line["kind"] == kind and line.get(name)]

    @cached_property
    def request_lines(self) -> list[tuple[JSONObject, list[JSONObject]]]:
        """The lines of requests, each with the changes that layers made to it and to its answer."""
        found: list[tuple[JSONObject, list[JSONObject]]] = []
        parents: dict[int, int | None] = {}
        changes: dict[int, list[JSONObject]] = {}
        # Backwards, since a layer ends after the request; each process that ran the reply counts calls from the start.
        for line in reversed(self.lines):
            kind = line["kind"]
            if kind == "begin":
                parents, changes = {}, {}
            elif kind == "layer" and line["hook"] == "on_model_call":
                parents[line["call"]], changes[line["call"]] = line["parent"], line["changes"]
            elif kind == "request":
                # A request is sent by a call of the core; the layers around that call may have changed it.
                around, call = [line["core"]], parents.get(line["core"])
                # From the innermost layer outwards; the layers changed the request in the other direction.
                while call is not None and call not in around:
                    around.append(call)
                    call = parents.get(call)
                by_layers = [change for call in reversed(around) for change in changes.get(call, [])]
                found.append((line, line["changes"] + by_layers))
        return found[::-1]


def read_line(line: bytes, number: int) -> JSONObject:
    """Return a stored line; raises `RunCorrupt` for one that is damaged."""
    try:
        value = from_json(line)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise RunCorrupt(f"line {number} of a recorded run is damaged: `agentrt audit verify` says more", line=number)
    return value
