"""A disk whose operations are watched, and may fail."""

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from agentrt.state import file, file_store

OPERATIONS = {"open", "write", "fsync", "fdatasync", "ftruncate", "replace", "unlink"}


class FakeOS:
    """The module `os`, but what it does goes through `before`, and no write takes more than 500 bytes."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._before = before

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        return self._watched(name, function) if name in OPERATIONS else function

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self._before(name)
            return function(arguments[0], arguments[1][:500]) if name == "write" else function(*arguments)

        return watched


def watch_operations(monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
    for module in (file, file_store):
        monkeypatch.setattr(module, "os", FakeOS(before))


def fill_disk_at(number: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the nth operation find the disk full; returns the list of operations, which grows."""
    done: list[str] = []

    def note(operation: str) -> None:
        done.append(operation)
        if len(done) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    watch_operations(monkeypatch, note)
    return done
