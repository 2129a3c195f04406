"""Reading a coroutine: what it tells reaches its reader, and what it waits for reaches the event loop.

A coroutine tells something by `await hand_out(item)`. That suspends it as a wait does, and what comes out of it is a
tuple, which no event loop waits for: of one item, or of several, which are read one by one. The nearest reader takes
it, and sends the coroutine on when it wants more: in its own task, with no queue and no other task in between. So
readers nest, and a coroutine that tells something must have one.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType, FunctionType, coroutine
from typing import Any, Generic, Self
from weakref import WeakKeyDictionary, WeakSet

import anyio
from typing_extensions import TypeVar

from agentrt._runtime.concurrency.event_loop import checkpoint, running_loop

_logger = logging.getLogger("agentrt")
_MAX_LEAVE_SECONDS = 15.0
_Told = TypeVar("_Told", default=Any, covariant=True)
_Function = TypeVar("_Function")


class ReaderLeft(BaseException):
    """Leaves a coroutine that nobody reads any more; `untaken` was told last, and no reader has taken it.

    It is not `GeneratorExit`, to which Python answers with a `close()` of each coroutine further in, and then a
    clean-up cannot await anything.
    """

    def __init__(self, untaken: Sequence[Any] = ()) -> None:
        super().__init__()
        self.untaken = untaken


class Reading:
    """A coroutine's view of its reader; a strong reference would hide that the reader was dropped.

    `is_running` says that a task waits for the next item, or for the end, at this moment, and `is_waiting` that the
    event loop has control meanwhile. `on_wait` is called before that.
    """

    __slots__ = ("is_running", "is_waiting", "on_wait")

    def __init__(self) -> None:
        self.is_running = self.is_waiting = False
        self.on_wait: Callable[[], None] | None = None


_OWN_READING = object()


@coroutine
def hand_out(item: object) -> Generator[Any, Any, None]:
    """Give the item to the reader, and return when the reader wants the next one."""
    yield (item,)


@coroutine
def own_reading() -> Generator[Any, Any, Reading]:
    """Return the `Reading` of the nearest reader; there must be one."""
    return (yield _OWN_READING)  # type: ignore[no-any-return]  # the reader's answer


class CoroutineReader(Generic[_Told]):
    """Reads a coroutine, which is made and starts when the first item is asked for; an async iterator.

    With `gives_result` the last item is what the coroutine returns, unless that is `None`. A reader that stops early
    closes it by `aclose`: then `ReaderLeft` is raised where the coroutine told something last.
    """

    __slots__ = ("__weakref__", "_gives_result", "_is_over", "_make", "_reading", "_rest", "_work")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]], gives_result: bool = True) -> None:
        self._make = make
        self._gives_result = gives_result
        self._work: Coroutine[Any, Any, Any] | None = None
        self._is_over = False
        self._reading = Reading()
        self._rest: Iterator[Any] = iter(())  # of what was told last

    @property
    def is_running(self) -> bool:
        """Whether a task waits for the next item, or for the end, at this moment."""
        return self._reading.is_running

    @property
    def is_open(self) -> bool:
        """Whether it has not come to its end, and was not closed."""
        return not self._is_over

    # The names by which a generator says the same: the owner of a chain asks any stream for these.

    @property
    def ag_frame(self) -> FrameType | object | None:
        return None if self._is_over else getattr(self._work, "cr_frame", self)

    @property
    def ag_running(self) -> bool:
        return self.is_running

    @property
    def ag_code(self) -> CodeType | None:
        function: Any = getattr(self._make, "func", self._make)
        return getattr(function, "__code__", None)

    def __aiter__(self) -> Self:
        return self

    @coroutine
    def __anext__(self) -> Generator[Any, Any, _Told]:  # noqa: C901  # in one piece: each event passes here
        for item in self._rest:
            return item  # type: ignore[no-any-return]  # what the coroutine tells
        reading, work = self._reading, self._work
        if reading.is_running:
            raise RuntimeError("this stream is being read by another task: one task reads it at a time")
        if work is None:
            if self._is_over:
                raise StopAsyncIteration
            work = self._start()
        reading.is_running = True
        try:
            outcome: Any = work.send(None)
            while outcome.__class__ is not tuple:
                if outcome is _OWN_READING:
                    outcome = work.send(reading)
                    continue
                if reading.on_wait is not None:
                    reading.on_wait()
                reading.is_waiting = True
                try:
                    value = yield outcome
                except GeneratorExit:  # the task that waited is gone; `aclose` closes the rest
                    reading.is_waiting = False
                    raise
                except BaseException as error:  # noqa: BLE001  # the coroutine's, as if it were awaited there
                    reading.is_waiting = False
                    outcome = work.throw(_without_this_frame(error))
                else:
                    reading.is_waiting = False
                    outcome = work.send(value)
        except StopIteration as end:
            self._end()
            if end.value is None or not self._gives_result:
                raise StopAsyncIteration from None
            return end.value  # type: ignore[no-any-return]  # what the coroutine returns
        except GeneratorExit:
            raise
        except BaseException:
            self._end()
            raise
        finally:
            reading.is_running = False
        if len(outcome) == 1:
            return outcome[0]  # type: ignore[no-any-return]  # what the coroutine tells
        self._rest = rest = iter(outcome)
        return next(rest)  # type: ignore[no-any-return]  # likewise

    def _start(self) -> Coroutine[Any, Any, Any]:
        self._work = work = self._make()
        return work

    def _end(self) -> None:
        self._is_over, self._work = True, None

    async def aclose(self) -> None:
        """Have the coroutine leave, and wait until it has; does nothing after its end."""
        if self._is_over:
            return
        if self.is_running:
            raise RuntimeError("aclose() of a stream that is being read by another task: cancel that task")
        if self._work is None:
            self._is_over = True
            return
        untaken = [*self._rest]
        self._reading.is_running = True
        try:
            await leave(self._work, untaken)
        finally:
            self._end()
            self._reading.is_running = False


def with_own_code(function: _Function) -> _Function:
    """Return a copy of a method for a subclass whose objects are read inside of one another at each event.

    CPython notes in the code where it has found an attribute, for one class: with the same code, each of the two would
    have the other look for it again.
    """
    original: Any = function
    copy: Any = FunctionType(original.__code__.replace(), original.__globals__, original.__name__)
    return copy  # type: ignore[no-any-return]  # the same function


def as_stream(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., CoroutineReader[Any]]:
    """Return what calls a coroutine function and reads the coroutine: what it tells, and then what it returns."""

    def stream(*args: Any, **kwargs: Any) -> CoroutineReader[Any]:
        return CoroutineReader(partial(function, *args, **kwargs))

    return stream


@coroutine
def leave(work: Coroutine[Any, Any, Any], untaken: Sequence[Any] = ()) -> Generator[Any, Any, None]:
    """Raise `ReaderLeft` in the coroutine, and wait until it has left; raises `RuntimeError` if it tells more."""
    try:
        outcome = work.throw(ReaderLeft(untaken))
        while outcome.__class__ is not tuple:
            try:
                value = yield outcome
            except BaseException as error:  # noqa: BLE001  # likewise
                outcome = work.throw(_without_this_frame(error))
            else:
                outcome = work.send(value)
    except (StopIteration, ReaderLeft):
        return
    raise RuntimeError(f"{work!r} told something after its reader had left")


@coroutine
def tell_changed(
    work: Coroutine[Any, Any, Any],
    change: Callable[[Sequence[Any]], tuple[Any, ...]],
    end: Callable[[], tuple[Any, ...]],
) -> Generator[Any, Any, Any]:
    """Run a coroutine, and tell what `change` makes of what it tells, and after that what `end` returns."""
    has_reader = True
    try:
        outcome: Any = work.send(None)
        while True:
            if outcome.__class__ is tuple:
                outcome = change(outcome)  # what it waits for passes by unchanged
                if not outcome:  # it says nothing yet
                    outcome = work.send(None)
                    continue
            try:
                value = yield outcome
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001  # the coroutine's, as if it were awaited there
                has_reader = has_reader and not isinstance(error, ReaderLeft)
                outcome = work.throw(error)
            else:
                outcome = work.send(value)
    except StopIteration as over:
        # A coroutine that its reader has left must tell nothing more.
        if has_reader and (rest := end()):
            yield rest
        return over.value


def _without_this_frame(error: BaseException) -> BaseException:
    """Return the error as it arrived: a program that keeps it must not keep the reader, which would stay open."""
    traceback = error.__traceback__
    return error.with_traceback(None if traceback is None else traceback.tb_next)


# Both event loops close the generators that are open when they end, and know nothing of coroutines. So a generator
# stands for all open readers of an event loop.
_guardians: "WeakKeyDictionary[object, tuple[WeakSet[CoroutineReader[Any]], AsyncGenerator[None, None]]]"
_guardians = WeakKeyDictionary()


def close_with_event_loop(reader: CoroutineReader[Any]) -> None:
    """Have the reader closed when the running event loop ends, if it is still there and open."""
    loop = running_loop()
    known = _guardians.get(loop)
    if known is None:
        readers: WeakSet[CoroutineReader[Any]] = WeakSet()
        known = _guardians[loop] = readers, close_at_end(readers)
        with suppress(StopIteration):  # which is how a step ends that waits for nothing
            known[1].__anext__().send(None)
    known[0].add(reader)


def open_readers() -> list[CoroutineReader[Any]]:
    """Return the readers that `close_with_event_loop` was called for in the running event loop, and are there still."""
    known = _guardians.get(running_loop())
    return [] if known is None else list(known[0])


async def close_at_end(readers: "WeakSet[CoroutineReader[Any]]") -> AsyncGenerator[None, None]:
    """Stand for the readers of an event loop: it closes this generator when it ends, and that closes them."""
    try:
        yield
    finally:
        # Shielded, since trio closes generators in a scope that is cancelled; no yield comes after this.
        with anyio.move_on_after(_MAX_LEAVE_SECONDS, shield=True):
            for reader in list(readers):
                while reader.is_running:  # a task of its own closes it already
                    await checkpoint()
                try:
                    await reader.aclose()
                except Exception as error:  # noqa: BLE001  # the others must be closed as well
                    _logger.error("closing an abandoned reply failed: %s", type(error).__name__)
