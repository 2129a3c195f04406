"""Files in a folder of this machine: whole, within limits, and inside the namespace, whatever links are made."""

import copy
import os
import pickle
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import pytest

from agentrt import Agent, AgentBase, Toolkit
from agentrt.errors import AccessDenied, ConfigError, MissingFileError, UsageError, WorkspaceError
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolContext
from agentrt.workspace import FileSystemBase, LocalWorkspace, folder
from tests.loop.helpers import call
from tests.workspace.test_path import USES, everything_in

posix = pytest.mark.skipif(sys.platform == "win32", reason="speaks of links and pipes as POSIX has them")


@pytest.fixture(params=[True, False], ids=["by descriptor", "by path"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalWorkspace:
    """A namespace, on a platform with descriptors of folders and on one without."""
    if not request.param:
        monkeypatch.setattr(folder, "_BY_DESCRIPTOR", False)
    return LocalWorkspace(tmp_path / "root").namespace("subagents/ann")


def own_folder(files: LocalWorkspace) -> Path:
    place = files.root / "subagents" / "ann"
    place.mkdir(parents=True, exist_ok=True)
    return place


async def test_what_was_written_can_be_read_listed_and_deleted(files: LocalWorkspace) -> None:
    assert await files.list() == []
    await files.write_text("notes/月.md", "line\r\nline\n")
    await files.write_bytes("./data.bin", b"\xff\x00")
    assert await files.read_text("notes//月.md") == "line\r\nline\n"
    assert await files.read_bytes("data.bin") == b"\xff\x00"
    assert await files.list() == ["data.bin", "notes/"]
    assert await files.list("notes") == ["月.md"]
    assert [await files.exists(path) for path in ("notes", "data.bin", "", "none", "data.bin/a")] == [1, 1, 1, 0, 0]
    await files.delete("notes/月.md")
    await files.delete("notes")
    assert await files.list() == ["data.bin"]


async def test_write_replaces_the_file_as_a_whole(files: LocalWorkspace) -> None:
    await files.write_text("a", "a longer text")
    await files.write_text("a", "b")
    assert await files.read_text("a") == "b"
    assert [path.name for path in own_folder(files).iterdir()] == ["a"]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444, 0o666])
async def test_a_file_keeps_its_permissions(mode: int, files: LocalWorkspace) -> None:
    await files.write_text("a", "old")
    (own_folder(files) / "a").chmod(mode)
    await files.write_text("a", "new")
    assert (own_folder(files) / "a").stat().st_mode & 0o777 == mode
    assert await files.read_text("a") == "new"


@pytest.mark.parametrize("limit", [10**12, 2**63 - 1, 2**70])
async def test_any_limit_of_size_can_be_read_with(limit: int, tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, max_file_size=limit)
    await files.write_text("a", "x" * 2_500_000)
    assert await files.read_text("a") == "x" * 2_500_000


async def test_namespaces_see_their_own_files_only(tmp_path: Path) -> None:
    root = LocalWorkspace(tmp_path)
    ann, bob = root.namespace("subagents/ann"), root.namespace("subagents/bob")
    await ann.write_text("a", "of ann")
    await bob.write_text("a", "of bob")
    assert await ann.read_text("a") == "of ann"
    assert await root.read_text("subagents/bob/a") == "of bob"
    assert ann.namespace("inner").location == "/workspace/subagents/ann/inner"
    assert root.location == "/workspace"


async def test_missing_file_says_which_and_where(files: LocalWorkspace) -> None:
    for use in ("read_text", "delete"):
        with pytest.raises(MissingFileError, match=r"'a/b' does not exist in '/workspace/subagents/ann'"):
            await USES[use](files, "a/b")
    with pytest.raises(FileNotFoundError):
        await files.list("a")


async def test_folder_is_not_a_file_and_a_file_not_a_folder(files: LocalWorkspace) -> None:
    await files.write_text("a/b", "")
    for use in ("read_text", "write_text"):
        with pytest.raises(WorkspaceError, match=r"could not (read|write) 'a'"):
            await USES[use](files, "a")
        with pytest.raises(WorkspaceError, match=r"could not (read|write) 'a/b/c'"):
            await USES[use](files, "a/b/c")
    with pytest.raises(WorkspaceError, match="could not delete 'a'"):
        await files.delete("a")
    with pytest.raises(WorkspaceError, match="could not list 'a/b'"):
        await files.list("a/b")


async def test_size_of_a_file_is_limited_both_ways(tmp_path: Path) -> None:
    files = LocalWorkspace(tmp_path, max_file_size=10).namespace("ann")
    await files.write_text("a", "x" * 10)
    with pytest.raises(WorkspaceError, match=r"'a'.*11 bytes.*limit is 10.*max_file_size"):
        await files.write_text("a", "x" * 11)
    assert await files.read_text("a") == "x" * 10
    (tmp_path / "ann" / "a").write_text("x" * 11)
    with pytest.raises(WorkspaceError, match="more than 10 bytes"):
        await files.read_bytes("a")


async def test_names_of_a_folder_are_limited(files: LocalWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.workspace.local._MAX_ENTRIES", 2)
    for name in "ab":
        await files.write_text(name, "")
    assert await files.list() == ["a", "b"]
    await files.write_text("c", "")
    with pytest.raises(WorkspaceError, match="more than 2 names"):
        await files.list()


async def test_text_that_is_not_utf_8_is_refused_both_ways(files: LocalWorkspace) -> None:
    with pytest.raises(WorkspaceError, match="surrogate"):
        await files.write_text("a", "\ud800")
    assert await files.list() == []
    await files.write_bytes("a", b"secret \xff")
    with pytest.raises(WorkspaceError, match=r"'a' .* use read_bytes\(\)"):
        await files.read_text("a")


@pytest.mark.parametrize("text", [b"a", None, 1])
async def test_what_is_not_text_or_bytes_is_refused(text: object, files: LocalWorkspace) -> None:
    with pytest.raises(UsageError, match="write_text"):
        await files.write_text("a", text)  # type: ignore[arg-type]
    if not isinstance(text, bytes):
        with pytest.raises(UsageError, match="write_bytes"):
            await files.write_bytes("a", text)  # type: ignore[arg-type]
    assert await files.list() == []


@posix
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", ["file", "folder", "own folder", "dangling"])
async def test_a_link_is_not_followed(place: str, use: str, files: LocalWorkspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("old")
    if place == "own folder":
        own_folder(files).rmdir()
        own_folder(files).parent.joinpath("ann").rmdir()
        (files.root / "subagents" / "ann").symlink_to(outside)
        path = "a"
    else:
        target = {"file": outside / "a", "folder": outside, "dangling": outside / "new"}[place]
        (own_folder(files) / "link").symlink_to(target)
        path = "link/a" if place == "folder" else "link"
    before = everything_in(tmp_path)
    with pytest.raises(AccessDenied, match=r"link.*'/workspace/subagents/ann'"):
        await USES[use](files, path)
    assert everything_in(tmp_path) == before


@posix
@pytest.mark.skipif(not folder._BY_DESCRIPTOR, reason="needs descriptors of folders")
@pytest.mark.parametrize("use", ["read_text", "write_text", "delete", "list"])
async def test_a_link_made_after_the_check_is_not_followed(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, files = tmp_path / "outside", LocalWorkspace(tmp_path / "root").namespace("ann")
    outside.mkdir()
    (outside / "a").write_text("old")
    await files.write_text("inner/a", "mine")
    mode_of = folder.Folder.mode_of

    def race(self: folder.Folder, name: str) -> int:
        mode = mode_of(self, name)
        inner = files.root / "ann" / "inner"
        if name == "inner" and not inner.is_symlink():
            inner.rename(tmp_path / "moved")
            inner.symlink_to(outside)
        return mode

    monkeypatch.setattr(folder.Folder, "mode_of", race)
    with pytest.raises(AccessDenied):
        await USES[use](files, "inner" if use == "list" else "inner/a")
    assert everything_in(outside) == {outside / "a": b"old"}


@posix
@pytest.mark.skipif(not folder._BY_DESCRIPTOR, reason="needs descriptors of folders")
async def test_nothing_is_written_outside_while_a_link_comes_and_goes(tmp_path: Path) -> None:
    outside, files = tmp_path / "outside", LocalWorkspace(tmp_path / "root").namespace("ann")
    outside.mkdir()
    inner = files.root / "ann" / "inner"
    stop, ways = threading.Event(), set()

    def swap() -> None:
        for number in count():
            with suppress(OSError):  # the write makes the folder anew when it is missing
                inner.rename(tmp_path / f"moved {number}")
            with suppress(OSError):
                inner.symlink_to(outside)
            with suppress(OSError):
                inner.unlink()
            if stop.is_set():
                break

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(150):
            try:
                await files.write_text(f"inner/{number}", "mine")
                ways.add("written")
            except WorkspaceError as error:
                ways.add(type(error).__name__)
    finally:
        stop.set()
        thread.join()
    assert everything_in(outside) == {}
    assert "written" in ways


@posix
async def test_a_pipe_is_refused_and_nothing_waits_for_it(files: LocalWorkspace) -> None:
    os.mkfifo(own_folder(files) / "pipe")
    for use in ("read_text", "write_text"):
        with anyio.fail_after(60), pytest.raises(WorkspaceError, match="pipe"):
            await USES[use](files, "pipe")
    assert await files.list() == []


@posix
async def test_only_what_can_be_named_is_listed(files: LocalWorkspace) -> None:
    place = own_folder(files)
    for name in ("plain", "a:b", "a\\b", "end.", ".0123456789abcdef.tmp"):
        (place / name).write_text("")
    (place / "link").symlink_to(place / "plain")
    assert await files.list() == ["plain"]


async def test_failing_write_leaves_the_old_file(files: LocalWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    await files.write_text("a", "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_all", fail)
    with pytest.raises(WorkspaceError, match=r"could not write 'a' .*No space left") as caught:
        await files.write_text("a", "new")
    assert str(files.root) not in str(caught.value)
    assert everything_in(own_folder(files)) == {own_folder(files) / "a": b"old"}


async def test_cancelled_write_changes_nothing_afterwards(
    files: LocalWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.write_text("a", "old")
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    write_all, close = folder.write_all, folder.Folder.close

    def wait(descriptor: int, data: bytes) -> None:
        begun.set()
        go.wait(60)
        write_all(descriptor, data)

    def closing(self: folder.Folder) -> None:
        close(self)
        if go.is_set():
            ended.set()

    monkeypatch.setattr(folder, "write_all", wait)
    monkeypatch.setattr(folder.Folder, "close", closing)
    async with anyio.create_task_group() as group:
        group.start_soon(files.write_text, "a", "new")
        await anyio.to_thread.run_sync(begun.wait, 60)
        group.cancel_scope.cancel()
    go.set()
    await anyio.to_thread.run_sync(ended.wait, 60)
    assert everything_in(own_folder(files)) == {own_folder(files) / "a": b"old"}


async def test_cancelled_write_makes_no_folders_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalWorkspace(tmp_path / "root")
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    enter, close = folder.Folder.enter, folder.Folder.close

    def wait(self: folder.Folder, name: str, create: bool) -> folder.Folder:
        inner = enter(self, name, create)
        if name == "one":
            begun.set()
            go.wait(60)
        return inner

    def closing(self: folder.Folder) -> None:
        close(self)
        if go.is_set():
            ended.set()

    monkeypatch.setattr(folder.Folder, "enter", wait)
    monkeypatch.setattr(folder.Folder, "close", closing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.write_text, "one/two/a", "new")
        await anyio.to_thread.run_sync(begun.wait, 60)
        tasks.cancel_scope.cancel()
    go.set()
    assert ended.wait(60)
    assert list((tmp_path / "root").rglob("*")) == [tmp_path / "root" / "one"]


async def test_disk_that_hangs_ends_the_wait(files: LocalWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    go, ended = threading.Event(), threading.Event()
    close = folder.Folder.close

    def hang(*_: object) -> None:
        go.wait(60)

    def note_end(self: folder.Folder) -> None:
        close(self)
        if go.is_set():
            ended.set()

    monkeypatch.setattr("agentrt.workspace.local._DISK_SECONDS", 0.05)
    monkeypatch.setattr(folder, "write_all", hang)
    monkeypatch.setattr(folder.Folder, "close", note_end)
    try:
        with pytest.raises(WorkspaceError, match="no answer"):
            await files.write_text("a", "new")
    finally:
        go.set()
        await anyio.to_thread.run_sync(ended.wait, 60)


@pytest.mark.parametrize("root", ["", None, 1, __file__])
def test_root_that_cannot_be_a_folder_is_refused(root: object) -> None:
    with pytest.raises(ConfigError, match="LocalWorkspace"):
        LocalWorkspace(root)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1", None])
def test_size_that_is_not_a_number_of_bytes_is_refused(limit: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_file_size"):
        LocalWorkspace(tmp_path, max_file_size=limit)  # type: ignore[arg-type]


@posix
@pytest.mark.parametrize("is_dangling", [False, True])
@pytest.mark.parametrize("use", [*USES, "list own", "write own"])
async def test_a_link_in_the_place_of_the_root_is_not_followed(use: str, is_dangling: bool, tmp_path: Path) -> None:
    outside, files = tmp_path / "outside", LocalWorkspace(tmp_path / "root")
    (tmp_path / "root").symlink_to(outside)
    if not is_dangling:
        outside.mkdir()
        (outside / "a").write_text("old")
    before = everything_in(tmp_path)
    if use.endswith(" own"):
        files, use = files.namespace("ann"), "list" if use == "list own" else "write_text"
    with pytest.raises(AccessDenied, match="link"):
        await USES[use](files, "a")
    assert everything_in(tmp_path) == before


@posix
async def test_links_in_the_path_of_the_root_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    await LocalWorkspace(tmp_path / "link").write_text("a", "new")
    assert (tmp_path / "real" / "a").read_text() == "new"


async def test_copies_are_of_the_same_files(files: LocalWorkspace) -> None:
    await files.write_text("a", "new")
    for other in (copy.copy(files), copy.deepcopy(files), pickle.loads(pickle.dumps(files))):
        assert await other.read_text("a") == "new"
    assert repr(files) == f"LocalWorkspace({str(files.root)!r}).namespace('subagents/ann')"


# How a tool gets one.


async def keep(text: str, context: ToolContext) -> str:
    await context.workspace.write_text("kept.txt", text)
    return "kept"


async def test_tool_finds_the_workspace_of_its_agent(files: LocalWorkspace) -> None:
    model = ScriptedChatModel([[call("1", "keep", text="hello")], "done"])
    await Agent("keeper", model=model, tools=[keep], workspace=files).reply("go")
    assert await files.read_text("kept.txt") == "hello"


async def test_denied_path_is_a_result_for_the_model(files: LocalWorkspace) -> None:
    async def save(path: str, context: ToolContext) -> str:
        await context.workspace.write_text(path, "x")
        return "saved"

    model = ScriptedChatModel([[call("1", "save", path="../a")], "done"])
    agent = Agent("keeper", model=model, tools=[save], workspace=files)
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.state == "error"
    assert "'../a'" in str(result.output)
    assert not (files.root / "subagents" / "a").exists()


async def test_conversations_share_the_workspace_unless_given_another(files: LocalWorkspace) -> None:
    agent = Agent("keeper", model=ScriptedChatModel(["done"]), workspace=files)
    other = agent.with_state(type(agent.state)())
    assert other.workspace is files
    other.workspace = files.namespace("other")
    assert agent.workspace is files


def test_agent_without_a_workspace_has_none() -> None:
    agent = Agent("keeper", model=ScriptedChatModel(["done"]))
    tool_call = ToolCallBlock("1", "keep", "{}")
    assert agent.workspace is None
    assert ToolContext(tool_call).workspace is None
    assert ToolContext(tool_call, agent).workspace is None


async def test_custom_agent_gives_its_tools_a_workspace(files: LocalWorkspace) -> None:
    class Keeper(AgentBase):
        pass

    keeper = Keeper()
    keeper.workspace = files
    context = ToolContext(ToolCallBlock("1", "keep", '{"text": "hello"}'), keeper)
    results = [item async for item in Toolkit([keep]).call_tool_function(context.tool_call, context)]
    assert results[-1].content[0].text == "kept"
    assert await files.read_text("kept.txt") == "hello"


@pytest.mark.parametrize("workspace", ["files", Path("files"), FileSystemBase, 1])
def test_what_is_not_a_workspace_is_refused(workspace: object) -> None:
    with pytest.raises(ConfigError, match=r"Agent\(workspace=...\).*LocalWorkspace\(folder\)"):
        Agent("keeper", model=ScriptedChatModel([]), workspace=workspace)  # type: ignore[arg-type]


async def test_workspace_of_a_class_of_ones_own_checks_paths_too() -> None:
    class InMemory(FileSystemBase):
        def __init__(self) -> None:
            self.files: dict[tuple[str, ...], bytes] = {}

        async def _read(self, parts: tuple[str, ...]) -> bytes:
            return self.files[parts]

        async def _write(self, parts: tuple[str, ...], data: bytes) -> None:
            self.files[parts] = data

    files = InMemory()
    inner = files.namespace("ann")
    await inner.write_text("a/b", "new")
    assert files.files == {("ann", "a", "b"): b"new"}
    assert await inner.read_text("a/b") == "new"
    with pytest.raises(AccessDenied):
        await inner.write_text("../b", "new")
