"""MsgHub: agents that observe each other's answers."""

import logging
from collections.abc import Sequence
from typing import Self

from agentrt.agent import AgentBase
from agentrt.agent.subscribers import broadcast
from agentrt.block import new_name
from agentrt.conversation.inputs import MessagesInput, observed_messages
from agentrt.errors import ConfigError, UsageError
from agentrt.keywords import accept_old_keywords, suggest_keywords
from agentrt.pipeline.participants import agents_in
from agentrt.representation import describe_setting, never_raises

__all__ = ["MsgHub"]

_logger = logging.getLogger("agentrt")


@suggest_keywords()
class MsgHub:
    """Agents that observe each other: what one of them answers to `await agent(...)`, all the others take in.

        async with MsgHub([alice, bob], announcement=UserMsg("host", "Begin.")) as hub:
            await alice()
            hub.add(carol)
            await bob()

    The announcement goes to all when the block is entered; an agent that joins later does not get it. However the
    block ends, the hub's subscriptions end with it. Hubs may overlap and nest, and no agent observes an answer twice
    for that; one hub is entered once at a time. An agent that is listed twice takes part once, another conversation of
    it (made by `with_state`) is another agent, and a hub may begin empty.
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
        self.announcement = observed_messages(announcement, "a hub")
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
            # Before the announcement, so that answers which come during it are observed as well.
            self._change(self._participants, True, self._automatic)
            await self.broadcast(self.announcement)
        except BaseException:  # raised again: a block that was never entered is never left
            self._change(self._participants, False, self._automatic)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._change(self._participants, False, self._automatic)

    def add(self, new_participant: AgentBase | Sequence[AgentBase]) -> None:
        """Let an agent, or several, join; one that is in the hub already stays."""
        new = agents_in(new_participant, "MsgHub.add()")
        self._change([*self._participants, *_without(new, self._participants)], self._is_open, self._automatic)

    def delete(self, participant: AgentBase | Sequence[AgentBase]) -> None:
        """Let an agent, or several, leave: it no longer observes the others' answers, nor they its own.

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
        """Let all participants, the sender too, observe a message or several, each a copy without thinking.

        A participant that fails to observe is logged, and does not affect the others.
        """
        for message in observed_messages(msg, "a hub"):
            await broadcast(message, self._participants)

    def _change(self, participants: list[AgentBase], is_open: bool, automatic: bool) -> None:
        """Change the hub and all subscriptions; when it raises `UsageError`, nothing has changed."""
        before, after = self._subscribed, participants if is_open and automatic else []
        for agent in _without(after, before):
            # The name is the key of the subscriptions: two hubs of one name would undo each other's.
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
    ids = {id(other) for other in others}  # agents may define equality as they like
    return [agent for agent in agents if id(agent) not in ids]
