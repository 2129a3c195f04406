"""The printed messages of several agents, as one stream."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, Protocol

import anyio

from agentrt._runtime.concurrency.background_task import BackgroundTask, enclosing_replies
from agentrt._runtime.concurrency.event_loop import run_shielded
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.concurrency.reaper import Reaper
from agentrt.agent import AgentBase
from agentrt.errors import AgentRTError, ConfigError, UsageError
from agentrt.pipeline.concurrency import gather
from agentrt.pipeline.participants import agents_in

_logger = logging.getLogger("agentrt")
_STOP_SECONDS = 10.0
_PRINTING_REAP_SECONDS = 15.0


class _WritableQueue(Protocol):
    async def put(self, item: Any, /) -> object: ...


class _MessageQueue(_WritableQueue, Protocol):
    """A queue between the agents and the reader, such as those of asyncio and of `agentrt.agent`."""

    async def get(self) -> object: ...


def stream_printing_messages(
    agents: Sequence[AgentBase],
    coroutine_task: Awaitable[object],
    queue: _MessageQueue | None = None,
    end_signal: object = "[END]",
    yield_speech: bool = False,
) -> "PrintedStream":
    """Run the work and stream the messages that these agents print, as `(msg, last)` or `(msg, last, speech)`.

        async with stream_printing_messages([alice, bob], fanout_pipeline([alice, bob], question)) as printed:
            async for msg, last in printed:
                ...

    The work is a coroutine or any other awaitable. It starts, and the agents print into this stream, when the first
    item is requested. An error of the work is raised after all messages printed before it. Leaving early stops the
    work, even a task, and waits for it; then the agents have their former queues again. At most 64 items wait
    for the reader, and then the agents wait. The message of an `Agent` that is not complete keeps growing while the
    reader has it: use `msg.copy()` for one that does not.

    A `queue` of your own, with async `put` and `get`, transports the printed messages;
    `end_signal` is put there when the work is over, and must not equal any printed message. Raises
    `UsageError`, in the first step, for an agent that another stream is reading.
    """
    try:
        printing_agents = agents_in(agents, "stream_printing_messages()")
        if not isawaitable(coroutine_task):
            raise ConfigError(
                f"stream_printing_messages() runs an awaitable such as `agent(msg)`, not {coroutine_task!r:.200}"
            )
        if queue is not None and not (hasattr(queue, "put") and hasattr(queue, "get")):
            raise ConfigError(f"stream_printing_messages(queue=...) needs async `put` and `get`, not {queue!r:.200}")
    except AgentRTError:
        if iscoroutine(coroutine_task):
            coroutine_task.close()  # nothing else will await it
        raise
    return PrintedStream(_Printing(printing_agents, coroutine_task, queue, end_signal, yield_speech))


class PrintedStream:
    """The printed messages of agents: an async iterator, and an async context manager that closes it.

    A stream that is merely dropped, for example by a plain `break`, is closed at once in a separate task, and the
    next stream over one of its agents waits for that. The work of a stream that is never read does not start.
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
        """Stop the work, and wait until it has stopped and the agents have their own queues again."""
        await self._items.aclose()
        await self._printing.close()

    async def __aenter__(self) -> "PrintedStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __iter__(self) -> object:  # returns `object`, so that a type checker refuses it too
        raise TypeError("a printed stream is asynchronous: write `async for msg, last in ...` in an `async def`")

    def __del__(self) -> None:
        # Only scheduling here: this may run in any thread, and after the loop is gone.
        self._printing.drop(self._items)


class _Printing:
    """One run of the work, from the first requested item until the agents have their own queues again."""

    def __init__(
        self,
        agents: list[AgentBase],
        work: Awaitable[object],
        queue: _MessageQueue | None,
        end_signal: object,
        yield_speech: bool,
    ) -> None:
        self._agents = agents
        self._work = _Work(work)
        self._queue = queue
        self._end_signal = end_signal
        self._size = 3 if yield_speech else 2
        self._mailbox = Mailbox()
        # One object for all agents, by which a later stream recognises this one.
        self._inlet = _Inlet(agents, self._mailbox if queue is None else queue)
        self._reaper: Reaper | None = None
        self._is_abandoned = False

    async def items(self) -> AsyncGenerator[tuple[Any, ...], None]:
        self._reaper = Reaper()  # here, inside an event loop
        before: list[tuple[AgentBase, object]] = []
        try:
            await self._claim_agents()
            before += [(agent, agent.msg_queue) for agent in self._agents]
            for agent in self._agents:
                agent.set_msg_queue_enabled(True, self._inlet)
            work = partial(self._main, enclosing_replies.get())
            # A time limit on the first step must not apply to the work.
            async with BackgroundTask("", self._mailbox, work, has_deadline=False) as task:
                try:
                    async for item in task:
                        yield item[: self._size]
                    await task.outcome()
                finally:
                    self._is_abandoned = True
                    self._inlet.is_open = False
                    for _ in self._mailbox.take():  # so that no agent waits for room any longer
                        pass
            self._work.check()
        finally:
            for agent, queue in before:
                if agent.msg_queue is self._inlet:  # not one that was set meanwhile
                    agent.set_msg_queue_enabled(queue is not None, queue)
            self._inlet.gone.set()
            await self._work.discard()

    async def close(self) -> None:
        """Discard work that was not started."""
        await self._work.discard()

    def drop(self, items: AsyncGenerator[tuple[Any, ...], None]) -> None:
        """Schedule the closing; callable in any thread."""
        self._inlet.dropped = True
        if self._reaper is None:
            self._work.cancel()
        elif getattr(items, "ag_frame", None) is not None:
            self._reaper.reap(items)

    async def _claim_agents(self) -> None:
        """Wait for dropped streams to release the agents; raises `UsageError` for an agent that is being read."""
        for agent in self._agents:
            other = agent.msg_queue
            if isinstance(other, _Inlet) and other.dropped and other.serves(agent):
                with anyio.move_on_after(_PRINTING_REAP_SECONDS):
                    await other.gone.wait()
        for agent in self._agents:
            if isinstance(agent.msg_queue, _Inlet) and agent.msg_queue.serves(agent):
                raise UsageError(
                    f"what agent {agent.name!r} prints is being read by another stream: read that one to its end, "
                    f"or close it with `await stream.aclose()`"
                )

    async def _main(self, replies: tuple[Hashable, ...]) -> None:
        enclosing_replies.set(replies)  # this task belongs to the same replies as its caller
        queue = self._queue
        if queue is None:
            await self._finish()
            return
        calls: list[Callable[[], Awaitable[Exception | None]]] = [
            partial(self._pass_on, queue),
            partial(self._finish_and_signal, queue),
        ]
        _, failure = await gather(calls)
        if failure is not None:
            raise failure

    async def _finish(self) -> None:
        try:
            await self._work.finish()
        except Exception as error:
            if self._is_abandoned:  # its reader is gone
                _logger.error("work that was stopped when its reader left failed: %s", type(error).__name__)
            raise

    async def _finish_and_signal(self, queue: _MessageQueue) -> Exception | None:
        failure = None
        try:
            await self._finish()
        except Exception as error:  # noqa: BLE001  # raised once all that was printed before it was passed on
            failure = error
        self._inlet.is_open = False
        await queue.put(self._end_signal)
        return failure

    async def _pass_on(self, queue: _MessageQueue) -> None:
        with suppress(anyio.EndOfStream):  # the queue was closed
            while True:
                item = await queue.get()
                if isinstance(item, tuple) and len(item) == 3:
                    await self._mailbox.put(item)
                elif item == self._end_signal and not self._inlet.is_open:
                    return


class _Inlet:
    """The message queue of the agents of one stream: passes printed messages on while it is open, then drops them."""

    __slots__ = ("_agents", "_queue", "dropped", "gone", "is_open")

    def __init__(self, agents: list[AgentBase], queue: _WritableQueue) -> None:
        self._agents = agents
        self._queue = queue
        self.is_open = True
        self.dropped = False
        self.gone = anyio.Event()

    async def put(self, item: object) -> None:
        if self.is_open:
            await self._queue.put(item)

    def serves(self, agent: AgentBase) -> bool:
        """Say whether this is the stream of that agent itself: copies of an agent share its queue."""
        return not self.gone.is_set() and any(agent is member for member in self._agents)


class _Work:
    """An awaitable that is awaited once, or else discarded."""

    __slots__ = ("_awaitable", "_is_begun")

    def __init__(self, awaitable: Awaitable[object]) -> None:
        self._awaitable = awaitable
        self._is_begun = False

    async def finish(self) -> None:
        """Await it. A cancellation stops a task as well, but only once, so that its clean-up can complete."""
        self._is_begun = True
        if not isinstance(self._awaitable, asyncio.Future):
            await self._awaitable
            return
        try:
            await asyncio.wait([self._awaitable])
        except anyio.get_cancelled_exc_class():
            await self._stop(self._awaitable)
            raise

    def check(self) -> None:
        """Raise the error of a task, even its own cancellation."""
        if isinstance(self._awaitable, asyncio.Future):
            self._awaitable.result()

    async def discard(self) -> None:
        """Stop it, and wait for a task to stop, unless it is already awaited."""
        if not self._is_begun and isinstance(self._awaitable, asyncio.Future):
            await self._stop(self._awaitable)
        else:
            self.cancel()
        self._is_begun = True

    def cancel(self) -> None:
        """Tell it to stop, unless it is already awaited; callable in any thread."""
        if self._is_begun:
            return
        if iscoroutine(self._awaitable):
            self._awaitable.close()
        elif isinstance(self._awaitable, asyncio.Future):
            with suppress(RuntimeError):  # its loop is gone
                self._awaitable.get_loop().call_soon_threadsafe(self._awaitable.cancel)

    async def _stop(self, task: asyncio.Future[object]) -> None:
        task.cancel()
        if not await run_shielded(_STOP_SECONDS, partial(asyncio.wait, [task])):
            _logger.error("a task whose printing was read did not stop within %s s of being cancelled", _STOP_SECONDS)
