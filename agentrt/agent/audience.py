"""Where what an agent says goes: the console, a queue, an audio player, other agents.

Programs written for 1.x set these one by one, with the methods here.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_jsonable_python

from agentrt._runtime.block import BlockType
from agentrt._runtime.concurrency.event_loop import checkpoint
from agentrt._runtime.conversation.conversation import CheckpointPace, Conversation, SystemPromptMessage, ToolBindings
from agentrt._runtime.output.audio import AudioPlayer
from agentrt._runtime.output.printer import Printer
from agentrt._runtime.output.queue import MessageQueue
from agentrt.errors import InvalidInputError, UsageError
from agentrt.message import DataBlock, Msg

_logger = logging.getLogger("agentrt")

_UNOBSERVED_BLOCKS: tuple[BlockType, ...] = ("thinking", "provider")

Speech = DataBlock | list[DataBlock] | None


class Observer(Protocol):
    """The part of an agent that receives messages."""

    name: str

    async def observe(self, msg: Msg) -> None: ...


class Audience(NamedTuple):
    """Where what an agent prints goes; conversations share it until one of them is given another."""

    shows: bool
    printer: Printer
    """It has the player, and knows what of a message it has shown."""
    queue: Any = None
    """Any object with an async `put`, which programs for 1.x read as what they gave."""
    is_silent: bool = False
    """Whether nothing is printed, also where a layer of `on_print` would."""

    def with_changes(self, **changes: Any) -> "Audience":
        """Return one in which these fields differ."""
        return self._replace(**changes)

    def silenced(self) -> "Audience":
        """Return the audience of a sub-agent, whose words would read as its supervisor's own."""
        return Audience(False, self.printer, is_silent=True)


class AgentConversation(Conversation):
    """The conversation of an agent of any kind.

    `subscribers` are other agents, by the name of their hub. `stops` end the replies of `await agent(...)` that are in
    progress, and `last_reply_id` is the id of the last reply, of agents that write their own `reply`.
    """

    __slots__ = ("audience", "last_reply_id", "stops", "subscribers")

    def __init__(
        self,
        audience: Audience,
        emitting_hooks: frozenset[str] = frozenset(),
        prompt_message: SystemPromptMessage | None = None,
        pace: CheckpointPace | None = None,
        bindings: ToolBindings | None = None,
        *,
        last_reply_id: str | None = None,
    ) -> None:
        super().__init__(emitting_hooks, prompt_message, pace, bindings)
        self.audience = audience
        self.last_reply_id = last_reply_id
        self.subscribers: dict[str, list[Observer]] = {}
        self.stops: dict[Callable[[], object], None] = {}  # an empty set takes three times as much memory

    def another(self) -> "AgentConversation":
        """Return a new conversation over the same chains; what it says goes where this one's goes, but to no hub."""
        return AgentConversation(self.audience, self.emitting_hooks, self.prompt_message, self.pace, self.bindings)


class AudienceMethods:
    """The methods of an agent that set its audience."""

    name: str
    live_conversation: AgentConversation

    @property
    def msg_queue(self) -> Any:
        """The queue that what is printed is put into, `None` for none; see `set_msg_queue_enabled`."""
        return self.live_conversation.audience.queue

    @msg_queue.setter
    def msg_queue(self, queue: Any) -> None:
        self._change_audience(queue=queue)

    def reset_subscribers(self, msghub_name: str, subscribers: Sequence[Observer]) -> None:
        """Let these agents, but not this one, observe what `await agent(...)` answers, and no others of that hub."""
        for agent in subscribers:
            if not isinstance(agent, AudienceMethods):
                raise UsageError(f"the subscribers of {self.name!r} must be agents, not {agent!r:.200}")
        me: object = self  # which is an observer only together with the other bases of an agent
        self.live_conversation.subscribers[msghub_name] = [agent for agent in subscribers if agent is not me]

    def remove_subscribers(self, msghub_name: str) -> None:
        """Forget the subscribers of a hub; warns when there is no such hub."""
        if self.live_conversation.subscribers.pop(msghub_name, None) is None:
            _logger.warning("agent %r has no subscribers of a hub named %r", self.name, msghub_name)

    def set_msg_queue_enabled(self, enabled: bool, queue: Any = None) -> None:
        """Have what is printed put into `msg_queue` as well, or no longer.

        The queue holds `(msg, last, speech)` and needs an async `put`; without one there is a `MessageQueue` for a
        hundred items, and a reply waits while it is full. The message of an `Agent` that is not complete keeps growing
        in the queue: `msg.copy()` is one that does not.
        """
        if queue is not None and not callable(getattr(queue, "put", None)):
            raise UsageError(f"set_msg_queue_enabled() needs a queue with an async `put`, not {queue!r:.200}")
        if enabled and queue is None:
            queue = MessageQueue() if self.msg_queue is None else self.msg_queue
        self._change_audience(queue=queue if enabled else None)

    def set_console_output_enabled(self, enabled: bool) -> None:
        """Have messages shown on standard output, or not."""
        self._change_audience(shows=enabled)

    def disable_console_output(self) -> None:
        """Show nothing on standard output any more."""
        self._change_audience(shows=False)

    def set_audio_player(self, player: Callable[[], AudioPlayer] | None) -> None:
        """Play speech with a player for each message, made by calling `player`."""
        if player is not None and not callable(player):
            raise UsageError(f"set_audio_player() needs a class or function that makes a player, not {player!r:.200}")
        self.live_conversation.audience.printer.close()
        self._change_audience(printer=Printer(player=player))

    def _change_audience(self, **changes: Any) -> None:
        conversation = self.live_conversation
        conversation.audience = conversation.audience.with_changes(**changes)

    async def _show(self, msg: Msg, last: bool, speech: Speech) -> None:
        """The core of on_print: show a message, or as much of it as there is."""
        if not isinstance(msg, Msg):
            raise InvalidInputError(f"print() shows a Msg, not {msg!r:.200}")
        conversation = self.live_conversation
        audience = conversation.audience
        if audience.queue is not None:
            # The message that the runtime prints is nobody else's, and not copied for each piece that it grows by.
            queued = msg if msg is conversation.printed_message else msg.copy()
            await audience.queue.put((queued, last, speech))
            await checkpoint()  # a queue with room may not wait, and the reader is to have a turn
        if audience.shows:
            audience.printer.show(msg, last, speech)

    async def _broadcast(self, answer: Msg | None) -> None:
        """Let the subscribers observe an answer."""
        subscribers = self.live_conversation.subscribers
        if answer and subscribers:
            await broadcast(answer, [agent for hub in subscribers.values() for agent in hub])


def console_is_disabled() -> bool:
    """Say whether an environment variable turns off what agents show on standard output."""
    return os.environ.get("AGENTRT_DISABLE_CONSOLE_OUTPUT", "").lower() in ("1", "true", "yes", "on")


async def broadcast(msg: Msg, observers: Iterable[Observer]) -> None:
    """Give each observer a copy of the message, in order, and no observer two.

    The copies are without thinking and without what is for the provider only, and their structured output is JSON. An
    observer that fails is logged, and does not affect the others.
    """
    if not isinstance(msg.content, str) and any(map(msg.has_content_blocks, _UNOBSERVED_BLOCKS)):
        msg = replace(msg, content=[block for block in msg.content if block.type not in _UNOBSERVED_BLOCKS])
    if msg.structured_output is not None:  # an instance need not be one that can be copied
        msg = replace(msg, structured_output=to_jsonable_python(msg.structured_output))
    for observer in {id(observer): observer for observer in observers}.values():
        try:
            await observer.observe(msg.copy())  # its own, since an observer may keep and change it
        except Exception as error:  # noqa: BLE001  # neither the speaker nor the others are to blame
            # By its type, as the text may quote a message; a missing `observe` is described in our own words.
            problem = type(error).__name__
            if isinstance(error, NotImplementedError):
                problem = f"{problem}: {error}"
            _logger.error("agent %r failed to observe a message: %s", observer.name, problem)
