"""Copies of skills for commands: the files that the user agreed to, even if the folder changes later."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, Self

from anyio import to_thread

from agentrt.errors import SkillError
from agentrt_middleware.skills.catalog import SkillCatalog


class SkillCopies:
    """Folders with the files of skills, one for each digest.

    They are deleted with this object, at the latest when the program ends.
    """

    def __init__(self, catalog: SkillCatalog) -> None:
        self._catalog = catalog
        self._root: Path | None = None
        self._folders: dict[str, str] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._catalog)  # each deletes its own folders

    async def folder_of(self, name: str, digest: str) -> str | None:
        """Return the folder with the files that this digest is of, `None` if the skill has others by now."""
        if digest not in self._folders:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="agentrt-skills-"))
                weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
            # Under a name of its own until it is known to be whole: two replies may copy one skill at a time.
            target = Path(tempfile.mkdtemp(dir=self._root))
            try:
                copied = await self._catalog.copy(name, target)
            except SkillError:
                copied = None
            if copied is None or copied.digest != digest:
                await to_thread.run_sync(lambda: shutil.rmtree(target, ignore_errors=True))
                return None
            self._folders[digest] = str(target)
        return self._folders[digest]
