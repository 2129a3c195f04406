"""The process that `agentrt dev` starts for each version of an agent: it loads the agent, and serves it on SERVE."""

import json
import logging
import os
import signal
import socket
import sys
from argparse import Namespace
from pathlib import Path

from agentrt._runtime.text import escape_controls
from agentrt.agent import Agent
from agentrt.console.development.link import RELOAD_SECONDS, ParentLink
from agentrt.console.development.watched_files import ImportWatcher, stamp_of
from agentrt.console.serve import read_limits, serve_app
from agentrt.console.service import load_runner, log_to_stderr
from agentrt.errors import AgentRTError, ConfigError
from agentrt.runs import RunRecorder, run_stores
from agentrt.serving import create_app
from agentrt.state import SessionStore, SQLiteStore, StateStore

_STOP_SIGNAL = signal.SIGUSR1
_STORE_FOLDER = ".agentrt"
_REPORT_FOLDER = f"{_STORE_FOLDER}/reports"


def serve_version(link: socket.socket, listener: socket.socket, options: Namespace) -> int:
    """Load the agent, report that, wait for SERVE, and serve until STOP; returns the exit code."""
    parent = ParentLink(link, _STOP_SIGNAL)
    folders = [os.getcwd()]
    if options.config is not None:
        path = os.path.abspath(options.config)
        folders.append(os.path.dirname(path))
        parent.report_files({path: stamp_of(path)})
    watcher = ImportWatcher(folders, parent.report_files)
    sys.meta_path.insert(0, watcher)
    try:
        limits = read_limits(options.limit)
        runner = load_runner(options, fallback=_open_default_store, prepare=_add_recorder, drain_seconds=RELOAD_SECONDS)
        if not run_stores(runner.agent):
            raise ConfigError(
                f"the agent of runner {options.agent!r} has no RunRecorder: add RunRecorder(store) to its middlewares"
            )
        reports = _REPORT_FOLDER if Path(_REPORT_FOLDER).is_dir() else None
        app = create_app(runner.agent, runner=runner, limits=limits, playground=True, reports=reports)
    except AgentRTError as error:
        watcher.report_missing()
        for problem in getattr(error, "problems", ()) or [error]:
            print(escape_controls(f"agentrt dev: {problem}"), file=sys.stderr, flush=True)
        return 2
    parent.wait_for_turn()
    with log_to_stderr("agentrt dev", logging.WARNING, "agentrt", "uvicorn"):
        serve_app(app, runner, limits, listener, _STOP_SIGNAL, page="/studio")
    return 0


def _open_default_store() -> SessionStore:
    """Return a store in a folder that Git ignores, since it holds conversations."""
    folder = Path(_STORE_FOLDER)
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the folder {str(folder.absolute())!r} cannot be written: {error.strerror}; --store names another place"
        ) from error
    return SQLiteStore(folder / "dev.db")


def _add_recorder(agent: Agent, store: StateStore) -> Agent:
    if run_stores(agent):
        return agent
    # The user's own store may have no runs.
    place = store if hasattr(store, "runs") else _open_default_store()
    return agent.with_middlewares([*agent.middlewares, RunRecorder(place)])


if __name__ == "__main__":
    # Terminals and supervisors signal all processes of a group, but this one stops when its parent says so. A handler
    # that does nothing, since programs that tools start would inherit an ignored signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    link, listener = [socket.socket(fileno=int(number)) for number in sys.argv[1:3]]
    for end in (link, listener):
        end.set_inheritable(False)  # by programs that tools start
    with listener:
        sys.exit(serve_version(link, listener, Namespace(**json.loads(sys.argv[3]))))
