"""`agentrt serve`: an agent over HTTP, with its worker in the same process, until a signal stops it."""

import argparse
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from signal import Signals
from typing import Any

import anyio

from agentrt.console.listener import listen, url_of
from agentrt.console.service import load_runner, log_to_stderr, stop_on_signal
from agentrt.errors import ConfigError
from agentrt.runner.base import RunnerBase
from agentrt.serving import BearerTokens, Limits, create_app
from agentrt.state import InMemoryStateStore

try:
    import uvicorn

    from agentrt.serving.connections import BoundedProtocol
except ModuleNotFoundError as error:
    raise ConfigError("agentrt serve needs the extra 'serve': pip install \"agentrt[serve]\"") from error

_MIN_TOKEN = 16  # characters: a shorter one can be guessed
_UNNAMED_OWNER = "owner"  # of a token without a name
_NEW_TOKEN = "python3 -c 'import secrets; print(secrets.token_urlsafe())'"
_WHY_LOCAL = "without --token-file nobody would be asked who they are: write --token-file FILE, with a token in it"
_CLOSE_SECONDS = 5  # for connections to close, after the last reply has ended or was left


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal comes; returns the exit code."""
    auth = None if options.token_file is None else read_tokens(options.token_file)
    limits = read_limits(options.limit)
    runner = load_runner(options, fallback=InMemoryStateStore)
    app = create_app(
        runner.agent,
        runner=runner,
        auth=auth,
        limits=limits,
        studio=not options.no_studio,
        reports=options.reports,
    )
    with (
        listen(options.host, options.port, why_local=None if auth is not None else _WHY_LOCAL) as listener,
        log_to_stderr("agentrt serve", logging.WARNING, "agentrt", "uvicorn"),
    ):
        serve_app(app, runner, limits, listener)
    return 0


def serve_app(
    app: Callable[..., Any],
    runner: RunnerBase,
    limits: Limits,
    listener: socket.socket,
    *signals: Signals,
    page: str = "",
) -> None:
    """Serve the application of this runner until one of these signals comes, which are those of `stop_on_signal`.

    The address that is printed ends with the path of the `page`.
    """
    config = uvicorn.Config(
        app,
        http=BoundedProtocol.with_limits(limits),
        access_log=False,  # a URL may quote a conversation, and a header holds the token
        log_config=None,
        server_header=False,
        ws="none",
    )
    anyio.run(_serve_until_signal, runner, _Server(config, runner, page), listener, signals)


def read_tokens(path: str) -> BearerTokens:
    """Return the tokens of a file: in each line a token and its owner, or a token alone.

    Empty lines and those that begin with # are skipped. Raises `ConfigError`, which quotes no token.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"the token file {path!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the token file {path!r} cannot be read: it is not UTF-8 text") from error
    owners: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        token, _, owner = line.strip().partition(" ")
        if not token or token.startswith("#"):
            continue
        place = f"line {number} of the token file {path!r}"
        if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable():
            raise ConfigError(f"{place} must begin with a token of {_MIN_TOKEN} or more ASCII characters: {_NEW_TOKEN}")
        # The first owner would silently lose it.
        if token in owners:
            raise ConfigError(f"{place} has a token that another line has: give each owner tokens of its own")
        owners[token] = owner.strip() or _UNNAMED_OWNER
    if not owners:
        raise ConfigError(f"the token file {path!r} has no token: write one in a line of its own, {_NEW_TOKEN}")
    return BearerTokens(owners)


def read_limits(texts: Sequence[str]) -> Limits:
    """Return the limits in texts such as "items=5000"; raises `ConfigError` for other texts."""
    values: dict[str, int | float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in {field.name for field in fields(Limits)}:
            known = ", ".join(field.name for field in fields(Limits))
            raise ConfigError(f"--limit {text!r:.100} names no limit: write NAME=NUMBER, with one of {known}")
        try:
            values[name] = int(number) if number.isdecimal() else float(number)
        except ValueError:
            raise ConfigError(f"--limit {text!r:.100} must be NAME=NUMBER, such as {name}=100") from None
    return Limits(**values)  # type: ignore[arg-type]  # it looks at the types itself


async def _serve_until_signal(
    runner: RunnerBase, server: "_Server", listener: socket.socket, signals: tuple[Signals, ...]
) -> None:
    async with anyio.create_task_group() as group:

        async def drain() -> None:
            server.should_exit = True  # no new connections, but time for running replies to end
            await runner.drain()

        async def serve_requests() -> None:
            await server.serve(sockets=[listener])
            # It may have ended by itself, and a worker alone is not wanted.
            await runner.drain()

        async with runner:
            group.start_soon(serve_requests)
            group.start_soon(stop_on_signal, drain, group.cancel_scope, *signals)
            await runner.work()
        # The streams end with the runner. Clients reconnect with Last-Event-ID to the next process.
        with anyio.move_on_after(_CLOSE_SECONDS):
            await server.closed.wait()
        group.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """A server that leaves signals to us, prints its address, and reports when it has closed."""

    def __init__(self, config: uvicorn.Config, runner: RunnerBase, page: str) -> None:
        super().__init__(config)
        self._runner = runner
        self._page = page
        self.closed = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        [listener] = sockets or []
        store = self._runner.store
        place = "in memory, until this process ends" if isinstance(store, InMemoryStateStore) else f"in {store!r}"
        url = f"{url_of(listener.getsockname())}{self._page}"
        print(f"{self._runner.agent.name} is at {url}, its sessions {place}", flush=True)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.closed.set()
