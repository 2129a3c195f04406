"""`agentrt acp`: an agent for the editor that starts this program."""

import argparse
import logging
import sys
from typing import Any

import anyio

from agentrt._runtime.concurrency.wire import Wire, take_stdio
from agentrt.agent import Agent
from agentrt.console.service import log_to_stderr, stop_on_signal
from agentrt.console.specs import load_target
from agentrt.errors import ConfigError
from agentrt.serving import Limits, acp_agent
from agentrt.serving.acp.editor_agent import EditorAgent
from agentrt.serving.acp.wire import serve_editor
from agentrt.state import state_store


def serve_acp(options: argparse.Namespace) -> int:
    """Serve until the editor closes its end, or a signal comes; returns the exit code."""
    # A user who tries it out would see nothing.
    if sys.stdin is not None and sys.stdin.isatty():
        print("agentrt acp is started by an editor, and waits for its messages in JSON.", file=sys.stderr)
    # Before the user's modules are imported, which may print.
    with take_stdio() as wire, log_to_stderr("agentrt acp", logging.WARNING, "agentrt", "acp", "root"):
        anyio.run(_serve, _load_editor_agent(options), wire)
    return 0


def _load_editor_agent(options: argparse.Namespace) -> Any:
    loaded = load_target(options)
    if isinstance(loaded, EditorAgent):
        if options.store is not None:
            raise ConfigError(f"{options.agent!r} already has its store: leave --store out")
        return loaded
    if not isinstance(loaded, Agent):
        raise ConfigError(f"{options.agent!r} must name an Agent, or what acp_agent() returned, not {loaded!r:.200}")
    loaded.set_console_output_enabled(False)
    if options.store is not None:
        loaded.state_store = state_store(options.store)
    return acp_agent(loaded)


async def _serve(editor_agent: Any, wire: Wire) -> None:
    async with editor_agent, anyio.create_task_group() as group:

        async def leave() -> None:
            group.cancel_scope.cancel()

        group.start_soon(stop_on_signal, leave, group.cancel_scope)
        await serve_editor(editor_agent, wire, line_bytes=Limits().body_bytes)
        group.cancel_scope.cancel()
