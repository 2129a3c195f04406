"""SubAgentBase: the skeleton of agents that work for another one, as its tools."""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from inspect import isawaitable
from typing import Any, ClassVar, Self, cast

import anyio

from agentrt._runtime.block import JSONObject, ToolCallBlock, new_id
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.text import repr_of
from agentrt.agent.base import AgentBase
from agentrt.agent.delegation.outcome import FAILED, Outcomes
from agentrt.agent.delegation.summary import (
    CONTEXT_KEY,
    ContextBundle,
    DelegationContext,
    compress_conversation,
    describe_context,
    recent_results,
)
from agentrt.compat.session.base import SessionBase
from agentrt.compat.subagent.context import complete_context
from agentrt.compat.subagent.spec import PermissionBundle, check_limits
from agentrt.compat.subagent.toolkit import hydrate_toolkit, limits_of
from agentrt.errors import AgentBusyError, ConfigError, SubAgentUnavailable
from agentrt.hooks import MiddlewareBase
from agentrt.memory import InMemoryMemory
from agentrt.message import Msg, UserMsg
from agentrt.module import StateModule
from agentrt.tool import ToolContext, Toolkit
from agentrt.tool.toolkit import ToolLike
from agentrt.types import ChatUsage, ToolResponse
from agentrt.workspace import FileSystemBase

_DELEGATION_SECONDS = 240.0  # less than a tool may take by default, so that this limit speaks first
_HEALTHCHECK_SECONDS = 30.0


class SubAgentBase(AgentBase):
    """Base of agents that another agent calls as a tool; a subclass writes `async def reply(self, msg)`.

    Each delegation has an instance of its own, with a short `memory`, a `toolkit` and hooks of its own. Nothing that it
    prints or says on the way reaches the supervisor: its one answer is the result of the call. It cannot wait for the
    user: its `reply` could only start over, and would do again what it has done. `tools` are what the class brings; of
    these too, an instance has only what the allowlist names. `model` is the one of the spec, or else what the class
    says. `make_subagent_tool` makes the tool.

    A subclass with an `__init__` of its own takes `**injected` there, and passes that on to `super().__init__`.
    """

    _shows_by_itself: ClassVar[bool] = False

    tools: ClassVar[Sequence[ToolLike]] = ()
    model: ChatModelBase | None = None

    permissions: PermissionBundle
    toolkit: Toolkit
    memory: InMemoryMemory
    ephemeral_memory: bool
    delegation_context: DelegationContext | None
    usage: ChatUsage | None = None
    """The usage of its latest answer, which counts in the reply of its supervisor."""

    _is_delegating: bool = False

    def __init__(
        self,
        *,
        permissions: PermissionBundle | None = None,
        toolkit: Toolkit | None = None,
        model: ChatModelBase | None = None,
        ephemeral_memory: bool = True,
        name: str | None = None,
        middlewares: Sequence[MiddlewareBase] = (),
    ) -> None:
        super().__init__(name=name, middlewares=middlewares)
        self.permissions = permissions or PermissionBundle()
        self.toolkit = toolkit or Toolkit()
        self.memory = InMemoryMemory()  # in this process alone: it holds one task
        self.ephemeral_memory = ephemeral_memory
        self.delegation_context = None
        if model is not None:
            self.model = model

    # By the name and not in `__init__`, since the spec's name comes after it.
    @property
    def workspace(self) -> FileSystemBase | None:  # type: ignore[override]  # what the supervisor shares says it
        """Its part of the supervisor's files: `/workspace/subagents/<name>`."""
        files = self.permissions.filesystem
        return None if files is None else files.namespace(f"subagents/{self.name}")

    @property
    def session(self) -> SessionBase | None:
        """The supervisor's session, in which it has names of its own."""
        session = self.permissions.session
        return None if session is None else PrefixedSession(session, f"subagents.{self.name}")

    @classmethod
    async def export_agent(
        cls,
        *,
        permissions: PermissionBundle,
        parent_context: ContextBundle,
        task: str,
        delegation_context: DelegationContext | None,
        run_healthcheck: bool = False,
        tools_allowlist: list[str] | None = None,
        model_override: ChatModelBase | None = None,
        host_toolkit: Toolkit | None = None,
        ephemeral_memory: bool = True,
    ) -> Self:
        """Return a new instance with what the supervisor shares; made to be overridden, to prepare one for its task.

        Raises `SubAgentUnavailable` if it cannot be made, or, with `run_healthcheck`, says that it is not healthy.
        """
        for name, value, kind in (
            ("permissions", permissions, PermissionBundle),
            ("parent_context", parent_context, ContextBundle),
            ("task", task, str),
        ):
            if not isinstance(value, kind):
                raise ConfigError(
                    f"{cls.__name__}.export_agent({name}=...) must be a {kind.__name__}, not {repr_of(value)}"
                )
        # A copy of what can be changed; the rest is shared, which is what the bundle is for.
        limits = deepcopy(permissions.safety_limits)
        toolkit = cls._hydrate_toolkit(host_toolkit, tools_allowlist, limits)
        injected: dict[str, Any] = {"toolkit": toolkit, "model": model_override, "ephemeral_memory": ephemeral_memory}
        with unavailable_if_failing(cls.__name__, "cannot be made"):
            agent = cls(permissions=replace(permissions, safety_limits=limits), **injected)
        if delegation_context is not None:
            agent.load_delegation_context({CONTEXT_KEY: delegation_context})
        if run_healthcheck:
            await require_health(cls.__name__, agent.healthcheck)
        return agent

    @classmethod
    def _hydrate_toolkit(
        cls, host_toolkit: Toolkit | None, tools_allowlist: list[str] | None, safety_limits: JSONObject | None = None
    ) -> Toolkit:
        """Return a new toolkit with what the allowlist names, of `tools` and of the host's toolkit, and nothing else.

        A group gives its tools as long as the host's toolkit has it switched on (`update_tool_groups`); what the model
        of the host switches for its own conversation does not matter.
        """
        return hydrate_toolkit(cls.tools, host_toolkit, tools_allowlist, safety_limits or {})

    @classmethod
    def _pre_context_compress(cls, parent_context: ContextBundle, task: str) -> DelegationContext:
        """Return what an instance is to learn of the supervisor's conversation; made to be overridden.

        It is called once for each delegation, on the supervisor's side.
        """
        return compress_conversation(parent_context, task)

    @classmethod
    def compress_for(cls, parent_context: ContextBundle, task: str, safety_limits: JSONObject) -> DelegationContext:
        """Return what `_pre_context_compress` gives with all of its fields, within their limits."""
        return complete_context(cls._pre_context_compress(parent_context, task), task, safety_limits)

    @classmethod
    def permissions_of(cls, host: AgentBase) -> PermissionBundle:
        """Return what a supervisor shares with its sub-agents; made to be overridden, to share more or less.

        A tool that a deny or ask rule of the supervisor's conversation is about is among the "disabled_tools", since a
        skeleton cannot ask; the mode EXPLORE sets "read_only".
        """
        own = getattr(host, "safety_limits", None)
        check_limits({} if own is None else own)  # here, where what is read of it is not checked yet
        limits: JSONObject = dict(own or {})
        limits |= limits_of(host.state.permission_context, limits.get("disabled_tools") or ())
        return PermissionBundle(
            trace_provider=getattr(host, "trace_provider", None),
            filesystem=host.workspace,
            session=getattr(host, "session", None),
            long_term_memory=getattr(host, "long_term_memory", None),
            safety_limits=limits,
            supervisor_name=host.name,
        )

    @classmethod
    async def context_of(cls, host: AgentBase) -> ContextBundle:
        """Return the supervisor's conversation as it is now; made to be overridden."""
        memory = getattr(host, "memory", None)
        conversation = list(host.state.context)
        if not conversation and memory is not None:
            conversation = await memory.get_memory()
        return ContextBundle(conversation, recent_results(host.name, host.state.reply_context))

    def load_delegation_context(self, metadata: JSONObject) -> None:
        """Begin the memory with the `delegation_context` in a message's metadata, in place of an earlier one.

        Made to be overridden; loading the same once more must change nothing.
        """
        # The context itself is what a caller by hand may give.
        context = metadata if "task_summary" in metadata else metadata.get(CONTEXT_KEY)
        if context is None:
            return
        if not isinstance(context, dict):
            raise ConfigError(f"a delegation_context is a dict, not {repr_of(context)}")
        if context == self.delegation_context and any(CONTEXT_KEY in marks for _, marks in self.memory.content):
            return
        supervisor = self.permissions.supervisor_name or "supervisor"
        frame = Msg(supervisor, describe_context(context), "user", metadata={CONTEXT_KEY: context})
        # The list itself, since this is not a coroutine function, and the memory's methods are.
        others = [entry for entry in self.memory.content if CONTEXT_KEY not in entry[1]]
        self.memory.content = [(frame, [CONTEXT_KEY]), *others]
        self.memory.revision += 1
        self.delegation_context = context  # type: ignore[assignment]  # a subclass may keep more in it

    async def call_tool(self, tool_name: str, /, **arguments: Any) -> ToolResponse:
        """Call a tool of its toolkit, which gets its workspace; one that would have to ask is denied."""
        tool_call = ToolCallBlock(new_id(), tool_name, json.dumps(arguments))
        items = self.toolkit.call_tool_function(tool_call, ToolContext(tool_call, self))
        async with aclosing(items):
            *_, response = [item async for item in items]
        assert isinstance(response, ToolResponse)  # the last one is
        return response

    async def healthcheck(self) -> bool:
        """Say whether it could work; asked once, when its tool is made."""
        return True

    async def delegate(
        self,
        task_summary: str,
        delegation_context: DelegationContext | None = None,
        *,
        metadata: JSONObject | None = None,
        **kwargs: Any,
    ) -> ToolResponse:
        """Do one task through `reply`, which gets `kwargs` as well, and return the answer as one result.

        The message that `reply` gets has the `metadata`, and the `delegation_context` in them.

        A failure is an error result that names its type and says none of its words, and one warning in the log; only a
        cancellation leaves. `interrupt()` ends the task, whose result is what `handle_interrupt` returns: unless that
        is overridden, one with the state "interrupted". Afterwards the memory is empty, unless `ephemeral_memory` is
        off. A second task at the same time fails: its memory would be that of the first.
        """
        outcomes = Outcomes(self.name, self.permissions.supervisor_name, self.permissions.logger)
        if self._is_delegating:
            return outcomes.error(AgentBusyError(f"{self.name!r} has a task already"))
        self._is_delegating = True
        with self._span() as span:
            try:
                seconds = self.permissions.safety_limits.get("timeout", _DELEGATION_SECONDS)
                answer = self._answer(outcomes, task_summary, delegation_context, metadata, kwargs)
                response = await outcomes.result_of(answer, seconds)
            finally:
                self._is_delegating = False
                if self.ephemeral_memory:
                    # Another one, as a memory may fail to forget.
                    self.delegation_context, self.memory = None, InMemoryMemory()
            if span is not None and response.state in FAILED:
                from opentelemetry.trace import StatusCode  # loaded already, by the program that made the tracer

                span.set_attribute("error.type", response.metadata["error"])
                span.set_status(StatusCode.ERROR, response.metadata["error"])
        return response

    async def _answer(
        self,
        outcomes: Outcomes,
        task: str,
        context: DelegationContext | None,
        metadata: JSONObject | None,
        kwargs: dict[str, Any],
    ) -> ToolResponse:
        own = {} if context is None else {CONTEXT_KEY: context}  # last, so that a model cannot forge it
        self.load_delegation_context(own)
        self.usage = None
        msg = UserMsg("user", task, metadata={**(metadata or {}), **own})
        # Not by `__call__`, which would let the hubs of the supervisor hear it.
        message = cast("Msg | None", await self._reply_or_handle_interrupt(msg, **kwargs))
        answer = message or Msg(self.name, [], "assistant")
        self.usage = answer.usage
        if answer.finished_reason not in (None, "completed"):
            # Without its text, which may be another agent's.
            return outcomes.unfinished_reply(answer.finished_reason, None)
        return outcomes.answer(answer, has_form=False)

    def _span(self) -> AbstractContextManager[Any]:
        """Return a span below the current one to be entered, if the supervisor shares a tracer."""
        tracer = self.permissions.trace_provider
        if tracer is None:
            return nullcontext()
        attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": self.name}
        # Exceptions are left out, since their words may be the user's.
        options = {"record_exception": False, "set_status_on_exception": False}
        span: AbstractContextManager[Any] = tracer.start_as_current_span(
            f"invoke_agent {self.name}", attributes=attributes, **options
        )
        return span


class PrefixedSession(SessionBase):
    """A session in which a sub-agent keeps its modules under names of its own."""

    def __init__(self, session: SessionBase, prefix: str) -> None:
        self._session = session
        self._prefix = prefix

    async def save_session_state(self, session_id: str, user_id: str = "", **modules: StateModule) -> None:
        """Keep the states of these modules."""
        await self._session.save_session_state(f"{self._prefix}.{session_id}", user_id, **modules)

    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: StateModule
    ) -> None:
        """Give these modules the states that were saved under their names."""
        name = f"{self._prefix}.{session_id}"
        await self._session.load_session_state(name, user_id, allow_not_exist, **modules)


@contextmanager
def unavailable_if_failing(name: str, what: str) -> Iterator[None]:
    """Raise `SubAgentUnavailable` for an error, with that as its cause; a `ConfigError` says better what to do."""
    try:
        yield
    except (ConfigError, SubAgentUnavailable):
        raise
    except Exception as error:
        raise SubAgentUnavailable(f"the sub-agent {name!r} {what}: {type(error).__name__}: {error}") from error


async def require_health(name: str, check: Callable[[], Awaitable[bool]]) -> None:
    """Raise `SubAgentUnavailable` unless the check says yes, in time."""
    healthy: object = None
    with unavailable_if_failing(name, "could not be checked"), anyio.move_on_after(_HEALTHCHECK_SECONDS) as scope:
        healthy = check()
        if isawaitable(healthy):
            healthy = await healthy
    if scope.cancelled_caught:
        raise SubAgentUnavailable(f"the healthcheck of {name!r} gave no answer for {_HEALTHCHECK_SECONDS:g} seconds")
    if healthy is not True:
        raise SubAgentUnavailable(
            f"the sub-agent {name!r} is not healthy: its healthcheck returned {repr_of(healthy)} and not True"
        )
