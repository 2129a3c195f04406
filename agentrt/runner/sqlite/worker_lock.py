"""One worker at a time: a lock on a file beside the store, which the system takes from a process that dies."""

import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from agentrt._runtime.database.file_lock import lock_until
from agentrt.errors import SessionIOError

_MAX_WORKER_NAME = 500


class WorkerLock:
    """The lock that the worker of a store holds; the file has its name. Each method blocks, for a moment."""

    def __init__(self, path: Path, worker: str) -> None:
        self.path = path
        self._worker = worker
        self._held: ExitStack | None = None
        self._descriptor = -1

    def take(self) -> bool:
        """Take the lock, and say whether that was possible: another process may have it."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            with ExitStack() as held:
                held.callback(os.close, descriptor)
                try:
                    held.enter_context(lock_until(descriptor, time.monotonic()))
                except TimeoutError:
                    return False
                if not self._is_file_of(descriptor):  # deleted since it was opened
                    return False
                os.ftruncate(descriptor, 0)
                os.write(descriptor, self._worker.encode())
                self._held, self._descriptor = held.pop_all(), descriptor
                return True
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise SessionIOError(f"the lock file {str(self.path)!r} cannot be used: {reason}") from error

    def keep(self) -> bool:
        """Take the lock again if its file was deleted; returns whether this worker has it."""
        if self._is_file_of(self._descriptor):
            return True
        held = self._held
        if not self.take():
            return False
        if held is not None:
            held.close()
        return True

    def _is_file_of(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def read_holder(self) -> str:
        """Return the name of the worker that has the lock, or had it last; empty if there was none."""
        with suppress(OSError):
            return self.path.read_bytes()[:_MAX_WORKER_NAME].decode(errors="replace")
        return ""

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()
