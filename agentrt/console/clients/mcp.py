"""`agentrt mcp`: an agent as a tool of the MCP client that starts this program."""

import argparse
import logging
import sys

import anyio

from agentrt._runtime.concurrency.wire import Wire, take_stdio
from agentrt.console.service import load_runner, log_to_stderr, stop_on_signal
from agentrt.runner.base import RunnerBase
from agentrt.serving import Limits, mcp_server
from agentrt.serving.mcp.stdio import serve_wire
from agentrt.state import InMemoryStateStore


def serve_mcp(options: argparse.Namespace) -> int:
    """Serve until the client closes its end, or a signal comes; returns the exit code."""
    # A user who tries it out would see nothing.
    if sys.stdin is not None and sys.stdin.isatty():
        print("agentrt mcp is started by an MCP client, and waits for its messages in JSON.", file=sys.stderr)
    # Before the user's modules are imported, which may print.
    with take_stdio() as wire, log_to_stderr("agentrt mcp", logging.WARNING, "agentrt"):
        runner = load_runner(options, fallback=InMemoryStateStore, drain_seconds=0)
        anyio.run(_serve_until_end, runner, wire, backend=options.backend)
    return 0


async def _serve_until_end(runner: RunnerBase, wire: Wire) -> None:
    server = mcp_server(runner)
    async with runner, anyio.create_task_group() as group:
        # The signal ends the connection; then the runner has time to drain, as at the end of the input.
        client = anyio.CancelScope()

        async def serve() -> None:
            with client:
                await serve_wire(server, wire, line_bytes=Limits().body_bytes)
            await runner.drain()

        async def leave() -> None:
            client.cancel()

        group.start_soon(serve)
        group.start_soon(stop_on_signal, leave, group.cancel_scope)
        await runner.work()
        group.cancel_scope.cancel()
