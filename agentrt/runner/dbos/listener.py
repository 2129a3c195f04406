"""One connection per process that listens, and that says by a lock who is alive; a thread has it."""

import logging
from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import Any

from agentrt._runtime.database.operations import DatabaseError
from agentrt.runner.dbos.database import RunnerDatabase
from agentrt.runner.dbos.queue import DBOSQueue

_logger = logging.getLogger("agentrt")
_LISTEN_SECONDS = 0.2
_JANITOR_SECONDS = 0.5
_SUSPECT_SECONDS = 1.0  # a worker whose connection was cut has a new one long before
_RECONNECT_SECONDS = 0.1
_STATEMENT_SECONDS = 10.0
_CLEAN_SECONDS = 60.0  # each worker does so, and finds little that others have left


class RunnerListener:
    """Listens to what processes tell each other, and while this one works, holds its lock and looks for dead workers.

    The callbacks are called in the thread. `on_connected` says that the connection, and the lock, are there again,
    `on_lost` that they are not; what was told in between was not heard.
    """

    def __init__(
        self,
        database: RunnerDatabase,
        *,
        on_notice: Callable[[str], None],
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._database = database
        self._on_notice, self._on_connected, self._on_lost = on_notice, on_connected, on_lost
        self._janitor: _Janitor | None = None
        self._restart = Event()  # to take or to release the lock
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="agentrt runner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the connection; blocks for a moment."""
        self._stopping.set()
        self._thread.join(5)

    def begin_work(self, queue: DBOSQueue, lease_seconds: float, event_ttl: float) -> None:
        """Take the lock of this worker, and look after the others; `on_connected` is called when it is there."""
        self._janitor = _Janitor(self._database, queue, lease_seconds, event_ttl)
        self._restart.set()

    def end_work(self) -> None:
        """Release the lock."""
        self._janitor = None
        self._restart.set()

    def _run(self) -> None:
        is_told = False
        while not self._stopping.is_set():
            try:
                with self._database.listen() as connection:
                    self._restart.clear()
                    janitor = self._janitor
                    if janitor is not None:
                        janitor.take_lock(connection)
                    is_told = False
                    self._on_connected()
                    self._listen(connection, janitor)
                    if janitor is not None and not self._stopping.is_set():
                        janitor.sign_off(connection)
            except (DatabaseError, OSError) as error:
                self._on_lost()
                if not is_told:
                    _logger.warning(
                        "the connection to %s is lost: %s",
                        self._database.place,
                        error if isinstance(error, DatabaseError) else type(error).__name__,
                    )
                    is_told = True
                self._stopping.wait(_RECONNECT_SECONDS)

    def _listen(self, connection: Any, janitor: "_Janitor | None") -> None:
        while not self._stopping.is_set() and not self._restart.is_set():
            connection.deadline = monotonic() + _STATEMENT_SECONDS
            # Short, so that this thread soon sees that it is to stop, or to look after others.
            for notice in connection.notifies(timeout=_LISTEN_SECONDS):
                self._on_notice(notice.payload)
                connection.deadline = monotonic() + _STATEMENT_SECONDS
                if janitor is not None and janitor.is_due():
                    break
            if janitor is not None and janitor.is_due():
                janitor.tick(connection)


class _Janitor:
    """Finds the workers that are dead, and what nobody runs."""

    def __init__(self, database: RunnerDatabase, queue: DBOSQueue, lease_seconds: float, event_ttl: float) -> None:
        self._sql = database.sql
        self._queue = queue
        self._executor = queue.executor
        self._lease_seconds = lease_seconds
        self._event_ttl = event_ttl
        self._suspects: dict[str, float] = {}
        self._ticked_at = 0.0
        self._cleaned_at = monotonic()

    def is_due(self) -> bool:
        return monotonic() - self._ticked_at >= _JANITOR_SECONDS

    def take_lock(self, connection: Any) -> None:
        """Wait for the lock that says that this worker is alive."""
        until = monotonic() + _SUSPECT_SECONDS
        while not self._try_lock(connection, self._executor):
            # The server may not have noticed yet that a connection is gone.
            if monotonic() > until:
                connection.execute(self._sql["end_holder"], [self._executor])
            Event().wait(_RECONNECT_SECONDS / 2)
        connection.execute(self._sql["beat"], [self._executor])

    def sign_off(self, connection: Any) -> None:
        """Say that this worker ends."""
        connection.execute(self._sql["forget_worker"], [self._executor])

    def tick(self, connection: Any) -> None:
        self._ticked_at = monotonic()
        connection.execute(self._sql["beat"], [self._executor])
        frozen = connection.execute(self._sql["end_frozen"], [self._lease_seconds, self._executor]).fetchall()
        for executor, _ in frozen:
            _logger.warning("worker %s gives no sign of life for %g s: it is cut off", executor, self._lease_seconds)
        working = connection.execute(self._sql["working"], [self._queue.name, self._executor]).fetchall()
        self._suspects = {name: since for name, since in self._suspects.items() if (name,) in working}
        for (executor,) in working:
            self._look_at(connection, executor)
        others = connection.execute(self._sql["of_other_versions"], self._queue.of_other_versions()).fetchall()
        self._call(partial(self._queue.adopt, [workflow for (workflow,) in others]))
        if monotonic() - self._cleaned_at > _CLEAN_SECONDS:
            self._cleaned_at = monotonic()
            connection.execute(self._sql["forget_events"], {"seconds": self._event_ttl})
            self._call(self._queue.forget_finished)

    def _look_at(self, connection: Any, executor: str) -> None:
        # A lock that is free is that of a worker which is gone, or which comes back at once: one look is not enough.
        if not self._try_lock(connection, executor):
            self._suspects.pop(executor, None)
            return
        try:
            since = self._suspects.setdefault(executor, monotonic())
            if monotonic() - since >= _SUSPECT_SECONDS:
                # While this one holds the lock, nobody else does the same.
                [[is_frozen]] = connection.execute(self._sql["is_frozen"], [self._lease_seconds, executor]).fetchall()
                take = partial(self._queue.take_from_dead, executor, "frozen" if is_frozen else "died")
                for session_id, reply_id in self._call(take) or []:
                    _logger.info("taking over reply %s of session %.100r from %s", reply_id, session_id, executor)
        finally:
            connection.execute(self._sql["unlock"], [executor])

    def _try_lock(self, connection: Any, executor: str) -> bool:
        [is_taken] = connection.execute(self._sql["lock"], [executor]).fetchone()
        return bool(is_taken)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # of DBOS and its driver: the next tick tries again
            _logger.warning("the queue cannot be looked after: %s", type(error).__name__)
            return None
