"""Where skills are: folders of this machine, and workspaces. Each is read whole, since its digest is of all its files.

A skill may come from a stranger, and another program may change it meanwhile. So nothing in its folder is opened before
its type is known, no link is followed, and the bytes that are returned are those that the digest is of.
"""

import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from anyio import to_thread

from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import one_line, repr_of
from agentrt.errors import ConfigError, MissingFileError, SkillError, WorkspaceError
from agentrt.skills.skill import FILE_NAMES, MAX_CHARACTERS, Skill, make_skill
from agentrt.workspace import FileSystemBase
from agentrt.workspace.folder import open_folder

_MAX_SKILL_FILES = 1_000
_MAX_SKILL_FOLDERS = 1_000
_MAX_SKILL_DEPTH = 32
_MAX_FILE_SIZE = 10_000_000  # bytes
# Of all files together: a skill is read whole each time it is looked at, and files with holes cost no disk.
_MAX_SKILL_SIZE = 100_000_000
_MAX_CHARACTER_SIZE = 4  # bytes, in UTF-8
_MAX_NAMED_ENTRIES = 20
_MAX_SKILLS = 10_000  # names of a folder that are looked at


def load_skill(path: str | os.PathLike[str]) -> Skill:
    """Return the skill in a folder of this machine, whose name is that of the folder.

    Reads all of its files. Raises `SkillError`, with all `problems` that were found.
    """
    value: object = path
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise ConfigError(f"load_skill() takes the path of a folder, not {repr_of(path)}")
    parent, name = os.path.split(os.path.abspath(path))
    # Links on the way to the folder are the caller's own; the folder itself is part of the skill.
    files = _SkillFiles(name)
    files.read_from_disk(Path(os.path.realpath(parent)))
    return files.skill()


class SkillFolder:
    """A folder whose subfolders are skills: a path of this machine, or a workspace.

    In a workspace links and special files are invisible; on this machine they make a skill unusable.
    """

    def __init__(self, place: str | os.PathLike[str] | FileSystemBase) -> None:
        value: object = place
        if not isinstance(value, (str, os.PathLike, FileSystemBase)) or not str(value):
            raise ConfigError(f"a folder of skills must be a path or a workspace, not {repr_of(place)}")
        self.place = place if isinstance(place, FileSystemBase) else Path(os.path.realpath(place))
        if isinstance(self.place, Path) and not self.place.is_dir():
            raise ConfigError(f"the folder of skills {str(place)!r:.200} does not exist: create it, or give another")

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.place)!r})"

    async def names(self) -> list[str]:
        """Return the names of its subfolders, sorted: of each that may be a skill, usable or not."""
        if isinstance(self.place, Path):
            return await to_thread.run_sync(self._names_on_disk, self.place)
        return [name[:-1] for name in await self.place.list() if name.endswith("/") and not name.startswith(".")]

    @staticmethod
    def _names_on_disk(root: Path) -> list[str]:
        with open_folder(root, ()) as folder:
            entries = folder.entries(_MAX_SKILLS)
        # A link is listed, so that a skill which is one gets its warning.
        return sorted(
            name for name, mode in entries if (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)) and not name.startswith(".")
        )

    async def load(self, name: str) -> Skill:
        """Return the skill in the subfolder; raises `SkillError`."""
        return (await self._read(name, None))[0]

    async def read(self, name: str, path: str) -> tuple[Skill, bytes | None]:
        """Return the skill with the content of one of its files, `None` if it has no such file.

        The content is that which the digest of this skill is of.
        """
        skill, kept = await self._read(name, path)
        return skill, kept.get(path)

    async def copy(self, name: str, target: Path) -> Skill:
        """Write all files of the skill below `target`, a new folder, and return what was written.

        Raises `SkillError`, and then the folder may have some of them.
        """
        return (await self._read(name, None, target))[0]

    async def _read(self, name: str, path: str | None, target: Path | None = None) -> tuple[Skill, Mapping[str, bytes]]:
        """Return the skill with the files that were kept."""
        files = _SkillFiles(name, path, target)
        if isinstance(self.place, Path):
            await to_thread.run_sync(files.read_from_disk, self.place)
        else:
            await files.read_from_workspace(self.place)
        # In a thread as well: the parser takes a second for the worst fields that it is given.
        return await to_thread.run_sync(files.skill), files.kept


class _SkillFiles:
    """The files of one skill as they are read: what its digest is made of, and the few that are kept."""

    def __init__(self, name: str, path: str | None = None, target: Path | None = None) -> None:
        self.name = name
        self._target = target
        self.kept: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._wanted = {*FILE_NAMES, path}
        self._digests: dict[str, bytes] = {}
        self._size = 0

    def add(self, path: str, data: bytes) -> None:
        """Take in a file."""
        if len(data) > _MAX_FILE_SIZE:
            self.refuse(path, f"has more than {_MAX_FILE_SIZE:,} bytes")
        self._size += len(data)
        self._digests[path] = sha256(data).digest()
        if path in self._wanted:
            self.kept[path] = data
        if self._target is not None:
            place = self._target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(0o755)  # which of them are programs is not part of the digest

    def refuse(self, path: str, why: str) -> None:
        """Note a problem with an entry of the folder."""
        if len(self.problems) > _MAX_NAMED_ENTRIES:
            return
        # Names on a disk may be any bytes.
        self.problems.append(f"{one_line(os.fsencode(path).decode(errors='replace'), 200)!r} {why}")

    @property
    def is_full(self) -> bool:
        """Whether there may be no more files; notes it as a problem."""
        if len(self._digests) >= _MAX_SKILL_FILES:
            self.problems.append(f"it has more than {_MAX_SKILL_FILES:,} files")
        elif self._size >= _MAX_SKILL_SIZE:
            self.problems.append(f"its files have more than {_MAX_SKILL_SIZE:,} bytes together")
        else:
            return False
        return True

    def skill(self) -> Skill:
        """Return the skill; raises `SkillError`."""
        data = next((self.kept[name] for name in FILE_NAMES if name in self.kept), None)
        if data is None and not self.problems:
            self.problems.append("it has no file SKILL.md")
        # Before it is decoded and parsed, whose time depends on its length.
        elif data is not None and len(data) > MAX_CHARACTERS * _MAX_CHARACTER_SIZE:
            self.problems.append(f"SKILL.md has more than {MAX_CHARACTERS:,} characters")
        if self.problems:
            raise SkillError(self.problems, skill=self.name)
        digest = sha256()
        for path in sorted(self._digests, key=os.fsencode):
            name = os.fsencode(path)
            # With its length, so that no two lists of files look alike.
            digest.update(len(name).to_bytes(8, "big") + name + self._digests[path])
        assert data is not None
        return make_skill(self.name, data, digest.hexdigest(), tuple(sorted(self._digests)))

    def read_from_disk(self, root: Path) -> None:
        """Read all files of the subfolder of `root`."""
        if self.name in ("", os.curdir, os.pardir) or os.path.basename(self.name) != self.name:
            raise SkillError(f"{repr_of(self.name)} is not the name of a folder", skill=self.name)
        try:
            self._walk(root)
        except FileNotFoundError:
            self.problems.append("it does not exist, or was removed while it was read")
        except OSError as error:
            self.problems.append(f"it cannot be read: {error.strerror or type(error).__name__}")

    def _walk(self, root: Path) -> None:
        """Read folder by folder; each is reached by descriptors, and never through a link."""
        folders: list[tuple[str, ...]] = [(self.name,)]
        count = 0
        while folders:
            parts = folders.pop()
            count += 1
            if count > _MAX_SKILL_FOLDERS or len(parts) > _MAX_SKILL_DEPTH:
                limits = f"{_MAX_SKILL_FOLDERS:,} folders, or {_MAX_SKILL_DEPTH} inside each other"
                self.problems.append(f"it has more than {limits}")
                return
            with open_folder(root, parts) as folder:
                for name, mode in sorted(folder.entries(_MAX_SKILL_FILES + _MAX_SKILL_FOLDERS + 1)):
                    path = "/".join((*parts[1:], name))
                    if stat.S_ISDIR(mode):
                        folders.append((*parts, name))
                    elif not stat.S_ISREG(mode):
                        self.refuse(path, "is a link" if stat.S_ISLNK(mode) else "is a pipe, a socket or a device")
                    elif self.is_full:
                        return
                    else:
                        self.add(path, folder.read(name, _MAX_FILE_SIZE))

    async def read_from_workspace(self, workspace: FileSystemBase) -> None:
        """Read all files of the folder in the workspace."""
        folders, count = [self.name], 0
        try:
            while folders:
                folder = folders.pop()
                count += 1
                if count > _MAX_SKILL_FOLDERS:
                    self.problems.append(f"it has more than {_MAX_SKILL_FOLDERS:,} folders")
                    return
                for entry in await workspace.list(folder):
                    inner = f"{folder}/{entry}"
                    if entry.endswith("/"):
                        folders.append(inner[:-1])
                    elif self.is_full:
                        return
                    else:
                        data = await workspace.read_bytes(inner)
                        await to_thread.run_sync(self.add, inner[len(self.name) + 1 :], data)
        except MissingFileError:
            self.problems.append("it does not exist, or was removed while it was read")
        except WorkspaceError as error:
            self.problems.append(f"it cannot be read: {error}")
