"""The base class of workspaces, wherever they keep their files."""

import copy
from collections.abc import Mapping, Sequence
from typing import Self

from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import type_with_article
from agentrt.errors import UsageError, WorkspaceError
from agentrt.workspace.path import access_denied, is_reserved, parts_of
from agentrt.workspace.sandbox.command import Command, CommandResult, check_command

_Names = list[str]  # inside of the class `list` is a method

MAX_FILE_SIZE = 10_000_000
"""The largest file that is read or written, in bytes, unless a workspace sets a limit."""


class FileSystemBase:
    """Files under one namespace: every path is relative to it, and none leads out of it.

    A subclass overrides `_read`, `_write`, `_list`, `_exists` and `_delete`. They get the names along the path, from
    the root of the file system, already checked; links are for them to handle. Paths have "/" on every platform. The
    folder `internal` of the root is the program's own and cannot be reached.

    Raises `AccessDenied` for a path that is not allowed, before anything is touched, `MissingFileError` for a file that
    does not exist, and `WorkspaceError` for any other failure.
    """

    # Class attributes, so that a subclass need not call `super().__init__()`.
    max_file_size: int = MAX_FILE_SIZE
    """The largest file that is read or written, in bytes."""

    folders: tuple[str, ...] = ()
    """The names of the folders that lead from the root to the namespace."""

    @property
    def location(self) -> str:
        """The namespace as people and models see it: "/workspace/subagents/searcher"."""
        return "/".join(("/workspace", *self.folders))

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.location!r}>"

    def namespace(self, name: str) -> Self:
        """Return the same files as seen from a folder, which need not exist yet: nothing outside of it can be reached.

        `name` may be a path, such as "subagents/searcher".
        """
        parts = self._resolve_file(name)
        # A copy, so that a subclass's own attributes are shared.
        inner = copy.copy(self)
        inner.folders = parts
        return inner

    async def read_bytes(self, path: str) -> bytes:
        """Return the file's content."""
        return await self._read(self._resolve_file(path))

    async def read_text(self, path: str) -> str:
        """Return the text of the file, which must be UTF-8."""
        data = await self._read(self._resolve_file(path))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise WorkspaceError(f"{path!r:.200} in {self.location!r} is not text in UTF-8: use read_bytes()") from None

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Replace the file's content with `data`, completely or not at all; missing folders are created."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise UsageError(f"write_bytes() takes bytes, not {type_with_article(data)}: use write_text() for a str")
        await self._write(self._resolve_file(path), self._check_size(path, bytes(data)))

    async def write_text(self, path: str, text: str) -> None:
        """Replace the file's content with `text` in UTF-8, completely or not at all; missing folders are created."""
        if not isinstance(text, str):
            raise UsageError(f"write_text() takes a str, not {type_with_article(text)}: use write_bytes() for bytes")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise WorkspaceError(
                f"{path!r:.200} was not written to {self.location!r}: the text has half of a surrogate pair"
            ) from None
        await self._write(self._resolve_file(path), self._check_size(path, data))

    async def list(self, path: str = "") -> _Names:
        """Return the names in the folder, sorted; those of folders end with "/". Links and special files are left out.

        A namespace is empty until something is written to it.
        """
        return await self._list(self._resolve(path))

    async def exists(self, path: str) -> bool:
        """Say whether there is a file or a folder."""
        return await self._exists(self._resolve(path))

    async def delete(self, path: str) -> None:
        """Remove a file or an empty folder."""
        await self._delete(self._resolve_file(path))

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        stdin: str | None = None,
        timeout: float = 60.0,  # noqa: ASYNC109  # it ends processes, and a result says so
        env: Mapping[str, str] | None = None,
        read_only: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program on the files of this namespace, in the sandbox of the workspace; `cwd` is a folder in it.

        `argv` is a list, and no shell reads it. The program finds `PATH`, `HOME`, `LANG` and `env` in its environment,
        and nothing else. `read_only` has folders of this machine, by the absolute paths at which it finds them; without
        isolation (`NoSandbox`) it finds them nowhere else than where they are. After `timeout` seconds, or when the
        caller is cancelled, all of its processes are killed. The file of a long output counts as written by the caller.

        Raises `InvalidInputError` for arguments that no program can be given, `AccessDenied` and `MissingFileError` for
        a `cwd`, and `UsageError` where commands cannot run. A program that fails, or does not exist, is a result.
        """
        command = check_command(argv, cwd, stdin, timeout, env, read_only)
        return await self._run_command(self._resolve(cwd), command)

    async def check_sandbox(self) -> None:
        """Raise `UsageError` if this workspace has a sandbox that cannot work here; `async with agent` calls it."""

    async def _run_command(self, parts: tuple[str, ...], command: Command) -> CommandResult:
        raise UsageError(
            f"{type(self).__name__} has no sandbox, so it runs no commands: give it one, such as LocalWorkspace(root, "
            f"sandbox=BubblewrapSandbox()), or DockerSandbox(image), or NoSandbox() where this program may do all that "
            f"a command may do"
        )

    # The names along the path, from the root.

    async def _read(self, parts: tuple[str, ...]) -> bytes:
        raise NotImplementedError

    async def _write(self, parts: tuple[str, ...], data: bytes) -> None:
        raise NotImplementedError

    async def _list(self, parts: tuple[str, ...]) -> _Names:
        raise NotImplementedError

    async def _exists(self, parts: tuple[str, ...]) -> bool:
        raise NotImplementedError

    async def _delete(self, parts: tuple[str, ...]) -> None:
        raise NotImplementedError

    def _resolve(self, path: str) -> tuple[str, ...]:
        parts = (*self.folders, *parts_of(path, self.location))
        if is_reserved(parts):
            raise access_denied(path, self.location, "'internal' is the program's own")
        return parts

    def _resolve_file(self, path: str) -> tuple[str, ...]:
        parts = self._resolve(path)
        if parts == self.folders:
            raise access_denied(path, self.location, "it names the namespace itself")
        return parts

    def _check_size(self, path: str, data: bytes) -> bytes:
        if len(data) > self.max_file_size:
            raise WorkspaceError(
                f"{path!r:.200} was not written to {self.location!r}: it has {len(data)} bytes, and the limit is "
                f"{self.max_file_size}; write less, or set max_file_size"
            )
        return data
