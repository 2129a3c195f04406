"""A pytest plugin: a time limit for each test, so that a test that hangs fails instead.

The limit is 120 seconds, 15 minutes for a test marked `slow`, and `@pytest.mark.time_limit(seconds)` sets another one.
`--time-limit=SECONDS` changes the first. An alarm signal, where there is one, ends the test: an async test is cancelled
inside its event loop, without a deadline that the test could see, and its fixtures are torn down as ever; in a sync
test an exception is raised.

What this does not stop (a shielded wait, a busy loop, a fixture) ends the process `GRACE` seconds later, or up to
`SLACK` more, with the name of the test and the stack of each thread. Under pytest-xdist that is one worker: the test is
reported as failed, and another worker takes its place.
"""

import asyncio
import faulthandler
import functools
import inspect
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import monotonic  # by itself: a test may put another clock into the module
from typing import Any

import anyio
import pytest
import trio

LIMIT = 120.0  # seconds; a busy machine may be ten times slower than an idle one
SLOW_LIMIT = 900.0
GRACE = 30.0  # for the first two stages to do their work
# The timer that ends the process takes a thread, and on a busy machine a test waits longer for that thread's end than
# for its own: tests share a timer for some seconds.
SLACK = 10.0
IDLE = 1.0  # without a test, until the timer is stopped

_STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--time-limit", type=float, default=LIMIT, metavar="SECONDS", help="time limit of each test")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "time_limit(seconds): the test fails when it takes longer")
    config.stash[_STDERR] = os.dup(2)  # here, because each test has its output captured


def pytest_unconfigure(config: pytest.Config) -> None:
    _stop_timer()
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # One timer for all phases.
    try:
        with _alarm(_limit_of(item) + 0.9 * GRACE, functools.partial(_announce, item)):
            _exit_after_limit(item)
            return (yield)
    finally:
        _stop_timer_when_idle()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    if isinstance(node, pytest.Item):
        _stop_timer()  # as pytest has done
        _exit_after_limit(node)  # the teardown is still to come


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    global _limit
    announce = functools.partial(_announce, pyfuncitem)
    _limit = _Limit(_limit_of(pyfuncitem), announce, is_async=_is_async(pyfuncitem.obj))
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _cancel_at_limit(pyfuncitem.obj)
    elif (property_test := _async_property(pyfuncitem.obj)) is not None:
        pyfuncitem.obj.hypothesis.inner_test = _cancel_at_limit(property_test)
    with _alarm(_limit.seconds, _limit.expire, again=0.9 * GRACE):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_enter_pdb() -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_of(item: pytest.Item) -> float:
    mark = item.get_closest_marker("time_limit")
    if mark is not None:
        return float(mark.args[0])
    is_slow = item.get_closest_marker("slow") is not None
    return SLOW_LIMIT if is_slow else float(item.config.getoption("--time-limit"))


def _is_async(test: Any) -> bool:
    inner_test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    # This attribute is anyio's: it has run the property on one event loop, and now comes the other.
    return inspect.iscoroutinefunction(inner_test) or hasattr(inner_test, "_anyio_original_func")


def _async_property(test: Any) -> Callable[..., Any] | None:
    inner_test = getattr(getattr(test, "hypothesis", None), "inner_test", None)
    return inner_test if inspect.iscoroutinefunction(inner_test) else None


class _Limit:
    """The limit of the test that runs, and how to stop that test."""

    def __init__(self, seconds: float, announce: Callable[[], object], *, is_async: bool) -> None:
        self.seconds = seconds
        self._announce = announce
        self.is_expired = False
        self._is_async = is_async
        self._stop: Callable[[], object] | None = None

    def expire(self) -> None:
        if self.is_expired:
            self._announce()
            return
        self.is_expired = True
        if self._stop is not None:
            self._stop()
        elif not self._is_async:
            pytest.fail(_message(self.seconds))  # no `except Exception` of the test takes it for its own

    async def run(self, test: Callable[[], Any]) -> Any:
        if self.is_expired:  # a property is run again after it has failed
            raise TimeoutError(_message(self.seconds))
        with anyio.CancelScope() as scope:
            self._stop = functools.partial(_thread_safe_call(), scope.cancel)
            try:
                return await test()
            except BaseException as error:
                if scope.cancel_called:  # what a clean-up raises takes the place of the cancellation
                    error.add_note(_message(self.seconds))
                raise
            finally:
                self._stop = None
        raise TimeoutError(_message(self.seconds))


_limit = _Limit(LIMIT, lambda: None, is_async=False)


def _cancel_at_limit(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        return await _limit.run(functools.partial(test, *args, **kwargs))

    return limited


def _thread_safe_call() -> Callable[[Callable[[], object]], object]:
    """Return how a signal handler has the running event loop call a function."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        return trio.lowlevel.current_trio_token().run_sync_soon


_exits_at = 0.0  # when the timer ends the process; 0 while it does not run


def _exit_after_limit(item: pytest.Item) -> None:
    global _exits_at
    earliest = monotonic() + _limit_of(item) + GRACE
    if not earliest <= _exits_at <= earliest + SLACK:
        _exits_at = earliest + SLACK
        seconds = _exits_at - monotonic()
        faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_STDERR])


def _stop_timer(*_: object) -> None:
    global _exits_at
    _exits_at = 0.0
    faulthandler.cancel_dump_traceback_later()


def _stop_timer_when_idle() -> None:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        _stop_timer()
        return
    signal.signal(signal.SIGALRM, _stop_timer)
    signal.setitimer(signal.ITIMER_REAL, IDLE)


def _announce(item: pytest.Item) -> None:
    # Stacks do not show a coroutine that waits: the name of the test does.
    line = f"\n{item.nodeid}: {_message(_limit_of(item))}, and does not stop\n"
    os.write(item.config.stash[_STDERR], line.encode())


@contextmanager
def _alarm(seconds: float, action: Callable[[], object], *, again: float = 0) -> Iterator[None]:
    """Call `action` in the main thread after some seconds; the alarm of an outer block waits until this one is left."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, lambda *_: action())
    delay, _ = signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, delay)


def _message(seconds: float) -> str:
    return f"the test took longer than its limit of {seconds:g} seconds (see tests/time_limit.py)"
