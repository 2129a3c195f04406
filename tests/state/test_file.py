"""A session's file: whole at any moment, kept to itself, and clear about what is wrong with it."""

import asyncio
import errno
import json
import os
import re
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from agentrt._runtime.database import operations
from agentrt.errors import ConfigError, SessionCorrupt, SessionIOError, SessionVersion, StateError
from agentrt.message import UserMsg
from agentrt.state import AgentState, FileStateStore
from tests.state.disk import fill_disk_at, watch_operations

CHILDREN = Path(__file__).with_name("children.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="speaks of locks and modes as POSIX has them")


def path_of(directory: Path, session_id: str = "s", suffix: str = "state") -> Path:
    return directory / f"{sha256(session_id.encode()).hexdigest()}.{suffix}"


def lock_of(directory: Path, session_id: str = "s") -> Path:
    return directory / f"{path_of(directory, session_id).name[:2]}.lock"


async def saved(directory: Path, summary: str = "old") -> AgentState:
    state = AgentState(session_id="s", summary=summary, context=[UserMsg("user", "the content " * 100)])
    await FileStateStore(directory).save(state)
    return state


class Gate:
    """Holds each `fsync` of a file's content until it is opened, and notes each `replace`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.replaced = 0
        watch_operations(monkeypatch, self._before)

    def _before(self, operation: str) -> None:
        self.replaced += operation == "replace"
        if operation in ("fsync", "fdatasync"):
            self.reached.set()
            assert self.opened.wait(60)

    async def wait(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, 60)


@pytest.mark.parametrize("times", [3, pytest.param(500, marks=pytest.mark.slow)])
def test_process_killed_in_a_save_leaves_the_old_or_new_state(tmp_path, times, program_runner):
    done = program_runner.run(CHILDREN, str(tmp_path), str(times))
    assert done.stdout.startswith(f"whole after {times} kills"), done.stderr
    assert "in a line" in done.stdout
    assert "in a new file" in done.stdout


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.slow)])
async def test_four_processes_that_add_to_one_number_lose_nothing(tmp_path, times, anyio_backend, program_runner):
    errors = tmp_path / "errors"
    program = "import sys, anyio; from tests.state.children import increment; anyio.run(increment, *sys.argv[1:])"
    children = [program_runner.start(program, str(tmp_path), str(times), errors=errors) for _ in range(4)]
    exit_codes = [child.wait() for child in children]
    assert exit_codes == [0] * 4, errors.read_text()
    assert (await FileStateStore(tmp_path).load("s")).summary == str(4 * times)


async def fail_at(number: int, directory: Path, state: AgentState, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Save while the nth operation finds the disk full; return the operation that failed."""
    with monkeypatch.context() as patch:
        done = fill_disk_at(number, patch)
        try:
            await FileStateStore(directory).save(state)
        except SessionIOError as exc:
            text = str(exc)
            assert "No space left" in text
            assert str(path_of(directory)) in text
            assert "the content" not in text
            return done[number - 1]
    return None


@pytest.mark.parametrize("exists", [True, False])
async def test_full_disk_at_any_operation_leaves_the_old_or_new_state(tmp_path, monkeypatch, exists):
    state = AgentState(session_id="s")
    if exists:
        state = await saved(tmp_path)
    state.summary, number, failed = "new", 0, []
    old = "old" if exists else None
    while (operation := await fail_at(number := number + 1, tmp_path, state, monkeypatch)) is not None:
        failed.append(operation)
        found = await FileStateStore(tmp_path).load("s")
        assert (found and found.summary) in (old, "new")
        if found and found.summary == "new":  # only the directory was not safe yet, and the state knows
            assert state.revision == found.revision
            old = "new"
        assert not [*tmp_path.glob("*.tmp")]
    assert {"open", "write", "fsync", "replace"} <= set(failed)
    assert await FileStateStore(tmp_path).load("s") == state


async def test_content_is_synced_before_its_name_and_then_save_returns(tmp_path, monkeypatch):
    done: list[str] = []
    await FileStateStore(tmp_path).delete("s")  # which makes the folder
    watch_operations(monkeypatch, done.append)
    await FileStateStore(tmp_path).save(AgentState(session_id="s"))
    last_write, replace = len(done) - 1 - done[::-1].index("write"), done.index("replace")
    assert done[last_write:replace] == ["write", "fsync"]
    assert done[replace:] == ["replace", "open", "fsync"]


async def test_later_save_appends_and_syncs_before_it_returns(tmp_path, monkeypatch):
    store, state = FileStateStore(tmp_path), AgentState(session_id="s")
    await store.save(state)
    done: list[str] = []
    watch_operations(monkeypatch, done.append)
    await store.save(state)
    assert [*dict.fromkeys(done)] == ["open", "write", "fdatasync"]


async def test_files_are_for_their_owner_alone_and_named_by_no_id(tmp_path):
    directory = tmp_path / "made" / "here"
    old = os.umask(0)
    try:
        await FileStateStore(directory).save(AgentState(session_id="../../alice"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(directory.stat().st_mode) == stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()} == {0o600}
    names = {path_of(directory, "../../alice"), lock_of(directory, "../../alice")}
    assert {*directory.iterdir()} == names
    assert [*tmp_path.iterdir()] == [directory.parent]


async def test_creating_a_store_and_loading_from_it_write_nothing(tmp_path):
    assert await FileStateStore(tmp_path / "states").load("s") is None
    assert [*tmp_path.iterdir()] == []


async def test_a_relative_directory_is_the_one_of_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = FileStateStore("states")
    monkeypatch.chdir("/")
    await store.save(AgentState(session_id="s"))
    assert path_of(tmp_path / "states").exists()


async def test_file_can_be_read_and_verified_by_hand(tmp_path):
    store, state = FileStateStore(tmp_path), AgentState(session_id="s", context=[UserMsg("user", "Hi")])
    for summary in ("old", "new"):
        state.summary = summary
        await store.save(state)
    head, *lines = path_of(tmp_path).read_text().splitlines()
    assert head == '{"format": "agentrt-state", "version": 2, "session_id": "s"}'
    for number, (line, summary) in enumerate(zip(lines, ["old", "new"], strict=True), 2):
        command = f"sed -n {number}p {path_of(tmp_path)} | cut -c 66- | tr -d '\\n' | sha256sum"
        checksum = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.split()[0]
        assert line.startswith(f"{checksum} {state.revision - 3 + number} ")
        save = json.loads(line.split(" ", 2)[2])
        assert [save["at"], len(save["new"]), save["rest"]["summary"]] == [number - 2, 3 - number, summary]


async def test_symbolic_link_in_place_of_the_file_is_never_followed(tmp_path):
    await saved(tmp_path / "other")
    target = path_of(tmp_path / "other")
    before = target.read_bytes()
    path_of(tmp_path).symlink_to(target)
    with pytest.raises(SessionIOError, match="symbolic link"):
        await FileStateStore(tmp_path).load("s")
    with pytest.raises(SessionIOError, match="symbolic link"):
        await FileStateStore(tmp_path).save(AgentState(session_id="s"))
    assert target.read_bytes() == before
    await FileStateStore(tmp_path).delete("s")
    assert target.read_bytes() == before


@pytest.mark.parametrize("place", [path_of, lock_of])
async def test_symbolic_link_in_place_of_a_temporary_file_is_harmless(tmp_path, place):
    directory = tmp_path / "states"
    directory.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (place(directory) if place is lock_of else path_of(directory, suffix="tmp")).symlink_to(victim)
    if place is lock_of:
        with pytest.raises(SessionIOError, match="symbolic link"):
            await FileStateStore(directory).save(AgentState(session_id="s"))
    else:
        await FileStateStore(directory).save(AgentState(session_id="s"))
        assert not path_of(directory).is_symlink()
    assert victim.read_text() == "precious"


def rewritten(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return the file with a change in its state, and a checksum and sizes that are right for it."""
    head, line = data.splitlines(keepends=True)
    assert old in line
    about, new_mark, body = line[65:].removesuffix(b"\n").partition(b',"new":[')
    body = body.replace(old, new)
    size = len(body.partition(b'],"rest":')[2]) - 1
    text = re.sub(rb'"rest_size":\d+', b'"rest_size":%d' % size, about) + new_mark + body
    return head + checksummed(text)


def checksummed(text: bytes) -> bytes:
    return sha256(text).hexdigest().encode() + b" " + text + b"\n"


def with_line(data: bytes, text: bytes) -> bytes:
    return data.partition(b"\n")[0] + b"\n" + checksummed(text)


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], type[StateError], str]] = {
    "empty": (lambda data: b"", SessionCorrupt, "is not one of agentrt"),
    "cut in the head": (lambda data: data[:40], SessionCorrupt, "is not one of agentrt"),
    "cut in half": (lambda data: data[: len(data) // 2], SessionCorrupt, "checksum"),
    "one byte short": (lambda data: data[:-1], SessionCorrupt, "checksum"),
    "other end": (lambda data: data[:-1] + b"x", SessionCorrupt, "checksum"),
    "a line more": (lambda data: data + b"x\n", SessionCorrupt, "checksum"),
    "a line twice": (lambda data: data + data.splitlines(keepends=True)[1], SessionCorrupt, "checksum"),
    "a bit of the state": (lambda data: data.replace(b"content", b"contend", 1), SessionCorrupt, "checksum"),
    "a bit of the head": (lambda data: data.replace(b" ", b"\t", 1), SessionCorrupt, "checksum"),
    "zeros": (lambda data: bytes(len(data)), SessionCorrupt, "is not one of agentrt"),
    "no state": (lambda data: b"the content", SessionCorrupt, "is not one of agentrt"),
    "other JSON": (lambda data: b'["the content"]', SessionCorrupt, "is not one of agentrt"),
    "deep": (lambda data: b"[" * 100_000, SessionCorrupt, "is not one of agentrt"),
    "another session": (lambda data: data.replace(b'"s"', b'"t"', 1), SessionCorrupt, "than 's'"),
    "no revision": (lambda data: with_line(data, b'{"at":0,"sizes":[],"new":[]}'), SessionCorrupt, "checksum"),
    "no sizes": (lambda data: with_line(data, b'1 {"at":0,"new":[]}'), SessionCorrupt, "checksum"),
    "no rest": (lambda data: with_line(data, b'1 {"at":0,"sizes":[],"new":[]}'), SessionCorrupt, "checksum"),
    "a gap": (
        lambda data: with_line(data, b'1 {"at":1,"sizes":[],"rest_size":2,"new":[],"rest":{}}'),
        SessionCorrupt,
        "checksum",
    ),
    "newer format": (lambda data: data.replace(b'version": 2', b'version": 3', 1), SessionVersion, "format 3, but"),
}
STATES: dict[str, tuple[bytes, bytes, type[StateError], str]] = {
    "newer state": (b'"version":1', b'"new":"the content","version":2', SessionVersion, "understand its 'version'"),
    "unknown field": (b'"version":1', b'"new":"the content","version":1', SessionVersion, "understand its 'new'"),
    "other type": (b'"summary":"old"', b'"summary":["the content"]', SessionVersion, "understand its 'summary'"),
    "no JSON": (b'"version":1', b'"the content', SessionCorrupt, "does not hold the JSON"),
    "other message": (b'"role":"user"', b'"role":"ruse"', SessionVersion, "understand its 'context'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_is_refused_and_kept(tmp_path, damage):
    change, error, told = DAMAGES[damage]
    state = await saved(tmp_path)
    data = change(path_of(tmp_path).read_bytes())
    path_of(tmp_path).write_bytes(data)
    for operation in (partial(FileStateStore(tmp_path).load, "s"), partial(FileStateStore(tmp_path).save, state)):
        with pytest.raises(error, match=told) as caught:
            await operation()
        shown = "".join(traceback.format_exception(caught.value))
        assert str(path_of(tmp_path)) in str(caught.value)
        assert "the content" not in shown
    assert path_of(tmp_path).read_bytes() == data


@pytest.mark.parametrize("change", STATES)
async def test_intact_file_of_another_version_is_refused_and_kept(tmp_path, change):
    old, new, error, told = STATES[change]
    await saved(tmp_path)
    data = rewritten(path_of(tmp_path).read_bytes(), old, new)
    path_of(tmp_path).write_bytes(data)
    with pytest.raises(error, match=told) as caught:
        await FileStateStore(tmp_path).load("s")
    assert "the content" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
    assert path_of(tmp_path).read_bytes() == data


async def test_a_damaged_file_can_be_deleted(tmp_path):
    path_of(tmp_path).write_text("damaged")
    store = FileStateStore(tmp_path)
    await store.delete("s")
    await store.save(AgentState(session_id="s"))


@pytest.mark.parametrize("damage", ["empty", "zeros", "other end", "another session"])
async def test_damaged_file_hides_no_other_session(tmp_path, damage, caplog):
    await saved(tmp_path)
    store = FileStateStore(tmp_path, ttl=3600)
    for name in ("a", "z"):
        await store.save(AgentState(session_id=name))
    path = path_of(tmp_path)
    path.write_bytes(DAMAGES[damage][0](path.read_bytes()))
    for _ in range(2):
        page = await store.list(limit=1)
        assert [info.session_id for info in page.sessions] == ["a"]
        page = await store.list(cursor=page.cursor)
        assert [info.session_id for info in page.sessions] == ["z"]
    [record] = caplog.records
    assert str(path) in record.getMessage()
    os.utime(path_of(tmp_path, "a"), (0, 0))
    assert await store.expire() == 1


async def test_file_in_place_of_the_directory_is_named_in_the_error(tmp_path):
    store = FileStateStore(tmp_path / "states")
    (tmp_path / "states").write_text("a file")
    for operation in (store.save(AgentState(session_id="s")), store.load("s"), store.delete("s")):
        with pytest.raises(SessionIOError, match=r"could not \w+ session 's' in '.*/states/.*': Not a directory"):
            await operation


def test_a_path_that_cannot_be_a_folder_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    never = ["file", "file/below", "loop", "nul\0", "half \ud800", "x" * 300]
    for path in [str(tmp_path / each) for each in never] + [tmp_path / "file"]:
        with pytest.raises(ConfigError, match=r"FileStateStore cannot keep its files in '.*: give the path of a"):
            FileStateStore(path)
    for wrong in (None, 3, b"states", ""):
        with pytest.raises(ConfigError, match="FileStateStore needs the path of the folder that keeps its files"):
            FileStateStore(wrong)
    FileStateStore(tmp_path / "not" / "made" / "yet")
    assert not (tmp_path / "not").exists()


async def test_only_leftovers_of_dead_processes_are_removed(tmp_path):
    import fcntl

    left, used, foreign = path_of(tmp_path, "left", "tmp"), path_of(tmp_path, "used", "tmp"), tmp_path / "mine.tmp"
    for each in (left, used, foreign):
        each.write_text("half a sta")
    with lock_of(tmp_path, "used").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await FileStateStore(tmp_path).save(AgentState(session_id="s"))
    assert {*tmp_path.glob("*.tmp")} == {used, foreign}


async def test_lock_that_is_never_released_ends_the_wait_with_an_error(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(operations, "MAX_WAIT", 0.05)
    state = await saved(tmp_path)
    with lock_of(tmp_path).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SessionIOError, match="another process has held its lock"):
            await FileStateStore(tmp_path).save(state)
        assert await FileStateStore(tmp_path).load("s") == state
    await FileStateStore(tmp_path).save(state)


HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


async def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    state = await saved(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(lock_of(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        state.summary = "after the kill"
        async with anyio.create_task_group() as group:
            group.start_soon(FileStateStore(tmp_path).save, state)
            await anyio.wait_all_tasks_blocked()
            holder.kill()
    assert (await FileStateStore(tmp_path).load("s")).summary == "after the kill"


async def test_a_save_cancelled_while_it_waits_for_the_lock_is_whole(tmp_path):
    import fcntl

    state = await saved(tmp_path)
    state.summary = "cancelled"
    with lock_of(tmp_path).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with anyio.create_task_group() as group:
            group.start_soon(FileStateStore(tmp_path).save, state)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            fcntl.flock(lock, fcntl.LOCK_UN)
    assert (await FileStateStore(tmp_path).load("s")).summary == "cancelled"


async def test_a_file_system_without_locks_refuses_the_save(tmp_path, monkeypatch):
    import fcntl

    state = await saved(tmp_path)
    before = path_of(tmp_path).read_bytes()

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SessionIOError, match="No locks available"):
        await FileStateStore(tmp_path).save(state)
    assert path_of(tmp_path).read_bytes() == before


async def test_hanging_disk_ends_the_wait_and_is_not_used_twice(tmp_path, monkeypatch):
    state = await saved(tmp_path)
    monkeypatch.setattr(operations, "MAX_WAIT", 0.3)
    monkeypatch.setattr(operations, "_EXTRA_WAIT", 0.05)
    gate, store = Gate(monkeypatch), FileStateStore(tmp_path)
    state.summary = "slow"
    with pytest.raises(SessionIOError, match=r"no answer .* may or may not"):
        await store.save(state)
    for summary in ("never", "never either"):
        state.summary = summary
        with pytest.raises(SessionIOError, match=r"an earlier operation on it has not ended|no answer"):
            await store.save(state)
    monkeypatch.setattr(operations, "MAX_WAIT", 10)
    gate.opened.set()
    assert (await store.load("s")).summary == "slow"
    state.summary = "fast again"
    await store.save(state)
    assert gate.replaced == 2
    assert await store.load("s") == state


async def test_a_cancelled_save_is_whole_when_it_returns(tmp_path, monkeypatch):
    state = await saved(tmp_path)
    gate, store = Gate(monkeypatch), FileStateStore(tmp_path)
    state.summary = "new"
    returned = []

    async def save() -> None:
        await store.save(state)
        returned.append(gate.opened.is_set())

    async with anyio.create_task_group() as group:
        group.start_soon(save)
        await gate.wait()
        group.cancel_scope.cancel()
        gate.opened.set()
    assert returned == [True]
    assert await FileStateStore(tmp_path).load("s") == state


async def test_what_is_saved_is_the_state_at_the_call(tmp_path, monkeypatch):
    gate, store = Gate(monkeypatch), FileStateStore(tmp_path)
    state = AgentState(session_id="s", summary="before")
    async with anyio.create_task_group() as group:
        group.start_soon(store.save, state)
        await gate.wait()
        state.summary = "after"
        gate.opened.set()
    assert (await store.load("s")).summary == "before"


async def test_save_cancelled_before_it_begins_writes_nothing(tmp_path):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await FileStateStore(tmp_path).save(AgentState())
    assert scope.cancelled_caught
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_save_cancelled_by_asyncio_ends_before_the_next_begins(tmp_path, monkeypatch, anyio_backend):
    gate, store = Gate(monkeypatch), FileStateStore(tmp_path)
    state = AgentState(session_id="s")
    tasks = []
    for summary in ("first", "second", "third"):
        state.summary = summary
        tasks.append(asyncio.create_task(store.save(state)))
        await gate.wait()
        await asyncio.sleep(0.01)  # lets it come to where it waits for the first
        if summary != "third":
            tasks[-1].cancel()
    done = await asyncio.gather(*tasks[:2], return_exceptions=True)
    assert [type(each) for each in done] == [asyncio.CancelledError] * 2
    assert gate.replaced == 0
    assert not path_of(tmp_path).exists()
    gate.opened.set()
    await tasks[2]
    assert gate.replaced == 2  # the second, which had not begun, never was
    assert (await store.load("s")).summary == "third"
    assert (await store.load("s")).revision == state.revision


async def test_one_store_serves_one_event_loop_after_another(tmp_path, anyio_backend):
    store = FileStateStore(tmp_path)
    state = AgentState(session_id="s")
    await store.save(state)
    other = "trio" if anyio_backend == "asyncio" else "asyncio"
    thread = threading.Thread(target=anyio.run, args=(store.save, state), kwargs={"backend": other})
    thread.start()
    thread.join()
    await store.save(state)
    assert await store.load("s") == state


async def test_store_keeps_nothing_of_finished_operations(tmp_path):
    store = FileStateStore(tmp_path)
    for number in range(3):
        await store.save(AgentState(session_id=str(number)))
        await store.load("nobody")
    assert store._operations._lines == {}


async def test_work_whose_callers_have_left_leaves_nothing_behind():
    queue, has_begun, may_end = operations.OperationQueue(2), threading.Event(), threading.Event()

    def work(deadline: float) -> None:
        has_begun.set()
        may_end.wait(60)

    async with anyio.create_task_group() as group:
        for _ in range(2):  # the second one never runs
            group.start_soon(partial(queue.run, "key", work, shield=False))
        await anyio.to_thread.run_sync(has_begun.wait)
        group.cancel_scope.cancel()
    may_end.set()
    while queue._lines:  # noqa: ASYNC110  # the thread has nobody to tell
        await anyio.sleep(0.005)
