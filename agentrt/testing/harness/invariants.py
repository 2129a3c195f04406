"""The invariants of a conversation, whatever happened to it; each function yields the violations in words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic_core import from_json

from agentrt.event import AgentEvent, ReplyEndEvent, ToolCallStartEvent, ToolResultEndEvent
from agentrt.message import ContentBlock, Msg, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.state import AgentState
from agentrt.testing.harness.tool_log import ToolLog, ToolRun

# Only a denied call has certainly not run; one that failed or was interrupted may have.
_MAY_HAVE_RUN = set(ToolResultState) - {ToolResultState.DENIED}


def problems_of_request(messages: Sequence[Msg]) -> Iterator[str]:
    """Yield the problems of the tool calls in a request to a model."""
    yield from _problems_of_calls(_message_blocks(messages), set())


def problems_of_state(state: AgentState) -> Iterator[str]:
    """Yield the problems of a state while no reply is running."""
    messages = _messages_of(state)
    waiting: set[str] = set()
    context = state.reply_context
    if context is not None:
        waiting = {call_id for call_id, decision in context.decisions.items() if decision.waits_for}
        if not context.parked:
            yield f"the reply {context.reply_id!r} is neither over nor does it wait for an answer"
    yield from _problems_of_calls(_message_blocks(messages), waiting)
    for message in messages:
        if sum(other.id == message.id for other in messages) > 1:
            yield f"the message {message.id!r} of {message.name!r} is kept twice"


def problems_of_events(events: Iterable[AgentEvent], last: str, state: AgentState) -> Iterator[str]:
    """Yield the problems of the ends of replies in these events, and of the last end on record.

    `last` is the id of the last reply, empty if it has no events.
    """
    ends = [event for event in events if isinstance(event, ReplyEndEvent)]
    for end in ends:
        if sum(other.reply_id == end.reply_id for other in ends) > 1:
            yield f"REPLY_END of the reply {end.reply_id!r} was emitted more than once"
    if not last or (state.reply_context is not None and state.reply_context.reply_id == last):
        return  # it is still running
    outcome = state.last_reply
    if outcome is None or outcome.reply_id != last:
        yield f"the reply {last!r} has no end on record"
        return
    reasons = [end.finished_reason for end in ends if end.reply_id == outcome.reply_id]
    if reasons and reasons[-1] != outcome.finished_reason:
        yield f"REPLY_END said {reasons[-1]!r}, but {outcome.finished_reason!r} is on record"


def problems_of_killed_process(
    events: Iterable[AgentEvent], runs: Iterable[ToolRun], last: str, state: AgentState
) -> Iterator[str]:
    """Yield the events of the last reply that were emitted before a save, for the state left by a dead process."""
    events, blocks = list(events), list(_message_blocks(_messages_of(state)))
    if state.summary:
        return  # whether the messages behind it were saved can no longer be seen
    results = _results_on_record(state, blocks)
    for event in [event for event in events if event.reply_id == last]:
        if isinstance(event, ToolResultEndEvent) and not _has_saved(results, event):
            yield f"TOOL_RESULT_END of the call {event.tool_call_id!r} was emitted before its result was saved"
        if isinstance(event, ReplyEndEvent) and (state.last_reply is None or state.last_reply.reply_id != last):
            yield f"REPLY_END of the reply {last!r} was emitted before the end was saved"
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    # Once the call around it has its result, no state has a call that a tool has made.
    starts = [event for event in events if isinstance(event, ToolCallStartEvent)]
    inside = {event.tool_call_name for event in starts if "/" in event.tool_call_id}
    for run in runs:
        if run.name not in inside and not any(_is_run_of(run, call) for call in calls):
            yield f"the tool {run.name!r} ran before its call was saved"


def _results_on_record(state: AgentState, blocks: Iterable[ContentBlock]) -> dict[str, ToolResultState]:
    """Return the states of all results: those in the messages, and those of calls that tools have made."""
    inner = {} if state.reply_context is None else state.reply_context.inner
    results = {path: call.result.state for path, call in inner.items() if call.result is not None}
    return results | {block.id: block.state for block in blocks if isinstance(block, ToolResultBlock)}


def _has_saved(results: Mapping[str, ToolResultState], event: ToolResultEndEvent) -> bool:
    """Say whether the result is on record: that of a call which a tool has made, until the outer call has its own."""
    outer_id, slash, _ = event.tool_call_id.partition("/")
    if slash and results.get(outer_id, ToolResultState.RUNNING) is not ToolResultState.RUNNING:
        return True
    return results.get(event.tool_call_id) == event.state


def problems_of_runs(log: ToolLog, state: AgentState) -> Iterator[str]:
    """Yield the differences between the runs of tools and the state of their calls."""
    blocks = list(_message_blocks(_messages_of(state)))
    results = {block.id: block.state for block in blocks if isinstance(block, ToolResultBlock)}
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    # Calls with the same name and input cannot be told apart in the log, so they are judged together.
    groups: dict[tuple[str, str], list[ToolCallBlock]] = {}
    for call in calls:
        if call.name in log.watched:
            groups.setdefault((call.name, call.input), []).append(call)
    for same_calls in groups.values():
        call = same_calls[0]
        states = [results.get(same_call.id) for same_call in same_calls]
        runs = [run for run in log.runs if _is_run_of(run, call)]
        # A retry makes several runs for one result, but a success needs at least one complete run.
        if sum(run.finished for run in runs) < states.count(ToolResultState.SUCCESS):
            yield f"the call {call.id!r} of {call.name!r} is reported as a success, but the tool did not finish"
        may_have_run = sum(state in _MAY_HAVE_RUN for state in states)
        if len(runs) > may_have_run:
            yield (
                f"{call.name!r} ran {len(runs)} times with the input {call.input:.100} of the call {call.id!r}, but "
                f"the results of such calls ({', '.join(map(str, states))}) allow {may_have_run} at most"
            )


def _is_run_of(run: ToolRun, call: ToolCallBlock) -> bool:
    try:
        arguments = from_json(call.input or "{}")
    except ValueError:
        return False
    # Only the arguments of the call are compared: the tool may also have received presets and defaults.
    return run.name == call.name and all(run.arguments.get(name) == value for name, value in arguments.items())


def _messages_of(state: AgentState) -> list[Msg]:
    context = state.reply_context
    return state.context if context is None else [*state.context, context.message]


def _message_blocks(messages: Iterable[Msg]) -> Iterator[ContentBlock]:
    for message in messages:
        if not isinstance(message.content, str):
            yield from message.content


def _problems_of_calls(blocks: Iterable[ContentBlock], waiting: set[str]) -> Iterator[str]:
    open_calls: dict[str, ToolCallBlock] = {}
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            if block.id in open_calls:
                yield f"the call {block.id!r} of {block.name!r} comes again before its result"
            open_calls[block.id] = block  # an id may come again once its result is there
        elif isinstance(block, ToolResultBlock) and block.state is not ToolResultState.RUNNING:
            answered = open_calls.pop(block.id, None)
            if answered is None:
                yield f"there is one result too many for the call {block.id!r}"
    for call in open_calls.values():
        if call.id not in waiting:
            yield f"the call {call.id!r} of {call.name!r} has no result"
