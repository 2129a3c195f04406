"""Tools that look for files by their names and by their lines."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import monotonic

from anyio import lowlevel, to_thread

from agentrt.errors import WorkspaceError
from agentrt.tool.context import ToolContext
from agentrt.tool.files.base import PathTool, workspace_of
from agentrt.tool.files.pattern import PathPattern, compile_expression
from agentrt.workspace import FileSystemBase

_FILES_SEARCHED = 10_000  # that are looked at
_FOLDERS_SEARCHED = 10_000
_PATHS_LISTED = 1_000
_LINES_LISTED = 200
_LINE_LENGTH = 300  # characters that are shown of a line
_BYTES_SEARCHED = 50_000_000  # bytes, of all files together
# The time of an expression is linear in the text, but each character may take long, and nothing else in this program
# runs while a line is searched.
_LINE_SEARCHED = 5_000  # characters
_SECONDS_SEARCHED = 20.0
# Their files are made by programs, and many; who wants them names the folder.
_SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__"})


class GlobFilesTool(PathTool):
    """Find files by a pattern for their paths, such as "**/*.py"."""

    name = "glob_files"
    is_read_only = True

    async def call(self, pattern: str, context: ToolContext, path: str = "") -> str:
        """Return the paths.

        Args:
            pattern: "*" stands for characters in one name, "?" for one, "[ab]" for one of these, "**" for folders.
            path: The folder to look in, which the pattern is relative to.
        """
        glob, walk = PathPattern(pattern), _Walk(workspace_of(context), path)
        found = []
        async with aclosing(walk.files()) as paths:
            async for relative in paths:
                if glob.matches(relative):
                    found.append(walk.path_of(relative))
                    if len(found) == _PATHS_LISTED:
                        walk.notes.append(f"only the first {_PATHS_LISTED:,} are shown: give a narrower pattern")
                        break
        return "\n".join([*(found or ["(no file fits)"]), *walk.shown_notes()])


class SearchFilesTool(PathTool):
    """Find lines of text files by a regular expression; each is given as "path:line: text"."""

    name = "search_files"
    is_read_only = True

    async def call(self, pattern: str, context: ToolContext, path: str = "", files: str = "**") -> str:
        r"""Return the lines.

        Args:
            pattern: The expression, such as "def \w+_total"; without look-around and back-references.
            path: The folder to look in.
            files: The files to look at, such as "**/*.py", relative to the folder.
        """
        has_match, glob = compile_expression(pattern), PathPattern(files)
        workspace = workspace_of(context)
        walk = _Walk(workspace, path)
        found: list[str] = []
        size, end = 0, monotonic() + _SECONDS_SEARCHED
        async with aclosing(walk.files()) as paths:
            async for relative in paths:
                if not glob.matches(relative):
                    continue
                try:
                    data = await workspace.read_bytes(walk.path_of(relative))
                except WorkspaceError:  # too large, or it has just been deleted
                    walk.notes.append(f"{walk.path_of(relative)} was left out: it cannot be read, or is too large")
                    continue
                size += len(data)
                if size > _BYTES_SEARCHED:
                    walk.notes.append(f"stopped after {_BYTES_SEARCHED:,} bytes: name a folder in path, or files")
                    break
                # In a thread, since a large file takes a while.
                lines, is_cut = await to_thread.run_sync(
                    self._find_lines, data, has_match, _LINES_LISTED - len(found), end
                )
                found += [f"{walk.path_of(relative)}:{number}: {line[:_LINE_LENGTH]}" for number, line in lines]
                if is_cut:
                    cut = f"the first {_LINE_SEARCHED:,} characters of each line"
                    walk.notes.append(f"of {walk.path_of(relative)} only {cut} were searched")
                if len(found) == _LINES_LISTED:
                    walk.notes.append(f"only the first {_LINES_LISTED} lines are shown: give a narrower expression")
                    break
                if monotonic() > end:
                    walk.notes.append(f"stopped after {_SECONDS_SEARCHED:g} seconds: give a simpler expression")
                    break
        return "\n".join([*(found or ["(no line fits)"]), *walk.shown_notes()])

    def _find_lines(
        self, data: bytes, has_match: Callable[[str], bool], limit: int, end: float
    ) -> tuple[list[tuple[int, str]], bool]:
        """Return the lines with their numbers, and whether some were too long to be searched whole."""
        found: list[tuple[int, str]] = []
        is_cut = False
        if b"\0" in data[:8_000]:  # no text, as git decides it
            return found, is_cut
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            is_cut = is_cut or len(line) > _LINE_SEARCHED
            if has_match(line[:_LINE_SEARCHED]):
                found.append((number, line.rstrip("\r")))
            if len(found) == limit or monotonic() > end:
                break
        return found, is_cut


class _Walk:
    """The files below a folder, in a fixed order."""

    def __init__(self, workspace: FileSystemBase, path: str) -> None:
        self._workspace = workspace
        self._prefix = path.rstrip("/") + "/" if path.rstrip("/") not in ("", ".") else ""
        self.notes: list[str] = []

    def path_of(self, relative: str) -> str:
        return self._prefix + relative

    def shown_notes(self) -> list[str]:
        """Return what the model must know of the search: a few lines, however much was left out."""
        more = len(self.notes) - 10
        return [f"[{note}]" for note in self.notes[-10:]] + ([f"[and {more:,} more like these]"] if more > 0 else [])

    async def files(self) -> AsyncGenerator[str, None]:
        """Yield the paths of files, relative to the folder; links are not followed, so this ends."""
        folders, count, room = [""], 0, _FOLDERS_SEARCHED
        names = await self._workspace.list(self._prefix)  # raises if the folder does not exist
        while folders:
            folder = folders.pop()
            try:
                # The names of the first folder are known: listing it has said whether it exists.
                names = names if not folder else await self._workspace.list(self._prefix + folder)
            except WorkspaceError as error:
                self.notes.append(f"{self._prefix}{folder} was left out: {error}")
                continue
            inner = [name for name in names if name.endswith("/") and name[:-1] not in _SKIPPED]
            if len(inner) > room:
                self.notes.append(f"only the first {_FOLDERS_SEARCHED:,} folders were looked at: name one in path")
            folders += [folder + name for name in reversed(inner[:room])]
            room -= len(inner[:room])
            for name in names:
                if not name.endswith("/"):
                    count += 1
                    if count > _FILES_SEARCHED:
                        self.notes.append(f"stopped after {_FILES_SEARCHED:,} files: name a folder in path")
                        return
                    await lowlevel.checkpoint()  # a pattern may take long to match, and there are many files
                    yield folder + name
