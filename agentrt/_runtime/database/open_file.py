"""The file of a connection: writes to a removed file succeed, and are lost."""

import errno
import os
from pathlib import Path


class OpenFile:
    """The file that is now at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = self._look_up()

    def is_current(self) -> bool:
        """Say whether it is still the same file; raises `FileNotFoundError` if it is gone."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            reason = "its file was removed while it was open: put it back, or close the store to start with a new one"
            raise FileNotFoundError(errno.ENOENT, reason) from None

    def _look_up(self) -> tuple[int, int]:
        about = os.stat(self._path)
        return about.st_dev, about.st_ino
