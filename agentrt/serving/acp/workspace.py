"""The files and the terminal of an editor, as a workspace."""

import stat
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TypeVar

import anyio
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import ClientCapabilities, EnvVariable

from agentrt._runtime.concurrency.event_loop import run_shielded
from agentrt.errors import WorkspaceError
from agentrt.workspace import CommandResult, LocalWorkspace
from agentrt.workspace.folder import open_folder
from agentrt.workspace.path import access_denied
from agentrt.workspace.sandbox.command import MAX_SHOWN, Command, shorten

_EDITOR_SECONDS = 10.0
"""How long an editor may take for what it can do at once."""
_KILLED = 137  # the exit code of a shell for what SIGKILL has ended
_EditorAnswer = TypeVar("_EditorAnswer")


class ClientWorkspace(LocalWorkspace):
    """The folder of a session, read and written by the editor, which knows what is not saved yet.

    Folders are listed here: editors run their agents on their own machine, and the protocol has no method for it. Paths
    are checked here too, before the editor is asked, since editors follow links. Commands run in the editor's terminal,
    where the user sees them; no sandbox holds them.
    """

    def __init__(self, root: str, client: Client, session_id: str, capabilities: ClientCapabilities) -> None:
        super().__init__(root)
        self._client = client
        self._session_id = session_id
        files = capabilities.fs
        self._reads = bool(files and files.read_text_file)
        self._writes = bool(files and files.write_text_file)
        self._has_terminal = bool(capabilities.terminal)

    async def _read(self, parts: tuple[str, ...]) -> bytes:
        saved = await super()._read(parts)  # which refuses all but files of the workspace
        try:
            saved.decode()
        except UnicodeDecodeError:
            return saved  # an editor has text only
        if not self._reads:
            return saved
        response = await self._answer(
            f"{'/'.join(parts)!r:.200} was not read",
            self._client.read_text_file(session_id=self._session_id, path=self._path(parts)),
        )
        return self._check_size("/".join(parts), response.content.encode())

    async def _write(self, parts: tuple[str, ...], data: bytes) -> None:
        text = None
        if self._writes:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = None
        if text is None:
            await super()._write(parts, data)
            return
        is_new = not await self._exists(parts)
        if is_new:
            # Made here, so that no link can stand in its place.
            await super()._write(parts, b"")

        def is_file(_: Event) -> bool:
            with open_folder(self.root, parts[:-1]) as folder:
                return stat.S_ISREG(folder.mode_of(parts[-1]))

        if not await self._run(parts, "write", is_file):
            raise access_denied("/".join(parts), self.location, "it is a folder or a special file")
        try:
            await self._answer(
                f"{'/'.join(parts)!r:.200} was not written",
                self._client.write_text_file(session_id=self._session_id, path=self._path(parts), content=text),
            )
        except BaseException:  # a cancellation too: the file is there, without its text
            if is_new:
                await run_shielded(_EDITOR_SECONDS, partial(self._delete, parts))
            raise

    async def _run_command(self, parts: tuple[str, ...], command: Command) -> CommandResult:
        if not self._has_terminal:
            return await super()._run_command(parts, command)
        if command.stdin is not None:
            raise WorkspaceError("the terminal of an editor takes no stdin: write a file, and name it in argv")
        program, *arguments = command.argv
        # Shielded, since nobody could end a terminal whose id never came.
        terminal = await self._answer(
            f"{program!r:.200} was not run",
            self._client.create_terminal(
                session_id=self._session_id,
                command=program,
                args=arguments,
                cwd=self._path(parts),
                env=[EnvVariable(name=name, value=value) for name, value in command.env.items()],
                output_byte_limit=MAX_SHOWN,
            ),
            shield=True,
        )
        names, lost = (
            {"session_id": self._session_id, "terminal_id": terminal.terminal_id},
            f"{program!r:.200} was lost",
        )
        try:
            with anyio.move_on_after(command.timeout) as scope:
                await self._answer(lost, self._client.wait_for_terminal_exit(**names), is_quick=False)
            if scope.cancelled_caught:
                await self._answer(lost, self._client.kill_terminal(**names))
            result = await self._answer(lost, self._client.terminal_output(**names))
        finally:
            # Its process ends with it, so also where the reply is cancelled.
            with suppress(WorkspaceError):
                await self._answer(lost, self._client.release_terminal(**names), shield=True)
        status = result.exit_status
        exit_code = status.exit_code if status is not None and status.exit_code is not None else _KILLED
        missing = "(the beginning of the output is missing)\n" if result.truncated else ""
        output = result.output
        if len(output) > MAX_SHOWN:  # an editor may not keep the limit
            output = shorten(output, "the terminal has all of the output")
        # A terminal has one stream.
        return CommandResult(exit_code, f"{missing}{output}", timed_out=scope.cancelled_caught)

    def _path(self, parts: tuple[str, ...]) -> str:
        return str(self.root.joinpath(*parts))

    async def _answer(
        self, failure: str, request: Awaitable[_EditorAnswer], *, is_quick: bool = True, shield: bool = False
    ) -> _EditorAnswer:
        """Return the answer of the editor; raises `WorkspaceError` with the `failure` if there is none."""
        try:
            with anyio.fail_after(_EDITOR_SECONDS if is_quick else None, shield=shield):
                return await request
        except RequestError as error:
            # The editor's words may quote the file, so its code stands for them.
            reason = f"refused, with code {error.code!r:.20}"
        except TimeoutError:
            reason = f"gave no answer for {_EDITOR_SECONDS:g} seconds"
        except ConnectionError:
            reason = "has left"
        except ValueError:  # of the SDK, for what the protocol does not have
            reason = "gave an invalid answer"
        raise WorkspaceError(f"{failure} in {self.location!r}: the editor {reason}")
