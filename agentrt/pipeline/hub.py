"""MsgHub: agents that observe each other's answers."""

import logging
from collections.abc import Sequence
from typing import Self

from agentrt._runtime.block import new_name
from agentrt._runtime.boundary import read_messages
from agentrt._runtime.conversation.inputs import MessagesInput
from agentrt._runtime.keywords.old_keywords import accept_old_keywords
from agentrt._runtime.representation import describe_setting, never_raises
from agentrt.agent import AgentBase
from agentrt.agent.audience import broadcast
from agentrt.errors import ConfigError, UsageError
from agentrt.pipeline.participants import agents_in

_logger = logging.getLogger("agentrt")


class MsgHub:
    """Agents that observe each other: all others observe the answer of one to `await agent(...)`.

        async with MsgHub([alice, bob], announcement=UserMsg("host", "Begin.")) as hub:
            await alice()
            hub.add(carol)
            await bob()

    The announcement goes to all when the block is entered; an agent that joins later does not get it. When the block
    ends, in any way, the hub's subscriptions end. Hubs may overlap and nest, but no agent observes an answer twice
    because of that; a hub is entered once at a time. An agent that is listed twice takes part once, another
    conversation of it (made by `with_state`) is another agent, and a hub may start empty.
    """

    def __init__(
        self,
        participants: Sequence[AgentBase],
        announcement: MessagesInput | None = None,
        enable_auto_broadcast: bool = True,
        name: str | None = None,
    ) -> None:
        self._participants = agents_in(participants, "MsgHub(participants=...)")
        self._subscribed: list[AgentBase] = []
        self._is_open = False
        self._automatic = bool(enable_auto_broadcast)
        self.announcement = read_messages(announcement, "a hub")
        choice: object = new_name() if name is None else name
        if not isinstance(choice, str) or not choice:
            raise ConfigError(f"MsgHub(name=...) must be a str that is not empty, not {choice!r:.200}")
        self.name = choice

    @never_raises
    def __repr__(self) -> str:
        names = [agent.name for agent in self._participants]
        return f"<{type(self).__name__} {self.name!r} of {describe_setting(names)}>"

    @property
    def participants(self) -> list[AgentBase]:
        """The agents in the hub, in the order in which they joined."""
        return list(self._participants)

    @property
    def enable_auto_broadcast(self) -> bool:
        """Whether the participants observe each other's answers."""
        return self._automatic

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise UsageError(f"hub {self.name!r} has already been entered: make another MsgHub over the same agents")
        try:
            # Before the announcement, so that answers during it are observed too.
            self._change(self._participants, True, self._automatic)
            await self.broadcast(self.announcement)
        except BaseException:  # re-raised: a block that was not entered is not left
            self._change(self._participants, False, self._automatic)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._change(self._participants, False, self._automatic)

    def add(self, new_participant: AgentBase | Sequence[AgentBase]) -> None:
        """Add an agent, or several; one that is already in the hub stays."""
        new = agents_in(new_participant, "MsgHub.add()")
        self._change([*self._participants, *_without(new, self._participants)], self._is_open, self._automatic)

    def delete(self, participant: AgentBase | Sequence[AgentBase]) -> None:
        """Remove an agent, or several: it no longer observes the others' answers, nor they its own.

        Warns of agents that are not in the hub.
        """
        leaving = agents_in(participant, "MsgHub.delete()")
        for agent in _without(leaving, self._participants):
            _logger.warning("agent %r is not in the hub %r", agent.name, self.name)
        self._change(_without(self._participants, leaving), self._is_open, self._automatic)

    @accept_old_keywords(enable="enabled")
    def set_auto_broadcast(self, enabled: bool) -> None:
        """Have the participants observe each other's answers, or only the messages given to `broadcast`."""
        self._change(self._participants, self._is_open, bool(enabled))

    async def broadcast(self, msg: MessagesInput) -> None:
        """Let all participants, including the sender, observe a message or several, each as a copy without thinking.

        A participant that fails to observe is logged, and does not affect the others.
        """
        for message in read_messages(msg, "a hub"):
            await broadcast(message, self._participants)

    def _change(self, participants: list[AgentBase], is_open: bool, automatic: bool) -> None:
        """Change the hub and all subscriptions; if it raises `UsageError`, nothing has changed."""
        before, after = self._subscribed, participants if is_open and automatic else []
        for agent in _without(after, before):
            # The name is the key of the subscriptions: two hubs with one name would remove each other's.
            if self.name in agent.live_conversation.subscribers:
                raise UsageError(
                    f"agent {agent.name!r} is in another hub named {self.name!r}: "
                    f"give this one another name, or no name, so that it gets one of its own"
                )
        self._participants, self._is_open, self._automatic = participants, is_open, automatic
        self._subscribed = after
        for agent in _without(before, after):
            agent.remove_subscribers(self.name)
        for agent in after:
            agent.reset_subscribers(self.name, after)


def _without(agents: list[AgentBase], others: list[AgentBase]) -> list[AgentBase]:
    ids = {id(other) for other in others}  # agents may define equality in any way
    return [agent for agent in agents if id(agent) not in ids]
