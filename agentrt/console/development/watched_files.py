"""The watched files, and an import hook that finds them: imported modules below some folders."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import cache_from_source
from sysconfig import get_path
from types import ModuleType
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int] | None
"""The time of a file's last change, in nanoseconds, and its size; `None` for a missing file."""


def stamp_of(path: str) -> Stamp:
    """Return the current stamp of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class WatchedFiles:
    """Files with the stamps that they had when they were read."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}

    def add(self, stamps: Mapping[str, Stamp]) -> None:
        """Watch these files as well."""
        self._stamps.update(stamps)

    def take_changed(self) -> list[str]:
        """Return the files that have changed; each change is returned once."""
        changed = {path: now for path, before in self._stamps.items() if (now := stamp_of(path)) != before}
        self._stamps.update(changed)
        for path in changed:
            if path.endswith(".py"):
                # Bytecode is matched by the second and the size of its source, which may change twice in a second.
                with suppress(OSError):
                    os.unlink(cache_from_source(path))
        return list(changed)


class ImportWatcher(MetaPathFinder):
    """Finds no module, but reports the files of modules below the folders before they are read.

    Environments below the folders are left out.
    """

    def __init__(self, folders: Iterable[str], report: Callable[[Mapping[str, Stamp]], None]) -> None:
        self._folders = tuple(os.path.join(folder, "") for folder in folders)
        self._others = tuple(os.path.join(get_path(name), "") for name in ("stdlib", "purelib", "platlib"))
        self._report = report
        self._missing: dict[str, set[str]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.rpartition(".")[2]
        for entry in sys.path if path is None else list(path):
            folder = os.path.join(os.path.abspath(entry), "")
            if folder.startswith(self._folders) and not folder.startswith(self._others):
                places = (f"{folder}{name}.py", os.path.join(folder, name, "__init__.py"))
                stamps = {place: stamp_of(place) for place in places}
                self._missing.setdefault(fullname, set()).update(places)
                self._report({place: stamp for place, stamp in stamps.items() if stamp is not None})
        return None

    def report_missing(self) -> None:
        """Report the paths where missing modules would be, so that creating one is a change."""
        for fullname, places in self._missing.items():
            if fullname not in sys.modules:
                self._report({place: stamp_of(place) for place in places})
