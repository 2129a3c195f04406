"""A Redis that the tests start."""

import signal
import socket
import subprocess
from contextlib import closing, suppress
from time import sleep

import pytest

from tests.services import needs

# coredis leaves buffers of a connection that fails before it is complete to the garbage collector.
when_redis_fails = pytest.mark.filterwarnings("ignore:.*MemoryObject:pytest.PytestUnraisableExceptionWarning")


class RedisServer:
    """A redis-server of our own, which may be stopped or killed."""

    def __init__(self) -> None:
        needs("redis-server")
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not answers(self.port):
            assert self._process.poll() is None, "redis-server ended"
            sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
