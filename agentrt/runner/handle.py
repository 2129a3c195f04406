"""A reply that was submitted, wherever it runs."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.representation import never_raises
from agentrt.event import AnyEvent
from agentrt.message import Msg


class HandledReplies(Protocol):
    """The part of a runner that a handle uses."""

    def events(self, session_id: str, reply_id: str, *, after: int = 0) -> AsyncGenerator[AnyEvent, None]: ...
    async def interrupt(self, session_id: str, reply_id: str) -> bool: ...
    async def read_message(self, session_id: str, reply_id: str) -> Msg: ...


@suggest_attributes(
    id="write handle.reply_id",
    message="write `await handle.result()`",
    get_result="write `await handle.result()`",
    cancel="write `await handle.interrupt()`",
    stream="write `async for event in handle.events()`",
)
class ReplyHandle:
    """One reply of a session. Any number of handles of one reply may be used, in any process that has its runner."""

    __slots__ = ("_runner", "reply_id", "session_id")

    def __init__(self, runner: HandledReplies, session_id: str, reply_id: str) -> None:
        self._runner = runner
        self.session_id = session_id
        self.reply_id = reply_id

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r:.100}, {self.reply_id!r})"

    def events(self, *, after: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """Follow the reply until it is over or waits for an answer: the events with numbers above `after`.

        What can no longer be given event by event comes as one `ReplyResumedEvent`, which replaces all that was shown
        of the reply, so that `Msg.append_event` always builds the message that the state has.
        """
        return self._runner.events(self.session_id, self.reply_id, after=after)

    async def result(self) -> Msg:
        """Wait until the reply is over or waits for an answer; returns the message that `Agent.reply` would return.

        How it ended is in `finished_reason` and `error`: "failed" means that the reply was given up, or never started.
        """
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return await self._runner.read_message(self.session_id, self.reply_id)

    async def interrupt(self) -> bool:
        """End the reply tidily, wherever it runs; returns whether there was one to end."""
        return await self._runner.interrupt(self.session_id, self.reply_id)
