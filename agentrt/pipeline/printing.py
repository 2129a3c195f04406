"""What several agents print while some work runs, as one stream."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Any, NoReturn

import anyio

from agentrt.agent import AgentBase
from agentrt.concurrency.background_task import BackgroundTask, enclosing_replies
from agentrt.concurrency.event_loop import run_shielded
from agentrt.concurrency.mailbox import Mailbox
from agentrt.concurrency.reaper import Reaper
from agentrt.errors import AgentRTError, ConfigError, UsageError
from agentrt.pipeline.concurrency import together
from agentrt.pipeline.participants import agents_in

__all__ = ["PrintedStream", "stream_printing_messages"]

_logger = logging.getLogger("agentrt")
_STOP_SECONDS = 10.0
_REAP_SECONDS = 15.0


def stream_printing_messages(
    agents: Sequence[AgentBase],
    coroutine_task: Awaitable[Any],
    queue: Any = None,
    end_signal: Any = "[END]",
    yield_speech: bool = False,
) -> "PrintedStream":
    """Run the work and stream all that these agents print meanwhile, as `(msg, last)` or `(msg, last, speech)`.

        async with stream_printing_messages([alice, bob], fanout_pipeline([alice, bob], question)) as printed:
            async for msg, last in printed:
                ...

    The work is a coroutine or any other awaitable. It begins, and the agents' message queues lead here, when the first
    item is asked for. An error of the work is raised once all that was printed before it was given out. Leaving early
    stops the work, a task as well, and waits for it; then the queues of the agents are what they were before. At most
    64 items wait for the reader, and then the agents do. The message of an `Agent` that is not complete goes on growing
    in the reader's hands: `msg.copy()` keeps it as it is.

    A `queue` of your own, with async `put` and `get`, is where the agents print into on the way here; `end_signal` is
    put there when the work is over, and must be nothing that an agent prints. Raises `UsageError`, in the first step,
    for an agent that another stream is reading.
    """
    try:
        taking_part = agents_in(agents, "stream_printing_messages()")
        _check_parts(coroutine_task, queue)
    except AgentRTError:
        if iscoroutine(coroutine_task):
            coroutine_task.close()  # nobody else will await it
        raise
    return PrintedStream(_Printing(taking_part, coroutine_task, queue, end_signal, yield_speech))


class PrintedStream:
    """What agents print as it happens: an async iterator, and an async context manager that closes it.

    A stream that is merely dropped, by a plain `break` for example, is closed at once in a task of its own, and the
    next stream over one of its agents waits for that. Work of which nothing was ever asked for does not begin.
    """

    __slots__ = ("_items", "_printing")

    def __init__(self, printing: "_Printing") -> None:
        self._printing = printing
        self._items = printing.items()

    def __aiter__(self) -> "PrintedStream":
        return self

    def __anext__(self) -> Awaitable[tuple[Any, ...]]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        """Stop the work, and wait until it has stopped and the agents' queues are what they were."""
        await self._items.aclose()
        await self._printing.close()

    async def __aenter__(self) -> "PrintedStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __iter__(self) -> NoReturn:
        raise TypeError("a printed stream is asynchronous: write `async for msg, last in ...` in an `async def`")

    def __del__(self) -> None:
        # Nothing but scheduling here: this may run in any thread, and after the loop is gone.
        self._printing.drop(self._items)


class _Printing:
    """One run of the work, from the first item that is asked for until the agents' queues are what they were."""

    def __init__(
        self, agents: list[AgentBase], work: Awaitable[Any], queue: Any, end_signal: Any, yield_speech: bool
    ) -> None:
        self._agents = agents
        self._work = _Work(work)
        self._queue = queue
        self._end_signal = end_signal
        self._size = 3 if yield_speech else 2
        self._mailbox = Mailbox()
        self._outlet = _Outlet(agents, self._mailbox if queue is None else queue)
        self._reaper: Reaper | None = None
        self._left = False

    async def items(self) -> AsyncGenerator[tuple[Any, ...], None]:
        self._reaper = Reaper()
        before: list[tuple[AgentBase, Any]] = []
        try:
            await _wait_for_dropped(self._agents)
            _check_free(self._agents)
            before += [(agent, agent.msg_queue) for agent in self._agents]
            for agent in self._agents:
                agent.set_msg_queue_enabled(True, self._outlet)
            work = partial(self._main, enclosing_replies.get())
            # A time limit on the first step is none on the work.
            async with BackgroundTask("", self._mailbox, work, has_deadline=False) as task:
                try:
                    async for item in task:
                        yield item[: self._size]
                    await task.outcome()
                finally:
                    self._refuse_more()
            self._work.check()
        finally:
            _put_back(before, self._outlet)
            self._outlet.gone.set()
            await self._work.discard()

    async def close(self) -> None:
        """Discard work that nobody asked for."""
        await self._work.discard()

    def drop(self, items: Any) -> None:
        """See to it that everything is closed soon; callable in any thread."""
        self._outlet.dropped = True
        if self._reaper is None:
            self._work.cancel()
        elif items.ag_frame is not None:
            self._reaper.reap(items)

    def _refuse_more(self) -> None:
        self._left = True
        self._outlet.is_open = False
        for _ in self._mailbox.take():  # whoever waits for room is let go
            pass

    async def _main(self, replies: frozenset[Hashable]) -> None:
        enclosing_replies.set(replies)  # this task works for no reply of its own
        if self._queue is None:
            await self._finish()
            return
        _, failure = await together([self._pass_on, self._finish_and_signal])
        if failure is not None:
            raise failure

    async def _finish(self) -> None:
        try:
            await self._work.finish()
        except Exception as error:
            if self._left:  # there is nobody left to raise it to
                _logger.error("work that was stopped when its reader left failed: %s", type(error).__name__)
            raise

    async def _finish_and_signal(self) -> Exception | None:
        failure = None
        try:
            await self._finish()
        except Exception as error:  # noqa: BLE001  # raised once all that was printed before it was passed on
            failure = error
        self._outlet.is_open = False
        await self._queue.put(self._end_signal)
        return failure

    async def _pass_on(self) -> None:
        with suppress(anyio.EndOfStream):  # somebody has closed the queue
            while True:
                item = await self._queue.get()
                if isinstance(item, tuple) and len(item) == 3:
                    await self._mailbox.put(item)
                elif item == self._end_signal and not self._outlet.is_open:
                    return


class _Outlet:
    """Where the agents of one stream put what they print, until it takes no more and drops what still comes."""

    __slots__ = ("_agents", "_queue", "dropped", "gone", "is_open")

    def __init__(self, agents: list[AgentBase], queue: Any) -> None:
        self._agents = agents
        self._queue = queue
        self.is_open = True
        self.dropped = False
        self.gone = anyio.Event()

    async def put(self, item: Any) -> None:
        if self.is_open:
            await self._queue.put(item)

    def serves(self, agent: AgentBase) -> bool:
        """Say whether this is the stream of that agent itself, rather than of one that it is a copy of."""
        return not self.gone.is_set() and any(agent is each for each in self._agents)


class _Work:
    """An awaitable that is awaited once, or else discarded."""

    __slots__ = ("_awaitable", "_begun")

    def __init__(self, awaitable: Any) -> None:
        self._awaitable = awaitable
        self._begun = False

    async def finish(self) -> None:
        """Await it. Being cancelled stops a task as well, once, so that what it does at its end is left alone."""
        self._begun = True
        if not isinstance(self._awaitable, asyncio.Future):
            await self._awaitable
            return
        try:
            await asyncio.wait([self._awaitable])
        except anyio.get_cancelled_exc_class():
            await self._stop(self._awaitable)
            raise

    def check(self) -> None:
        """Raise what a task has raised, its own cancellation as well."""
        if isinstance(self._awaitable, asyncio.Future):
            self._awaitable.result()

    async def discard(self) -> None:
        """Stop it, and wait for a task to stop, unless somebody has begun to await it."""
        if not self._begun and isinstance(self._awaitable, asyncio.Future):
            await self._stop(self._awaitable)
        else:
            self.cancel()
        self._begun = True

    def cancel(self) -> None:
        """Have it stop, unless somebody has begun to await it; callable in any thread."""
        if self._begun:
            return
        if iscoroutine(self._awaitable):
            self._awaitable.close()
        elif isinstance(self._awaitable, asyncio.Future):
            with suppress(RuntimeError):  # its loop is gone
                self._awaitable.get_loop().call_soon_threadsafe(self._awaitable.cancel)

    async def _stop(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        if not await run_shielded(_STOP_SECONDS, partial(asyncio.wait, [task])):
            _logger.error("a task whose printing was read did not stop within %s s of being cancelled", _STOP_SECONDS)


def _check_parts(work: Any, queue: Any) -> None:
    if not isawaitable(work):
        raise ConfigError(f"stream_printing_messages() runs an awaitable such as `agent(msg)`, not {work!r:.200}")
    if queue is not None and not (hasattr(queue, "put") and hasattr(queue, "get")):
        raise ConfigError(f"stream_printing_messages(queue=...) needs async `put` and `get`, not {queue!r:.200}")


async def _wait_for_dropped(agents: list[AgentBase]) -> None:
    for agent in agents:
        other = agent.msg_queue
        if isinstance(other, _Outlet) and other.dropped and other.serves(agent):
            with anyio.move_on_after(_REAP_SECONDS):
                await other.gone.wait()


def _check_free(agents: list[AgentBase]) -> None:
    for agent in agents:
        if isinstance(agent.msg_queue, _Outlet) and agent.msg_queue.serves(agent):
            raise UsageError(
                f"what agent {agent.name!r} prints is being read by another stream: read that one to its end, "
                f"or close it with `await stream.aclose()`"
            )


def _put_back(before: list[tuple[AgentBase, Any]], outlet: _Outlet) -> None:
    for agent, queue in before:
        if agent.msg_queue is outlet:  # nobody has set another meanwhile
            agent.set_msg_queue_enabled(queue is not None, queue)
