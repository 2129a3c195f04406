"""`agentrt dev`: this process holds the port and watches files; another one serves, until a file changes."""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Self

from agentrt._runtime.text import escape_controls
from agentrt.console.development.link import RELOAD_SECONDS, SERVE, STOP
from agentrt.console.development.watched_files import WatchedFiles
from agentrt.console.listener import listen, url_of
from agentrt.errors import ConfigError

_FOR_THIS_MACHINE = "the studio may leave out any layer of the agent, guards too: serve it to others with agentrt serve"
_CONFIG = "agentrt.toml"
_WATCH_SECONDS = 0.2
_GRACE_SECONDS = 10  # in addition to the time for replies to end
_OPTIONS = ("agent", "config", "store", "concurrency", "drain_seconds", "limit")


def develop(options: argparse.Namespace) -> int:
    """Serve until a signal comes, and start again when a file changes; returns the exit code."""
    if sys.platform == "win32":
        raise ConfigError("agentrt dev does not run on Windows, which cannot pass on a port: use agentrt serve")
    if find_spec("uvicorn") is None:  # which the other process loads, this one needs no server
        raise ConfigError("agentrt dev needs the extra 'serve': pip install \"agentrt[serve]\"")
    if options.agent is None and options.config is None:
        if not Path(_CONFIG).exists():
            raise ConfigError(f"name the agent: agentrt dev app:agent; without a name it is that of {_CONFIG} here")
        options.config = _CONFIG
    with listen(options.host, options.port, why_local=_FOR_THIS_MACHINE) as listener, _StopSignals() as stops:
        return _Development(options, listener, stops).run()


class _StopSignals:
    """Counts SIGTERM and Ctrl-C: the first one means to stop, the second one to stop at once."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _: int, frame: FrameType | None) -> None:
        self.count += 1


class _Version:
    """A process that loads the agent from the files as they are at its start, and serves it after SERVE."""

    def __init__(self, options: argparse.Namespace, listener: socket.socket) -> None:
        self.is_loaded = False
        self.link, theirs = socket.socketpair()
        self.link.setblocking(False)
        self._received = b""
        chosen = json.dumps({name: getattr(options, name) for name in _OPTIONS})
        handles = (theirs.fileno(), listener.fileno())
        # -P, so that no file of the folder hides a module of Python.
        command = [sys.executable, "-P", "-m", "agentrt.console.development.server", *map(str, handles), chosen]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=handles)

    def read_reports(self, files: WatchedFiles) -> None:
        """Read its reports: files to watch, and that the agent is loaded."""
        while data := self._receive():
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                files.add({path: stamp and tuple(stamp) for path, stamp in report.get("files", {}).items()})
                self.is_loaded |= "loaded" in report

    def _receive(self) -> bytes:
        try:
            return self.link.recv(65_536)
        except (BlockingIOError, ConnectionResetError):
            return b""

    def tell(self, word: bytes) -> None:
        """Tell it to SERVE or to STOP."""
        with suppress(OSError):  # it may have just ended
            self.link.send(word)

    def end(self, seconds: float, stops: _StopSignals) -> None:
        """Tell it to stop, again at each signal, and kill it if that takes too long."""
        deadline, known = monotonic() + seconds, stops.count
        self.tell(STOP)
        while self.process.poll() is None:
            if stops.count > known:
                known = stops.count
                self.tell(STOP)
            if monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                if self.is_loaded:
                    _tell("a server that did not stop was killed: a tool may block its event loop")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_WATCH_SECONDS)
        self.link.close()


class _Development:
    """The version that serves, the one that is being loaded, and the files of both."""

    def __init__(self, options: argparse.Namespace, listener: socket.socket, stops: _StopSignals) -> None:
        self._options = options
        self._listener = listener
        self._stops = stops
        self._files = WatchedFiles()
        self._serving: _Version | None = None
        self._loading: _Version | None = _Version(options, listener)
        self._has_served = False

    def run(self) -> int:
        """Watch until a signal comes, or until the first version fails; returns the exit code."""
        while not self._stops.count:
            links = [version.link for version in (self._loading, self._serving) if version is not None]
            select.select(links, [], [], _WATCH_SECONDS)
            if self._loading is not None:
                code = self._look_at_loading(self._loading)
                if code is not None:
                    return code
            self._look_at_serving()
            self._look_at_files()
        for version in (self._loading, self._serving):
            if version is not None:
                version.end(self._patience, self._stops)
        return 0

    @property
    def _patience(self) -> float:
        seconds = self._options.drain_seconds
        return _GRACE_SECONDS + float(RELOAD_SECONDS if seconds is None else seconds)

    def _look_at_loading(self, version: _Version) -> int | None:
        """Let a version that is loaded take over; returns an exit code if there is nothing to serve."""
        code = version.process.poll()
        version.read_reports(self._files)
        if version.is_loaded and code is None:
            if self._serving is not None:
                self._serving.end(self._patience, self._stops)
            version.tell(SERVE)
            self._serving, self._loading = version, None
            if self._options.open and not self._has_served:
                webbrowser.open(f"{url_of(self._listener.getsockname())}/studio")
            self._has_served = True
        elif code is not None:
            version.link.close()
            self._loading = None
            if code != 2:  # else it has printed the error
                _tell(f"loading the agent ended its process {_exit_text(code)}")
            if not self._has_served:
                return 2
            served = "the previous version is served" if self._serving is not None else "nothing is served"
            _tell(f"{served} until a file changes")
        return None

    def _look_at_serving(self) -> None:
        version = self._serving
        if version is None:
            return
        version.read_reports(self._files)
        code = version.process.poll()
        if code is not None:
            version.link.close()
            self._serving = None
            _tell(f"the server has ended {_exit_text(code)}: it starts again when a file changes")

    def _look_at_files(self) -> None:
        changed = self._files.take_changed()
        if not changed:
            return
        names = ", ".join(sorted(os.path.relpath(path) for path in changed))
        # An editor may write several files, or one in parts.
        while changed:
            select.select([], [], [], _WATCH_SECONDS / 2)
            changed = self._files.take_changed()
        _tell(f"{names} changed: loading the agent again")
        if self._loading is not None:
            self._loading.end(0, self._stops)
        self._loading = _Version(self._options, self._listener)


def _exit_text(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with the exit code {code}"


def _tell(text: str) -> None:
    print(escape_controls(f"agentrt dev: {text}"), file=sys.stderr, flush=True)
