"""The spec of a class of sub-agents, and the resources that one shares with its supervisor."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from agentrt._runtime.block import JSONObject
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.text import repr_of
from agentrt.compat.session.base import SessionBase
from agentrt.errors import ConfigError
from agentrt.workspace import FileSystemBase


@dataclass(slots=True)
class SubAgentSpec:
    """How a class of sub-agents is offered to a supervisor.

    `description` tells the supervisor's model what the sub-agent is for. `tools_allowlist` names functions and groups
    that the sub-agent gets, of its class's own `tools` and of the supervisor's toolkit; it gets no others. `tags` are
    yours. `healthcheck` is awaited once, when the tool is made.
    """

    name: str
    description: str
    tools_allowlist: list[str] | None = None
    model_override: ChatModelBase | None = None
    tags: list[str] | None = None
    healthcheck: Callable[[], Awaitable[bool]] | None = None


@dataclass(slots=True)
class PermissionBundle:
    """The objects that a sub-agent shares with its supervisor, whole or in the stated part.

    It sees its own namespace of `filesystem`, and its own names in `session`. `trace_provider` is a tracer of
    OpenTelemetry. The `safety_limits` are copied. The skeleton applies "disabled_tools" (names and patterns),
    "read_only" (no tools that change something), "timeout" (seconds of a delegation, 240 unless said otherwise) and
    "max_depth" (delegations inside of delegations, 8); all of them reach the sub-agent.
    """

    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("agentrt"))
    trace_provider: Any = None
    filesystem: FileSystemBase | None = None
    session: SessionBase | None = None
    long_term_memory: Any = None
    safety_limits: JSONObject = field(default_factory=dict)
    supervisor_name: str = ""

    def __post_init__(self) -> None:
        check_limits(self.safety_limits)
        files: object = self.filesystem
        if files is not None and not isinstance(files, FileSystemBase):
            raise ConfigError(
                f"PermissionBundle(filesystem=...) must be a FileSystemBase, not {repr_of(files)}: write "
                f"LocalWorkspace(folder)"
            )
        tracer = self.trace_provider
        if tracer is not None and not hasattr(tracer, "start_as_current_span"):
            raise ConfigError(
                f"PermissionBundle(trace_provider=...) must be a tracer of OpenTelemetry, not {repr_of(tracer)}: write "
                f"trace.get_tracer(__name__)"
            )


def check_limits(limits: object) -> None:
    """Raise `ConfigError` for limits of a wrong type: one that is misread would limit nothing."""
    if not isinstance(limits, dict):
        raise ConfigError(f"safety_limits must be a dict, not {repr_of(limits)}: write {{'timeout': 60}}, say")
    for name, (is_right, what) in _LIMITS.items():
        value: Any = limits.get(name)
        if value is not None and not is_right(value):
            raise ConfigError(f"safety_limits[{name!r}] must be {what}, not {repr_of(value)}")


_LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "disabled_tools": (
        # A str is iterable too, and its characters name no tools.
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value),
        "a list of names and patterns of tools",
    ),
    "read_only": (lambda value: isinstance(value, bool), "True or False"),
    "timeout": (
        lambda value: isinstance(value, (int, float)) and value is not True and isfinite(value) and value > 0,
        "a number of seconds above 0",
    ),
    "max_depth": (lambda value: type(value) is int and value >= 0, "a whole number from 0 up"),
}
"""By name: whether a value is right, and what it must be."""
