"""One open folder of the real file system; no name in it leads elsewhere.

Each name is looked up relative to the descriptor of its folder, and no symbolic link is followed. A link that is put in
the place of a folder, at whatever moment, changes nothing about the folder that is open. Windows has no such
descriptors: there each name is checked for a link right before it is used, which another program can race.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from secrets import token_hex

from agentrt._runtime.text import lazy_pattern
from agentrt.state.file import NOFOLLOW, write_all

_BY_DESCRIPTOR = {
    os.open,
    os.mkdir,
    os.stat,
    os.unlink,
    os.rmdir,
} <= os.supports_dir_fd and os.scandir in os.supports_fd
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW
# Without O_NONBLOCK, opening a pipe would wait for its other end.
_OPEN_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW
_TEMPORARY_NAME = lazy_pattern(r"\.[0-9a-f]{16}\.tmp")
_PART_SIZE = 1_000_000  # bytes
_REPARSE_POINT = 0x400  # a link or junction of Windows


@contextmanager
def open_folder(
    root: Path, parts: tuple[str, ...], *, create: bool = False, is_abandoned: Callable[[], bool] = lambda: False
) -> Iterator["Folder"]:
    """Open the folder at the end of these names; with `create`, missing ones are created.

    Raises `OSError`, with ELOOP where one of the names is a link, and with ECANCELED once it `is_abandoned`.
    """
    with suppress(FileNotFoundError):  # the root may have been replaced by a link since its own path was resolved
        _mode_of(os.lstat(root))
    # Not by the constructor of a workspace, since importing and building write nothing.
    if create:
        root.mkdir(parents=True, exist_ok=True)
    folder = Folder(os.open(root, _OPEN_FOLDER) if _BY_DESCRIPTOR else None, root)
    try:
        for part in parts:
            _check_is_wanted(is_abandoned)
            folder = folder.enter(part, create)
        yield folder
    finally:
        folder.close()


class Folder:
    """An open folder; `descriptor` is `None` on platforms where names are looked up by their paths."""

    __slots__ = ("descriptor", "path")

    def __init__(self, descriptor: int | None, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    def close(self) -> None:
        """Close the folder."""
        if self.descriptor is not None:
            os.close(self.descriptor)

    def enter(self, name: str, create: bool) -> "Folder":
        """Return a folder inside this one, and close this one."""
        if create:
            with suppress(FileExistsError):
                os.mkdir(self._locate(name), dir_fd=self.descriptor)
        if not stat.S_ISDIR(self.mode_of(name)):
            raise NotADirectoryError(errno.ENOTDIR, "one of the folders is a file")
        try:
            # A link that was put here meanwhile is not followed.
            inner = os.open(name, _OPEN_FOLDER, dir_fd=self.descriptor) if _BY_DESCRIPTOR else None
        except NotADirectoryError:
            self.mode_of(name)  # raises what it is, if it is a link
            raise
        self.close()
        return Folder(inner, self.path / name)

    def identity(self) -> str:
        """Return the device and the inode, which no other folder has while this one exists."""
        status = os.stat(self.path if self.descriptor is None else self.descriptor)
        return f"{status.st_dev}:{status.st_ino}"

    def mode_of(self, name: str) -> int:
        """Return the type and mode of the entry."""
        return _mode_of(os.stat(self._locate(name), dir_fd=self.descriptor, follow_symlinks=False))

    def read(self, name: str, limit: int) -> bytes:
        """Return the file's content; for a larger file, `limit` bytes and one more."""
        _check_is_file(self.mode_of(name))
        with open(os.open(self._locate(name), _OPEN_FILE, dir_fd=self.descriptor), "rb") as file:
            _check_is_file(os.fstat(file.fileno()).st_mode)  # it may have been replaced since
            # In parts, since a read allocates its maximum before it knows the size.
            data = bytearray()
            while part := file.read(min(limit + 1 - len(data), _PART_SIZE)):
                data += part
            return bytes(data)

    def write(self, name: str, data: bytes, is_abandoned: Callable[[], bool]) -> None:
        """Replace the file atomically, unless the write `is_abandoned` by then.

        The permissions of the old file stay.
        """
        permissions = None
        with suppress(FileNotFoundError):
            mode = self.mode_of(name)
            _check_is_file(mode)
            permissions = mode & 0o777
        # In the same folder, so that it can be moved into place; a random name, so that two writers do not collide.
        temporary = f".{token_hex(8)}.tmp"
        created_with = 0o666 if permissions is None else permissions
        descriptor = os.open(self._locate(temporary), _NEW_FILE, created_with, dir_fd=self.descriptor)
        try:
            try:
                if permissions is not None and os.chmod in os.supports_fd:
                    os.chmod(descriptor, permissions)  # the umask may have taken some away
                write_all(descriptor, data)
                os.fsync(descriptor)  # before the file gets its name: a crash must not leave the name of an empty file
            finally:
                os.close(descriptor)
            _check_is_wanted(is_abandoned)
            # A link that was put here meanwhile is replaced, not followed.
            places = {"src_dir_fd": self.descriptor, "dst_dir_fd": self.descriptor} if _BY_DESCRIPTOR else {}
            os.replace(self._locate(temporary), self._locate(name), **places)
        except BaseException:
            with suppress(OSError):
                os.unlink(self._locate(temporary), dir_fd=self.descriptor)
            raise

    def names(self, limit: int) -> list[str]:
        """Return up to `limit` names, those of folders with a "/"; only of files and folders."""
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as entries:
            return [
                f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in islice(entries, limit)
                if (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
                and not _TEMPORARY_NAME.fullmatch(entry.name)
            ]

    def entries(self, limit: int) -> list[tuple[str, int]]:
        """Return up to `limit` names with the type and mode of each; links and special files are among them."""
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as entries:
            return [(entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in islice(entries, limit)]

    def delete(self, name: str) -> None:
        """Remove a file or an empty folder."""
        remove = os.rmdir if stat.S_ISDIR(self.mode_of(name)) else os.unlink
        remove(self._locate(name), dir_fd=self.descriptor)

    def _locate(self, name: str) -> str | Path:
        return self.path / name if self.descriptor is None else name


def _mode_of(found: os.stat_result) -> int:
    if stat.S_ISLNK(found.st_mode) or getattr(found, "st_file_attributes", 0) & _REPARSE_POINT:
        raise OSError(errno.ELOOP, "a link")
    return found.st_mode


def _check_is_wanted(is_abandoned: Callable[[], bool]) -> None:
    if is_abandoned():
        raise OSError(errno.ECANCELED, "its caller has left")


def _check_is_file(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a file, but a pipe or a device")
