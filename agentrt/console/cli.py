"""The `agentrt` command."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from anyio.from_thread import start_blocking_portal

import agentrt
from agentrt._runtime.text import escape_controls
from agentrt.agent import Agent
from agentrt.console.chat import Chat, listen_for_logins
from agentrt.console.inspection.chains import print_chains
from agentrt.console.session import SessionFile
from agentrt.console.specs import SYSTEM_PROMPT, load_chat_agent
from agentrt.errors import AgentRTError, ConfigError, UsageError
from agentrt.model import RulesChatModel

_EXIT_INTERRUPTED = 130  # the convention of shells for Ctrl-C
_DESCRIPTION = "Talk to an agent, line by line. Without a model and a key, a set of rules answers offline."
_AGENT_HELP = "an Agent or a Runner, in a module that may be in the current folder"
_CONFIG_HELP = (
    "an agent in a file, such as agentrt.toml, in place of MODULE:NAME; its modules may be in the same folder"
)
_FORMAT_HELP = "toml is for an agent of a file, and writes that again (%(default)s)"
_STORE_HELP = "where the sessions are: sqlite:agent.db, file:sessions, postgresql://host/database or redis://host"
_EXPLAIN = (
    "Print the compiled chains of an agent, outermost layer first. With --check compare them with a file, print what "
    "differs, and exit with 1 if anything does. An agent that cannot be built exits with 2."
)
_SESSIONS = "List, show or delete the sessions of a store. A session that does not exist exits with 1."
_RUNS = "List, show, export or delete the recorded runs of a store. A run that does not exist exits with 1."
_AUDIT = "Verify the recorded runs of a store. If a run is not as it was written, the exit code is 1."
_EVAL = (
    "Evaluate an agent over the cases of a Python file, which has `build` and `cases`. The exit code is 1 if too few "
    "trials pass or the baseline was better, 2 for wrong use, and 3 if a build, a reply or an evaluator raised."
)
_SKILLS = "Check a skill, or each skill of a folder. If one cannot be used, the exit code is 1."
_WORKER = (
    "Run what is submitted to a runner, until SIGTERM or Ctrl-C; a second signal leaves what still runs to the next "
    "worker at once. What a worker that died has left is resumed."
)
_SERVE = (
    "Serve an agent over HTTP to this machine, or with --token-file to others, until SIGTERM or Ctrl-C; a second "
    "signal leaves what still runs to the next process at once."
)
_DEV = (
    "Serve an agent to this machine while you write it, until SIGTERM or Ctrl-C. Its runs are recorded, and the studio "
    "shows them. When a file changes, the agent is loaded again and its replies are resumed; a file that cannot be "
    "imported changes nothing."
)
_NEW = "Write a small project into a folder: an agent that works offline, a tool, a layer and a test."
_MCP = (
    "Offer an agent as a tool to the MCP client that starts this program, over standard input and output, until the "
    "client closes its end or SIGTERM comes. What still runs then is left in the store, and resumed by the next start."
)
_ACP = (
    "Serve an agent to the editor that starts this program, by the Agent Client Protocol over standard input and "
    "output, until the editor closes its end or SIGTERM comes. What still runs then is left in the store."
)
_OFFLINE = "Offline: a set of rules answers, not a language model. To talk to one:"
_REAL_MODELS = (
    "set OPENAI_API_KEY",
    "set ANTHROPIC_API_KEY",
    "or name any other model: agentrt chat --model ollama:qwen3",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; raises `SystemExit` for arguments that it does not know."""
    options, unknown = _make_parser().parse_known_args(arguments)
    if unknown:
        options.refuse(unknown)
    try:
        code: int = options.run(options)
        return code
    except AgentRTError as error:
        for problem in getattr(error, "problems", ()) or [error]:
            _print_to_stderr(str(problem))
        return 2
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except OSError as error:
        try:
            print(flush=True)
        except OSError:
            # Python's flush at exit would fail again.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        else:
            raise  # another file failed
        _print_to_stderr(f"standard output can no longer be written: {error.strerror}")
        return 1


def _print_to_stderr(text: str) -> None:
    with suppress(OSError):
        print(escape_controls(f"agentrt: {text}"), file=sys.stderr)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("agentrt", description="A runtime for LLM agents.")
    parser.add_argument("--version", action="version", version=f"agentrt {agentrt.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_chat_options(commands.add_parser("chat", help="talk to an agent", description=_DESCRIPTION))
    new = commands.add_parser("new", help="write a small project", description=_NEW)
    new.add_argument("name", metavar="NAME", help="the name of the folder, and of the package in it")
    new.set_defaults(run=_lazily("development.new", "create_project"), refuse=partial(_refuse_arguments, new))
    dev = commands.add_parser("dev", help="serve an agent while you write it", description=_DEV)
    _add_runner_options(dev, "the agent's own store, or .agentrt/dev.db", 2, "; without it, that of agentrt.toml")
    _add_server_options(dev)
    dev.add_argument("--open", action="store_true", help="open the studio in a browser")
    develop = _lazily("development.dev", "develop")
    dev.set_defaults(run=develop, refuse=partial(_refuse_arguments, dev))
    worker = commands.add_parser("worker", help="run what is submitted to a runner", description=_WORKER)
    _add_runner_options(worker, "the agent's own store")
    _add_backend_option(worker)
    worker.set_defaults(run=_lazily("worker", "work"), refuse=partial(_refuse_arguments, worker))
    serve = commands.add_parser("serve", help="serve an agent over HTTP", description=_SERVE)
    _add_runner_options(serve, "the agent's own store, or memory")
    _add_server_options(serve)
    serve.add_argument(
        "--token-file",
        metavar="FILE",
        help="who may use it: in each line a token, which clients send as a bearer token, and the name of its owner",
    )
    serve.add_argument("--reports", metavar="FOLDER", help="reports of agentrt eval --json that the studio shows")
    serve.add_argument("--no-studio", action="store_true", help="serve without the page at /studio")
    serve.set_defaults(run=_lazily("serve", "serve"), refuse=partial(_refuse_arguments, serve))
    mcp = commands.add_parser("mcp", help="offer an agent to an MCP client", description=_MCP)
    _add_runner_options(mcp, "the agent's own store, or memory", 0)
    _add_backend_option(mcp)
    mcp.set_defaults(run=_lazily("clients.mcp", "serve_mcp", extra="mcp"), refuse=partial(_refuse_arguments, mcp))
    editor = commands.add_parser("acp", help="serve an agent to an editor", description=_ACP)
    _add_target(editor)
    editor.add_argument("--store", metavar="URL", help=f"{_STORE_HELP}; without it, the agent's own")
    editor.set_defaults(run=_lazily("clients.acp", "serve_acp", extra="acp"), refuse=partial(_refuse_arguments, editor))
    explain = commands.add_parser("explain", help="print or check the chains of an agent", description=_EXPLAIN)
    _add_target(explain)
    explain.add_argument("--check", metavar="FILE", help="compare with what this command has printed into a file")
    explain.add_argument("--format", choices=["text", "json", "mermaid", "toml"], default="text", help=_FORMAT_HELP)
    explain.set_defaults(run=print_chains, refuse=partial(_refuse_arguments, explain))
    _add_sessions_parsers(commands.add_parser("sessions", help="list, show or delete sessions", description=_SESSIONS))
    _add_runs_parsers(commands.add_parser("runs", help="list, show, export or delete recorded runs", description=_RUNS))
    _add_eval_options(commands.add_parser("eval", help="evaluate an agent over cases", description=_EVAL))
    skills = commands.add_parser("skills", help="check skills", description=_SKILLS)
    check = skills.add_subparsers(required=True, metavar="ACTION").add_parser(
        "check", help="print what is wrong with skills", description=_SKILLS
    )
    check.add_argument("folder", metavar="FOLDER", help="a skill, or a folder whose subfolders are skills")
    check.set_defaults(run=_lazily("inspection.skills", "check_skills"), refuse=partial(_refuse_arguments, check))
    audit = commands.add_parser("audit", help="verify recorded runs", description=_AUDIT)
    run = _lazily("inspection.runs", "run_audit")
    [(_, verify)] = _add_store_actions(audit, run, verify="verify recorded runs")
    verify.description = _AUDIT
    verify.add_argument("session", metavar="SESSION", nargs="?", help="the id of a session; without it, all of them")
    verify.add_argument("--key-file", metavar="FILE", help="a file with the secret that signs the ends of runs")
    return parser


def _add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"agentrt {agentrt.__version__}")
    _add_target(parser, "; without it, an assistant that the options describe")
    parser.add_argument(
        "--model",
        metavar="SPEC",
        help="openai:gpt-5-mini, ollama:qwen3, rules (offline), ..., or module:name for a model of yours; without it, "
        "what AGENTRT_MODEL names, or the provider whose key is in the environment, or else the offline rules",
    )
    parser.add_argument(
        "--tools",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="a function, a list of tools or a Toolkit, in a module that may be in the current folder; or 'folder' for "
        "tools that only read the current folder, which the offline rules have unless this option names others; may "
        "be repeated",
    )
    parser.add_argument(
        "--mcp",
        metavar="SERVER",
        action="append",
        default=[],
        help="the tools of an MCP server: a command in quotes, a URL, or a .json file with mcpServers; may be given "
        "several times",
    )
    parser.add_argument("--system", metavar="TEXT", help=f"the system prompt ({SYSTEM_PROMPT})")
    parser.add_argument("--session", metavar="FILE", help="keep the conversation in this file, and continue it")
    parser.add_argument("--no-color", action="store_true", help="plain text; so does NO_COLOR in the environment")
    parser.set_defaults(run=_chat, refuse=partial(_refuse_arguments, parser))


def _add_target(parser: argparse.ArgumentParser, if_missing: str = "") -> None:
    """Add the two ways to name an agent, of which one is required unless the text says what holds without them."""
    target = parser.add_mutually_exclusive_group(required=not if_missing)
    target.add_argument("agent", metavar="MODULE:NAME", nargs="?", help=f"{_AGENT_HELP}{if_missing}")
    target.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)


def _add_store_actions(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], **purposes: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Add a subcommand for each purpose, which names a store; yields its name and its parser."""
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    for action, purpose in purposes.items():
        subparser = actions.add_parser(action, help=purpose, description=f"{purpose.capitalize()}.")
        source = subparser.add_mutually_exclusive_group(required=True)
        source.add_argument("--store", metavar="URL", help=_STORE_HELP)
        source.add_argument("--agent", metavar="MODULE:NAME", help="an agent that has a store")
        subparser.set_defaults(run=run, config=None, refuse=partial(_refuse_arguments, subparser))
        yield action, subparser


def _add_sessions_parsers(parser: argparse.ArgumentParser) -> None:
    for action, subparser in _add_store_actions(
        parser,
        _lazily("inspection.sessions", "run_sessions"),
        list="list the sessions: last saved, status, finished messages, id and labels",
        show="print the messages of sessions",
        delete="delete sessions, without asking",
    ):
        if action == "list":
            subparser.add_argument("--prefix", metavar="TEXT", default="", help="only ids that begin with it")
        else:
            subparser.add_argument("ids", metavar="ID", nargs="+", help="the id of a session")


def _add_runs_parsers(parser: argparse.ArgumentParser) -> None:
    for action, subparser in _add_store_actions(
        parser,
        _lazily("inspection.runs", "run_runs"),
        list="list the runs, newest first: start, status, tokens, cost, session, reply and title",
        show="print the requests and the answer of a run, the changes of layers and the runs of sub-agents",
        export="write the lines of a run to standard output, one JSON object per line",
        delete="delete the runs of a session, without asking",
    ):
        if action == "list":
            subparser.add_argument("--session", metavar="ID", help="only those of a session")
            subparser.add_argument("--text", default="", help="only those with this text in their titles")
        else:
            subparser.add_argument("session", metavar="SESSION", help="the id of a session")
            which = "all of them" if action == "delete" else "the newest"
            subparser.add_argument("reply", metavar="REPLY", nargs="?", help=f"the id of a reply; without it, {which}")


def _add_eval_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE[:NAME]", help="a Python file, and the name of its data set (cases)")
    parser.add_argument("--repeats", metavar="N", type=int, default=1, help="how often each case runs (%(default)s)")
    parser.add_argument("--concurrency", metavar="N", type=int, default=8, help="how many run at a time (%(default)s)")
    parser.add_argument("--ablate", action="store_true", help="also run without each layer, and print its worth")
    parser.add_argument("--baseline", metavar="FILE", help="compare with a report that --json wrote")
    parser.add_argument(
        "--fail-under",
        metavar="SHARE",
        type=float,
        help="the share of trials that must pass (1, or none with a baseline)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="the seed of the intervals (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page with plots")
    _add_backend_option(parser)
    run = _lazily("inspection.evaluation", "run_evaluation")
    parser.set_defaults(run=run, refuse=partial(_refuse_arguments, parser))


def _add_backend_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", choices=["asyncio", "trio"], default="asyncio", help="the event loop (asyncio), as tools need it"
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="the port; 0 takes a free one (%(default)s)")
    parser.add_argument(
        "--limit",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="a limit of the server, such as items=5000; may be given several times",
    )


def _add_runner_options(
    parser: argparse.ArgumentParser, default_store: str, drain_seconds: int = 30, if_missing: str = ""
) -> None:
    _add_target(parser, if_missing)
    parser.add_argument("--store", metavar="URL", help=f"{_STORE_HELP}; without it, {default_store}")
    parser.add_argument("--concurrency", metavar="N", type=int, help="how many replies run at a time (50)")
    parser.add_argument(
        "--drain-seconds",
        metavar="S",
        type=float,
        help=f"how long replies may run on after the signal to stop ({drain_seconds})",
    )


def _refuse_arguments(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    """Exit with the usage of this command; argparse would show that of its parent."""
    name, known = unknown[0].partition("=")[0], re.findall(r"--[\w-]+", parser.format_usage())
    [match] = get_close_matches(name, known, 1) or [""]
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{match and f'; did you mean {match}?'}")


def _lazily(module: str, name: str, *, extra: str | None = None) -> Callable[[argparse.Namespace], int]:
    """Return a command that is loaded when it runs: some need an extra, or load all stores."""

    def run(options: argparse.Namespace) -> int:
        # Checked here, since another missing package would be reported first.
        if extra is not None and find_spec(extra) is None:
            raise ConfigError(f'agentrt {extra} needs the extra {extra!r}: pip install "agentrt[{extra}]"')
        command: Callable[[argparse.Namespace], int] = getattr(import_module(f"agentrt.console.{module}"), name)
        return command(options)

    return run


def _chat(options: argparse.Namespace) -> int:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # `input` wants one, until the program ends
    for name in ("stdin", "stdout"):
        if getattr(sys, name) is None:
            raise UsageError(
                f"the standard {name.removeprefix('std')}put is closed: redirect it, for example to {os.devnull}"
            )
    session = SessionFile(options.session) if options.session is not None else None
    agent = load_chat_agent(options, session)
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # input in another encoding must not end the conversation
    logger = logging.getLogger("agentrt")
    if not logger.handlers:
        logger.addHandler(_StderrHandler())
    in_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    is_chosen = options.agent or options.config or options.model is not None or os.environ.get("AGENTRT_MODEL")
    if not in_terminal and isinstance(agent.model, RulesChatModel) and not is_chosen:
        _print_to_stderr(f"{_OFFLINE} {', '.join(_REAL_MODELS)}")  # the user did not ask for the rules
    with start_blocking_portal(name="agentrt") as portal, ExitStack() as stack:
        store: object = agent.state_store
        if isinstance(store, AbstractAsyncContextManager):
            stack.enter_context(portal.wrap_async_context_manager(store))
        stack.enter_context(portal.wrap_async_context_manager(agent))
        listen_for_logins(agent, portal, stack)
        if in_terminal:
            _print_banner(
                agent, is_own=bool(options.agent or options.config)
            )  # with the tools of servers, known by now
        is_whole = Chat(agent, portal, color=not options.no_color).run()
    sys.stdout.flush()
    return 0 if is_whole or in_terminal else 1  # the user at a terminal has seen the error


def _print_banner(agent: Agent, *, is_own: bool) -> None:
    hint = "" if is_own else " (--tools folder lets it read this folder)"
    tools = ", ".join(agent.toolkit.names()) or f"none{hint}"
    messages = len(agent.state.context)
    continued = f", {messages} messages so far" if messages else ""
    words = f"Model: {agent.model.model}. Tools: {tools}{continued}. /help tells more."
    print(escape_controls(f"agentrt {agentrt.__version__}. {words}"))
    if isinstance(agent.model, RulesChatModel) and not is_own:
        print(_OFFLINE, *_REAL_MODELS, sep="\n  ")


class _StderrHandler(logging.Handler):
    """Shows the runtime's log, escaped for a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a failing log must not break a reply
            print(escape_controls(self.format(record)), file=sys.stderr)
