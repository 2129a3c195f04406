"""Tool calls without a result when their reply stops: each gets one that states its outcome."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from agentrt._runtime.block import new_id
from agentrt._runtime.conversation.conversation import ReplyingAgent, bound_toolkit
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.block_events import events_of
from agentrt.event import AgentEvent, HintBlockEvent, ToolResultEndEvent, ToolResultStartEvent, ToolResultTextDeltaEvent
from agentrt.message import ContentBlock, TextBlock, ToolCallBlock, ToolCallState, ToolResultBlock, ToolResultState
from agentrt.state import CallDecision, InnerCall, ReplyContext
from agentrt.tool import Toolkit
from agentrt.tool.base import ToolBase, call_plan_of
from agentrt.types import STRUCTURED_OUTPUT, PermissionBehavior

_CallResult = tuple[str, ToolResultState]

_INTERRUPTED: _CallResult = "Interrupted: the reply ended before this call was done.", ToolResultState.INTERRUPTED
_NOT_RUN: _CallResult = (
    "Interrupted: the reply ended before this call was answered. It was not run.",
    ToolResultState.INTERRUPTED,
)
_INTERRUPTED_INSIDE: _CallResult = (
    "Interrupted: the call that made this one ended before it was done. It may have taken effect.",
    ToolResultState.INTERRUPTED,
)
_IN_THREAD: _CallResult = (
    "Unknown: the reply ended before this call was done. Its thread cannot be stopped, so it may take effect.",
    ToolResultState.UNKNOWN,
)
_PROCESS_ENDED = "the process ended"
_MAX_NAMED = 50


def drain_and_close(agent: ReplyingAgent, run: ReplyRun) -> Iterator[AgentEvent]:
    """Yield what was emitted and not seen yet, and the events that give each open call its result."""
    drops_hints = agent.chains.layers["on_content"]  # which has not seen them, and cannot where a reply is closed
    for event in run.mailbox.take():  # before the results: what tools said comes before their end
        if not (drops_hints and isinstance(event, HintBlockEvent) and event.reply_id == run.id):
            yield run.progress.record_event(event)
    yield from close_open_calls(agent, run)


def close_open_calls(agent: ReplyingAgent, run: ReplyRun) -> Iterator[AgentEvent]:
    """Yield the events that give each open call its result: this process has stopped it."""
    context = agent.state.reply_context
    if context is None:
        return

    def result_of(call: ToolCallBlock, has_begun: bool) -> _CallResult:
        if _waits(context, call):
            return _INTERRUPTED if has_begun and _ran_before(context, call) else _NOT_RUN
        if has_begun and _behavior(context, call) is PermissionBehavior.ALLOW:
            tool = (agent.live_conversation.round_toolkit or bound_toolkit(agent)).get(call.name)
            if tool is not None and call_plan_of(tool).in_thread:
                return _IN_THREAD
        return _INTERRUPTED

    for event in _result_events(context, _in_order(context), run.new_id, result_of):
        yield run.progress.record_event(event)


def close_abandoned_calls(context: ReplyContext) -> Iterator[AgentEvent]:
    """Yield the events that give each open call its result: a process before this one has left it."""
    yield from _result_events(context, _in_order(context), new_id, partial(_result_of_left, context, _PROCESS_ENDED))


def close_calls_in_doubt(run: ReplyRun, context: ReplyContext, cause: str = _PROCESS_ENDED) -> Iterator[AgentEvent]:
    """Yield results for the calls that `cause`, such as the end of a process, may have stopped while they ran.

    Those of resumable and idempotent tools get none: they are entered again. Nor do those that were let go.
    """
    if not context.parked:
        calls = [call for call in open_calls(context) if not _waits(context, call)]
        calls = [call for call in calls if _tool_to_run_again(run.toolkit, context, call) is None]
        yield from _result_events(context, calls, run.new_id, partial(_result_of_left, context, cause))


def mark_resumed_calls(toolkit: Toolkit, context: ReplyContext) -> None:
    """Mark the calls that are entered again after a process that ended.

    Partial results are continued if the tool resumes, and dropped if it starts again.
    """
    if context.parked:
        return
    for call in open_calls(context):
        tool = None if _waits(context, call) else _tool_to_run_again(toolkit, context, call)
        if tool is not None:
            call.state = ToolCallState.RUNNING
            if not tool.is_resumable:
                context.message.content = [
                    block for block in context.blocks if not isinstance(block, ToolResultBlock) or block.id != call.id
                ]


def _tool_to_run_again(toolkit: Toolkit, context: ReplyContext, call: ToolCallBlock) -> ToolBase | None:
    """Return the tool of a call that may have been running, if it may be entered again."""
    tool, decision = toolkit.get(call.name), context.decisions.get(call.id)
    if tool is None or (decision is not None and decision.behavior is PermissionBehavior.DENY):
        return None
    # A background call runs elsewhere, and once: only its handle is made again here.
    is_let_go = decision is not None and bool(decision.task_id)
    return tool if tool.is_resumable or tool.is_idempotent or is_let_go else None


def _in_order(context: ReplyContext) -> list[ToolCallBlock]:
    """Return the open calls: those that ran, then those that waited."""
    return sorted(open_calls(context), key=partial(_waits, context))


def _result_events(
    context: ReplyContext,
    calls: list[ToolCallBlock],
    new_id: Callable[[], str],
    result_of: Callable[[ToolCallBlock, bool], _CallResult],
) -> Iterator[AgentEvent]:
    begun = begun_calls(context)
    for call in calls:
        text, state = result_of(call, call.id in begun)
        if call.id not in begun:
            yield ToolResultStartEvent(context.reply_id, call.id, call.name)
        text += _describe_inner_calls(context, call.id)
        yield ToolResultTextDeltaEvent(context.reply_id, call.id, text, new_id(), tool_call_name=call.name)
        yield from close_inner_calls(context, call.id, new_id)
        forget_inner_calls(context, call.id)
        yield ToolResultEndEvent(context.reply_id, call.id, state, tool_call_name=call.name)


def _result_of_left(context: ReplyContext, cause: str, call: ToolCallBlock, has_begun: bool) -> _CallResult:
    if has_begun and _ran_before(context, call):
        return _INTERRUPTED
    if context.parked or _waits(context, call):
        return _NOT_RUN
    # Whether it had started is unknown, since the start of a call is not saved separately.
    if _behavior(context, call) is PermissionBehavior.DENY:
        return _INTERRUPTED
    return f"Unknown: {cause} before this call was known to be done. It may have taken effect.", ToolResultState.UNKNOWN


def open_calls(context: ReplyContext) -> list[ToolCallBlock]:
    """Return the calls without a result."""
    calls = [block for block in context.blocks if isinstance(block, ToolCallBlock)]
    return [call for call in calls if call.state is not ToolCallState.FINISHED]


def waiting_calls(context: ReplyContext) -> list[ToolCallBlock]:
    """Return the calls that wait for an answer, in order."""
    decisions = context.decisions
    calls = [block for block in context.blocks if isinstance(block, ToolCallBlock) and block.id in decisions]
    return [call for call in calls if decisions[call.id].waits_for and call.state is not ToolCallState.FINISHED]


def calls_of_round(context: ReplyContext, blocks: list[ContentBlock]) -> list[ToolCallBlock]:
    """Return the calls of the model among the blocks of the current round, without the one that is the final answer."""
    calls = [block for block in blocks if type(block) is ToolCallBlock]
    if context.hidden_calls is not None:  # the limits are for what the model does
        calls = [call for call in calls if not call.is_hidden]
    return calls if context.structured is None else [call for call in calls if call.name != STRUCTURED_OUTPUT]


def begun_calls(context: ReplyContext) -> set[str]:
    """Return the ids of the calls that have a result, or the beginning of one."""
    return {block.id for block in context.blocks if isinstance(block, ToolResultBlock)}


class AskedCall(NamedTuple):
    """A call that the user or a program is asked about: one of the reply's own, or one inside of a call that runs."""

    call: ToolCallBlock
    decision: CallDecision
    inside: list[str]


def asked_calls(context: ReplyContext) -> list[AskedCall]:
    """Return what the reply waits for, in the order of its calls."""
    calls: list[AskedCall] = []
    for call in waiting_calls(context):
        decision = context.decisions[call.id]
        if decision.waits_for != "inner":
            calls.append(AskedCall(call, decision, []))
            continue
        for inner in questions_inside(context, call.id).values():
            calls.append(AskedCall(inner.question.tool_call, inner.decision, inner.question.inside))
    return calls


def entries_inside(context: ReplyContext, call_id: str) -> dict[str, InnerCall]:
    """Return the calls and questions inside of a call, at any depth, by path."""
    prefix = f"{call_id}/"
    paths: list[str] = []
    # Backwards, since they joined the journal after the call: a tool may make thousands of calls.
    for path in reversed(context.inner):
        if path == call_id:
            break
        if path.startswith(prefix):
            paths.append(path)
    return {path: context.inner[path] for path in reversed(paths)}


def questions_inside(context: ReplyContext, call_id: str) -> dict[str, InnerCall]:
    """Return what is asked inside of a call, at any depth, by path."""
    # "inner" is a call that makes calls itself, and waits for these.
    asking = ("user", "external")
    return {
        path: inner for path, inner in entries_inside(context, call_id).items() if inner.decision.waits_for in asking
    }


def asker_of(context: ReplyContext, path: str) -> str:
    """Return the id of the call that asks the question: the innermost one on the path that runs in this conversation.

    Those inside of it belong to the conversation of a sub-agent.
    """
    asker = path.rpartition("/")[0]
    while "/" in asker and not ((inner := context.inner.get(asker)) is not None and inner.is_call):
        asker = asker.rpartition("/")[0]
    return asker


def relative_id(context: ReplyContext, path: str) -> str:
    """Return the id that the call which asks has given to the question."""
    return path.removeprefix(f"{asker_of(context, path)}/")


def close_inner_calls(context: ReplyContext, call_id: str, new_id: Callable[[], str]) -> Iterator[AgentEvent]:
    """Yield the events that give each open call inside of one that ends a result: nobody waits for its own."""
    for path, inner in entries_inside(context, call_id).items():
        if not inner.is_call or inner.result is not None:
            continue
        name, has_started = inner.question.tool_call.name, inner.question.tool_call.state is ToolCallState.RUNNING
        text, state = _INTERRUPTED_INSIDE if has_started else _NOT_RUN
        block = TextBlock(text, new_id())
        inner.result = ToolResultBlock(path.rpartition("/")[2], name, [block], state)
        if not has_started:
            yield ToolResultStartEvent(context.reply_id, path, name)
        yield ToolResultTextDeltaEvent(context.reply_id, path, text, block.id, tool_call_name=name)
        yield ToolResultEndEvent(context.reply_id, path, state, tool_call_name=name)


def _describe_inner_calls(context: ReplyContext, call_id: str) -> str:
    """Return what a call that ends has done by its own calls, for the model that made it; by name and number."""
    # Without their arguments, since the model may not know what the tool has read.
    succeeded: list[str] = []
    in_doubt: list[str] = []
    for path, inner in entries_inside(context, call_id).items():
        name = f"{inner.question.tool_call.name} ({path.removeprefix(f'{call_id}/')})"
        if inner.is_call and inner.result is not None and inner.result.state is ToolResultState.SUCCESS:
            succeeded.append(name)
        elif inner.is_call and inner.result is None and inner.begun:
            in_doubt.append(name)
    texts = [
        f" {what}: {', '.join(names[:_MAX_NAMED])}{f' and {len(names) - _MAX_NAMED} more' * (len(names) > _MAX_NAMED)}."
        for what, names in (("Of its own calls, these are done", succeeded), ("May have taken effect", in_doubt))
        if names
    ]
    return "".join(texts)


def begun_inner_calls(context: ReplyContext) -> Iterator[AgentEvent]:
    """Yield the beginning of each call that a tool has made and that has no result, for a listener that knows nothing.

    The reply's message, and so the event of its resumption, has none of these calls.
    """
    for path, inner in context.inner.items():
        call = inner.question.tool_call
        if inner.is_call and inner.result is None:
            yield from events_of(context.reply_id, ToolCallBlock(path, call.name, call.input))
            if call.state is ToolCallState.RUNNING:
                yield ToolResultStartEvent(context.reply_id, path, call.name)


def forget_inner_calls(context: ReplyContext, call_id: str) -> None:
    """Drop what a call that has its result kept and asked.

    What was answered stays on record, so that an answer which comes once more is known.
    """
    context.kept.pop(call_id, None)
    for path, inner in entries_inside(context, call_id).items():
        context.kept.pop(path, None)
        del context.inner[path]
        decision = inner.decision
        if decision.waits_for is not None:
            context.decisions[path] = CallDecision(PermissionBehavior.ASK)
        elif not inner.is_call or decision.by == "user" or decision.digest:  # nobody was asked about the others
            context.decisions[path] = decision


def _ran_before(context: ReplyContext, call: ToolCallBlock) -> bool:
    """Say whether a running call that waits has done something before, unlike one that an outside program runs."""
    decision = context.decisions.get(call.id)
    return decision is not None and decision.waits_for in ("inner", "user")


def _waits(context: ReplyContext, call: ToolCallBlock) -> bool:
    decision = context.decisions.get(call.id)
    return decision is not None and decision.waits_for is not None


def _behavior(context: ReplyContext, call: ToolCallBlock) -> PermissionBehavior | None:
    decision = context.decisions.get(call.id)
    return None if decision is None else decision.behavior


def describe_calls(calls: list[ToolCallBlock]) -> str:
    """Return names and ids of the calls, for a message to the user."""
    return ", ".join(f"{call.name!r} ({call.id})" for call in calls)
