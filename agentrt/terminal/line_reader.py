"""The lines that people type: whose turn it is to ask for one, and who gets which.

A line is read in a daemon thread, so the event loop goes on and a question can be left at once. Such a thread cannot be
stopped, so there is at most one per input, and it reads only when somebody asks: what it reads after its question was
given up answers the next one.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import anyio.lowlevel

from agentrt.concurrency.event_loop import CrossThreadEvent
from agentrt.errors import InvalidInputError

__all__ = ["LineTurns", "Lines"]


class LineTurns:
    """First come, first served, across event loops and threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a forgotten question may be collected under it
        self._queue: deque[CrossThreadEvent] = deque()
        self._holder: CrossThreadEvent | None = None

    async def __aenter__(self) -> None:
        await anyio.lowlevel.checkpoint()
        wish = CrossThreadEvent()
        with self._lock:
            if self._holder is None:
                self._holder = wish
                return
            self._queue.append(wish)
        try:
            await wish.wait()
        except BaseException:
            self._give_up(wish)
            raise

    async def __aexit__(self, *_: object) -> None:
        with self._lock:
            self._pass_on()

    def _give_up(self, wish: CrossThreadEvent) -> None:
        with self._lock:
            if self._holder is wish:  # granted and cancelled at the same moment
                self._pass_on()
            elif wish in self._queue:
                self._queue.remove(wish)

    def _pass_on(self) -> None:
        self._holder = None
        while self._queue and self._holder is None:
            wish = self._queue.popleft()
            self._holder = wish if wish.set() else None


class Lines:
    """The lines of one input: each is read in a thread when it is wished for, and given to one question.

    `read_unseen` is how a secret is read, where that is another way.
    """

    def __init__(self, read: Callable[[], str], read_unseen: Callable[[], str] | None = None) -> None:
        self._read = read
        self._read_unseen = read_unseen or read
        self.renew()
        _all_lines.add(self)

    def renew(self) -> None:
        """Begin afresh, in a forked process: the thread that read and all who asked have stayed with its parent."""
        self.turns = LineTurns()
        self._lock = threading.RLock()  # a forgotten question may be collected under it
        self._is_reading = False
        self._wish: CrossThreadEvent | None = None
        self._unseen = False  # the last question was for a secret
        self._kept: str | BaseException | None = None

    async def next(self, unseen: bool = False) -> str:
        """Return the next line with its newline, "" at the end; must be called within a turn."""
        await anyio.lowlevel.checkpoint()
        wish = CrossThreadEvent()
        with self._lock:
            if self._kept is not None:
                kept, self._kept = self._kept, None
                return _line(kept)
            if not self._is_reading:
                read = self._read_unseen if unseen else self._read
                threading.Thread(target=self._run, args=(read,), name="agentrt-lines", daemon=True).start()
                self._is_reading = True  # the thread needs the lock to say otherwise
            self._wish, self._unseen = wish, unseen
        try:
            await wish.wait()
        except BaseException:
            self._give_up(wish)
            raise
        return _line(wish.result)

    def _run(self, read: Callable[[], str]) -> None:
        try:
            result: str | BaseException = read()
        except BaseException as error:  # noqa: BLE001  # raised to who asks
            result = error
        with self._lock:
            self._is_reading = False
            wish, self._wish = self._wish, None
            if wish is None or not wish.set(result):
                self._keep(result)

    def _give_up(self, wish: CrossThreadEvent) -> None:
        with self._lock:
            if self._wish is wish:
                self._wish = None
            elif wish.result is not None:  # a line came in the very moment
                self._keep(wish.result)

    def _keep(self, result: str | BaseException) -> None:
        # What was typed for a secret must not become the answer to a question that is open to all.
        if not (self._unseen and isinstance(result, str) and result):
            self._kept = result

    def __reduce__(self) -> tuple[Any, ...]:
        return Lines, (self._read, self._read_unseen)


_all_lines: WeakSet[Lines] = WeakSet()


def _renew_all() -> None:
    for each in _all_lines:
        each.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


def _line(result: str | BaseException | None) -> str:
    if isinstance(result, EOFError):
        return ""
    if isinstance(result, BaseException):
        raise result
    if not isinstance(result, str):  # of which nothing is shown, for it may be a secret
        got = type(result).__name__
        raise InvalidInputError(f"read_line must return a str with its newline, '' at the end, not one of type {got}")
    return result
