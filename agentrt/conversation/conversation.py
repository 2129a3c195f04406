"""One conversation in this process, beside its saved state, and the agent as the loop of a reply sees it."""

from typing import Protocol

from agentrt.conversation.context_usage import ContextUsage
from agentrt.conversation.reply_run import ReplyRun
from agentrt.conversation.run import Run
from agentrt.conversation.turns import WhenBusy
from agentrt.hooks import AgentChains, ReplyInput
from agentrt.message import Msg, SystemMsg
from agentrt.model_interface import ChatModelBase
from agentrt.state import AgentState, StateStore
from agentrt.tool import Toolkit
from agentrt.tool.binding import ToolBindings
from agentrt.types import ContextConfig, ReActConfig

__all__ = ["CheckpointPace", "Conversation", "ReplyingAgent", "SystemPromptMessage", "bound_toolkit"]

# A model that never waits must not keep the event loop from its other work, nor a cancellation from the reply; a
# checkpoint costs as much as everything else in a call.
_CALLS_PER_CHECKPOINT = 8


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

    __slots__ = ("_message", "has_warned")

    def __init__(self) -> None:
        self._message = SystemMsg("system", "")
        self.has_warned = False  # that it changes too often

    @property
    def last(self) -> str:
        """The prompt that was sent last; empty before the first."""
        return self._message.content  # type: ignore[return-value]  # always a str

    def message(self, prompt: str) -> Msg:
        """Return the message with this prompt."""
        if self._message.content != prompt:  # a message costs more to make than its prompt to compare
            self._message = SystemMsg("system", prompt)
        return self._message


class Conversation:
    """What the runtime keeps of one conversation from one reply to the next, and does not save.

    `reply` is the reply in progress, `None` between replies; `run` is for those who know that there is one.
    `emitting_hooks` are those of its agent's hooks that have a layer which may emit events. `round_toolkit` is the
    toolkit of the last round, if layers added tools to it. `prompt_message` is the last system prompt, `pace` says when
    to make a checkpoint, and `bindings` what tools are for this agent: these are the agent's, and shared by all of its
    conversations. `printed_message` is the message that grows while a reply is printed.
    """

    # Slots, so that a misspelt name is an error: nothing else would notice it.
    __slots__ = (
        "_hook_run",
        "bindings",
        "context_usage",
        "emitting_hooks",
        "open_toolkits",
        "pace",
        "printed_message",
        "prompt_message",
        "reply",
        "round_toolkit",
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
        self.printed_message: Msg | None = None
        self.open_toolkits: list[Toolkit] = []  # that `async with` the agent has opened, innermost last

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
    """What the loop of a reply needs of an agent; settings are read anew in each reply, since they may be assigned."""

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
    async def save(self) -> None: ...
    async def handle_interrupt(self, inputs: ReplyInput, *, reason: str | None) -> Msg: ...


def bound_toolkit(agent: ReplyingAgent) -> Toolkit:
    """Return the agent's tools as they are for it, see `ToolBase.bound_to`."""
    return agent.live_conversation.bindings.toolkit(agent, agent.toolkit)
