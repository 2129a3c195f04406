"""The `agentrt` command."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from anyio.from_thread import start_blocking_portal

import agentrt
from agentrt.agent import Agent
from agentrt.console.chat import Chat
from agentrt.console.session import SessionFile
from agentrt.console.specs import load_model, load_toolkit
from agentrt.errors import AgentRTError, UsageError
from agentrt.text import escape_controls

__all__ = ["main"]

_EXIT_INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; raises `SystemExit` for arguments that it does not know."""
    options = _make_parser().parse_args(arguments)
    try:
        return _chat(options)
    except AgentRTError as error:
        _print_to_stderr(str(error))
        return 2
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except OSError as error:
        try:
            print(flush=True)
        except OSError:
            # What Python flushes at exit would fail once more.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        else:
            raise  # it was another file that failed
        _print_to_stderr(f"standard output can no longer be written: {error.strerror}")
        return 1


def _print_to_stderr(text: str) -> None:
    with suppress(OSError):
        print(escape_controls(f"agentrt: {text}"), file=sys.stderr)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("agentrt", description="A runtime for LLM agents.")
    parser.add_argument("--version", action="version", version=f"agentrt {agentrt.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    chat = commands.add_parser("chat", help="talk to an agent", description="Talk to an agent, line by line.")
    chat.add_argument("--version", action="version", version=f"agentrt {agentrt.__version__}")
    chat.add_argument(
        "--model",
        metavar="SPEC",
        help="openai:gpt-5-mini, rules (offline), ..., or module:name for a model of yours; without it, what the "
        "environment holds a key for",
    )
    chat.add_argument(
        "--tools",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="a function, a list of tools or a Toolkit; the current folder is searched last; may be repeated",
    )
    chat.add_argument("--system", metavar="TEXT", default="You are a helpful assistant.", help="the system prompt")
    chat.add_argument("--session", metavar="FILE", help="keep the conversation in this file, and continue it")
    chat.add_argument("--no-color", action="store_true", help="plain text; so does NO_COLOR in the environment")
    return parser


def _chat(options: argparse.Namespace) -> int:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # `input` wants one, until the program ends
    for name in ("stdin", "stdout"):
        if getattr(sys, name) is None:
            raise UsageError(
                f"the standard {name.removeprefix('std')}put is closed: redirect it, for example to {os.devnull}"
            )
    session = SessionFile(options.session) if options.session is not None else None
    agent = Agent(
        "assistant",
        options.system,
        load_model(options.model),
        load_toolkit(options.tools),
        state=session.read() if session else None,
        state_store=session,
    )
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # input in another encoding must not end the conversation
    logger = logging.getLogger("agentrt")
    if not logger.handlers:
        logger.addHandler(_StderrHandler())
    in_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if in_terminal:
        tools = ", ".join(agent.toolkit.names()) or "none"
        messages = len(agent.state.context)
        continued = f", {messages} messages so far" if messages else ""
        words = f"Model: {agent.model.model}. Tools: {tools}{continued}. /help tells more."
        print(escape_controls(f"agentrt {agentrt.__version__}. {words}"))
    with start_blocking_portal(name="agentrt") as portal, portal.wrap_async_context_manager(agent):
        is_whole = Chat(agent, portal, color=not options.no_color).run()
    sys.stdout.flush()
    return 0 if is_whole or in_terminal else 1  # the user at a terminal has seen the error


class _StderrHandler(logging.Handler):
    """Shows what the runtime logs, harmless to a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # no reply fails because its log cannot be written
            print(escape_controls(self.format(record)), file=sys.stderr)
