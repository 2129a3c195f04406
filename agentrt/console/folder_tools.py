"""Read-only tools for one folder, used by the demo and the offline rules."""

import ast
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.message import TextBlock, ToolResultState
from agentrt.types import ToolResponse

_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "venv", "build", "dist"}
_MAX_WALK_SECONDS = 10.0  # for all files: a tool's thread cannot be stopped
_MAX_CHARACTERS = 100_000  # of one result
_MAX_HIT_LENGTH = 200
_MAX_BYTES = 5_000_000  # of a file that is searched
_ARITHMETIC: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_ARITHMETIC |= {
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

_FolderResult = str | ToolResponse


def folder_tools(folder: str | os.PathLike[str] = ".") -> list[Callable[..., _FolderResult]]:
    """Return tools that list, read and search the files of a folder, and a calculator: `Agent(tools=folder_tools())`.

    They change nothing, use no network, and read neither files outside the folder, even through links, nor
    files and folders whose names begin with a dot.
    """
    try:
        root = Path(folder).resolve()
    except OSError as error:  # the current folder may have been deleted
        raise ConfigError(
            f"the folder {os.fspath(folder)!r} cannot be found ({error.strerror}): change to another"
        ) from error
    tools = _FolderTools(root)
    return [tools.list_files, tools.read_file, tools.search_text, tools.recent_files, calculate]


class _FolderTools:
    def __init__(self, root: Path) -> None:
        self._root = root

    def list_files(self) -> _FolderResult:
        """List all files."""
        return self._collect(lambda name, _: [name]) or "no files"

    def read_file(self, path: str) -> _FolderResult:
        """Read one text file."""
        # Hidden files often hold keys, and a tool's results go to the provider of the model.
        try:
            place = (self._root / path).resolve()  # resolves links, so that none leads out
            if not place.is_relative_to(self._root):
                return _failure(f"{path!r} is outside of the folder")
            if any(part.startswith(".") for part in place.relative_to(self._root).parts):
                return _failure(f"{path!r} is hidden: its name, or that of its folder, begins with a dot")
            if not place.is_file():
                return _failure(f"{path!r} does not exist, or is not a file")
            with place.open(encoding="utf-8", errors="replace") as file:
                text = file.read(_MAX_CHARACTERS)
                return f"{text}\n... and more" if file.read(1) else text
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            return _failure(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}")

    def search_text(self, text: str) -> _FolderResult:
        """Find the lines of all files that contain some text, in upper or lower case."""
        lowered = text.lower()

        def find(name: str, path: Path) -> Iterator[str]:
            # Reading a pipe or a device might never end.
            if not path.is_file() or path.stat().st_size > _MAX_BYTES:
                return
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
                if lowered in line.lower():
                    yield f"{name}:{number}: {line.strip()[:_MAX_HIT_LENGTH]}"

        return self._collect(find) or "nothing found"

    def recent_files(self, days: int = 1) -> _FolderResult:
        """List the files that changed today, or in the last days, newest first."""
        first_day = date.today() - timedelta(days=min(max(days, 1), 36_500) - 1)

        def describe(name: str, path: Path) -> Iterable[str]:
            changed = datetime.fromtimestamp(path.stat().st_mtime)
            return [f"{changed:%Y-%m-%d %H:%M} {name}"] if changed.date() >= first_day else []

        return "\n".join(sorted(self._collect(describe).splitlines(), reverse=True)) or "no changes"

    def _collect(self, lines_of: Callable[[str, Path], Iterable[str]]) -> str:
        """Return the lines for all files; if there are too many, the last one says so."""
        deadline = time.monotonic() + _MAX_WALK_SECONDS
        lines: list[str] = []
        left = _MAX_CHARACTERS
        for path in self._files():
            with suppress(OSError):  # the file is gone, or not readable
                for line in lines_of(path.relative_to(self._root).as_posix(), path):
                    if left <= 0:
                        break
                    lines.append(line)
                    left -= len(line) + 1
            if left <= 0 or time.monotonic() > deadline:
                return "\n".join([*lines, "... and more"])
        return "\n".join(lines)

    def _files(self) -> Iterator[Path]:
        # Links to folders are not followed: a search could leave the folder, and might never end.
        for folder, folders, files in os.walk(self._root, followlinks=False):
            folders[:] = sorted(name for name in folders if name[0] != "." and name not in _SKIPPED_FOLDERS)
            # Another file system may be like /proc, where reading a file can block for ever.
            folders[:] = [name for name in folders if not os.path.ismount(Path(folder, name))]
            paths = (Path(folder, name) for name in sorted(files) if name[0] != ".")
            yield from (path for path in paths if not path.is_symlink())


def calculate(expression: str) -> _FolderResult:
    """Calculate an arithmetic expression such as 2 * (3 + 4)."""
    if len(expression) > 200:
        return _failure("the expression is longer than 200 characters")
    try:
        return str(_evaluate(ast.parse(expression.strip(), mode="eval").body))
    except (ArithmeticError, SyntaxError, ValueError) as error:
        return _failure(str(error))


def _evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = _evaluate(left), _evaluate(right)
            if isinstance(op, ast.Pow) and (abs(first) > 1e12 or abs(second) > 1000):
                raise ValueError("the power is too large")
            return _ARITHMETIC[type(op)](first, second)
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _failure(text: str) -> ToolResponse:
    # Returned, not raised: the mistake is the user's or the model's, and the log is for those of tools.
    return ToolResponse([TextBlock(text)], ToolResultState.ERROR)
