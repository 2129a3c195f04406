"""Participants: agents in hubs and printed streams; in pipelines, anything that is called like an agent."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agentrt.agent import AgentBase
from agentrt.errors import ConfigError

Stage = Callable[..., Awaitable[Any]]
"""An agent, a pipeline, or a coroutine function with the same signature."""


def agents_in(participants: object, place: str) -> list[AgentBase]:
    """Return the agents, each once, of a list or of one agent; raises `ConfigError` for anything else."""
    agents = [participants] if isinstance(participants, AgentBase) else _as_list(participants, place)
    for agent in agents:
        if not isinstance(agent, AgentBase):
            raise ConfigError(f"{place} takes agents, not {agent!r:.200}: give instances of Agent or AgentBase")
    return list({id(agent): agent for agent in agents}.values())  # by identity, as agents may define equality


def stages_in(participants: object, place: str) -> list[Stage]:
    """Return the stages of a pipeline; raises `ConfigError` for anything that cannot be called like an agent."""
    stages = _as_list(participants, place)
    for stage in stages:
        if isinstance(stage, type) or not callable(stage):  # a class is callable, but not an agent
            raise ConfigError(f"{place} takes agents and other pipelines, not {stage!r:.200}")
    return stages


def _as_list(participants: object, place: str) -> list[Any]:
    # A str is iterable too, but its characters are not agents.
    if isinstance(participants, str) or not isinstance(participants, Iterable):
        raise ConfigError(f"{place} takes a list of agents, not {participants!r:.200}")
    return list(participants)
