"""The skills in the folders of a layer."""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from agentrt._runtime.text import escape_controls, one_line
from agentrt.errors import SkillError, WorkspaceError
from agentrt.skills import Skill, SkillFolder

_logger = logging.getLogger("agentrt")


class SkillCatalog:
    """Finds skills by name. One that cannot be used is left out, and logged the first time."""

    def __init__(self, folders: Sequence[SkillFolder]) -> None:
        self.folders = tuple(folders)
        self._warned: set[str] = set()

    async def skills(self, known: Collection[str] = ()) -> list[Skill]:
        """Return the skills that can be used, sorted by name; those with `known` names are left out, and not read."""
        found: dict[str, list[Skill | str]] = defaultdict(list)
        for folder, entry in await self._entries():
            if _normal(entry) in known:
                found[_folded(entry)].append(entry)
                continue
            try:
                skill = await folder.load(entry)
            except SkillError as error:
                self._warn(f"the skill {_quote_name(entry)} is left out: {one_line(str(error), 1_000)}")
            else:
                found[_folded(skill.name)].append(skill)
        usable: list[Skill] = []
        for alike in found.values():
            skills = [item for item in alike if isinstance(item, Skill)]
            if len(alike) == 1:
                usable += skills
            elif skills:
                names = ", ".join(_quote_name(item if isinstance(item, str) else item.name) for item in alike)
                self._warn(f"the skills {names} are left out: their names are alike; rename all but one")
        return sorted(usable, key=lambda skill: skill.name)

    async def read(self, name: str, path: str = "") -> tuple[Skill, bytes | None]:
        """Return the skill as it is now, with the content of one of its files, `None` if it has no such file.

        Raises `SkillError`, which has no text of the skill, since a model may read it.
        """
        folder, entry = await self._find(name)
        try:
            return await folder.read(entry, path)
        except SkillError as error:
            # The problems quote its fields and the names of its files, which nobody has agreed to.
            self._warn(f"the skill {_quote_name(entry)} cannot be used: {one_line(str(error), 1_000)}")
        raise SkillError(f"the skill {_quote_name(name)} cannot be used: the log says why", skill=name)

    async def copy(self, name: str, target: Path) -> Skill:
        """Write the files of the skill below `target`, and return what was written; raises `SkillError`."""
        folder, entry = await self._find(name)
        return await folder.copy(entry, target)

    async def _find(self, name: str) -> tuple[SkillFolder, str]:
        """Return where the only skill that can be used by this name is; raises `SkillError`."""
        alike = [(folder, entry) for folder, entry in await self._entries() if _folded(entry) == _folded(name)]
        if len(alike) > 1:  # of which all but one may be refused
            refused: list[tuple[SkillFolder, str]] = []
            for folder, entry in alike:
                try:
                    await folder.load(entry)
                except SkillError:
                    refused.append((folder, entry))
            alike = [place for place in alike if place not in refused]
            if len(alike) > 1:
                raise SkillError(f"several skills have names like {_quote_name(name)}: rename all but one", skill=name)
        # Only by the very name, since permission rules compare it as it was written.
        if not alike or _normal(alike[0][1]) != name:
            raise SkillError(f"no skill has the name {_quote_name(name)}", skill=name)
        return alike[0]

    async def _entries(self) -> list[tuple[SkillFolder, str]]:
        entries: list[tuple[SkillFolder, str]] = []
        for folder in self.folders:
            try:
                entries += [(folder, name) for name in await folder.names()]
            except (OSError, WorkspaceError) as error:  # the folder was removed, or its disk fails
                self._warn(f"{folder!r} cannot be read: {type(error).__name__}")
        return entries

    def _warn(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            _logger.warning("%s", escape_controls(problem))


def _normal(name: str) -> str:
    return unicodedata.normalize("NFKC", name)


def _folded(name: str) -> str:
    return _normal(name.strip()).casefold()


def _quote_name(name: str) -> str:
    return f"'{one_line(name.encode(errors='replace').decode(), 80)}'"
