"""A proxy in front of a server, which loses an answer, says nothing, and counts what is sent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

__all__ = ["Proxy", "proxy_to"]


class Proxy:
    """Passes on what clients and the server at `address` send each other; `sent` counts the bytes of clients."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sent = 0
        self.is_silent = self.is_down = False
        self._loses_answer_to: bytes | None = None
        self._is_cutting = self._goes_down = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def lose_answer_to(self, request: bytes, *, goes_down: bool = False) -> None:
        """Cut the connection when the server answers the next request that has these bytes, instead of the answer.

        With `goes_down` it is then down, as if the server were, until `is_down` is set to false.
        """
        self._loses_answer_to, self._goes_down = request, goes_down

    @property
    def is_waiting(self) -> bool:
        """Whether the request whose answer is to be lost has not come yet."""
        return self._loses_answer_to is not None

    def close(self) -> None:
        for each in [self._listener, *self._sockets]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in [self._listener, *self._sockets]:
            each.close()

    def _start(self, work: object, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_down:
                    client.close()
                    continue
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                self._start(self._pass_requests, client, server)
                self._start(self._pass_answers, server, client)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                self.sent += len(data)
                if self._loses_answer_to is not None and self._loses_answer_to in data:
                    self._loses_answer_to = None
                    self._is_cutting = True
                if not self.is_silent:
                    server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self._is_cutting:  # what was asked for is done by now
                    self._is_cutting, self.is_down = False, self._goes_down
                    break
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(address: tuple[str, int]) -> Iterator[Proxy]:
    """Open a proxy in front of the server at that address."""
    with closing(Proxy(address)) as proxy:
        yield proxy
