"""Lifespans: a part with several users is entered once for all of them, in a task of its own.

The first user enters it and the last one leaves it, in any order and from any task: so what a lifespan opens, a task
group perhaps, is closed by the task that opened it. Users are counted per event loop.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context
from functools import lru_cache
from typing import ClassVar, NoReturn, Protocol
from weakref import WeakKeyDictionary

import anyio

from agentrt._runtime.concurrency.event_loop import run_shielded, running_loop, spawn
from agentrt.errors import AgentRTError

_logger = logging.getLogger("agentrt")
_MAX_LIFESPAN_END_SECONDS = 60.0
_ATTRIBUTE = "_open_lifespans"


class HasLifespan(Protocol):
    """A part that is entered before it is used, and left afterwards."""

    opens_in_replies: ClassVar[bool]

    def lifespan(self) -> AbstractAsyncContextManager[None]: ...


class HasLayers(Protocol):
    """Chains, and the layers of them that have a lifespan, outermost first."""

    @property
    def lifespans(self) -> Sequence[HasLifespan]: ...
    def name_of(self, middleware: object) -> str: ...


class _SharedLifespan:
    """The lifespan of one part in one event loop, and the number of its users."""

    __slots__ = ("_part", "_ready", "_scope", "_stop", "ended", "failure", "is_leaving", "is_raised", "users")

    def __init__(self, part: HasLifespan) -> None:
        self._part = part
        self._ready, self._stop, self.ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._scope = anyio.CancelScope()
        self.users = 0
        self.is_leaving = self.is_raised = False
        self.failure: BaseException | None = None

    async def run(self) -> None:
        """Enter the part, wait until its last user has left, and leave it."""
        try:
            with self._scope:
                async with self._part.lifespan():
                    self._ready.set()
                    await self._stop.wait()
        except BaseException as error:  # raised to the users
            self.failure = error
            if isinstance(error, anyio.get_cancelled_exc_class()):  # of the event loop, which ends
                raise
        finally:
            # A part that ends by itself stays known, so that its users see why.
            if self.is_leaving:
                self.forget()
            elif self.failure is None:
                self.failure = AgentRTError(f"the lifespan of {type(self._part).__name__} ended while it was used")
            self._ready.set()
            self.ended.set()

    def forget(self) -> None:
        """Let the next user enter the part again."""
        lifespans = _lifespans_of(self._part)
        lifespans.by_loop.pop(running_loop(), None)
        if not lifespans.by_loop:
            vars(self._part).pop(_ATTRIBUTE, None)

    async def join(self, name: str) -> None:
        """Wait until it is entered; raises what has ended it."""
        # Counted before the wait, so that another user who leaves meanwhile does not end it.
        self.users += 1
        try:
            await self._ready.wait()
            if self.failure is not None:
                self._raise(self.failure, name)
        except BaseException:
            await self.leave(name)
            raise

    async def leave(self, name: str) -> None:
        """Give it up; the last user waits until it is left, and raises what that raises."""
        self.users -= 1
        if self.users:
            return
        self.is_leaving = True
        if self.ended.is_set():
            self.forget()
        elif self._ready.is_set():
            self._stop.set()
        else:  # its only user was cancelled
            self._scope.cancel()
        if not await run_shielded(_MAX_LIFESPAN_END_SECONDS, self.ended.wait):
            _logger.error(
                "the lifespan of %s did not end in %g s", type(self._part).__name__, _MAX_LIFESPAN_END_SECONDS
            )
            self._scope.cancel()
        if self.failure is not None and not self.is_raised:
            self._raise(self.failure, name)

    def _raise(self, failure: BaseException, name: str) -> NoReturn:
        self.is_raised = True
        note = f"agentrt: raised by the lifespan of {name}"
        if isinstance(failure, Exception) and note not in getattr(failure, "__notes__", ()):
            failure.add_note(note)
        raise failure


class _Lifespans:
    """The lifespans of one part that have users, by event loop; a copy of the part has none."""

    __slots__ = ("by_loop", "part_id")

    def __init__(self, part_id: int) -> None:
        self.part_id = part_id
        self.by_loop: WeakKeyDictionary[object, _SharedLifespan] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[object, ...]:
        return _Lifespans, (0,)


def _lifespans_of(part: object) -> _Lifespans:
    # On the part itself, which need not be hashable, and need not call `super().__init__()`.
    lifespans: _Lifespans = vars(part).setdefault(_ATTRIBUTE, _Lifespans(id(part)))
    if lifespans.part_id != id(part):  # of the part that this one is a copy of
        lifespans = vars(part)[_ATTRIBUTE] = _Lifespans(id(part))
    return lifespans


async def open_layers(stack: AsyncExitStack, chains: HasLayers) -> None:
    """Use the layers until the stack is closed."""
    for layer in chains.lifespans:
        await enter_lifespan(stack, layer, chains.name_of(layer))


async def open_for_reply(stack: AsyncExitStack, chains: HasLayers) -> None:
    """Use the layers in one reply; those that nobody else uses are opened and closed for it alone."""
    for layer in chains.lifespans:
        if layer.opens_in_replies and await enter_lifespan(stack, layer, chains.name_of(layer)):
            _log_reply(type(layer))


@lru_cache(maxsize=1024)  # once per class
def _log_reply(cls: type) -> None:
    _logger.warning(
        "each reply opens and closes the lifespan of %s, which is slow: write `async with agent:` around them",
        cls.__name__,
    )


async def enter_lifespan(stack: AsyncExitStack, part: HasLifespan, name: str) -> bool:
    """Use a part until the stack is closed; returns whether this is its first user.

    An error of its lifespan gets a note with its name.
    """
    loop = running_loop()
    while (shared := _lifespans_of(part).by_loop.get(loop)) is not None and shared.is_leaving:
        await shared.ended.wait()  # or it would be entered twice at a time
    is_first = shared is None
    if shared is None:
        shared = _lifespans_of(part).by_loop[loop] = _SharedLifespan(part)
        # In a context of its own: what the first user works for is not what the lifespan works for.
        Context().run(spawn, shared.run)
    await shared.join(name)
    stack.push_async_callback(shared.leave, name)
    return is_first


def lifespan_failure(part: object) -> BaseException | None:
    """Return what has ended the lifespan of a part that has users in this event loop, `None` if nothing has."""
    shared = _lifespans_of(part).by_loop.get(running_loop()) if _ATTRIBUTE in vars(part) else None
    return None if shared is None else shared.failure
