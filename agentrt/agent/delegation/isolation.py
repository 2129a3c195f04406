"""The isolation of a sub-agent: its own resources, its supervisor's, and the limits of delegations.

    its own, fresh for each call      conversation, tools, model, hooks, data of middlewares
    the supervisor's, on top          deny and ask rules, and the mode if it is stricter; renewed at each entry
    a part of the supervisor's        files, in "subagents/<name>"
    shared                            `deps`, the state store (it saves inside the supervisor's state)
    off                               console, queue, hubs

An answer that brings rules brings them to the conversation of that one call.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from agentrt.agent.delegation.lineage import Lineage
from agentrt.hooks import MiddlewareBase, guards_or_observes
from agentrt.permission.modes import strictest_mode
from agentrt.state import AgentState, ReplyContext
from agentrt.tool import ToolContext
from agentrt.types import PermissionBehavior, PermissionContext, ReActConfig

# An allow rule is meant for a tool of the supervisor's, and the sub-agent may have another one of that name.
_INHERITED_BEHAVIORS = (PermissionBehavior.DENY, PermissionBehavior.ASK)
_BY_USER = "user"  # the source of a rule that came with an answer
_FOR_EVER = 1e15  # seconds
_STATE, _USED = "state", "answers_used"


class StoreInCall:
    """Keeps the conversation of a sub-agent in what its call keeps, and saves that with the supervisor's state.

    `kept` is what the call keeps. `used` are the ids of the answers that the sub-agent was given, which are kept with
    what it made of them. `failure` is what the supervisor's own save has raised.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self.kept = context.kept
        self.used: set[str] = set()
        self.failure: Exception | None = None

    async def load(self, session_id: str) -> AgentState | None:
        """Return the conversation that is kept, `None` if this is the first entry."""
        # Not before, since what is kept may be of another shape, and its error belongs to the call.
        self.used = set(self.kept.get(_USED, ()))
        kept = self.kept.get(_STATE)
        return None if kept is None else AgentState.model_validate_json(json.dumps(kept))

    async def save(self, state: AgentState) -> None:
        """Keep the conversation as it is now, and save it."""
        # The whole of it in each save, since the supervisor's state is the one that is loaded again.
        self.keep(state)
        try:
            await self._context.save()
        except Exception as error:  # raised again: it is the supervisor's failure and not the sub-agent's
            self.failure = error
            raise

    def keep(self, state: AgentState) -> None:
        """Keep the conversation as it is now."""
        self.kept[_STATE] = json.loads(state.model_dump_json())
        self.kept[_USED] = sorted(self.used)

    def begin(self, state: AgentState, is_saved: bool) -> None:
        """Note that the call is entered; where nothing is saved on the way, it is not known later how far it came."""
        if not is_saved:
            self.kept[_STATE] = None
        elif not self.was_begun:
            self.keep(state)

    def start_over(self) -> None:
        """Forget the conversation; answers to what it has asked are none to what a new one asks."""
        self.kept.clear()
        self.kept[_USED] = sorted(self._context.answers)

    @property
    def was_begun(self) -> bool:
        """Whether the call has, or had, a conversation."""
        return _STATE in self.kept

    @property
    def is_lost(self) -> bool:
        """Whether the call was entered before, and nothing of its conversation is there."""
        return self.was_begun and self.kept[_STATE] is None


def session_id_of(context: ToolContext) -> str:
    """Return the id of the conversation that a call has with its sub-agent."""
    state: AgentState | None = getattr(context.agent, "state", None)
    session_id = "" if state is None else f"{state.session_id}."
    return f"{session_id}{context.tool_call.name}.{context.tool_call.id}"


def renew_permissions(
    permissions: PermissionContext,
    template: PermissionContext,
    supervisor: PermissionContext | None,
    supervisor_name: str,
) -> None:
    """Make what a sub-agent's conversation permits what it is at this entry.

    `template` is what the sub-agent was built with. Of the conversation's own rules, those that the user has added
    count.
    """
    rules = template.rules + [rule for rule in permissions.rules if rule.source == _BY_USER]
    mode, allow_new_rules = template.mode, template.allow_new_rules
    if supervisor is not None:
        # A source that names a supervisor means that the rule is read again at the next entry.
        rules += [
            rule if rule.source.startswith("supervisor ") else replace(rule, source=f"supervisor {supervisor_name}")
            for rule in supervisor.rules
            if rule.behavior in _INHERITED_BEHAVIORS
        ]
        mode = strictest_mode((mode, supervisor.mode))
        # The user answers the supervisor's reply, and so by its settings.
        allow_new_rules = supervisor.allow_new_rules
    permissions.mode, permissions.rules = mode, list(dict.fromkeys(rules))
    permissions.allow_new_rules, permissions.allow_edited_input = allow_new_rules, False


@lru_cache(maxsize=64)  # each call of a sub-agent asks for the same, and making one checks all of its numbers
def config_of_delegate(own: ReActConfig, root: ReActConfig | None) -> ReActConfig:
    """Return the limits of a sub-agent's reply.

    The depth is the root's. Answers have come through the root's reply, which has looked at how late they are. What the
    supervisor's model learns of an answer without its form is the same, whether the reply is streamed or awaited.
    """
    depth = own.max_depth if root is None else root.max_depth
    return replace(own, answer_within=_FOR_EVER, max_depth=depth, raise_form_errors=False)


def config_of_root(context: ToolContext) -> ReActConfig | None:
    """Return the settings of the agent whose reply is the outermost one, `None` for one that has no loop."""
    # Only an `Agent` has them, and this file is below its module.
    return None if context.run is None else getattr(context.run.root.agent, "react_config", None)


def count_delegation(context: ToolContext) -> tuple[str, str] | None:
    """Count one more delegation of the root's reply; returns the limit that is reached, by its name and in words."""
    config, run = config_of_root(context), context.run
    reply: ReplyContext | None = None if run is None else run.root.agent.state.reply_context
    if config is None or run is None or reply is None:
        return None
    if run.depth + 1 >= config.max_depth:
        return "max_depth", f"{config.max_depth} replies inside of each other are the limit"
    if reply.delegations >= config.max_delegations:
        return "max_delegations", f"{config.max_delegations} calls of sub-agents are the limit of one reply"
    # In the root's state, so that the count continues in the process that resumes its reply.
    reply.delegations += 1
    return None


def describe_isolation(
    lineage: Lineage, folder: str | None, layers_here: Iterable[MiddlewareBase] = ()
) -> dict[str, str]:
    """Return what `explain` says of a sub-agent with these layers: for each resource whose it is."""
    supervisor = f"{lineage.ancestors[-1].name!r}" if lineage.ancestors else "its supervisor"
    inherited = zip(lineage.inherited, lineage.origins, strict=True)
    names = ", ".join(f"{type(middleware).__name__} of {origin!r}" for middleware, origin in inherited)
    layers = f"its own, and {names}" if names else "its own"
    if lineage.ancestors and not names:
        layers += f" alone: what those of {supervisor} limit, count, record or refuse does not hold here"
    here = set(map(id, layers_here))
    above = lineage.ancestors[-1].middlewares if lineage.ancestors else ()
    absent = [
        f"{type(layer).__name__}{' (not stated)' if layer.inherited is None else ''}"
        for layer in above
        if id(layer) not in here and guards_or_observes(layer)
    ]
    not_inherited = {"guards and observers that are not inherited": ", ".join(absent)} if absent else {}
    return {
        "conversation, tools, model, hooks": f"its own, fresh for each call; only the result is seen by {supervisor}",
        "middlewares": layers,
        **not_inherited,
        "permissions": f"deny and ask rules of {supervisor} and the stricter mode, on top of its own, at each entry",
        "questions": f"asked in the reply of {supervisor}, and answered there",
        "state": f"inside that of {supervisor}, saved where its own would be",
        "files": "a workspace of its own" if folder is None else f"{folder} in the workspace of {supervisor}",
        "deps, logger, tracer provider": "shared",
        "usage": "counted by the layers that hold here: for each agent that it works for, and once in the total",
        "deadline, interrupt, cancellation": f"those of {supervisor} end it",
        "hubs, console, queue": "off",
    }
