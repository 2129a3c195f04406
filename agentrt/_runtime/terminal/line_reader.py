"""The user's input lines: the order of questions, and the question that a line answers.

A line is read in a daemon thread, so that the event loop keeps running and a question can be abandoned at once. Such a
thread cannot be stopped, so there is at most one per input, and it reads only when a line is needed: a line read
after its question was abandoned answers the next question.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

import anyio.lowlevel

from agentrt._runtime.concurrency.event_loop import CrossThreadEvent
from agentrt.errors import InvalidInputError

_Read = Callable[[], str]
_LineResult = str | BaseException  # a line, or the error of reading it


class CrossThreadLock:
    """A lock across event loops and threads: first come, first served."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an abandoned question may be garbage-collected under it
        self._queue: deque[CrossThreadEvent] = deque()
        self._holder: CrossThreadEvent | None = None

    async def __aenter__(self) -> None:
        await anyio.lowlevel.checkpoint()
        claim = CrossThreadEvent()
        with self._lock:
            if self._holder is None:
                self._holder = claim
                return
            self._queue.append(claim)
        try:
            await claim.wait()
        except BaseException:
            self._abandon(claim)
            raise

    async def __aexit__(self, *_: object) -> None:
        with self._lock:
            self._grant_next()

    def _abandon(self, claim: CrossThreadEvent) -> None:
        with self._lock:
            if self._holder is claim:  # granted and cancelled at the same moment
                self._grant_next()
            elif claim in self._queue:
                self._queue.remove(claim)

    def _grant_next(self) -> None:
        self._holder = None
        while self._queue and self._holder is None:
            claim = self._queue.popleft()
            self._holder = claim if claim.set() else None


class LineReader:
    """Reads the lines of one input, each in a thread when it is needed, and gives it to one question.

    `read_hidden` reads a secret, if that differs. Hold `lock` while a question is asked.
    """

    def __init__(self, read: _Read, read_hidden: _Read | None = None) -> None:
        self._read = read
        self._read_hidden = read_hidden or read
        self.restart()
        _readers.add(self)

    def restart(self) -> None:
        """Reset it in a forked process, which has neither the thread nor the questions of its parent."""
        self.lock = CrossThreadLock()
        self._thread_lock = threading.RLock()  # an abandoned question may be garbage-collected under it
        self._is_reading = False
        self._request: CrossThreadEvent | None = None
        self._is_hidden = False  # the last question asked for a secret
        self._unclaimed: _LineResult | None = None

    async def next_line(self, hidden: bool = False) -> str:
        """Return the next line with its newline, "" at the end of the input; to be called with the lock held."""
        await anyio.lowlevel.checkpoint()
        request = CrossThreadEvent()
        with self._thread_lock:
            if self._unclaimed is not None:
                result, self._unclaimed = self._unclaimed, None
                return self._line_of(result)
            if not self._is_reading:
                read = self._read_hidden if hidden else self._read
                threading.Thread(target=self._run, args=(read,), name="agentrt-lines", daemon=True).start()
                self._is_reading = True  # the thread needs the lock to reset it
            self._request, self._is_hidden = request, hidden
        try:
            await request.wait()
        except BaseException:
            self._abandon(request)
            raise
        return self._line_of(request.result)

    def _run(self, read: _Read) -> None:
        try:
            result: _LineResult = read()
        except BaseException as error:  # noqa: BLE001  # raised where the line is asked for
            result = error
        with self._thread_lock:
            self._is_reading = False
            request, self._request = self._request, None
            if request is None or not request.set(result):
                self._keep(result)

    def _abandon(self, request: CrossThreadEvent) -> None:
        with self._thread_lock:
            if self._request is request:
                self._request = None
            elif request.result is not None:  # a line came at the same moment
                self._keep(request.result)

    def _keep(self, result: _LineResult) -> None:
        # A typed secret must not become the answer to a question that does not ask for one.
        if not (self._is_hidden and isinstance(result, str) and result):
            self._unclaimed = result

    @staticmethod
    def _line_of(result: object) -> str:
        if isinstance(result, EOFError):
            return ""
        if isinstance(result, BaseException):
            raise result
        if not isinstance(result, str):  # its value is not shown, for it may be a secret
            kind = type(result).__name__
            raise InvalidInputError(
                f"read_line must return a str with its newline, '' at the end, not one of type {kind}"
            )
        return result

    def __reduce__(self) -> tuple[type["LineReader"], tuple[_Read, _Read]]:
        return LineReader, (self._read, self._read_hidden)


# A forked process has neither the reading threads nor the questions of its parent, and may inherit a held lock.
_readers: WeakSet[LineReader] = WeakSet()


def _restart_readers() -> None:
    for reader in _readers:
        reader.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_readers)
