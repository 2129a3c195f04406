"""The thread that writes recorded items in batches: one per store and process."""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Any

from anyio import to_thread

from agentrt.runs.contents import SessionContents
from agentrt.runs.log import BatchContext, RunEnd, RunLog, StepState
from agentrt.state.records.rows import RunRows, RunWrite

_logger = logging.getLogger("agentrt")

_BATCH_INTERVAL = 0.05
_BATCH_ITEMS = 256
_MAX_QUEUED_BYTES = 48_000_000  # of states that are queued
_MAX_QUEUED = 32_000  # of some 500 bytes: 16 MB
_MAX_KNOWN_SESSIONS = 64  # with remembered contents; those of other sessions are encoded again
_LINGER_SECONDS = 1.0
_MAX_FLUSH_SECONDS = 5.0
_MAX_END_TRIES = 20  # to write the end of a run, once in each batch

_Encode = Callable[[RunLog, int, Any, BatchContext], None]
_QueuedItem = tuple[RunLog, int, _Encode, Any]
"""A run, the time, the method of `RunLog` that makes lines, and its argument."""


class RunWriter:
    """Takes items from replies, which never wait for it, and writes them in a thread of its own.

    The thread starts with the first item and ends when there is nothing to do. It is not a daemon, so a program that
    ends waits for what is queued.
    """

    def __init__(self, rows: RunRows, lock: threading.Lock) -> None:
        self._rows = rows
        self._lock = lock  # of the rows
        self._queue: deque[_QueuedItem] = deque()
        self._bytes = 0  # of queued states, the only items with a known length
        self._state = threading.Condition()
        # Items that were taken from the queue, and those of them that were written or given up.
        self._taken = self._settled = 0
        self._is_running = False
        self._is_busy = self._flush_now = self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._contents: OrderedDict[str, SessionContents] = OrderedDict()
        self._calls: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._open: dict[tuple[str, str], RunLog] = {}
        self._newest: dict[str, RunLog] = {}
        self._has_logged = False

    # In replies.

    def put(self, log: RunLog, now: int, encode: _Encode, value: Any) -> None:
        """Queue an item; if the queue is full, the item is lost and the record says so."""
        # No lock: several threads may append to a deque while one pops.
        if len(self._queue) >= _MAX_QUEUED:
            log.lost += 1
            return
        self._queue.append((log, now, encode, value))
        if not self._is_running:
            self._start()

    def put_step(self, log: RunLog, now: int, step: StepState) -> None:
        """Queue a step."""
        if self._bytes > _MAX_QUEUED_BYTES:
            log.lost += 1
            return
        # Without a lock: an inexact count only shifts the limit.
        self._bytes += len(step.head)
        self.put(log, now, RunLog.step, step)

    def put_end(self, log: RunLog, now: int, end: RunEnd) -> None:
        """Queue the end of a run, even if the queue is full."""
        # Kept in the log, so that it can be written again if the store fails.
        log.last = end
        self._queue.append((log, now, RunLog.end, end))
        if not self._is_running:
            self._start()

    async def flush(self) -> bool:
        """Wait until the items that are queued now are written, for five seconds at most; returns whether they are."""
        # Usually there is nothing to wait for, and starting a thread would cost more than this check.
        if not self._queue and not self._is_busy:
            return True
        return await to_thread.run_sync(self.wait, abandon_on_cancel=True)

    def wait(self, seconds: float = _MAX_FLUSH_SECONDS) -> bool:
        """Block until the items that are queued now are written; returns whether they are."""
        end = monotonic() + seconds
        # The queue of a busy process is never empty. In this order an item that is taken meanwhile counts twice, which
        # waits for one more at most.
        last = len(self._queue) + self._taken
        with self._state:
            while self._settled < last and (self._queue or self._is_busy):
                left = end - monotonic()
                if left <= 0:
                    return False
                self._flush_now = True
                self._state.notify_all()
                self._state.wait(min(left, _BATCH_INTERVAL))
        return True

    def stop(self) -> None:
        """Write queued items, and end the thread; a new item starts it again."""
        self.wait()
        with self._state:
            self._is_stopping = True
            self._state.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_MAX_FLUSH_SECONDS)

    def _start(self) -> None:
        with self._state:
            if not self._is_running:
                self._is_running, self._is_stopping = True, False
                # Not a daemon: at exit the interpreter waits for it, and so for queued items.
                self._thread = threading.Thread(target=self._run, name="agentrt runs")
                self._thread.start()

    # In the thread.

    def _run(self) -> None:
        idle_since = monotonic()
        main = threading.main_thread()
        while True:
            with self._state:
                if (
                    not self._flush_now
                    and not self._is_stopping
                    and len(self._queue) < _BATCH_ITEMS
                    and main.is_alive()
                ):
                    self._state.wait(_BATCH_INTERVAL)
                self._flush_now = False
                is_over = self._is_stopping or monotonic() - idle_since > _LINGER_SECONDS or not main.is_alive()
                if not self._queue and is_over:
                    self._is_running = False
                    self._state.notify_all()
                    return
                # Set under the lock, so that no caller mistakes the moment between two batches for the end.
                self._is_busy = bool(self._queue)
            if self._is_busy:
                idle_since = monotonic()
                try:
                    self._write_batch()
                except Exception as error:  # noqa: BLE001  # the thread must live, or the queue grows for ever
                    self._log_once(error)
                with self._state:
                    self._is_busy, self._settled = False, self._taken
                    self._state.notify_all()

    def _write_batch(self) -> None:
        batch = BatchContext(self._contents, self._calls)
        touched: dict[int, RunLog] = {}
        logs: dict[tuple[str, str], RunLog] = {}
        self._newest.clear()
        # A limited number of items, so that transactions have a bounded size.
        for _ in range(min(len(self._queue), _BATCH_ITEMS * 4)):
            log, now, encode, value = self._queue[0]
            if id(log) not in touched:  # most items are of the same run as the one before
                lineage, outer = [log], log.parent
                while outer is not None:
                    lineage.append(outer)
                    outer = outer.parent
                if any(logs.setdefault((one.session_id, one.reply_id), one) is not one for one in lineage):
                    break  # it waited and resumed: first, this batch with its earlier lines must be in the store
                touched.update((id(one), one) for one in lineage)  # the totals of its parents change as well
                if log.root in self._contents:
                    self._contents.move_to_end(log.root)
            self._taken += 1  # before it leaves the queue, for `wait`
            self._queue.popleft()
            if encode is RunLog.step:
                self._bytes -= len(value.head)
            self._encode(log, now, encode, value, batch)
        with self._lock:
            try:
                self._rows.write([self._write_of(log, batch) for log in touched.values() if log.count])
            except Exception as error:  # noqa: BLE001  # any error of a database; the reply does not wait for it
                self._log_once(error)
                for log in touched.values():
                    # A transaction writes all or nothing, so each run continues after its last written line. Known
                    # contents are forgotten, since they may not have been written.
                    log.lost += log.forget_unwritten(type(error).__name__)
                    self._contents.pop(log.root, None)
                    self._try_end_again(log)
                return
        self._has_logged = False
        for log in touched.values():
            log.accept()
            if log.status != "running" and self._open.get((log.session_id, log.reply_id)) is log:
                del self._open[log.session_id, log.reply_id]
        while len(self._contents) > _MAX_KNOWN_SESSIONS:
            self._contents.popitem(last=False)
        while len(self._calls) > _MAX_KNOWN_SESSIONS * 100:
            self._calls.popitem(last=False)

    def _encode(self, log: RunLog, now: int, encode: _Encode, value: Any, batch: BatchContext) -> None:
        try:
            # A run without a line starts here, also if all its first lines were lost.
            if not log.count:
                self._begin(log, now, batch)
            # Before the item, so that the gap is in its place.
            lost, log.lost = log.lost, 0
            if lost or log.why_gap:
                log.gap(now, log.why_gap or "queue", lost or 1)
                log.why_gap = ""
            if not log.is_cut or value is log.last:
                encode(log, now, value, batch)
                if log.size > log.settings.max_bytes and not log.is_cut:
                    log.end_early(now)
        except Exception as error:  # noqa: BLE001  # one item that cannot be written must not affect others
            self._log_once(error)
            log.why_gap = type(error).__name__
            log.lost += 1
            self._try_end_again(log)

    def _begin(self, log: RunLog, now: int, batch: BatchContext) -> None:
        # In a resumed reply the sub-agent may come first, and its calls count in its parent's totals.
        if log.parent is not None and not log.parent.count:
            self._begin(log.parent, now, batch)
        with self._lock:
            row = self._rows.find(log.session_id, log.reply_id)
            newest = self._newest.get(log.session_id)  # in this batch, so not in the store yet
            previous = self._rows.last(log.session_id) if newest is None else newest.take_row()
            if log.parent is None:
                last = previous if log.root == log.session_id else self._rows.last(log.root)
                # Contents are deleted with the last run that names them, in any process, and a run names those of the
                # runs before it.
                if last is None or last.is_deleted:
                    batch.of(log.root).forget()
        if previous is not None and previous.key in self._open:
            previous = self._open[previous.key].take_row()  # with the lines of this batch
        # It waited, or its process died: continue after its lines.
        if row is not None and not row.is_deleted:
            log.resume_from(row)
        if previous is not None and previous.key == (log.session_id, log.reply_id):
            previous = None
        elif previous is not None and previous.key not in self._open and previous.is_unfinished:
            dead = RunLog.of_row(previous, log)  # no process has ended it
            dead.end(now, RunEnd("died"), batch)
            write = self._write_of(dead, batch)
            with self._lock:
                self._rows.write([write])
            previous = write.row
        self._open[log.session_id, log.reply_id] = self._newest[log.session_id] = log
        log.begin(now, previous, batch)

    def _write_of(self, log: RunLog, batch: BatchContext) -> RunWrite:
        lines = log.take_lines()
        row = log.take_row(batch.calls.get((log.session_id, log.reply_id)))
        contents = batch.of(log.root).take_new()
        log.size += sum(map(len, contents.values()))
        return RunWrite(row, lines, contents)

    def _try_end_again(self, log: RunLog) -> None:
        """Queue the end of a run again, for a store that recovers soon."""
        if log.last is not None and log.tries < _MAX_END_TRIES:
            log.tries += 1
            self._queue.append((log, time_ns(), RunLog.end, log.last))

    def _log_once(self, error: Exception) -> None:
        if not self._has_logged:
            self._has_logged = True
            _logger.error("runs cannot be recorded, and replies continue: %s", type(error).__name__)
