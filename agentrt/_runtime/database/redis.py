"""A Redis shared by several programs: connections and errors."""

import logging
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
from anyio.from_thread import BlockingPortal

from agentrt._runtime.database.operations import MAX_WAIT, DatabaseError, no_answer
from agentrt._runtime.hidden import HiddenStr, NotPickled
from agentrt._runtime.options import import_extra
from agentrt._runtime.text import first_error
from agentrt.errors import ConfigError

_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
_REDIS_CLOSE_SECONDS = 5.0


class _Running(NamedTuple):
    portal: BlockingPortal
    client: Any
    thread: Thread


class RedisClient(NotPickled):
    """Runs scripts in one Redis; each method blocks, and is for threads.

    The connections belong to an event loop in a thread of its own, which the first script starts: coredis keeps them in
    a task group, which could not outlive the task of a caller, and a script that was sent is awaited even if
    asyncio cancels its caller.
    """

    def __init__(self, owner: str, url: object) -> None:
        coredis = import_extra(owner, "redis", "coredis", "retry")
        if not isinstance(url, str) or not url.startswith(_REDIS_SCHEMES):
            url_text = url.rpartition("@")[2].partition("?")[0] if isinstance(url, str) else url
            raise ConfigError(
                f"{owner}(url=...) must begin with one of {', '.join(_REDIS_SCHEMES)}, not {url_text!r:.200}: "
                f"write it in full, as in 'redis://localhost:6379'"
            )
        try:
            address = urlsplit(url)
            number = address.path.strip("/")
            # The path of a socket is that of a file.
            is_usable = address.port != 0 and (address.scheme == "unix" or not number or number.isdecimal())
        except ValueError:  # its text may quote a password
            is_usable = False
        if not is_usable:
            raise ConfigError(
                f"{owner}(url=...) has a port or a database that is not a number: write it as in 'redis://localhost:6379/0'"
            )
        # It would log the traceback of a failed connection, which the caller gets as an error.
        logger = logging.getLogger("coredis")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        self._open = partial(
            coredis.Redis.from_url,
            HiddenStr(url),
            decode_responses=False,
            verify_version=False,
            retry_policy=coredis.retry.NoRetryPolicy(),
        )
        self.place = f"Redis at {str(url).partition('://')[2].rpartition('@')[2].partition('?')[0]}"
        self._running: _Running | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.place}>"

    def run_script(self, deadline: float, text: str, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        """Return the script's answer, within the time limit; raises `DatabaseError`."""
        running = None
        try:
            running = self._start()
            client = running.client

            async def ask() -> Any:
                with anyio.fail_after(max(0, deadline - monotonic())):
                    return await client.eval(text, keys, arguments)

            return running.portal.call(ask)
        except Exception as exc:  # noqa: BLE001  # the boundary to the server; groups of errors come too
            error = first_error(exc)
        is_late = isinstance(error, TimeoutError)
        # A RuntimeError means that the loop, and with it the connection, has ended.
        is_lost = is_late or isinstance(error, (OSError, RuntimeError)) or type(error).__name__ == "ConnectionError"
        if running is not None and is_lost:
            self._stop(running)  # the next script opens new connections
        # Only its type, since its text may hold the input or a password.
        raise no_answer() if is_late else DatabaseError(type(error).__name__, is_lost=is_lost)

    def close(self) -> None:
        """Close the connections, once running scripts have ended."""
        running = self._running
        if running is not None:
            self._stop(running)
            running.thread.join(_REDIS_CLOSE_SECONDS)

    def _start(self) -> _Running:
        with self._lock:
            if self._running is None:
                started: Future[_Running] = Future()
                Thread(target=_run_client, args=(self._open, started), name="agentrt redis", daemon=True).start()
                self._running = started.result(MAX_WAIT)
                # A dropped object that was not closed leaves no thread behind.
                weakref.finalize(self, _request_stop, self._running.portal).atexit = False
            return self._running

    def _stop(self, running: _Running) -> None:
        with self._lock:
            if self._running is running:
                self._running = None
        _request_stop(running.portal)


def _run_client(open_client: Callable[[], Any], started: "Future[_Running]") -> None:
    async def serve() -> None:
        # In this order, so that scripts end before their connection.
        async with open_client() as client, BlockingPortal() as portal:
            started.set_result(_Running(portal, client, current_thread()))
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve, backend="asyncio")
    except Exception as error:  # noqa: BLE001  # raised where a script waits
        if not started.done():
            started.set_exception(error)


def _request_stop(portal: BlockingPortal) -> None:
    with suppress(RuntimeError):  # it has already ended
        portal.start_task_soon(portal.stop)
