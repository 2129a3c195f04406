"""The file that a connection was opened to: a database takes what is written to a removed one, and it is lost."""

import errno
import os
from pathlib import Path

__all__ = ["OpenFile"]


class OpenFile:
    """The file at `path`, as it is there now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._look_up()

    def is_current(self) -> bool:
        """Say whether it is still there, and not another one in its place; raises `FileNotFoundError` for none."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            reason = "its file was removed while it was open: put it back, or close the store to begin anew"
            raise FileNotFoundError(errno.ENOENT, reason) from None

    def _look_up(self) -> tuple[int, int]:
        about = os.stat(self._path)
        return about.st_dev, about.st_ino
