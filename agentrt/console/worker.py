"""`agentrt worker`: runs the replies submitted to a runner, until a signal stops it."""

import argparse
import logging

import anyio

from agentrt.console.service import load_runner, log_to_stderr, stop_on_signal
from agentrt.runner.base import RunnerBase


def work(options: argparse.Namespace) -> int:
    """Work until a signal comes; returns the exit code."""
    runner = load_runner(options)
    # Takeovers, and from whom, are logged at this level.
    with log_to_stderr("agentrt worker", logging.INFO, "agentrt"):
        anyio.run(_work_until_signal, runner, backend=options.backend)
    return 0


async def _work_until_signal(runner: RunnerBase) -> None:
    async with runner, anyio.create_task_group() as group:
        group.start_soon(stop_on_signal, runner.drain, group.cancel_scope)
        await runner.work()
        group.cancel_scope.cancel()
