"""The `agentrt` command."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import NoReturn

from anyio.from_thread import start_blocking_portal

import agentrt
from agentrt.agent import Agent
from agentrt.console.chat import Chat
from agentrt.console.session import SessionFile
from agentrt.console.specs import load_model, load_toolkit
from agentrt.errors import AgentRTError, UsageError
from agentrt.model import RulesChatModel
from agentrt.text import escape_controls

__all__ = ["main"]

_EXIT_INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C ended
_DESCRIPTION = "Talk to an agent, line by line. Without a model and a key, a set of rules answers offline."
_OFFLINE = "Offline: a set of rules answers, not a language model. To talk to one:"
_REAL_MODELS = (
    'pip install "agentrt[openai]" and set OPENAI_API_KEY',
    'pip install "agentrt[anthropic]" and set ANTHROPIC_API_KEY',
    "or name any other model: agentrt chat --model ollama:qwen3",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; raises `SystemExit` for arguments that it does not know."""
    options, unknown = _make_parser().parse_known_args(arguments)
    if unknown:
        options.refuse(unknown)
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
    chat = commands.add_parser("chat", help="talk to an agent", description=_DESCRIPTION)
    chat.add_argument("--version", action="version", version=f"agentrt {agentrt.__version__}")
    chat.add_argument(
        "--model",
        metavar="SPEC",
        help="openai:gpt-5-mini, ollama:qwen3, rules (offline), ..., or module:name for a model of yours; without it, "
        "what AGENTRT_MODEL names, or the provider whose key is in the environment, or else the offline rules",
    )
    chat.add_argument(
        "--tools",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="a function, a list of tools or a Toolkit, in a module that may be in the current folder; or 'folder' for "
        "tools that only read the current folder, which the offline rules have unless this option names others; may "
        "be repeated",
    )
    chat.add_argument("--system", metavar="TEXT", default="You are a helpful assistant.", help="the system prompt")
    chat.add_argument("--session", metavar="FILE", help="keep the conversation in this file, and continue it")
    chat.add_argument("--no-color", action="store_true", help="plain text; so does NO_COLOR in the environment")
    chat.set_defaults(refuse=partial(_refuse_arguments, chat))
    return parser


def _refuse_arguments(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    """Exit with the usage of this command, which argparse itself would leave to the one above it."""
    name = unknown[0].partition("=")[0]
    [match] = get_close_matches(name, ["--model", "--tools", "--system", "--session", "--no-color"], 1) or [""]
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{match and f'; did you mean {match}?'}")


def _chat(options: argparse.Namespace) -> int:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # `input` wants one, until the program ends
    for name in ("stdin", "stdout"):
        if getattr(sys, name) is None:
            raise UsageError(
                f"the standard {name.removeprefix('std')}put is closed: redirect it, for example to {os.devnull}"
            )
    session = SessionFile(options.session) if options.session is not None else None
    model = load_model(options.model)
    default_tools = ["folder"] if isinstance(model, RulesChatModel) else []
    agent = Agent(
        "assistant",
        options.system,
        model,
        load_toolkit(options.tools or default_tools),
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
        _print_banner(agent)
    elif options.model is None and isinstance(model, RulesChatModel) and not os.environ.get("AGENTRT_MODEL"):
        _print_to_stderr(f"{_OFFLINE} {', '.join(_REAL_MODELS)}")  # the rules were not asked for
    with start_blocking_portal(name="agentrt") as portal, portal.wrap_async_context_manager(agent):
        is_whole = Chat(agent, portal, color=not options.no_color).run()
    sys.stdout.flush()
    return 0 if is_whole or in_terminal else 1  # the user at a terminal has seen the error


def _print_banner(agent: Agent) -> None:
    tools = ", ".join(agent.toolkit.names()) or "none (--tools folder lets it read this folder)"
    messages = len(agent.state.context)
    continued = f", {messages} messages so far" if messages else ""
    words = f"Model: {agent.model.model}. Tools: {tools}{continued}. /help tells more."
    print(escape_controls(f"agentrt {agentrt.__version__}. {words}"))
    if isinstance(agent.model, RulesChatModel):
        print(_OFFLINE, *_REAL_MODELS, sep="\n  ")


class _StderrHandler(logging.Handler):
    """Shows what the runtime logs, harmless to a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # no reply fails because its log cannot be written
            print(escape_controls(self.format(record)), file=sys.stderr)
