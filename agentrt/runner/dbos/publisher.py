"""The events of replies that run here, written for followers in other processes."""

import logging
from collections.abc import Callable
from time import monotonic

import anyio

from agentrt.errors import InvalidInputError, SessionIOError
from agentrt.event import AnyEvent, ReplyResumedEvent
from agentrt.message import Msg
from agentrt.runner.dbos.database import RunnerDatabase, to_text
from agentrt.runner.events import EventLog, ReplyLog

_logger = logging.getLogger("agentrt")
_BATCH_SECONDS = 0.05  # so that there are at most 20 statements a second
_REWRITE_SECONDS = 0.5


class Publisher(EventLog):
    """The logs of one request that runs here. What comes within 50 ms is written at once.

    `start` runs a coroutine as a task, and `on_lost` is called when another worker has the reply.
    """

    def __init__(
        self,
        database: RunnerDatabase,
        owner: tuple[str, str],
        start: Callable[..., object],
        on_lost: Callable[[], object],
    ) -> None:
        super().__init__(0.0)
        self._database = database
        self._owner = owner
        self._start = start
        self._on_lost = on_lost
        self._writing = 0
        self._written = anyio.Event()

    def open(self, session_id: str, message: Msg, number: int) -> ReplyLog:
        log = super().open(session_id, message, number)
        self._writing += 1
        self._start(self._publish, session_id, message.id, log, log.last_number)
        return log

    async def last_number(self, session_id: str, reply_id: str) -> int:
        [[number]] = await self._database.ask("last_number", to_text(session_id), reply_id)
        return number or 0

    async def flush(self) -> None:
        while self._writing:
            await self._written.wait()

    async def _publish(self, session_id: str, reply_id: str, log: ReplyLog, number: int) -> None:
        try:
            await self._follow(session_id, reply_id, log, number)
        finally:
            self._writing -= 1
            written, self._written = self._written, anyio.Event()
            written.set()

    async def _follow(self, session_id: str, reply_id: str, log: ReplyLog, sent: int) -> None:
        # As any follower does. It begins before the first event, from which on the log has all of them.
        follows = sent
        while True:
            await log.wait(sent)
            is_open = log.is_open
            begun_at = monotonic()
            events = log.read(sent)
            if events or not is_open:
                try:
                    if not await self._write(session_id, reply_id, events, follows, is_end=not is_open):
                        self._on_lost()
                        return
                    sent = follows = events[-1].seq if events else sent
                except SessionIOError:
                    # Of the batches before this one some may be gone, so the next one has everything.
                    sent, follows = -1, 0
                    if not is_open:
                        return  # the state has it, and the reply must not wait for those who follow it
                    await anyio.sleep(_REWRITE_SECONDS)
                    continue
            if not is_open:
                return
            await anyio.sleep(max(0.0, begun_at + _BATCH_SECONDS - monotonic()))

    async def _write(
        self, session_id: str, reply_id: str, events: list[AnyEvent], follows: int, *, is_end: bool
    ) -> bool:
        if events and isinstance(events[0], ReplyResumedEvent):
            follows = 0  # it stands for all that was before
        try:
            return await self._database.publish((session_id, reply_id), self._owner, events, follows, is_end=is_end)
        except InvalidInputError as error:
            _logger.warning(
                "reply %s of session %.100r has events that followers miss: %s", reply_id, session_id, error
            )
            return True
