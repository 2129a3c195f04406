"""The files and the terminal of an editor that does not do what it should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from acp.exceptions import RequestError
from acp.schema import TerminalExitStatus, TerminalOutputResponse

from agentrt.errors import WorkspaceError
from agentrt.serving.acp import workspace
from agentrt.serving.acp.workspace import ClientWorkspace
from tests.serving.acp.editor import CAN_ALL, Editor

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which the SDK needs


async def refuse(*_: Any, **__: Any) -> Any:
    raise RequestError.internal_error({"details": "canary"})


async def never(*_: Any, **__: Any) -> Any:
    await anyio.sleep_forever()


async def leave(*_: Any, **__: Any) -> Any:
    raise ConnectionError("Connection closed")


@pytest.mark.parametrize("answer", [refuse, never, leave])
@pytest.mark.parametrize("method", ["create_terminal", "wait_for_terminal_exit", "terminal_output", "kill_terminal"])
async def test_a_command_ends_whatever_the_editor_does(
    anyio_backend: str, method: str, answer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_EDITOR_SECONDS", 0.01)
    editor: Any = Editor()
    setattr(editor, method, answer)
    if method == "kill_terminal":
        editor.wait_for_terminal_exit = never
    files = ClientWorkspace(str(tmp_path), editor, "s", CAN_ALL)
    if (method, answer) == ("wait_for_terminal_exit", never):
        result = await files.run(["make"], timeout=0.01)
        assert result.timed_out
    else:
        with pytest.raises(WorkspaceError, match="the editor") as caught:
            await files.run(["make"], timeout=0.01)
        assert "canary" not in str(caught.value)
    assert editor.released == ([] if method == "create_terminal" else ["t1"])


async def test_a_terminal_made_after_a_cancel_is_released(anyio_backend: str, tmp_path: Path) -> None:
    asked, may_answer = anyio.Event(), anyio.Event()

    class SlowEditor(Editor):
        async def create_terminal(self, command: str, session_id: str, args: Any = None, **options: Any) -> Any:
            asked.set()
            await may_answer.wait()
            return await super().create_terminal(command, session_id, args, **options)

    editor: Any = SlowEditor()
    files = ClientWorkspace(str(tmp_path), editor, "s", CAN_ALL)
    async with anyio.create_task_group() as group:
        group.start_soon(files.run, ["make"])
        await asked.wait()
        group.cancel_scope.cancel()
        may_answer.set()
    assert editor.released == ["t1"]


async def test_long_output_is_cut_here_too(anyio_backend: str, tmp_path: Path) -> None:
    async def much(*_: Any, **__: Any) -> TerminalOutputResponse:
        status = TerminalExitStatus(exit_code=0)
        return TerminalOutputResponse(output="x" * 500_000, truncated=False, exit_status=status)

    editor: Any = Editor()
    editor.terminal_output = much
    result = await ClientWorkspace(str(tmp_path), editor, "s", CAN_ALL).run(["make"])
    assert len(result.stdout) < 100_000


async def test_a_write_that_is_refused_leaves_no_file(anyio_backend: str, tmp_path: Path) -> None:
    editor: Any = Editor()
    editor.write_text_file = refuse
    files = ClientWorkspace(str(tmp_path), editor, "s", CAN_ALL)
    (tmp_path / "old.txt").write_text("old")
    for name in ("new.txt", "old.txt"):
        with pytest.raises(WorkspaceError, match="refused, with code -32603"):
            await files.write_text(name, "text")
    assert await files.list() == ["old.txt"]


async def test_a_write_that_is_cancelled_leaves_no_file(anyio_backend: str, tmp_path: Path) -> None:
    asked = anyio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        asked.set()
        await anyio.sleep_forever()

    editor: Any = Editor()
    editor.write_text_file = hang
    files = ClientWorkspace(str(tmp_path), editor, "s", CAN_ALL)
    async with anyio.create_task_group() as group:
        group.start_soon(files.write_text, "new.txt", "text")
        await asked.wait()
        group.cancel_scope.cancel()
    assert await files.list() == []


async def test_a_folder_with_many_names_can_be_written_to(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.workspace.local._MAX_ENTRIES", 1)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    editor: Any = Editor()
    await ClientWorkspace(str(tmp_path), editor, "s", CAN_ALL).write_text("a.txt", "text")
    assert editor.unsaved == {str(tmp_path / "a.txt"): "text"}
