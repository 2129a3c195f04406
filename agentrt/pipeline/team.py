"""The common settings of agents that share one conversation."""

import copy
from collections.abc import Iterable

from agentrt._runtime.text import repr_of
from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.permission import PermissionBehavior, PermissionContext
from agentrt.permission.modes import strictest_mode
from agentrt.state import StateStore


def members_by_name(agents: object) -> dict[str, Agent]:
    """Return the agents by their names; raises `ConfigError` unless it is a list of agents with different names."""
    # A str is iterable too, but its characters are not agents.
    if isinstance(agents, (str, Agent)) or not isinstance(agents, Iterable):
        raise ConfigError(f"Handoffs(agents=...) takes a list of agents, not {repr_of(agents)}")
    members: dict[str, Agent] = {}
    for agent in agents:
        # Other classes write their own replies, and need not have a model that calls tools.
        if not isinstance(agent, Agent):
            raise ConfigError(
                f"Handoffs(agents=...) takes instances of Agent, not {repr_of(agent)}: no other agent has tools to "
                f"transfer with"
            )
        if agent.name in members:
            raise ConfigError(
                f"Handoffs(agents=...) holds two agents that are called {agent.name!r}: give them different names"
            )
        members[agent.name] = agent
    if not members:
        raise ConfigError("Handoffs(agents=...) needs at least one agent, and the list is empty")
    return members


def check_start(start: object, members: dict[str, Agent]) -> str:
    """Return the name of the first agent; raises `ConfigError` for one that is not among the members."""
    if start is None:
        return next(iter(members))
    name = start.name if isinstance(start, Agent) else start
    if not isinstance(name, str) or name not in members:
        raise ConfigError(f"Handoffs(start=...) must be one of {', '.join(members)}, not {repr_of(start)}")
    return name


def common_store(agents: Iterable[Agent]) -> StateStore | None:
    """Return the store that the agents share; raises `ConfigError` if there are several."""
    # By identity, since a store may define equality in any way.
    stores = {id(agent.state_store): agent.state_store for agent in agents if agent.state_store is not None}
    if len(stores) > 1:
        raise ConfigError("the agents of a Handoffs have different state stores: give it one as state_store=...")
    return next(iter(stores.values()), None)


def common_permissions(agents: Iterable[Agent]) -> PermissionContext:
    """Return permissions that are at least as strict as those of each agent."""
    contexts = [agent.state.permission_context for agent in agents]
    first = contexts[0]
    if all(context == first for context in contexts):
        # A copy, since answers to questions may add rules.
        return copy.deepcopy(first)
    # An allow rule is meant for its own agent: another one may have a different tool of the same name.
    rules = [rule for context in contexts for rule in context.rules if rule.behavior is not PermissionBehavior.ALLOW]
    return PermissionContext(strictest_mode(context.mode for context in contexts), rules)
