"""A reply as a stream."""

from collections.abc import AsyncGenerator, Awaitable
from types import TracebackType
from typing import Any, Generic, NoReturn, Self

from typing_extensions import TypeVar

from agentrt.conversation.turns import Claim
from agentrt.event import AgentEvent, AnyEvent
from agentrt.message import Msg

__all__ = ["ReplyStream"]

_Item = TypeVar("_Item", bound=AnyEvent | Msg, default=AnyEvent, covariant=True)


class ReplyStream(Generic[_Item]):
    """A reply as it happens: an async iterator over events, and an async context manager that closes it.

    `ReplyStream[AnyEvent]` has events alone, `ReplyStream[AnyEvent | Msg]` the final message after them.

    The reply starts, and takes the conversation, when the first item is asked for. Everything it opened is closed, in
    the closing task, when it ends, fails, or leaves the `async with` block. A stream that is merely dropped, by a plain
    `break` for example, is closed at once in a task of its own, and the next reply of the conversation waits for that.
    """

    __slots__ = ("_claim", "_items")

    def __init__(self, items: AsyncGenerator[AgentEvent | Msg, None], claim: Claim) -> None:
        # Layers may be typed as yielding `AgentEvent`, and `AnyEvent` has all the classes of it that there are.
        self._items: AsyncGenerator[Any, None] = items
        self._claim = claim

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[_Item]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        """Stop the reply and wait until everything it opened is closed."""
        await self._items.aclose()

    async def drain(self) -> _Item | None:
        """Read the reply to its end and return its last item."""
        self._claim.drained = not self._claim.printed
        item: _Item | None = None
        try:
            async for item in self._items:  # noqa: B007  # the last one is returned
                pass
        finally:
            await self._items.aclose()
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._items.aclose()

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a reply stream is asynchronous: write `async for event in agent.reply_stream(...)` in an `async def`, "
            "or call `agent.run_sync(...)` for the final message alone"
        )

    def __await__(self) -> NoReturn:
        raise TypeError(
            "a reply stream is not awaited: write `async for event in agent.reply_stream(...)`, "
            "or `await agent.reply(...)` for the final message alone"
        )

    def __del__(self) -> None:
        # Nothing but scheduling here: this may run in any thread, and after the loop is gone.
        if getattr(self._items, "ag_frame", None) is not None:
            self._claim.dropped = True
            if self._claim.reaper is not None:
                self._claim.reaper.reap(self._items)
