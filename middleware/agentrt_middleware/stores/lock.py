"""A lock for objects shared by event loops in several threads."""

from threading import RLock
from typing import Any


class HasLock:
    """Base of objects with a lock; each copy has its own, since a lock can be neither copied nor pickled."""

    def __init__(self) -> None:
        self.lock = RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=RLock())
