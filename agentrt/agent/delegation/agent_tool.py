"""An agent as a tool: what it takes, what it returns, and which of its calls are in progress."""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import anyio
from pydantic_core import ValidationError, to_json

from agentrt._runtime.block import JSONObject
from agentrt._runtime.concurrency.event_loop import running_loop
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.options import check_bool, check_whole
from agentrt._runtime.text import repr_of
from agentrt.agent.base import AgentBase
from agentrt.agent.delegation.delegation import Delegate, Delegation
from agentrt.agent.delegation.inherit import bind_child, checked_inherit, circle_error, find_ancestor
from agentrt.agent.delegation.isolation import describe_isolation
from agentrt.agent.delegation.summary import summarize_conversation
from agentrt.errors import InvalidInputError, ToolConfigError
from agentrt.hooks import MiddlewareBase
from agentrt.message import Msg
from agentrt.state import AgentState
from agentrt.tool import ToolBase, ToolContext, Toolkit
from agentrt.tool.base import check_name, check_tool
from agentrt.tool.to_response import failure
from agentrt.types import JSONSchema, ToolResponse
from agentrt.workspace import FileSystemBase

PromptFunction = Callable[[Any], str | Msg | list[Msg]]
"""Makes the message for a sub-agent of the arguments of the call."""
SharedContext = Literal["task", "summary"] | Callable[[ToolContext, JSONObject], str | Msg | list[Msg] | None]
"""A sub-agent's view of its supervisor's conversation: the task alone, also the newest events, or what a function
returns."""

_QUERY: JSONSchema = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to do, with all that is needed to know for it."},
    },
    "required": ["query"],
    "additionalProperties": False,
}
# Places of a tool in one event loop; by the tool, so that those of tools that are gone are gone too.
_tools_entered: ContextVar[tuple[int, ...]] = ContextVar("agentrt_entered_agent_tools", default=())


class _ToolState:
    """The data shared by a tool's copies for several supervisors: its calls in progress, and their places."""

    def __init__(self) -> None:
        self.delegations: dict[Delegation, None] = {}
        self.places: WeakKeyDictionary[object, anyio.CapacityLimiter] = WeakKeyDictionary()  # of each event loop

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _ToolState, ()  # nothing is in progress elsewhere


class AgentTool(ToolBase):
    """An agent that another one calls as a tool; made by `Agent.as_tool`.

    Each call is a conversation of its own, kept in that of the caller.
    """

    is_resumable = True
    keeps_handles = True
    delegates = True  # by which a sub-agent's allowlist knows that it must be named itself
    leads_back = False
    """Whether its agent is one that this tool works for already."""

    # All failures of the agent become results here; what is raised is the supervisor's own.
    raise_tool_errors = True
    timeout = None

    def __init__(
        self,
        agent: Delegate,
        description: str | None = None,
        *,
        name: str | None = None,
        input: Any = None,  # hides the builtin, since that is what users know it as
        prompt: PromptFunction | None = None,
        output: Any = None,
        context: SharedContext = "task",
        inherit: bool | Sequence[type[MiddlewareBase]] = True,
        stream: bool = True,
        timeout: float | None = None,
        max_concurrency: int = 8,
        workspace: FileSystemBase | None = None,
        background: bool = False,
    ) -> None:
        self.agent = self.template = agent
        self._bound_parts = _replaceable_parts(agent)
        try:
            check_name("tool", agent.name if name is None else name)
        except ToolConfigError as error:
            remedy = "" if name else "; write as_tool(..., name=...) for an agent of another name"
            raise ToolConfigError(f"{error}{remedy}") from None
        self.name = agent.name if name is None else name
        text: object = agent.description if description is None else description
        if not isinstance(text, str) or not text.strip():
            raise ToolConfigError(
                f"Agent.as_tool(description=...) of {agent.name!r} must say what the agent does, not "
                f"{repr_of(text)}: the model chooses by it. Give it here, or as Agent(description=...)"
            )
        self.description = text
        self._input_form = _form_of(agent.name, "input", input)
        self.input_schema = _QUERY if self._input_form is None else self._input_form.schema
        self._prompt = _checked_function(agent.name, "prompt", prompt)
        self.output = output
        _form_of(agent.name, "output", output)
        if context == "task":
            self.context = None
        elif context == "summary":
            self.context = summarize_conversation
        else:
            self.context = _checked_function(agent.name, "context", context)
        self.inherit = checked_inherit(agent.name, inherit)
        self.stream = stream
        self.seconds = timeout
        self.max_concurrency = max_concurrency
        self.workspace = workspace
        self.is_background = background
        self._tool_state = _ToolState()
        self._check_options()
        check_tool(self)
        agent.with_state(AgentState())  # as each call does: an agent that refuses does so here

    def _check_options(self) -> None:
        seconds: object = self.seconds
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds < float("inf")):  # type: ignore[operator]
            raise ToolConfigError(
                f"Agent.as_tool(timeout=...) of {self.agent.name!r} must be a number of seconds above 0, or None, not "
                f"{self.seconds!r}"
            )
        option = f"Agent.as_tool({{}}=...) of {self.agent.name!r}"
        check_whole(option.format("max_concurrency"), self.max_concurrency, error=ToolConfigError)
        check_bool(option.format("stream"), self.stream, error=ToolConfigError)
        check_bool(option.format("background"), self.is_background, error=ToolConfigError)
        if self.is_background and self.context is not None:
            raise ToolConfigError(
                f"Agent.as_tool(background=True) of {self.agent.name!r} takes no context but 'task': a background call "
                f"is made in a conversation of its own, which has nothing of the supervisor's to tell"
            )
        files: object = self.workspace
        if files is not None and not isinstance(files, FileSystemBase):
            raise ToolConfigError(
                f"Agent.as_tool(workspace=...) of {self.agent.name!r} must be a FileSystemBase, not {repr_of(files)}"
            )

    def with_agent(self, agent: Delegate) -> Self:
        """Return a copy that asks another agent, such as this one with other layers; both share their places."""
        new = self.with_name(self.name)  # a copy, which calls itself and not this tool
        new.agent = agent
        return new

    def bound_to(self, agent: Any) -> Self:
        """Return a copy that asks the agent with the layers that it inherits from that supervisor.

        They are compiled and checked here. Raises `ConfigError`, which names both agents, for what does not fit.
        """
        ancestor = find_ancestor(self.agent, agent)
        if ancestor is None:
            new = self.with_agent(bind_child(self.agent, agent, self.inherit))
            vars(new).update(_bound_parts=_replaceable_parts(self.template))
            return new
        # It would be bound for ever. In an agent that is being built this is refused; tools that close a circle later
        # lead back to where it began, with the layers that hold there, until a limit of delegations ends it.
        new = self.with_agent(ancestor.with_state(self.agent.state))
        new.leads_back = True
        return new

    def renew(self) -> None:
        """Bind the agent again, if it has got other tools or hooks since it was bound."""
        toolkit, chains = parts = _replaceable_parts(self.template)
        toolkit_before, chains_before = self._bound_parts
        if self.leads_back or (toolkit is toolkit_before and chains is chains_before):
            return
        ancestors = self.agent.lineage.ancestors
        if ancestors:  # for nobody it is the template itself
            self.agent = bind_child(self.template, ancestors[-1], self.inherit)
        self._bound_parts = parts

    @property
    def inner_toolkit(self) -> Any:
        """The toolkit of the agent, whose toolsets are opened with those of its supervisor."""
        return getattr(self.template, "toolkit", None)

    @property
    def isolation(self) -> dict[str, str]:
        """The rule for each resource: shared with the supervisor, or the agent's own."""
        folder = f"subagents/{self.name}" if self.workspace is None else None
        return describe_isolation(self.agent.lineage, folder, self.agent.middlewares)

    def running(self, agent: AgentBase | None = None) -> list[Delegation]:
        """Return the delegations in progress: those of this supervisor's conversation, or all.

        `interrupt()` of one of them ends that call alone; one that waits for an answer is not in progress.
        """
        delegations = list(self._tool_state.delegations)
        if agent is None:
            return delegations
        # By the state, which is the conversation: several agents may share it.
        return [one for one in delegations if one.supervisor is not None and one.supervisor.state is agent.state]

    async def call(self, context: ToolContext, **arguments: Any) -> ToolResponse:
        """Ask the agent; enters its conversation again where this call was entered before."""
        self.renew()
        delegation = Delegation(self, context)
        delegation.start_over_after_failure()
        if not delegation.was_entered:
            denied = delegation.count()
            if denied is not None:
                return denied
        try:
            task = self._task_of(arguments)
        except ValidationError as error:
            return failure(f"{self.name} was not asked: {error.errors(include_url=False)[0]['msg']}")
        except Exception as error:  # noqa: BLE001  # of a validator of the input's type
            return delegation.outcomes.failure("error", type(error).__name__)
        entered = _tools_entered.get()
        # With a place of its own, a chain of agents that ask each other could take them all, and wait for itself.
        places = None if id(self._tool_state) in entered else self._places()
        if places is not None and not await self._take_place(places, delegation, bool(entered)):
            places = None
        token = _tools_entered.set((*entered, id(self._tool_state)))
        self._tool_state.delegations[delegation] = None
        try:
            return await delegation.run(task, arguments)
        finally:
            del self._tool_state.delegations[delegation]
            _tools_entered.reset(token)
            if places is not None:
                places.release_on_behalf_of(delegation)

    async def _take_place(self, places: anyio.CapacityLimiter, delegation: Delegation, is_nested: bool) -> bool:
        """Take a place, as soon as there is one; returns `False` where that could wait for itself.

        Agents that ask each other in a circle, closed when they were built already, may hold each other's places.
        """
        # By the delegation, since a limiter refuses a task that has a place already, and one task may make two calls.
        try:
            # Nearly always one is free, and waiting costs a turn of the loop.
            places.acquire_on_behalf_of_nowait(delegation)
        except anyio.WouldBlock:
            if is_nested and _works_for_itself(self.agent, delegation.supervisor):
                return False
            await places.acquire_on_behalf_of(delegation)
        return True

    def _task_of(self, arguments: JSONObject) -> Any:
        """Return what the prompt is made of: the text of a query, an instance of the input's type, or JSON."""
        form = self._input_form
        if form is None:
            return arguments["query"]
        filled_in = form.fill_in(arguments)
        value = filled_in
        for key in form.path:
            value = value[key]
        return form.load(value)

    def inputs_of(self, context: ToolContext, task: Any, arguments: JSONObject) -> list[str | Msg]:
        """Return the messages that the agent is asked with: what it learns of the conversation, and then its task."""
        before = None if self.context is None else self.context(context, arguments)
        if self._prompt is not None:
            asked_with: Any = self._prompt(task)
        else:
            asked_with = task if isinstance(task, str) else to_json(arguments).decode()
        return [*_message_list(before), *_message_list(asked_with)]

    def _places(self) -> anyio.CapacityLimiter:
        """Return the `max_concurrency` places of this tool in the current event loop."""
        loop, places = running_loop(), self._tool_state.places
        limiter = places.get(loop)
        if limiter is None:
            limiter = places[loop] = anyio.CapacityLimiter(self.max_concurrency)
        return limiter


def _replaceable_parts(agent: Any) -> tuple[object, object]:
    """Return what another agent over its tools and hooks is made of: both can be replaced at any time."""
    return agent.toolkit, agent.current_chains()


def _works_for_itself(agent: Any, supervisor: Any) -> bool:
    """Say whether the agent, or one that works for it, can ask the supervisor or an agent above it."""
    lineage = getattr(supervisor, "lineage", None)
    above = [] if lineage is None else [*lineage.ancestors, supervisor]
    line = {(ancestor.id, ancestor.name) for ancestor in above}
    known: set[tuple[str, str]] = set()
    left = [agent]
    while left:
        current = left.pop()
        key = current.id, current.name
        if key in line:
            return True
        if key not in known:
            known.add(key)
            toolkit = current.toolkit
            tools = [toolkit.get(name) for name in toolkit.names(toolkit.groups)]
            left += [tool.agent for tool in tools if isinstance(tool, AgentTool)]
    return False


def bind_tools(agent: Any) -> None:
    """Ask the tools of an agent that is being built what they are for it.

    Raises `ConfigError` if one of the agents that work for it works for itself.
    """
    agent.live_conversation.bindings.bind_all(agent, agent.toolkit)
    if not agent.lineage.ancestors:
        _refuse_circles(agent)


def children_of(agent: Any) -> Iterator[AgentTool]:
    """Yield the tools that are agents, as they are for this agent; not those that lead back to one above it."""
    toolkits = toolkits_of(agent).values()
    for tool in list(agent.live_conversation.bindings.bound):
        if not isinstance(tool, AgentTool) or tool.leads_back:
            continue
        if any(toolkit.get(tool.name) is tool for toolkit in toolkits):
            tool.renew()
            yield tool


def toolkits_of(agent: Any) -> dict[str, Toolkit]:
    """Return the toolkits whose tools the agent may call, as they are for it.

    That of the agent itself is under "", others under the name of the tool that calls their tools. The toolkits of
    other agents are not among them.
    """
    bindings = agent.live_conversation.bindings
    bindings.bind_all(agent, agent.toolkit)  # with those that were registered since the last round
    toolkit: Toolkit = bindings.toolkit(agent, agent.toolkit)
    toolkits = {"": toolkit}
    for name, entry in toolkit.table.entries.items():
        if not isinstance(entry.tool, AgentTool) and isinstance(entry.tool.inner_toolkit, Toolkit):
            toolkits[name] = entry.tool.inner_toolkit
    return toolkits


def descendants_of(agent: Any) -> Iterator[Any]:
    """Yield the agents that are tools of this one, those that are tools of theirs, and so on."""
    for tool in children_of(agent):
        child: Any = tool.agent
        yield child
        if hasattr(child, "toolkit"):
            yield from descendants_of(child)


def _refuse_circles(agent: Any) -> None:
    for tool in agent.live_conversation.bindings.bound:
        if isinstance(tool, AgentTool):
            if tool.leads_back:
                raise circle_error(tool.agent, agent)
            _refuse_circles(tool.agent)


def _form_of(agent_name: str, parameter: str, source: Any) -> AnswerForm | None:
    if source is None:
        return None
    try:
        return AnswerForm(source)
    except InvalidInputError as error:
        problem = str(error).replace("structured_schema", f"Agent.as_tool({parameter}=...)")
    raise ToolConfigError(f"the agent {agent_name!r:.100} cannot be a tool: {problem}")


def _checked_function(agent_name: str, parameter: str, function: Any) -> Any:
    if function is not None and not callable(function):
        choices = ' "task", "summary" or a function' if parameter == "context" else " a function"
        raise ToolConfigError(
            f"Agent.as_tool({parameter}=...) of {agent_name!r:.100} must be{choices}, not {repr_of(function)}"
        )
    if iscoroutinefunction(function):
        raise ToolConfigError(
            f"Agent.as_tool({parameter}=...) of {agent_name!r:.100} is called and not awaited: write `def` in place of "
            f"`async def` for {repr_of(function)}"
        )
    return function


def _message_list(messages: str | Msg | list[Msg] | None) -> list[Any]:
    if messages is None:
        return []
    return list(messages) if isinstance(messages, (list, tuple)) else [messages]
