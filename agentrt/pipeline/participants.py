"""Who takes part: agents in hubs and printed streams, and whatever is awaited like an agent in pipelines."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agentrt.agent import AgentBase
from agentrt.errors import ConfigError

__all__ = ["Stage", "agents_in", "stages_in"]

Stage = Callable[..., Awaitable[Any]]
"""An agent, a pipeline, or a coroutine function that is called like them."""


def agents_in(given: Any, place: str) -> list[AgentBase]:
    """Return the agents, each once, of a list or of one agent; raises `ConfigError` for anything else."""
    agents = [given] if isinstance(given, AgentBase) else _listed(given, place)
    for agent in agents:
        if not isinstance(agent, AgentBase):
            raise ConfigError(f"{place} takes agents, not {agent!r:.200}: give instances of Agent or AgentBase")
    return list({id(agent): agent for agent in agents}.values())


def stages_in(given: Any, place: str) -> list[Stage]:
    """Return the stages of a pipeline; raises `ConfigError` for what cannot be called like an agent."""
    stages = _listed(given, place)
    for stage in stages:
        if isinstance(stage, type) or not callable(stage):
            raise ConfigError(f"{place} takes agents and other pipelines, not {stage!r:.200}")
    return stages


def _listed(given: Any, place: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{place} takes a list of agents, not {given!r:.200}")
    return list(given)
