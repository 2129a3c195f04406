"""One conversation in this process, beside its saved state, and the agent as the loop of a reply sees it."""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from operator import is_
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from agentrt._runtime.conversation.context_usage import ContextUsage
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.run import Run
from agentrt._runtime.conversation.turns import WhenBusy
from agentrt._runtime.flow.release import Replacement, value_in_output
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.model_interface.prefix import Prefix
from agentrt._runtime.text import repr_of
from agentrt.errors import ToolConfigError
from agentrt.hooks import AgentChains, ReplyInput
from agentrt.message import Msg, SystemMsg
from agentrt.state import AgentState, StateStore, TaskRecord
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.base import check_tool
from agentrt.tool.table import ToolTable, is_bindable
from agentrt.types import ContextConfig, ReActConfig

# A model that never waits must not keep the event loop from its other work, nor a cancellation from the reply; a
# checkpoint costs as much as everything else in a call.
_CALLS_PER_CHECKPOINT = 8
_NONE_ADDED: Mapping[str, str] = MappingProxyType({})


class CheckpointPace:
    """Says which model calls of an agent come with a checkpoint: the first, and every eighth after it.

    Counted over all conversations of the agent, most of which make only a few calls.
    """

    __slots__ = ("_calls_before_next",)

    def __init__(self) -> None:
        self._calls_before_next = 0

    def is_due(self) -> bool:
        """Count one call, and return whether a checkpoint comes with it."""
        is_due = self._calls_before_next <= 0  # conversations in several threads may count past zero
        self._calls_before_next = _CALLS_PER_CHECKPOINT - 1 if is_due else self._calls_before_next - 1
        return is_due


class SystemPromptMessage:
    """The last system prompt as a message, since it seldom changes from one call to the next."""

    __slots__ = ("_message",)

    def __init__(self) -> None:
        self._message = SystemMsg("system", "")

    @property
    def last(self) -> str:
        """The prompt that was sent last; empty before the first."""
        return self._message.content  # type: ignore[return-value]  # always a str

    def message(self, prompt: str) -> Msg:
        if self._message.content != prompt:  # a message costs more to make than its prompt to compare
            self._message = SystemMsg("system", prompt)
        return self._message


class ToolBindings:
    """The tools of one agent as bound to it; each is bound once. Shared by the agent's conversations."""

    __slots__ = ("_toolkit", "_tools")

    def __init__(self) -> None:
        self._tools: dict[int, tuple[ToolBase, ToolBase]] = {}  # by the `id()` of the first, which is kept with it
        self._toolkit: tuple[Toolkit, Toolkit] | None = None

    def toolkit(self, agent: Any, toolkit: Toolkit) -> Toolkit:
        """Return the toolkit with its tools as they are for the agent; the same one where `bound_to` changes none."""
        if not toolkit.binds:
            return toolkit
        if self._toolkit is None or self._toolkit[0] is not toolkit:
            self._toolkit = toolkit, toolkit.bound_by(partial(self.tool, agent))
        return self._toolkit[1]

    def tool(self, agent: Any, tool: ToolBase) -> ToolBase:
        """Return what the tool is for the agent."""
        if not is_bindable(tool):
            return tool
        known = self._tools.get(id(tool))
        if known is None:
            bound: object = tool.bound_to(agent)
            if not isinstance(bound, ToolBase) or bound.name != tool.name:
                raise ToolConfigError(
                    f"{type(tool).__name__}.bound_to() of {tool.name!r} must return a ToolBase of the same name, not "
                    f"{repr_of(bound)}: return self, or a copy"
                )
            check_tool(bound)
            known = self._tools[id(tool)] = tool, bound
        return known[1]

    def bind_all(self, agent: Any, toolkit: Toolkit) -> None:
        """Ask all tools that the toolkit has now, those of groups that are not active too."""
        if toolkit.binds:
            self.toolkit(agent, toolkit).names()

    @property
    def bound(self) -> Iterable[ToolBase]:
        """The tools that are another one for the agent, or could have been, in the order in which they were asked."""
        return [bound for _, bound in self._tools.values()]


class AssembledTools(NamedTuple):
    """The result of on_tools for a toolkit's tools with certain active groups."""

    table: ToolTable
    groups: list[str] | None
    chosen: list[ToolBase]
    toolkit: Toolkit

    def is_of(self, table: ToolTable, groups: list[str] | None, chosen: list[ToolBase]) -> bool:
        """Say whether these are the very tools that it was made of."""
        is_same = table is self.table and groups == self.groups and len(chosen) == len(self.chosen)
        return is_same and all(map(is_, chosen, self.chosen))


class TaskHost(Protocol):
    """Makes the background calls of a conversation, in conversations of their own: what a runner gives its replies."""

    async def start(self, task: TaskRecord, state: AgentState) -> None:
        """Store the conversation of a task, to be run by any worker; done again, it changes nothing."""

    async def state_of(self, task: TaskRecord) -> Literal["running", "waiting", "over"] | None:
        """Say how a task stands; `None` for one that was never started."""

    async def describe(self) -> str:
        """Return the tasks of the conversation, one on each line."""

    async def read(self, task_id: str) -> str:
        """Return how a task stands, and its result where it has one."""

    async def stop(self, task_id: str) -> bool:
        """End a task; returns whether there was one to end."""


class Conversation:
    """The runtime's unsaved data of one conversation, kept from one reply to the next.

    `reply` is the reply in progress, `None` between replies; `run` is for those who know that there is one.
    `emitting_hooks` are those of its agent's hooks that have a layer which may emit events. `round_toolkit` is the
    toolkit of the last round, if layers changed it: `assembled` is what those of on_tools made, and `layers_of_added`
    has the layers of on_model_call that added tools, by the names of these. `prompt_message` is the last system prompt,
    `pace` says when to make a checkpoint, and `bindings` what tools are for this agent: these are the agent's, and
    shared by all of its conversations. `printed_message` is the message that grows while a reply is printed.
    `has_late_events` says that a hook without a task of its own has emitted an event, which is seen when the hook
    returns control. `sent` has the last request of each purpose to each model, where an observer sees them.
    `replacement` says what takes the place of handles in what leaves: the values, or a supervisor's own handles.
    `task_host` makes background calls, `None` where they are awaited.
    """

    # Slots, so that a misspelt name is an error: nothing else would notice it.
    __slots__ = (
        "_hook_run",
        "assembled",
        "bindings",
        "context_usage",
        "emitting_hooks",
        "has_late_events",
        "layers_of_added",
        "open_parts",
        "pace",
        "printed_message",
        "prompt_message",
        "replacement",
        "reply",
        "round_toolkit",
        "sent",
        "task_host",
    )

    def __init__(
        self,
        emitting_hooks: frozenset[str] = frozenset(),
        prompt_message: SystemPromptMessage | None = None,
        pace: CheckpointPace | None = None,
        bindings: ToolBindings | None = None,
    ) -> None:
        self.reply: ReplyRun | None = None
        self._hook_run: Run | None = None
        self.context_usage = ContextUsage()
        self.prompt_message = SystemPromptMessage() if prompt_message is None else prompt_message
        self.pace = CheckpointPace() if pace is None else pace
        self.bindings = ToolBindings() if bindings is None else bindings
        self.emitting_hooks = emitting_hooks
        self.round_toolkit: Toolkit | None = None
        self.replacement: Replacement = value_in_output
        self.sent: dict[tuple[str | None, str], Prefix] = {}
        self.assembled: AssembledTools | None = None
        self.task_host: TaskHost | None = None
        self.layers_of_added: Mapping[str, str] = _NONE_ADDED
        self.printed_message: Msg | None = None
        self.has_late_events = False
        self.open_parts: list[AsyncExitStack] = []  # what each `async with` the agent has opened, innermost last

    @property
    def run(self) -> ReplyRun:
        """The reply in progress, for code that works for it."""
        assert self.reply is not None
        return self.reply

    @property
    def hook_run(self) -> Run | None:
        """The reply in progress as hooks and tools see it; made when the first of them asks."""
        # Kept here and not by the reply, since the two would refer to each other: only the garbage collector, which is
        # late, could free them then.
        if self._hook_run is None and self.reply is not None:
            self._hook_run = Run(self.reply)
        return self._hook_run

    def begin(self, run: ReplyRun) -> None:
        """Note the reply in progress; called by that reply alone."""
        self.reply = run
        if run.claim.lock is not None:
            run.claim.lock.run = run

    def end(self) -> None:
        """Note that no reply is in progress; called by the reply that was."""
        self.reply = self._hook_run = None


class ReplyingAgent(Protocol):
    """The part of an agent that the loop of a reply uses; settings are read in each reply, since they may change."""

    name: str
    system_prompt: str
    model: ChatModelBase
    react_config: ReActConfig
    context_config: ContextConfig
    when_busy: WhenBusy
    state: AgentState
    state_store: StateStore | None
    can_speak_first: bool

    @property
    def live_conversation(self) -> Conversation: ...
    @property
    def chains(self) -> AgentChains: ...
    @property
    def toolkit(self) -> Toolkit: ...

    def current_chains(self) -> AgentChains: ...
    def withheld_tools(self) -> frozenset[str]: ...
    async def save(self) -> None: ...
    async def handle_interrupt(self, inputs: ReplyInput, *, reason: str | None) -> Msg: ...


def bound_toolkit(agent: ReplyingAgent) -> Toolkit:
    """Return the agent's tools as they are for it, see `ToolBase.bound_to`."""
    return agent.live_conversation.bindings.toolkit(agent, agent.toolkit)
