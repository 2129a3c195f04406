"""A workspace in a folder of this machine."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import TypeVar

from anyio import move_on_after, to_thread

from agentrt._runtime.options import check_whole
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError, MissingFileError, WorkspaceError
from agentrt.state.file import resolve_folder
from agentrt.workspace.base import MAX_FILE_SIZE, FileSystemBase
from agentrt.workspace.folder import open_folder
from agentrt.workspace.path import access_denied, can_be_named, is_reserved
from agentrt.workspace.sandbox.base import SandboxBase, SharedFolder
from agentrt.workspace.sandbox.command import MAX_SHOWN, Command, CommandResult, Output, shorten

_DISK_SECONDS = 30.0  # seconds
_MAX_ENTRIES = 10_000
_OUTPUT_FOLDER = "command-output"
_Found = TypeVar("_Found")


class LocalWorkspace(FileSystemBase):
    """The files below a folder of this machine; the folder is made by the first write.

    Links are not followed, not even those that another program makes meanwhile, except on Windows, where links are only
    looked for beforehand. Links in the path of the `root` itself are yours, and followed once, here. A hard link is a
    file like any other. A crash leaves the old file or the new one; a cancelled write changes nothing
    afterwards. A disk that does not answer for 30 seconds raises `WorkspaceError`, and so does a folder of more than
    10,000 names.

    Commands run in the `sandbox`; without one, `run` raises `UsageError`. Long output is in files of the folder
    `command-output`.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, max_file_size: int = MAX_FILE_SIZE, sandbox: SandboxBase | None = None
    ) -> None:
        chosen: object = sandbox
        if chosen is not None and not isinstance(chosen, SandboxBase):
            raise ConfigError(
                f"LocalWorkspace(sandbox=...) must be a sandbox, such as BubblewrapSandbox(), not {repr_of(chosen)}"
            )
        self.sandbox = sandbox
        self.root = Path(os.path.realpath(resolve_folder(root, type(self).__name__)))
        self.max_file_size = check_whole("LocalWorkspace(max_file_size=...)", max_file_size)

    @never_raises
    def __repr__(self) -> str:
        inner = f".namespace({'/'.join(self.folders)!r})" if self.folders else ""
        return f"{type(self).__name__}({str(self.root)!r}){inner}"

    async def check_sandbox(self) -> None:
        """Raise `UsageError` if the sandbox cannot work on this machine."""
        if self.sandbox is not None:
            await self.sandbox.check()

    async def _run_command(self, parts: tuple[str, ...], command: Command) -> CommandResult:
        sandbox = self.sandbox
        if sandbox is None:
            return await super()._run_command(parts, command)
        await sandbox.check()

        def work(abandoned: Event) -> SharedFolder:
            with open_folder(self.root, self.folders, create=True, is_abandoned=abandoned.is_set) as folder:
                # The root is the caller's; a folder in it may be replaced by a command in one around it.
                identity = folder.identity() if self.folders else ""
            with open_folder(self.root, parts) as start:
                start.names(1)  # which fails for a folder that cannot be entered
            return SharedFolder(folder.path, identity, has_internal=not self.folders)

        shared = await self._run(parts, "enter", work)
        command = replace(command, cwd=self._relative_path(parts))
        outcome = await sandbox.run(command, shared, self.max_file_size)
        name = f"{_OUTPUT_FOLDER}/{token_hex(6)}"
        stdout, stdout_file = await self._keep_output(outcome.stdout, f"{name}.stdout")
        stderr, stderr_file = await self._keep_output(outcome.stderr, f"{name}.stderr")
        return CommandResult(outcome.exit_code, stdout, stderr, outcome.timed_out, (*stdout_file, *stderr_file))

    async def _keep_output(self, output: Output, path: str) -> tuple[str, tuple[str, ...]]:
        """Return what a result shows of a stream, and the file that has all of it, if it is long."""
        content = output.content()
        text = content.decode(errors="replace")
        if len(text) <= MAX_SHOWN:
            return text, ()
        try:
            await self.write_bytes(path, content)
        except WorkspaceError as error:  # what the command has done must not be lost with its output
            return shorten(text, f"they could not be kept ({error})"), ()
        return shorten(text, f"all of the output is in {path!r}"), (path,)

    async def _read(self, parts: tuple[str, ...]) -> bytes:
        def work(_: Event) -> bytes:
            with open_folder(self.root, parts[:-1]) as folder:
                return folder.read(parts[-1], self.max_file_size)

        data = await self._run(parts, "read", work)
        if len(data) > self.max_file_size:
            raise self._failure(parts, "read", f"it has more than {self.max_file_size} bytes; set max_file_size")
        return data

    async def _write(self, parts: tuple[str, ...], data: bytes) -> None:
        def work(abandoned: Event) -> None:
            with open_folder(self.root, parts[:-1], create=True, is_abandoned=abandoned.is_set) as folder:
                folder.write(parts[-1], data, abandoned.is_set)

        await self._run(parts, "write", work)

    async def _list(self, parts: tuple[str, ...]) -> list[str]:
        def work(_: Event) -> list[str]:
            with open_folder(self.root, parts) as folder:
                return folder.names(_MAX_ENTRIES + 1)

        try:
            names = await self._run(parts, "list", work)
        except MissingFileError:
            if parts == self.folders:  # nothing was written to it yet
                return []
            raise
        if len(names) > _MAX_ENTRIES:
            raise self._failure(parts, "list", f"it has more than {_MAX_ENTRIES} names")
        return sorted(name for name in names if can_be_named(name) and not is_reserved((*parts, name.rstrip("/"))))

    async def _exists(self, parts: tuple[str, ...]) -> bool:
        def work(_: Event) -> bool:
            try:
                with open_folder(self.root, parts[:-1]) as folder:
                    return not parts or folder.mode_of(parts[-1]) > 0
            except (FileNotFoundError, NotADirectoryError):
                return False

        return await self._run(parts, "find", work)

    async def _delete(self, parts: tuple[str, ...]) -> None:
        def work(abandoned: Event) -> None:
            with open_folder(self.root, parts[:-1]) as folder:
                if not abandoned.is_set():
                    folder.delete(parts[-1])

        await self._run(parts, "delete", work)

    async def _run(self, parts: tuple[str, ...], action: str, work: Callable[[Event], _Found]) -> _Found:
        """Do the work in a thread; its errors become `WorkspaceError`."""
        # Set when nobody waits any more: a thread cannot be stopped, but it checks this before it changes a file.
        abandoned = Event()
        try:
            with move_on_after(_DISK_SECONDS):
                return await to_thread.run_sync(work, abandoned, abandon_on_cancel=True)
        except OSError as error:
            failure = self._convert(error, parts, action)
        else:
            failure = self._failure(parts, action, f"the disk gave no answer for {_DISK_SECONDS:g} seconds")
        finally:
            abandoned.set()
        # Without the cause, whose text names the folder's real path.
        raise failure

    def _convert(self, error: OSError, parts: tuple[str, ...], action: str) -> WorkspaceError:
        if error.errno == errno.ELOOP:
            return access_denied(
                self._relative_path(parts), self.location, "a link is in its path, and links are not followed"
            )
        if error.errno == errno.ENOENT:
            return MissingFileError(f"{self._relative_path(parts)!r:.200} does not exist in {self.location!r}")
        return self._failure(parts, action, error.strerror or type(error).__name__)

    def _failure(self, parts: tuple[str, ...], action: str, reason: str) -> WorkspaceError:
        return WorkspaceError(f"could not {action} {self._relative_path(parts)!r:.200} in {self.location!r}: {reason}")

    def _relative_path(self, parts: tuple[str, ...]) -> str:
        return "/".join(parts[len(self.folders) :])
