"""A session's journal: it grows with what is new, a crash costs nothing that was saved, and damage is refused."""

import errno
import io
import os
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from itertools import count, pairwise
from json import dumps
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt.errors import SessionConflict, SessionCorrupt, SessionIOError, SessionUnserializable, SessionVersion
from agentrt.message import Msg, UserMsg
from agentrt.state import AgentState, FileStateStore, file, file_store, store
from agentrt.state.state import state_to_json

pytestmark = [
    pytest.mark.usefixtures("disk_needs_no_time"),
    pytest.mark.skipif(sys.platform == "win32", reason="speaks of locks and modes as POSIX has them"),
]


def path_of(directory: Path) -> Path:
    return directory / f"{sha256(b's').hexdigest()}.state"


def new_messages(number: int, text: str = "message") -> list[Msg]:
    return [UserMsg("user", f"{text} {index}") for index in range(number)]


async def saved(directory: Path, *texts: str) -> AgentState:
    """Save a message after the other, and return the state."""
    state_store, state = FileStateStore(directory), AgentState(session_id="s")
    for text in texts:
        state.context.append(UserMsg("user", text))
        await state_store.save(state)
    return state


async def load(directory: Path) -> AgentState:
    state = await FileStateStore(directory).load("s")
    assert state is not None
    return state


class Disk:
    """The module `os` of a disk that fails: `fails` says at which operations, and `limit` how much a write takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *fails: str, limit: int = 10, code: int = errno.EIO) -> None:
        self.fails, self.limit, self.code = [*fails], limit, code
        self.written = 0
        self.operations: list[str] = []
        for module in (file, file_store):
            monkeypatch.setattr(module, "os", self)

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in ("write", "fsync", "fdatasync", "ftruncate", "replace"):
            return function

        def operation(*arguments: Any) -> Any:
            self.operations.append(name)
            if name in self.fails:
                raise OSError(self.code, os.strerror(self.code))
            return function(*arguments)

        return operation

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write a part, until the limit is reached."""
        self.operations.append("write")
        if "write" in self.fails and self.written >= self.limit:
            raise OSError(self.code, os.strerror(self.code))
        size = os.write(descriptor, data[: self.limit if "write" in self.fails else 1000])
        self.written += size
        return size


async def test_save_writes_no_more_in_a_long_conversation(tmp_path):
    sizes = []
    for number in (0, 5000):
        directory = tmp_path / str(number)
        state_store, state = FileStateStore(directory), AgentState(session_id="s", context=new_messages(number))
        await state_store.save(state)
        before = path_of(directory).stat().st_size
        state.context.append(UserMsg("user", "new"))
        await state_store.save(state)
        sizes.append(path_of(directory).stat().st_size - before)
        assert await load(directory) == state
    assert sizes[0] == pytest.approx(sizes[1], abs=10)


async def test_a_loaded_state_is_saved_by_appending(tmp_path):
    await saved(tmp_path, "one", "two")
    before = path_of(tmp_path).read_bytes()
    state_store = FileStateStore(tmp_path)
    state = await state_store.load("s")
    state.context.append(UserMsg("user", "three"))
    await state_store.save(state)
    added = path_of(tmp_path).read_bytes().removeprefix(before)
    assert added.count(b"\n") == 1
    assert b'{"at":2,' in added


async def test_a_loaded_state_with_nothing_new_is_not_serialised_whole(tmp_path, monkeypatch):
    await FileStateStore(tmp_path).save(AgentState(session_id="s", context=new_messages(1000)))
    state_store = FileStateStore(tmp_path)
    state = await state_store.load("s")
    monkeypatch.setattr(Msg, "copy", None)
    await state_store.save(state)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_journal_is_written_anew_at_four_times_its_size(tmp_path, monkeypatch, anyio_backend):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s", context=new_messages(300))
    await state_store.save(state)
    monkeypatch.setattr(Msg, "copy", None)  # nothing is read from the state again, neither then nor in the next save
    sizes = []
    for number in range(400):
        state.summary = f"{number} {'x' * 3000}"
        await state_store.save(state)
        sizes.append(path_of(tmp_path).stat().st_size)
    whole = len(state.model_dump_json())
    assert whole < min(sizes)
    assert max(sizes) < 4.5 * whole
    assert sum(after < before for before, after in pairwise(sizes)) in range(2, 10)
    assert await load(tmp_path) == state


@pytest.mark.parametrize(
    ("short", "place", "length", "limit"),
    [(10, 5, 5000, 100_000), (50, 50, 20_000, 200_000)],
    ids=["among the last", "long after short"],
)
async def test_messages_replaced_for_ever_do_not_let_the_file_grow(tmp_path, short, place, length, limit):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s", context=new_messages(short))
    for number in range(100):
        state.context[place:] = [UserMsg("user", f"{number} {'x' * length}")]
        await state_store.save(state)
    assert path_of(tmp_path).stat().st_size < limit
    assert await load(tmp_path) == state


async def test_a_small_journal_is_not_written_anew(tmp_path, monkeypatch):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)
    disk = Disk(monkeypatch)
    for _ in range(20):
        await state_store.save(state)
    assert "replace" not in disk.operations


async def test_many_new_messages_are_whole_wherever_the_file_is_cut(tmp_path):
    state = await saved(tmp_path, "one")
    before = path_of(tmp_path).read_bytes()
    state_store = FileStateStore(tmp_path)
    state = await state_store.load("s")
    state.context += new_messages(250)
    await state_store.save(state)
    data = path_of(tmp_path).read_bytes()
    assert data[len(before) :].count(b"\n") == 3
    for end in range(len(before), len(data), 997):
        path_of(tmp_path).write_bytes(data[:end])
        assert [message.content for message in (await load(tmp_path)).context] == ["one"]
    path_of(tmp_path).write_bytes(data)
    assert await load(tmp_path) == state


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_last_line_cut_anywhere_is_dropped_and_then_cut_off(tmp_path, anyio_backend):
    await saved(tmp_path, "one", "two")
    data = path_of(tmp_path).read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(data)):
        path_of(tmp_path).write_bytes(data[:end])
        state_store = FileStateStore(tmp_path)
        state = await state_store.load("s")
        assert [message.content for message in state.context] == ["one"]
        if end % 29 == 0:
            state.context.append(UserMsg("user", "other"))
            await state_store.save(state)
            assert path_of(tmp_path).read_bytes().startswith(data[:start])
            assert await load(tmp_path) == state


async def test_line_replaced_while_it_is_read_is_not_taken_for_damage(tmp_path, monkeypatch):
    """A reader finds the beginning of a torn line, and the end of the one that a writer put in its place."""
    state = await saved(tmp_path, "one")
    path = path_of(tmp_path)
    before = path.read_bytes()
    state.context.append(UserMsg("user", "two"))
    await FileStateStore(tmp_path).save(state)
    after = path.read_bytes()
    mixed = before + b"torn" + after[len(before) + 4 :]
    contents = [after, mixed]

    def open_file(descriptor: int, mode: str, **options: bool) -> io.BytesIO:
        return io.BytesIO(contents.pop())

    monkeypatch.setattr(file_store, "open", open_file, raising=False)
    assert await load(tmp_path) == state
    contents = [mixed, mixed]
    with pytest.raises(SessionCorrupt):
        await load(tmp_path)


async def test_zeros_that_a_power_loss_left_at_the_end_are_dropped(tmp_path):
    state = await saved(tmp_path, "one")
    with path_of(tmp_path).open("ab") as journal:
        journal.write(bytes(4096))
    assert await load(tmp_path) == state
    state.revision = (await load(tmp_path)).revision
    await FileStateStore(tmp_path).save(state)
    assert bytes(1) not in path_of(tmp_path).read_bytes()


@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flip_anywhere_is_refused_and_the_file_kept(tmp_path_factory, position, byte):
    directory = tmp_path_factory.getbasetemp() / "flips"
    if not directory.exists():
        anyio.run(saved, directory, "one", "two", "three")
        path_of(directory).with_suffix(".whole").write_bytes(path_of(directory).read_bytes())
    data = bytearray(path_of(directory).with_suffix(".whole").read_bytes())
    data[int(position * len(data))] ^= byte
    path_of(directory).write_bytes(data)
    with pytest.raises((SessionCorrupt, SessionVersion)):
        anyio.run(FileStateStore(directory).load, "s")
    assert path_of(directory).read_bytes() == data


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("fails", [["write"], ["fdatasync"], ["write", "ftruncate"], ["fdatasync", "ftruncate"]])
@pytest.mark.parametrize("limit", [1, 70, 300])
async def test_failed_append_loses_nothing_and_the_next_save_works(tmp_path, monkeypatch, code, fails, limit):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s", context=new_messages(1))
    await state_store.save(state)
    based_on = state.revision
    with monkeypatch.context() as patch:
        Disk(patch, *fails, limit=limit, code=code)
        state.context.append(UserMsg("user", "new"))
        with pytest.raises(SessionIOError, match=r"could not save session 's'"):
            await state_store.save(state)
    found = await load(tmp_path)
    assert len(found.context) == (1 if state.revision == based_on else 2)
    assert found.revision == state.revision
    for text in ("newer", "newest"):
        state.context.append(UserMsg("user", text))
        await state_store.save(state)
        assert await load(tmp_path) == state


async def test_failed_append_never_gives_its_revision_to_another_state(tmp_path, monkeypatch):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)
    with monkeypatch.context() as patch:
        disk = Disk(patch, "fdatasync")
        readers: list[AgentState] = []
        truncate = os.ftruncate

        def read_and_cut(descriptor: int, size: int) -> None:
            readers.append(anyio.run(load, tmp_path))
            truncate(descriptor, size)

        patch.setattr(Disk, "ftruncate", staticmethod(read_and_cut), raising=False)
        state.summary = "seen, and not saved"
        with pytest.raises(SessionIOError):
            await state_store.save(state)
        assert disk.operations[-1] == "fdatasync"
    state.summary = "saved"
    await state_store.save(state)
    [reader] = readers
    assert reader.summary == "seen, and not saved"
    with pytest.raises(SessionConflict):
        await state_store.save(reader)


async def test_disk_without_room_for_a_second_file_still_takes_appends(tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "_MAX_SMALL", 0)
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)
    Disk(monkeypatch, "fsync", "replace")
    for number in range(20):
        state.summary = str(number)
        await state_store.save(state)
    assert not [*tmp_path.glob("*.tmp")]
    assert (await load(tmp_path)) == state


def whole_file(state: AgentState, revision: int) -> bytes:
    """Return a file of the first version, which held the whole state."""
    rest = dumps({"session_id": state.session_id, "revision": revision}).encode() + b"\n" + state_to_json(state) + b"\n"
    head = dumps({"format": "agentrt-state", "version": 1, "sha256": sha256(rest).hexdigest()})
    return head.encode() + b"\n" + rest


@pytest.mark.parametrize("loads", [True, False])
async def test_file_of_the_first_version_is_read_and_becomes_a_journal(tmp_path, loads):
    state = AgentState(session_id="s", context=new_messages(3), summary="old")
    path_of(tmp_path).write_bytes(whole_file(state, 7))
    state_store = FileStateStore(tmp_path)
    state.revision = 7
    assert await state_store.load("s") == state
    if loads:
        state = await state_store.load("s")
    state.context.append(UserMsg("user", "new"))
    await state_store.save(state)
    assert state.revision == 8
    assert b'"version": 2' in path_of(tmp_path).read_bytes().splitlines()[0]
    assert await load(tmp_path) == state
    with pytest.raises(SessionConflict):
        await FileStateStore(tmp_path).save(AgentState(session_id="s", revision=7))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-5],
        lambda data: data.replace(b"old", b"odd"),
        lambda data: data.replace(b'"revision": 7', b'"revision": 8'),
    ],
)
async def test_damaged_file_of_the_first_version_is_refused_and_kept(tmp_path, change: Callable[[bytes], bytes]):
    data = change(whole_file(AgentState(session_id="s", summary="old"), 7))
    path_of(tmp_path).write_bytes(data)
    with pytest.raises(SessionCorrupt, match="its checksum is wrong"):
        await load(tmp_path)
    with pytest.raises(SessionCorrupt, match="its checksum is wrong"):
        await FileStateStore(tmp_path).save(AgentState(session_id="s", revision=7))
    assert path_of(tmp_path).read_bytes() == data


async def test_writer_that_another_one_overtook_gets_a_conflict(tmp_path):
    first, second = FileStateStore(tmp_path), FileStateStore(tmp_path)
    state = AgentState(session_id="s")
    await first.save(state)
    other = await second.load("s")
    await second.save(other)
    with pytest.raises(SessionConflict, match="by another writer"):
        await first.save(state)
    await second.save(other)


async def test_file_that_another_store_wrote_anew_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "_MAX_SMALL", 0)
    first, second = FileStateStore(tmp_path), FileStateStore(tmp_path)
    state = AgentState(session_id="s")
    await first.save(state)
    other = await second.load("s")
    inode = path_of(tmp_path).stat().st_ino
    while path_of(tmp_path).stat().st_ino == inode:
        await second.save(other)
    with pytest.raises(SessionConflict, match="by another writer"):
        await first.save(state)
    assert await load(tmp_path) == other


async def test_deleted_and_begun_anew_file_of_the_same_size_is_noticed(tmp_path, monkeypatch):
    first, second = FileStateStore(tmp_path), FileStateStore(tmp_path)
    state = AgentState(session_id="s")
    await first.save(state)
    about = path_of(tmp_path).stat()
    await second.delete("s")
    await second.save(AgentState(session_id="s"))
    os.utime(path_of(tmp_path), ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path_of(tmp_path).stat().st_size == about.st_size
    with pytest.raises(SessionConflict):
        await first.save(state)


async def test_copy_of_the_file_in_its_place_is_saved_over(tmp_path):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)
    data = path_of(tmp_path).read_bytes()
    path_of(tmp_path).unlink()
    path_of(tmp_path).write_bytes(data)
    state.summary = "new"
    await state_store.save(state)
    assert await load(tmp_path) == state


async def test_a_clock_that_goes_back_loses_no_save(tmp_path, monkeypatch):
    times = count(2_000_000_000_000_000_000, -1_000_000_000_000)
    monkeypatch.setattr(store, "time_ns", lambda: next(times))
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)
    await state_store.delete("s")
    again = AgentState(session_id="s")
    for number in range(3):
        again.summary = str(number)
        await state_store.save(again)
        os.utime(path_of(tmp_path), ns=(0, 0))
    with pytest.raises(SessionConflict):
        await state_store.save(state)
    assert await load(tmp_path) == again


async def test_folder_that_was_removed_is_named_in_the_error(tmp_path):
    state_store, state = FileStateStore(tmp_path / "states"), AgentState(session_id="s")
    await state_store.save(state)
    for path in (tmp_path / "states").iterdir():
        path.unlink()
    (tmp_path / "states").rmdir()
    with pytest.raises(SessionIOError, match=r"could not save session 's' in .*: No such file"):
        await state_store.save(state)
    assert await state_store.load("s") is None


async def test_link_that_took_the_place_of_the_file_is_not_written(tmp_path):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)
    target = tmp_path / "elsewhere"
    path_of(tmp_path).rename(target)
    path_of(tmp_path).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(SessionIOError, match="symbolic link"):
        await state_store.save(state)
    assert target.read_bytes() == before


async def test_parent_and_child_of_a_fork_do_not_overwrite_each_other(tmp_path):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await state_store.save(state)

    def save_in_child() -> int:
        pid = os.fork()
        if pid == 0:  # without a loop of its own: what a worker thread does
            state.summary = "of the child"
            change = file_store.unsaved_changes(state, state_store)
            state_store._file("s").write(change, 1e18)
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    assert save_in_child() == 0
    with pytest.raises(SessionConflict):
        await state_store.save(state)
    assert (await load(tmp_path)).summary == "of the child"


async def test_unserializable_change_leaves_the_journal_as_it_was(tmp_path):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s", context=new_messages(2))
    await state_store.save(state)
    before = path_of(tmp_path).read_bytes()
    for many in (1, 300):
        state.context += new_messages(many)
        state.context[-1].metadata["object"] = object()
        with pytest.raises(SessionUnserializable, match=rf"its context\[{many + 1}\] holds"):
            await state_store.save(state)
        assert path_of(tmp_path).read_bytes() == before
        del state.context[2:]
    await state_store.save(state)
    assert await load(tmp_path) == state


async def test_a_long_history_is_serialised_outside_of_the_event_loop(tmp_path):
    state_store = FileStateStore(tmp_path)
    state = AgentState(session_id="s", context=new_messages(3000, "a longer message " * 20))
    serialised_by = set()
    original = file_store.StateChange.dump_messages

    def dump_messages(change: Any) -> list[bytes]:
        serialised_by.add(threading.current_thread())
        return original(change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_store.StateChange, "dump_messages", dump_messages)
        await state_store.save(state)
    assert threading.current_thread() not in serialised_by
    assert await load(tmp_path) == state


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_saves_of_one_state_side_by_side_keep_the_last(tmp_path, anyio_backend):
    state_store, state = FileStateStore(tmp_path), AgentState(session_id="s")

    async def save(number: int) -> None:
        state.context.append(UserMsg("user", str(number)))
        await state_store.save(state)

    for _ in range(5):
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(save, number)
    await state_store.save(state)
    assert await load(tmp_path) == state


class CancelsAt:
    """Awaits a coroutine, and cancels the scope where that waits for the time that `number` says, from 1."""

    def __init__(self, coroutine: Any, number: int, scope: anyio.CancelScope) -> None:
        self.coroutine, self.left, self.scope = coroutine, number, scope

    def __await__(self) -> Any:
        steps = self.coroutine.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                wanted = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()
            answer = error = None
            try:
                answer = yield wanted
            except BaseException as raised:  # noqa: BLE001  # the coroutine is to have it
                error = raised


async def test_append_that_is_cancelled_at_any_await_loses_nothing(tmp_path):
    state_store, state = FileStateStore(tmp_path), await saved(tmp_path, "first")
    state = await state_store.load("s") or state
    for number in count(1):
        before = [message.get_text_content() for message in state.context]
        state.context.append(UserMsg("user", f"message {number}"))
        with anyio.CancelScope() as scope:
            save = CancelsAt(state_store.save(state), number, scope)
            await save
        found = [message.get_text_content() for message in (await load(tmp_path)).context]
        assert found in (before, [*before, f"message {number}"])
        await state_store.save(state)
        found = [message.get_text_content() for message in (await load(tmp_path)).context]
        assert found == [*before, f"message {number}"]
        if save.left > 0:  # it waited less often than that, so all of its waits have been tried
            break
    assert number > 1


async def test_journal_that_cannot_be_shortened_fails_no_save(tmp_path, monkeypatch):
    state_store, state = FileStateStore(tmp_path), await saved(tmp_path, "first")
    state = await state_store.load("s") or state
    monkeypatch.setattr(file_store, "_MAX_SMALL", 0)
    monkeypatch.setattr(file_store, "_GROWTH", 0)
    read = []

    def fail(*arguments: object, **options: object) -> None:
        read.append(arguments)
        raise SessionCorrupt("damaged meanwhile")

    with monkeypatch.context() as patch:
        patch.setattr(file_store._StateFile, "_read", fail)
        state.context.append(UserMsg("user", "second"))
        await state_store.save(state)
    assert len(read) == 1
    assert [message.get_text_content() for message in (await load(tmp_path)).context] == ["first", "second"]
