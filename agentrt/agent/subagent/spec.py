"""What a sub-agent is made of: its spec, what it shares with its supervisor, and what it learns of a conversation."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from agentrt.agent.subagent.limits import check_limits
from agentrt.block import JSONObject
from agentrt.errors import ConfigError
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg
from agentrt.model_interface import ChatModelBase
from agentrt.session import SessionBase
from agentrt.text import repr_of
from agentrt.workspace import FileSystemBase

__all__ = ["CONTEXT_KEY", "ContextBundle", "DelegationContext", "PermissionBundle", "SubAgentSpec"]


CONTEXT_KEY = "delegation_context"
"""Where a message's metadata have it, and the mark of the message that a sub-agent's memory begins with."""


@suggest_keywords()
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


@suggest_keywords()
@dataclass(slots=True)
class PermissionBundle:
    """What a sub-agent shares with its supervisor: the very objects, of which it gets a part where that is said.

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


@suggest_keywords()
@dataclass(slots=True)
class ContextBundle:
    """The supervisor's side of a delegation: what `_pre_context_compress` makes a `DelegationContext` of.

    The sub-agent itself never gets it. `workspace` is what the sub-agent will see of the files.
    """

    conversation: list[Msg] = field(default_factory=list)
    recent_tool_results: list[Msg] = field(default_factory=list)
    long_term_refs: list[JSONObject] = field(default_factory=list)
    workspace: FileSystemBase | None = None

    def with_delegation(self, context: "DelegationContext") -> "ContextBundle":
        """Return the bundle with what the sub-agent learns in the metadata of the newest message of the user."""
        conversation = list(self.conversation)
        for index in range(len(conversation) - 1, -1, -1):
            msg = conversation[index]
            if msg.role == "user":
                # On a copy, since a delegation changes nothing about its supervisor.
                conversation[index] = replace(msg, metadata={**msg.metadata, CONTEXT_KEY: context})
                break
        return replace(self, conversation=conversation)


class DelegationContext(TypedDict):
    """What a sub-agent learns of its supervisor's conversation; it is JSON.

    There are at most four `recent_events` of at most 200 characters each.
    """

    task_summary: str
    recent_events: list[str]
    long_term_refs: list[JSONObject]
    workspace_pointers: list[str]
    safety_flags: JSONObject
