"""Locks a file against other processes: with `flock`, or with one locked byte on Windows."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lock_until(descriptor: int, deadline: float) -> Iterator[None]:
    """Keep other processes from locking the same file; blocks its thread, and raises `TimeoutError` at the deadline."""
    # The lock is the kernel's: it disappears with its process.
    pause = 0.0005
    while not _lock(descriptor):
        if time.monotonic() >= deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process has held its lock for too long")
        time.sleep(pause)  # in a worker thread: the event loop runs meanwhile
        pause = min(2 * pause, 0.01)
    try:
        yield
    finally:
        _unlock(descriptor)  # closing is not enough, since a forked process may hold a copy


if sys.platform == "win32":
    import msvcrt

    # Beyond all data, since others cannot read a locked byte; `locking` counts in 32 bits.
    _BYTE = 2**31 - 2

    def _lock(descriptor: int) -> bool:
        try:
            _at_byte(descriptor, msvcrt.LK_NBLCK)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):  # another process has it
                return False
            raise
        return True

    def _unlock(descriptor: int) -> None:
        _at_byte(descriptor, msvcrt.LK_UNLCK)

    def _at_byte(descriptor: int, mode: int) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
