"""Reads files and folders in threads, within limits."""

import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from agentrt._runtime.database.worker_threads import Deadline, WorkerThreads
from agentrt.errors import ReaderError
from agentrt.rag.document import Document
from agentrt.rag.readers import MAX_FILE_BYTES, ReaderBase

_MAX_READING_SECONDS = 60.0
_MAX_READING_THREADS = 2
_MAX_FILES = 100_000


class ReadFile(NamedTuple):
    """A file's document, and a hash that changes with its bytes, or with the way of reading.

    `document` is `None` if the hash is already known.
    """

    document: Document | None
    fingerprint: str


class FileReading:
    """Reads files with the reader for their suffix; `splitting` identifies the later splitting."""

    def __init__(self, readers: Mapping[str, ReaderBase], splitting: str) -> None:
        self._readers, self._splitting = readers, splitting
        self._threads = WorkerThreads(_MAX_READING_THREADS, _MAX_READING_SECONDS)

    async def read(self, path: Path, known: str | None = None) -> ReadFile:
        """Return the file's content; raises `ReaderError`, also for one that takes more than 60 seconds."""

        def work(deadline: Deadline) -> ReadFile:
            reader = self._readers.get(path.suffix.lower())
            if reader is None:
                suffixes = ", ".join(sorted(self._readers))
                raise ReaderError(
                    f"{str(path)!r:.300} is of a kind that no reader is for: there are readers for {suffixes}"
                )
            data = _read_bytes(path)
            fingerprint = sha256(f"{reader!r} {self._splitting}\n".encode() + data).hexdigest()
            if fingerprint == known:
                return ReadFile(None, fingerprint)
            return ReadFile(reader.parse(data, path, lambda: not deadline.seconds_left()), fingerprint)

        try:
            return await self._threads.run(work)
        except IsADirectoryError:
            reason = "it is a folder: write sync(folder)"
        except TimeoutError:
            reason = f"reading it takes more than {_MAX_READING_SECONDS:g} seconds: split it"
        except OSError as error:
            reason = error.strerror or type(error).__name__
        raise ReaderError(f"{str(path)!r:.300} cannot be read: {reason}")

    async def list_files(self, folder: Path) -> list[str]:
        """Return the paths of the readable files below the folder, separated by "/", in order.

        Hidden ones are skipped. Raises `ReaderError` for anything but a folder.
        """

        def work(deadline: Deadline) -> list[str]:
            files: list[str] = []
            os.scandir(folder).close()  # raises errors that `os.walk` would hide
            # Links to folders are not followed, since they may form circles.
            for place, folders, names in os.walk(folder):
                folders[:] = [name for name in folders if not name.startswith(".")]
                paths = [Path(place, name) for name in names if not name.startswith(".")]
                files += [path.relative_to(folder).as_posix() for path in paths if path.suffix.lower() in self._readers]
                if not deadline.seconds_left():
                    raise TimeoutError
                if len(files) > _MAX_FILES:
                    raise ReaderError(f"{str(folder)!r:.300} has more than {_MAX_FILES:,} files: give a folder in it")
            return sorted(files)

        try:
            return await self._threads.run(work)
        except TimeoutError:
            reason = f"listing its files takes more than {_MAX_READING_SECONDS:g} seconds"
        except OSError as error:
            reason = error.strerror or type(error).__name__
        raise ReaderError(f"{str(folder)!r:.300} cannot be read: {reason}: give the path of a folder")


def _read_bytes(path: Path) -> bytes:
    # Without blocking: the file may be a pipe.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ReaderError(f"{str(path)!r:.300} is a pipe or a device: give the path of a file")
        if about.st_size > MAX_FILE_BYTES:
            size, largest = about.st_size // 1_000_000, MAX_FILE_BYTES // 1_000_000
            raise ReaderError(f"{str(path)!r:.300} has {size:,} MB, and at most {largest} are read: split it")
        return file.read(MAX_FILE_BYTES)  # a growing file is cut
