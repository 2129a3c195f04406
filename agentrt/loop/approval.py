"""Deciding on tool calls: what may run, what is denied, and what somebody outside has to answer for first."""

from typing import Any

from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.run import Run
from agentrt.message import ToolCallBlock, ToolResultState, copy_block
from agentrt.permission import combine, covers, decide, digest, needs_no_decision
from agentrt.state import CallDecision, ReplyContext
from agentrt.tool import ToolBase
from agentrt.tool.arguments import parse_arguments
from agentrt.tool.call import PreparedCall
from agentrt.tool.to_response import failure
from agentrt.types import PermissionBehavior, PermissionDecision, ToolResponse

__all__ = ["Prepared", "check_permission", "decide_call", "denial", "prepare_call", "prepare_without_asking"]

Prepared = PreparedCall | ToolResponse
"""A call that may run, or the result of one that may not."""

_ALLOW, _ASK, _DENY = PermissionBehavior.ALLOW, PermissionBehavior.ASK, PermissionBehavior.DENY
_ALLOWED = CallDecision(_ALLOW)  # what is decided on nearly every call; it is never changed


async def check_permission(
    agent: ReplyingAgent, tool_call: ToolCallBlock, tool: ToolBase, tool_input: dict[str, Any]
) -> PermissionDecision:
    """The core of on_check_permission: what the rules, the mode and the tool itself say."""
    known = agent.run.progress.checked
    if known is not None and known[0] is tool and known[1] == tool_input:
        return known[2]
    return await decide(tool, tool_input, agent.state.permission_context)


def prepare_without_asking(
    agent: ReplyingAgent, run: Run, context: ReplyContext, calls: list[ToolCallBlock]
) -> list[tuple[ToolCallBlock, Prepared]] | None:
    """Check the calls and decide on them, if nothing has to be asked about any of them: what most come to."""
    if agent.chains.on_check_permission is not check_permission:
        return None
    permissions = agent.state.permission_context
    ready: list[tuple[ToolCallBlock, Prepared]] = []
    allowed: dict[str, CallDecision] = {}
    for call in calls:
        prepared = _checked(agent, run, call)
        if isinstance(prepared, PreparedCall):
            tool = prepared.tool
            if tool.is_external_tool or call.id in context.decisions or not needs_no_decision(tool, permissions):
                return None
            allowed[call.id] = _ALLOWED
        ready.append((call, prepared))
    context.decisions.update(allowed)
    return ready


def _checked(agent: ReplyingAgent, run: Run, call: ToolCallBlock) -> Prepared:
    if call.id == run.progress.cut_call:
        # What is left of its arguments may well fit: nothing at all fits a tool that has a default for everything.
        return failure(
            f"{call.name} was not run: the answer was cut off before its arguments were complete. Call it again."
        )
    return run.toolkit.prepare(call, agent.state.active_groups)


async def prepare_call(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock) -> Prepared | None:
    """Check the call and decide on it; returns `None` for one that waits for somebody."""
    prepared = _checked(agent, agent.run, call)
    if isinstance(prepared, ToolResponse):
        return prepared
    decision = await decide_call(agent, prepared, context.decisions.get(call.id))
    if _is_asked_already(agent, context, prepared, decision):
        context.decisions.pop(call.id, None)  # the answer may settle it; it is decided then
        return None
    context.decisions[call.id] = decision
    if decision.behavior is _DENY:
        return denial(decision)
    return None if decision.waits_for else prepared


def _is_asked_already(
    agent: ReplyingAgent, context: ReplyContext, prepared: PreparedCall, decision: CallDecision
) -> bool:
    """Say whether a rule that goes with an open question would answer this one as well."""
    if not (decision.suggested_rules and agent.state.permission_context.allow_new_rules):
        return False
    questions = [each for each in context.decisions.values() if each.waits_for == "user"]
    rules = [rule for each in questions for rule in each.suggested_rules]
    return covers(rules, prepared.tool, parse_arguments(prepared.input), prepared.effective_input)


async def decide_call(agent: ReplyingAgent, prepared: PreparedCall, earlier: CallDecision | None) -> CallDecision:
    """Decide on a checked call; `earlier` is what was decided on it before, by a person perhaps.

    A person's no stands. A person's yes answers whatever would ask about the same call again, and overrules no denial.
    """
    if earlier is not None and earlier.by == "user" and earlier.behavior is _DENY:
        return earlier
    found = await _effective(agent, prepared)
    asked = digest(prepared.name, prepared.input)
    if found.behavior is _DENY:
        why = found.message or found.decision_reason
        if earlier is None or earlier.by != "user":
            return CallDecision(_DENY, message=why)
        return CallDecision(_DENY, message=why, digest=earlier.digest, original_input=earlier.original_input)
    if earlier is not None and earlier.by == "user" and earlier.digest == asked:
        decision = earlier
    elif found.behavior is _ASK:
        return CallDecision(
            _ASK,
            message=found.message or found.decision_reason,
            digest=asked,
            waits_for="user",
            asked_at=agent.run.now(),
            suggested_rules=[] if found.bypass_immune else found.suggested_rules,
        )
    else:
        decision = CallDecision(_ALLOW, message=found.message)
    if prepared.tool.is_external_tool:
        decision.digest, decision.waits_for, decision.asked_at = asked, "external", agent.run.now()
    return decision


async def _effective(agent: ReplyingAgent, prepared: PreparedCall) -> PermissionDecision:
    """Return the stricter of what the engine says and what the layers make of it."""
    run, chain, tool = agent.run, agent.chains.on_check_permission, prepared.tool
    tool_input = parse_arguments(prepared.input)
    engine = await decide(tool, tool_input, agent.state.permission_context, prepared.effective_input)
    if chain is check_permission:
        return engine
    run.progress.checked = tool, tool_input, engine
    call = copy_block(prepared.tool_call)
    said = await chain(agent, tool_call=call, tool=tool, tool_input=parse_arguments(prepared.input))
    return combine(engine, said, agent.state.permission_context.mode)


def denial(decision: CallDecision) -> ToolResponse:
    """Return the result of a call that was denied."""
    by = "A person denied this call" if decision.by == "user" else "This call is not permitted"
    return failure(f"{by}: {decision.message}" if decision.message else f"{by}.", ToolResultState.DENIED)
