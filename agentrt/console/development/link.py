"""The socket between `agentrt dev` and the process that serves."""

import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from signal import Signals

from agentrt.console.development.watched_files import Stamp

SERVE, STOP = b"+", b"-"
"""The commands of the watching process; a second STOP means at once."""
RELOAD_SECONDS = 2.0
"""The default time for replies to end after STOP: short, so that a change takes effect soon."""


class ParentLink:
    """The serving process's end of the socket: STOP, or the death of the other process, becomes a signal."""

    def __init__(self, link: socket.socket, stop_signal: Signals) -> None:
        self._link = link
        self._stop_signal = stop_signal
        self._lock = threading.Lock()
        self._turn = threading.Event()
        threading.Thread(target=self._listen, name="agentrt dev", daemon=True).start()

    def report_files(self, stamps: Mapping[str, Stamp]) -> None:
        """Ask the parent to watch these files."""
        if stamps:
            self._send({"files": stamps})

    def wait_for_turn(self) -> None:
        """Report that the agent is loaded, and wait for SERVE."""
        self._send({"loaded": True})
        self._turn.wait()

    def _send(self, report: Mapping[str, object]) -> None:
        with self._lock, suppress(OSError):  # without its parent, this process is about to end
            self._link.sendall(json.dumps(report).encode() + b"\n")

    def _listen(self) -> None:
        word = self._link.recv(1)
        while word == SERVE:
            self._turn.set()
            word = self._link.recv(1)
        os.kill(os.getpid(), self._stop_signal)
        while self._link.recv(1):
            os.kill(os.getpid(), self._stop_signal)
