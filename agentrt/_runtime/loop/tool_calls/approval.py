"""Deciding on tool calls: what may run, what is denied, and what waits for an answer from outside."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import incoming_content
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.flow.handles import holds
from agentrt._runtime.flow.release import release_arguments, replace_in_value, value_anywhere, value_in_tools
from agentrt._runtime.loop.tool_calls.round_tools import refusal_to_wait
from agentrt.message import ToolCallBlock, ToolResultState, copy_block, find_block
from agentrt.permission import combine, covers, decide, digest, needs_no_decision
from agentrt.state import CallDecision, ReplyContext
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.arguments import parse_arguments
from agentrt.tool.call import PreparedCall
from agentrt.tool.to_response import failure
from agentrt.types import PermissionBehavior, PermissionDecision, PermissionMode, ToolResponse

Prepared = PreparedCall | ToolResponse
"""A call that may run, or the result of one that may not."""

_ALLOW, _ASK, _DENY = PermissionBehavior.ALLOW, PermissionBehavior.ASK, PermissionBehavior.DENY
_MAX_ARGUMENTS = 10_000  # characters of the arguments in a question
_ALLOWED = CallDecision(_ALLOW)  # what is decided on nearly every call; it is never changed


async def check_permission(
    agent: ReplyingAgent, tool_call: ToolCallBlock, tool: ToolBase, tool_input: dict[str, Any]
) -> PermissionDecision:
    """The core of on_check_permission: what the rules, the mode and the tool itself say."""
    known = agent.live_conversation.run.progress.checked
    if known is not None and known[0] is tool and known[1] == tool_input:
        return known[2]
    decision = await decide(tool, tool_input, agent.state.permission_context)
    return _ask_for_layer(agent, tool_call.id, tool, _ask_about_change(agent, tool_call.id, tool, decision))


def prepare_without_asking(
    agent: ReplyingAgent, run: ReplyRun, context: ReplyContext, calls: list[ToolCallBlock]
) -> list[tuple[ToolCallBlock, Prepared]] | None:
    """Check the calls and decide on them, if nothing has to be asked about any of them, as nearly always.

    Returns `None`, with nothing decided, where `prepare_call` has to look at them. No coroutine is needed for this.
    """
    if agent.chains.on_check_permission is not check_permission:
        return None
    permissions = agent.state.permission_context
    prepared_calls: list[tuple[ToolCallBlock, Prepared]] = []
    allowed: dict[str, CallDecision] = {}
    for call in calls:
        prepared = _check_call(agent, run, call)
        if isinstance(prepared, PreparedCall):
            tool = prepared.tool
            # A call with a decision on record waited, and was answered.
            if tool.is_external_tool or call.id in context.decisions or not needs_no_decision(tool, permissions):
                return None
            allowed[call.id] = _ALLOWED
        prepared_calls.append((call, prepared))
    context.decisions.update(allowed)  # all or none, so that `prepare_call` finds the decisions as they were
    return prepared_calls


def _check_call(agent: ReplyingAgent, run: ReplyRun, call: ToolCallBlock) -> Prepared:
    if call.id == run.progress.cut_call:
        # The arguments so far may fit all the same: a tool with a default for each of them takes none at all.
        return failure(
            f"{call.name} was not run: the answer was cut off before its arguments were complete. Call it again."
        )
    toolkit = run.toolkit_of(call.id) if run.inner_toolkits else run.toolkit
    return prepare_released(agent, toolkit, call)


def prepare_released(agent: ReplyingAgent, toolkit: Toolkit, call: ToolCallBlock) -> Prepared:
    """Check a call with the values in the place of its handles: what is decided on is what the tool gets.

    An agent that is a tool keeps handles, and so do other tools whose text a model reads.
    """
    state = agent.state
    groups = state.active_groups
    if not holds(state, call.input):
        return toolkit.prepare(call, groups)
    tool = toolkit.get(call.name)
    if tool is None or tool.keeps_handles:
        return toolkit.prepare(call, groups)
    released = release_arguments(state, call.input, parse_arguments)
    prepared = toolkit.prepare(ToolCallBlock(call.id, call.name, released, call.state), groups)
    if isinstance(prepared, PreparedCall):
        prepared.tool_call, prepared.written_input = call, call.input
    return prepared


async def prepare_call(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock) -> Prepared | None:
    """Check the call and decide on it; returns `None` for one that waits for an answer."""
    prepared = _check_call(agent, agent.live_conversation.run, call)
    if isinstance(prepared, ToolResponse):
        return prepared
    earlier = context.decision_about(call.id)
    if earlier is not None and earlier.task_id:
        return prepared  # it may run already, so nothing is left to decide
    decision = await decide_call(agent, prepared, earlier)
    # A tool that makes a call learns at once whether that has to wait.
    if decision.suggested_rules and agent.state.permission_context.allow_new_rules and "/" not in call.id:
        # A rule that goes with an open question may answer this one as well.
        questions = [other for other in context.decisions.values() if other.waits_for == "user"]
        rules = [rule for question in questions for rule in question.suggested_rules]
        if covers(rules, prepared.tool, parse_arguments(prepared.input), prepared.effective_input):
            context.decisions.pop(call.id, None)  # the answer may settle it; it is decided then
            return None
    if decision.waits_for and (refusal := refusal_to_wait(agent, call)) is not None:
        return refusal
    context.record_decision(call, decision)
    if decision.behavior is _DENY:
        if agent.chains.on_content is not incoming_content and decision.by == "policy" and not call.is_hidden:
            # Without its words, which layers are still to look at, in the result.
            context.record_decision(call, replace(decision, message=""))
        return denial(decision)
    # Allowed, it may still wait for a program outside that runs it.
    return None if decision.waits_for else prepared


async def decide_call(agent: ReplyingAgent, prepared: PreparedCall, earlier: CallDecision | None) -> CallDecision:
    """Decide on a checked call; `earlier` is what was decided on it before, by the user perhaps.

    The user's no stands. The user's yes answers whatever would ask about the same call again, and overrules no denial.
    """
    if earlier is not None and earlier.by == "user" and earlier.behavior is _DENY:
        return earlier
    if earlier is None and prepared.tool.is_hidden:
        refusal = _find_refusal(agent.state.reply_context, prepared.name)
        if refusal is not None:
            return CallDecision(_DENY, message=refusal.message)
    verdict = await _stricter_verdict(agent, prepared)
    call_digest = digest(prepared.name, prepared.written_input)
    if verdict.behavior is _DENY:
        why = verdict.message or verdict.decision_reason
        # The user's yes overrules no rule that denies, but what the model had asked for stays on record.
        if earlier is None or earlier.by != "user":
            return CallDecision(_DENY, message=why)
        return CallDecision(_DENY, message=why, digest=earlier.digest, original_input=earlier.original_input)
    fingerprint = prepared.tool.fingerprint
    if earlier is not None and (earlier.by, earlier.digest, earlier.fingerprint) == ("user", call_digest, fingerprint):
        decision = earlier  # the user's yes to exactly this call
        if fingerprint is not None:
            agent.state.known_tools[_known_name(agent, prepared.tool_call.id, prepared.name)] = fingerprint
    elif verdict.behavior is _ASK:
        return CallDecision(
            _ASK,
            message=_with_values(agent, prepared, verdict.message or verdict.decision_reason),
            digest=call_digest,
            waits_for="user",
            asked_at=agent.live_conversation.run.now(),
            suggested_rules=[] if verdict.bypass_immune else verdict.suggested_rules,
            fingerprint=fingerprint,
        )
    else:
        decision = CallDecision(_ALLOW, message=verdict.message)
    if prepared.tool.is_external_tool:
        decision.digest, decision.waits_for = call_digest, "external"
        decision.asked_at = agent.live_conversation.run.now()
    return decision


def _with_values(agent: ReplyingAgent, prepared: PreparedCall, question: str) -> str:
    """Return the question, with the values of the arguments if handles stand for some, which the user cannot read."""
    if not holds(agent.state, prepared.written_input):
        return question
    written = parse_arguments(prepared.written_input)
    if (
        replace_in_value(agent.state, written, value_anywhere if prepared.tool.keeps_handles else value_in_tools)
        == written
    ):
        return question  # they are not to be released
    values = prepared.effective_input()
    # In the order of the tool's parameters, which the user knows.
    properties = prepared.tool.input_schema.get("properties") or {}
    arguments = {name: values[name] for name in properties if name in values} | values
    if prepared.tool.keeps_handles:
        arguments = replace_in_value(agent.state, arguments)
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    more = f" ... ({len(text):,} characters)" if len(text) > _MAX_ARGUMENTS else ""
    end = "" if question.endswith((".", "?", "!")) else "."
    return f"{question}{end} Arguments: {text[:_MAX_ARGUMENTS]}{more}"


def _find_refusal(context: ReplyContext | None, name: str) -> CallDecision | None:
    """Return the user's no to an earlier question of that name, which is not asked again."""
    if context is None or context.hidden_calls is None:
        return None
    ids = [call_id for call_id, call in context.hidden_calls.items() if call.name == name]
    decisions = filter(None, map(context.decisions.get, ids))
    return next((item for item in decisions if item.by == "user" and item.behavior is _DENY), None)


async def _stricter_verdict(agent: ReplyingAgent, prepared: PreparedCall) -> PermissionDecision:
    """Return the stricter of what the engine says and what the layers make of it."""
    run, chain, tool = agent.live_conversation.run, agent.chains.on_check_permission, prepared.tool
    as_written, tool_input = parse_arguments(prepared.input), prepared.effective_input()
    engine = await decide(tool, as_written, agent.state.permission_context, prepared.effective_input)
    engine = _ask_about_change(agent, prepared.tool_call.id, tool, engine)
    verdict = _ask_for_layer(agent, prepared.tool_call.id, tool, engine)
    if chain is check_permission:
        return verdict
    # The core of the chain gives it back, if the layers ask about this very call.
    run.progress.checked = tool, tool_input, verdict
    call = copy_block(prepared.tool_call)
    # A copy, since a layer may change what it is given.
    by_layers = await chain(agent, tool_call=call, tool=tool, tool_input=deepcopy(tool_input))
    return combine(engine, by_layers, agent.state.permission_context.mode)


def _ask_about_change(
    agent: ReplyingAgent, call_id: str, tool: ToolBase, decision: PermissionDecision
) -> PermissionDecision:
    """Return the decision on a call of a tool that may be another one than the user knows."""
    if tool.fingerprint is None:
        return decision
    # The tools of a round are known since the model first saw them, those of a tool since it first called them.
    if agent.state.known_tools.setdefault(_known_name(agent, call_id, tool.name), tool.fingerprint) == tool.fingerprint:
        return decision
    mode = PermissionMode(agent.state.permission_context.mode)
    if mode is PermissionMode.BYPASS:
        return decision
    message = f"the description or the parameters of {tool.name} have changed since this conversation has known it"
    question = PermissionDecision(_ASK, message, f"changed {tool.name}", bypass_immune=True)
    return combine(decision, question, mode)


def _known_name(agent: ReplyingAgent, call_id: str, name: str) -> str:
    """Return the key of a call's tool in `known_tools`: below the name of a tool that has it in a toolkit of its own.

    Another tool of that name, of another server perhaps, may be in the round.
    """
    outer_id, context = call_id.rpartition("/")[0], agent.state.reply_context
    if not outer_id or context is None:
        return name
    inner = context.inner.get(outer_id)
    outer = find_block(context.message, outer_id, ToolCallBlock) if inner is None else inner.question.tool_call
    tool = agent.live_conversation.run.toolkit_of(outer_id).get(outer.name)
    return f"{outer.name}/{name}" if tool is not None and isinstance(tool.inner_toolkit, Toolkit) else name


def _ask_for_layer(
    agent: ReplyingAgent, call_id: str, tool: ToolBase, decision: PermissionDecision
) -> PermissionDecision:
    """Return the decision with what a layer asks by a call of a hidden tool.

    It counts as that layer's own ASK: it stands in the mode BYPASS, no allow rule answers it, and another layer may.
    """
    if not (tool.is_hidden and tool.ask):
        return decision
    # On record with the reply, since a process may end between the call and the question.
    context = agent.state.reply_context
    hidden = None if context is None or context.hidden_calls is None else context.hidden_calls.get(call_id)
    text = hidden.question if hidden is not None and hidden.question else f"{tool.name} asks"
    question = PermissionDecision(_ASK, text, f"question {tool.name}")
    return combine(decision, question, agent.state.permission_context.mode)


def denial(decision: CallDecision) -> ToolResponse:
    """Return the result of a call that was denied."""
    by = "The user denied this call" if decision.by == "user" else "This call is not permitted"
    return failure(f"{by}: {decision.message}" if decision.message else f"{by}.", ToolResultState.DENIED)
