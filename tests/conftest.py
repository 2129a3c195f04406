"""The event loops of async tests, and a gate: a test that leaves something behind fails."""

import asyncio
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any

import anyio
import pytest
import trio
from hypothesis import HealthCheck, settings

from agentrt._runtime.concurrency.coroutine_reader import close_at_end, open_readers
from tests.program_runner import ProgramRunner, open_program_runner

# A busy machine is not a failure of what is tested. The examples are the same in every run, so that none fails by
# chance; `--hypothesis-profile=searching` tries others.
# A test that needs more examples says so itself, and `.ci/run` tries five times as many of each.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=25
)
settings.register_profile("searching", settings.get_profile("unhurried"), derandomize=False)
settings.load_profile("unhurried")

# The hundreds of processes of the tests need not compile what they import; `dev.py` sets the same before Python starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "bytecode"))

# A shell has what it starts in the background ignore SIGINT, and so would each process that a test wants to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.budgets", "tests.more_examples", "tests.time_limit"]

TESTS = Path(__file__).parent
FILES = "/proc/self/fd"
HAS_FILES = os.path.isdir(FILES)

# Here the event loop is part of what is tested: each async test runs on both.
BOTH_LOOPS = ("chain", "concurrency", "conversation", "http", "loop", "model/remote", "runner")
# Here each async test runs on asyncio with uvloop as well, which schedules and closes by code of its own.
ALSO_ON_UVLOOP = ("chain", "concurrency/test_coroutine_reader.py")
HAS_UVLOOP = pytest.mark.skipif(not find_spec("uvloop"), reason="uvloop is not installed")
UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop", marks=HAS_UVLOOP)
SAMPLE = 3
"""Of a test's parameters, each third runs on a second loop; the others run there when `-m` asks for `trio_too`."""
# Here a library, or a server in its own thread, needs asyncio.
ASYNCIO_ALONE = ("runner/dbos", "serving/studio", "serving/test_load.py", "serving/test_server.py")

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1 ...; empty without pytest-xdist
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

_TRIO_TESTS = pytest.StashKey[dict[Path, str]]()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the event loops of an async test: both in some folders; elsewhere trio for one test of each file.

    That one is the first without parameters. The others run on trio when `-m` asks for them: `-m trio_too`.
    """
    path, name = metafunc.definition.path, metafunc.definition.nodeid
    if "anyio_backend" not in metafunc.fixturenames or TESTS not in path.parents or _lies_in(path, ASYNCIO_ALONE):
        return
    marks = [name for mark in metafunc.definition.iter_markers("parametrize") for name in _names_in(mark.args[0])]
    if "anyio_backend" in marks:
        return
    loops: list[Any] = ["asyncio"]
    on_trio = metafunc.config.stash.setdefault(_TRIO_TESTS, {})
    if _lies_in(path, BOTH_LOOPS) or (not marks and on_trio.setdefault(path, name) == name):
        loops += ["trio"]
    elif "trio_too" in metafunc.config.option.markexpr:
        loops += [pytest.param("trio", marks=pytest.mark.trio_too)]
    if _lies_in(path, ALSO_ON_UVLOOP):
        loops += [UVLOOP]
    if len(loops) > 1:  # asyncio is what the fixture gives; each parameter costs time for each test
        metafunc.parametrize("anyio_backend", loops)


def _names_in(parameters: str | Sequence[str]) -> Sequence[str]:
    return parameters.replace(" ", "").split(",") if isinstance(parameters, str) else parameters


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, object]:
    # Each worker collects all files. In a fresh clone most of that time goes into rewriting asserts and compiling, so
    # each starts at a share of its own, and finds the files of the others compiled when it gets there.
    report = yield
    if WORKER and isinstance(collector, pytest.Directory) and report.result:
        first = int(WORKER.removeprefix("gw")) % WORKERS * len(report.result) // WORKERS
        report.result[:] = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if WORKER:
        items[:] = _slow_before_quick(sorted(items, key=lambda item: item.path))  # all workers need one order
    asks_for_all = "trio_too" in config.option.markexpr
    seen: Counter[tuple[str, str]] = Counter()
    left_out = []
    for item in items if _runs_files(config) else ():
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        backend = parameters.get("anyio_backend", "asyncio")
        if backend == "asyncio" or len(parameters) == 1 or item.get_closest_marker("slow") is not None:
            continue
        test = (item.nodeid.partition("[")[0], str(backend))
        if seen[test] % SAMPLE:
            item.add_marker("trio_too")
            left_out.append(item)
        seen[test] += 1
    if left_out and not asks_for_all:
        config.hook.pytest_deselected(items=left_out)
        unwanted = set(left_out)
        items[:] = [item for item in items if item not in unwanted]


def _slow_before_quick(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Have each worker begin with its share of the slow tests, so that near the end only quick ones are left to share.

    pytest-xdist gives each worker as many tests as the others, in their order.
    """
    is_slow = [item.get_closest_marker("slow") is not None for item in items]
    slow = [item for item, slow in zip(items, is_slow, strict=True) if slow]
    quick = [item for item, slow in zip(items, is_slow, strict=True) if not slow]
    return [item for n in range(WORKERS) for part in (slow, quick) for item in _share(part, n)]


def _share(items: list[pytest.Item], number: int) -> list[pytest.Item]:
    return items[number * len(items) // WORKERS : (number + 1) * len(items) // WORKERS]


def _runs_files(config: pytest.Config) -> bool:
    # Who names a test wants all of it.
    return not any("::" in argument for argument in config.args)


@functools.cache  # a file has up to hundreds of tests
def _lies_in(path: Path, places: tuple[str, ...]) -> bool:
    return any(path == TESTS / place or TESTS / place in path.parents for place in places)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Thousands of tests, and the modules they import, live until the end: the garbage collector need not scan them,
    # which takes a fifth of the time in which they are made. The little garbage among them may stay as well.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def program_runner() -> Iterator[ProgramRunner]:
    with open_program_runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def login_server() -> Iterator[str]:
    """Run an MCP server that wants a login, and return its URL without a path.

    It is a process of its own, since its event loop is none of the test's. To start it takes a second.
    """
    program = TESTS / "servers" / "mcp_login_server.py"
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """For a test that makes syntax trees of all files: to scan their nodes takes longer than to parse.

    They live to the end, and no later test scans them either.
    """
    gc.collect()
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.fixture
def disk_needs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test with hundreds of saves: that they wait for the disk shows only when the machine fails."""
    monkeypatch.setattr(os, "fsync", os.fstat)
    monkeypatch.setattr(os, "fdatasync", os.fstat, raising=False)


@pytest.fixture(scope="session")
def resource_tracker_runs() -> None:
    """Start what `multiprocessing` starts with the first process that it spawns, and never stops."""
    resource_tracker.ensure_running()


@pytest.fixture(scope="session")
def uvloop_has_run() -> None:
    """Run uvloop once, which servers in tests run too: it opens a pipe for the whole process, and keeps it."""
    if find_spec("uvloop"):
        anyio.run(anyio.lowlevel.checkpoint, backend="asyncio", backend_options={"use_uvloop": True})


@pytest.fixture(scope="module", autouse=True)
def garbage_is_collected() -> Iterator[None]:
    """Fail the file that drops something unclosed, not a later one in which the garbage happens to be collected.

    What stays lives to the end, as caches and modules do, and is not scanned again with each of hundreds of files.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest, uvloop_has_run: None) -> Iterator[None]:
    """Fail when the test leaves a thread or an open file, or, where it is async, a task or a suspended generator."""
    if "anyio_backend" in request.fixturenames:
        request.getfixturevalue("no_task_or_generator_is_left_behind")
    threads, files = set(threading.enumerate()), _open_files()  # the event loop's own are open by now
    yield
    left = [thread for thread in threading.enumerate() if thread not in threads and not _waits_for_work(thread)]
    assert not left, f"threads left behind: {left}"
    opened = {target for file, number in _open_files().items() if file not in files and (target := _target(number))}
    assert not opened, f"files left open: {opened}"


@pytest.fixture
async def no_task_or_generator_is_left_behind(anyio_backend_name: str) -> AsyncIterator[None]:
    tasks = _tasks(anyio_backend_name)
    yield
    # A reply that the test has dropped is closed in a task of its own, which takes turns of the event loop that a test
    # without another wait does not give it; how many there are by now is chance on trio.
    with anyio.move_on_after(10):
        await anyio.wait_all_tasks_blocked()
    left = _tasks(anyio_backend_name) - tasks
    assert not left, f"tasks left behind: {left}"
    generators = [generator for generator in _generators(anyio_backend_name) if _is_ours(generator)]
    assert not generators, f"generators left suspended: {generators}"
    streams = [stream for stream in open_readers() if stream.is_open]
    assert not streams, f"streams left open: {streams}"


def _tasks(backend: str) -> set[object]:
    if backend == "asyncio":
        return {task for task in asyncio.all_tasks() if not task.done() and not _belongs_to_runner(task)}
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return set(_task_and_children(root))


def _belongs_to_runner(task: "asyncio.Task[object]") -> bool:
    return getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")


def _task_and_children(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _task_and_children(child)


def _generators(backend: str) -> list[AsyncGeneratorType[object, object]]:
    # Both loops know the generators that were started in them; neither says so in public.
    if backend == "asyncio":
        return list(getattr(asyncio.get_running_loop(), "_asyncgens", ()))  # uvloop hides them
    return list(trio._core._run.GLOBAL_RUN_CONTEXT.runner.asyncgens.alive)


def _is_ours(generator: AsyncGeneratorType[object, object]) -> bool:
    # By module and not by path: a clone lies in a folder named agentrt too, and then these tests would count as ours.
    if generator.ag_frame is None:
        return False
    if generator.ag_code is close_at_end.__code__:  # it is open for as long as the event loop
        return False
    package, _, _ = generator.ag_frame.f_globals.get("__name__", "").partition(".")
    return package in ("agentrt", "agentrt_middleware")


def _waits_for_work(thread: threading.Thread) -> bool:
    # Worker threads belong to the event loop and wait a while for their next call, inside the library that made them.
    # One that has just delivered its result may still be on its way there.
    for _ in range(500):
        if not thread.is_alive() or _is_idle(thread):
            return True
        thread.join(0.01)
    return False


def _is_idle(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_filename.endswith("threading.py"):
        frame = frame.f_back
    # The last one is the pool in which asyncio looks up addresses.
    idle = ("queue.py", "_thread_cache.py", "futures/thread.py")
    return frame is None or frame.f_code.co_filename.endswith(idle)


def _open_files() -> dict[tuple[int, int], str]:
    """Return a descriptor of each open file, by the file's device and inode."""
    # Before and after each test: to read what each descriptor leads to takes three times as long.
    files = {}
    for number in os.listdir(FILES) if HAS_FILES else ():
        try:
            status = os.fstat(int(number))
        except OSError:  # it was the one that the listing itself had open
            continue
        files[status.st_dev, status.st_ino] = number
    return files


def _target(number: str) -> str | None:
    target = os.readlink(f"{FILES}/{number}")
    return None if target.startswith(("/proc", "/dev")) else target


def pytest_report_header() -> str:
    return f"python {sys.version.split()[0]}, on asyncio and trio"
