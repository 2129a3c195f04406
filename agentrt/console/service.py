"""Shared by the commands that run until a signal: their runner, their log, and their shutdown."""

import argparse
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import anyio

from agentrt._runtime.text import escape_controls
from agentrt.agent import Agent
from agentrt.console.specs import load_target
from agentrt.errors import ConfigError
from agentrt.runner import DBOSRunner, Runner
from agentrt.runner.base import RunnerBase
from agentrt.state import SessionStore, StateStore, state_store


def load_runner(
    options: argparse.Namespace,
    *,
    fallback: Callable[[], SessionStore] | None = None,
    prepare: Callable[[Agent, StateStore], Agent] | None = None,
    drain_seconds: float | None = None,
) -> RunnerBase:
    """Return the runner that the options name, or a runner of the agent that they name, over `options.store`.

    Without a store, the agent's own is used, or else that of `fallback`. `prepare` returns the agent that runs in place
    of a named agent. `drain_seconds` are those of a named agent without the option.
    """
    limits = {"max_concurrency": options.concurrency, "drain_seconds": options.drain_seconds}
    chosen = {name: value for name, value in limits.items() if value is not None}
    loaded = load_target(options)
    if isinstance(loaded, RunnerBase):
        if chosen or options.store is not None:
            raise ConfigError(
                f"{options.agent!r} is a runner, which has its own store and limits: leave the options out"
            )
        return loaded
    if not isinstance(loaded, Agent):
        raise ConfigError(f"{options.agent!r} must name an Agent or a Runner, not {loaded!r:.200}")
    if options.store is not None:
        loaded.state_store = state_store(options.store)
    store = loaded.state_store or (fallback() if fallback is not None else None)
    if store is None:
        raise ConfigError(
            f"the agent {options.agent or options.config!r} has no store: write --store sqlite:agent.db, or "
            f"Agent(state_store=...)"
        )
    if drain_seconds is not None:
        chosen.setdefault("drain_seconds", drain_seconds)
    if prepare is not None:
        loaded = prepare(loaded, store)
    if options.store is not None and options.store.startswith(("postgresql://", "postgres://")):
        return DBOSRunner(loaded, store, options.store, **chosen)  # type: ignore[arg-type]  # as below
    return Runner(loaded, store, **chosen)  # type: ignore[arg-type]  # it looks at the store itself


@contextmanager
def log_to_stderr(prefix: str, level: int, *loggers: str) -> Iterator[None]:
    """Write the records of these loggers, from that level on, to standard error."""
    handler = _StderrLog(prefix)
    before = []
    for name in loggers:
        logger = logging.getLogger(name)
        before.append((logger, logger.level))
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old_level in before:
            logger.removeHandler(handler)
            logger.setLevel(old_level)


class _StderrLog(logging.Handler):
    """Writes each record on one line, escaped for a terminal."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if text.rstrip().endswith("CancelledError"):
            return  # uvicorn's traceback for what a second signal has left; nothing failed
        with suppress(OSError, ValueError):  # a failing log must not break a reply
            print(escape_controls(f"{self._prefix}: {text}"), file=sys.stderr, flush=True)


async def stop_on_signal(
    drain: Callable[[], Awaitable[None]], scope: anyio.CancelScope, *numbers: signal.Signals
) -> None:
    """Drain at the first of these signals, and cancel the scope at the second, which leaves the rest to others.

    Without numbers, these are SIGTERM and Ctrl-C.
    """
    if sys.platform == "win32":
        return  # there Ctrl-C cancels, and other signals do not exist
    is_draining = False
    with anyio.open_signal_receiver(*(numbers or (signal.SIGTERM, signal.SIGINT))) as signals:
        async for number in signals:
            if is_draining:
                scope.cancel()
                return
            is_draining = True
            logging.getLogger("agentrt").info("stopping: %s", signal.Signals(number).name)
            await drain()
