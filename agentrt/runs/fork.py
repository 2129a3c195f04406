"""Forks: the state at a step as a new conversation, and the layer that guards its tools."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from time import time_ns
from typing import Any, Literal, TypeVar, get_args

from agentrt._runtime.block import new_name
from agentrt.agent import Agent
from agentrt.errors import UsageError
from agentrt.hooks import ActingValues, CheckPermissionValues, MiddlewareBase, NextActing, NextCheckPermission
from agentrt.message import ContentBlock, ToolCallBlock, ToolResultBlock
from agentrt.state import AgentState
from agentrt.types import STRUCTURED_OUTPUT, JSONObject, PermissionBehavior, PermissionDecision, ToolChunk, ToolResponse

Effects = Literal["ask", "record", "run"]
"""How a fork treats tools that are not read-only: they ask first, answer from the record if possible, or run."""

RecordedResults = Mapping[str, Sequence[ToolResultBlock]]
"""The recorded results by `call_key`, in order."""

EFFECTS_LABEL = "fork_effects"
"""Names the effects of a fork other than "run", so that they hold in a process that does not know its agent."""
_MAX_SOURCE = 500
_ForkedAgentT = TypeVar("_ForkedAgentT", bound=Agent)


def start_conversation(state: AgentState, seq: int, session_id: str, source: str, effects: Effects) -> None:
    """Give a state from a record a new session id, and its reply a new reply id."""
    old = state.session_id
    state.session_id = session_id
    # Cut from the left, since a session id may be as long as a label: the reply and the step always remain.
    state.labels = {**state.labels, "forked_from": source[-_MAX_SOURCE:]}
    state.labels.pop(EFFECTS_LABEL, None)  # of the record, which may be a fork itself
    if effects != "run":
        state.labels[EFFECTS_LABEL] = effects
    # The last save may not have counted all events before the step.
    state.sequence = max(state.sequence, seq)
    state.tasks.clear()  # which wake the conversation of the record
    reply = state.reply_context
    if reply is None:
        return
    # With another id, an answer to a question of the record does not fit.
    reply_id = new_name()
    if reply.message.id == reply.reply_id:
        reply.message.id = reply_id
    reply.reply_id = reply_id
    reply.takeovers = reply.deaths = reply.known_results = 0
    reply.handed_over = False
    for decision in (*reply.decisions.values(), *(inner.decision for inner in reply.inner.values())):
        if decision.waits_for:
            decision.asked_at = time_ns()
    for kept in reply.kept.values():
        child = kept.get("state")
        # A sub-agent's conversation gets new ids too: its record must not continue.
        if isinstance(child, dict) and str(child.get("session_id")).startswith(f"{old}."):
            inner = AgentState.model_validate_json(json.dumps(child))
            name = f"{session_id}.{inner.session_id.removeprefix(f'{old}.')}"
            start_conversation(inner, 0, name, f"{inner.session_id}/{source.partition('/')[2]}", effects)
            kept["state"] = json.loads(inner.model_dump_json())


def check_called_tools(agent: Agent, blocks: Sequence[ContentBlock], offered: set[str], place: str) -> None:
    """Raise `UsageError` for an agent that lacks tools that were called before the step."""
    called = {block.name for block in blocks if isinstance(block, ToolCallBlock)} & offered - {STRUCTURED_OUTPUT}
    missing = sorted(called - set(agent.toolkit.names()))
    if missing and not agent.chains.layers["on_tools"]:  # its tools are known only in a reply
        raise UsageError(
            f"{place} has called {', '.join(missing)} before that step, and agent {agent.name!r:.100} has no such "
            f"tool: fork it with an agent that has the tools of the record"
        )


def add_effects(agent: _ForkedAgentT, effects: Effects, results: RecordedResults) -> _ForkedAgentT:
    """Return the agent with a layer that guards its tools, as far out as the other layers allow."""
    if effects not in get_args(Effects):
        raise UsageError(f'fork(effects=...) must be "ask", "record" or "run", not {effects!r:.100}')
    if effects == "run":
        return agent
    layers = list(agent.middlewares)
    place = sum(layer.position == "outermost" for layer in layers)
    layer = ForkedEffects() if effects == "ask" else ReplayedEffects(results)
    return agent.with_middlewares([*layers[:place], layer, *layers[place:]])


def guard_fork(agent: _ForkedAgentT, state: AgentState) -> _ForkedAgentT:
    """Return the agent with the layer that asks, if the state is that of a fork with such a layer."""
    is_guarded = EFFECTS_LABEL not in state.labels or any(
        isinstance(layer, ForkedEffects) for layer in agent.middlewares
    )
    return agent if is_guarded else add_effects(agent, "ask", {})


class ForkedEffects(MiddlewareBase):
    """Asks the user before each call of a tool that is not read-only, in every permission mode."""

    inherited = True

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        decision = await next_handler(**input_kwargs)
        tool, call = input_kwargs["tool"], input_kwargs["tool_call"]
        is_free = tool.is_read_only or tool.is_hidden or self._finds(agent, call)
        if is_free or decision.behavior is PermissionBehavior.DENY:
            return decision
        if decision.behavior is PermissionBehavior.ASK:  # its own question is more specific
            return replace(decision, bypass_immune=True)
        question = f"{call.name} may have an effect, and this conversation is a fork"
        return PermissionDecision(PermissionBehavior.ASK, question, type(self).__name__, bypass_immune=True)

    def describe(self, agent: Any) -> Sequence[str]:
        return ("a fork: tools that are not read-only ask first",)

    def _finds(self, agent: Agent, call: ToolCallBlock) -> ToolResultBlock | None:
        """Return the recorded result of the call; always `None` without recorded results."""
        return None


class ReplayedEffects(ForkedEffects):
    """Answers calls of tools that are not read-only from the record; asks first if that has no such call."""

    def __init__(self, results: RecordedResults) -> None:
        self._results = results

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sum(map(len, self._results.values()))} results)"

    async def on_acting(
        self, agent: Agent, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = input_kwargs["tool_call"]
        tool = agent.run.tool_of(call)
        found = None if tool is not None and tool.is_read_only else self._finds(agent, call)
        reply = agent.state.reply_context
        is_in_progress = reply is not None and call.id in reply.kept
        # One that was in progress at the step continues from there, with the answers of the fork.
        if found is None or is_in_progress:
            async for item in next_handler(**input_kwargs):
                yield item
            return
        used, key = agent.state_of(self), _key_in_reply(agent, call)
        # Each result is used once: the next equal call may have another result, or none.
        used[key] = used.get(key, 0) + 1
        yield ToolResponse(found.blocks, found.state)

    def describe(self, agent: Any) -> Sequence[str]:
        return ("a fork: tools that are not read-only answer from the record, or ask first",)

    def _finds(self, agent: Agent, call: ToolCallBlock) -> ToolResultBlock | None:
        key = _key_in_reply(agent, call)
        results, used = self._results.get(key, ()), agent.state_of(self).get(key, 0)
        return results[used] if used < len(results) else None


def _key_in_reply(agent: Agent, call: ToolCallBlock) -> str:
    outer_id = call.id.rpartition("/")[0]
    return call_key(call, agent.run.call_name(outer_id) if outer_id else None)


def call_key(call: ToolCallBlock, outer: str | None = None) -> str:
    """Return a key that is equal for calls of one tool with the same arguments; `outer` is the tool that made it.

    A tool may have tools of its own, whose names others have as well.
    """
    try:
        arguments: JSONObject | str = json.loads(call.input or "{}")
    except ValueError:
        arguments = call.input
    name = call.name if outer is None else f"{outer}/{call.name}"
    return f"{name} {json.dumps(arguments, sort_keys=True)}"
