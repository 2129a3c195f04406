"""Making a tool of a class of sub-agents."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypedDict

from agentrt._runtime.block import JSONObject, ToolCallBlock, new_id, new_name
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.text import repr_of
from agentrt.agent.base import AgentBase
from agentrt.agent.delegation.delegation import DelegatedCall
from agentrt.agent.delegation.summary import ContextBundle, DelegationContext
from agentrt.compat.subagent.base import SubAgentBase, require_health, unavailable_if_failing
from agentrt.compat.subagent.spec import PermissionBundle, SubAgentSpec
from agentrt.compat.subagent.toolkit import check_allowlist, toolkit_of
from agentrt.errors import AgentRTError, ConfigError, ToolConfigError
from agentrt.tool import ToolContext, Toolkit
from agentrt.tool.base import check_name
from agentrt.types import ToolResponse

_MAX_NESTED = 8
# A skeleton need not run the loop, nor be asked in it, so its depth is not always that of a reply.
_depth: ContextVar[int] = ContextVar("agentrt_delegation_depth", default=0)

DelegationFunction = Callable[..., Awaitable[ToolResponse]]
"""`invoke_subagent(query, context=None)`, which `Toolkit.register_tool_function` takes."""


class SubAgentKeywords(TypedDict):
    """The keywords for `Toolkit.register_tool_function`."""

    func_name: str
    func_description: str


async def make_subagent_tool(
    cls: type[SubAgentBase], spec: SubAgentSpec, *, tool_name: str, host: AgentBase | Toolkit | None = None
) -> tuple[DelegationFunction, SubAgentKeywords]:
    """Return a function and the keywords with which a toolkit takes it as a tool.

        function, keywords = await make_subagent_tool(Searcher, spec, tool_name="agent_search")
        toolkit.register_tool_function(function, **keywords)

    The function is `invoke_subagent(query, context=None)`. The supervisor is the agent that calls it. `host` is the
    agent, or the toolkit, whose tools the allowlist may name besides those of the class; it is the supervisor of calls
    outside of any agent, too. An instance is made here once, and its own healthcheck and the spec's are awaited.

    Raises `SubAgentUnavailable`, and logs it, for a sub-agent that cannot be made or is not healthy, and
    `ToolConfigError` for a spec without a description and an allowlist with names that mean nothing.
    """
    _check_parts(cls, spec, tool_name, host)
    check_allowlist(cls.tools, toolkit_of(host), spec.tools_allowlist)
    delegation = _Delegation(cls, spec, host)
    permissions = delegation.permissions(host)
    # Now and not at the first call: a model must not be offered what cannot work.
    try:
        with unavailable_if_failing(spec.name, "cannot be made"):
            await delegation.export(permissions, ContextBundle(), "healthcheck", None, run_healthcheck=True)
        if spec.healthcheck is not None:
            await require_health(spec.name, spec.healthcheck)
    except AgentRTError as error:
        permissions.logger.warning("no tool was made of the sub-agent %r: %s", spec.name, type(error).__name__)
        raise
    return delegation.function(), SubAgentKeywords(func_name=tool_name, func_description=spec.description)


def _check_parts(cls: object, spec: object, tool_name: object, host: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, SubAgentBase)):
        raise ToolConfigError(f"make_subagent_tool() takes a class that derives from SubAgentBase, not {repr_of(cls)}")
    if not isinstance(spec, SubAgentSpec):
        raise ToolConfigError(
            f"make_subagent_tool() takes a SubAgentSpec, not {repr_of(spec)}: "
            f"write SubAgentSpec(name=..., description=...)"
        )
    check_name("sub-agent", spec.name)
    check_name("tool", tool_name)
    description: object = spec.description
    if not isinstance(description, str) or not description.strip():
        raise ToolConfigError(
            f"the sub-agent {spec.name!r} needs a description, not {repr_of(description)}: "
            f"write SubAgentSpec(description=...), by which a model decides whether to call it"
        )
    for field, value, is_right in (
        ("model_override", spec.model_override, isinstance(spec.model_override, ChatModelBase)),
        ("healthcheck", spec.healthcheck, callable(spec.healthcheck)),
        ("tags", spec.tags, isinstance(spec.tags, (list, tuple)) and all(isinstance(tag, str) for tag in spec.tags)),
    ):
        if value is not None and not is_right:
            raise ToolConfigError(f"SubAgentSpec({field}=...) of {spec.name!r} cannot be {repr_of(value)}")
    if host is not None and not isinstance(host, (AgentBase, Toolkit)):
        raise ToolConfigError(f"make_subagent_tool(host=...) must be an agent or a Toolkit, not {repr_of(host)}")


class _Delegation:
    """How the tasks of one tool are delegated."""

    def __init__(self, cls: type[SubAgentBase], spec: SubAgentSpec, host: AgentBase | Toolkit | None) -> None:
        self._cls = cls
        self._spec = spec
        self._host = host

    def function(self) -> DelegationFunction:
        """Return what the supervisor's model calls."""

        async def invoke_subagent(
            query: str, context: dict[str, Any] | None = None, *, tool_context: ToolContext | None = None
        ) -> ToolResponse:
            """Give a task to a sub-agent.

            Args:
                query: The task, with all that the sub-agent needs to know.
                context: Further facts for the sub-agent, if any.
            """
            # A program may call it by itself.
            return await self.run(query, context, tool_context or ToolContext(ToolCallBlock(new_id(), self._spec.name)))

        # By which a group's tools are told from those that delegate further.
        invoke_subagent.delegates = True  # type: ignore[attr-defined]
        return invoke_subagent

    async def run(self, query: str, context: JSONObject | None, tool_context: ToolContext) -> ToolResponse:
        """Do one task; only a cancellation leaves."""
        supervisor = self._host if tool_context.agent is None else tool_context.agent
        call = DelegatedCall(tool_context, self._spec.name)
        call.outcomes.supervisor = getattr(supervisor, "name", "")
        token = _depth.set(_depth.get() + 1)
        try:
            answer = self._answer(call, supervisor, query, context, tool_context.deps)
            return await call.outcomes.result_of(answer, seconds=None)  # since `delegate` limits the time itself
        finally:
            _depth.reset(token)

    async def _answer(
        self, call: DelegatedCall, supervisor: object, query: str, metadata: JSONObject | None, deps: Any
    ) -> ToolResponse:
        name = self._spec.name
        permissions = self.permissions(supervisor)
        call.outcomes.supervisor, call.outcomes.logger = permissions.supervisor_name, permissions.logger
        limit = permissions.safety_limits.get("max_depth")
        limit = _MAX_NESTED if limit is None else limit
        if _depth.get() > limit:
            return call.outcomes.denial("max_depth", f"{limit} delegations inside of each other are the limit")
        denied = call.count()
        if denied is not None:
            return denied
        bundle = await self._cls.context_of(supervisor) if isinstance(supervisor, AgentBase) else ContextBundle()
        files = permissions.filesystem
        # As the sub-agent will see it, so that what points to files is true for it.
        if bundle.workspace is None and files is not None:
            bundle = replace(bundle, workspace=files.namespace(f"subagents/{name}"))
        delegation_context = self._cls.compress_for(bundle, query, permissions.safety_limits)
        agent = await self.export(permissions, bundle.with_delegation(delegation_context), query, delegation_context)
        own = {} if deps is None else {"deps": deps}  # which a `delegate` of the user's need not take
        with call.announced(new_name(), agent.state.session_id) as end:
            response = await agent.delegate(query, delegation_context, metadata=metadata, **own)
            end.state, end.usage = response.state, agent.usage
        return response

    def permissions(self, supervisor: object) -> PermissionBundle:
        return self._cls.permissions_of(supervisor) if isinstance(supervisor, AgentBase) else PermissionBundle()

    async def export(
        self,
        permissions: PermissionBundle,
        parent_context: ContextBundle,
        task: str,
        delegation_context: DelegationContext | None,
        run_healthcheck: bool = False,
    ) -> SubAgentBase:
        agent = await self._cls.export_agent(
            permissions=permissions,
            parent_context=parent_context,
            task=task,
            delegation_context=delegation_context,
            run_healthcheck=run_healthcheck,
            tools_allowlist=self._spec.tools_allowlist,
            model_override=self._spec.model_override,
            host_toolkit=toolkit_of(self._host),
        )
        exported: object = agent
        if not isinstance(exported, SubAgentBase):
            raise ConfigError(
                f"{self._cls.__name__}.export_agent() must return a new instance of it, not {repr_of(exported)}: "
                f"end it with `return agent`"
            )
        agent.name = self._spec.name  # the class does not know it
        return agent
