"""A server on a socket that answers with the very bytes it is given, however wrong they are."""

import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any
from zlib import compressobj

import anyio
from anyio.abc import SocketListener, SocketStream

__all__ = ["HANG", "RawServer", "bomb", "head", "raw_server"]

HANG = object()


class RawServer:
    """What the server was sent, and where it is."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []


@asynccontextmanager
async def raw_server(answer: Callable[[], Iterable[Any]]) -> AsyncIterator[RawServer]:
    """Answer each request with these bytes, one piece after the other; `HANG` hangs, and the end closes."""
    server = RawServer()

    async def handle(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                received = b""
                while b"\r\n\r\n" not in received:
                    received += await stream.receive()
                server.requests.append(received)
                for piece in answer():
                    if piece is HANG:
                        await anyio.sleep_forever()
                    await stream.send(piece)

    failure: Exception | None = None
    # Bound here, since a listener that looks its address up starts a thread.
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        async with await SocketListener.from_socket(bound) as listener, anyio.create_task_group() as tasks:
            server.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            tasks.start_soon(listener.serve, handle)
            try:
                yield server
            except Exception as error:  # noqa: BLE001  # raised below as it is, and not in a group
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def head(*lines: str, status: str = "200 OK") -> bytes:
    """Return the head of an answer, whose body ends with the connection."""
    return "\r\n".join([f"HTTP/1.1 {status}", "connection: close", *lines, "", ""]).encode()


@cache
def bomb(megabytes: int = 50) -> bytes:
    """Return a gzip of so many megabytes of spaces, which are valid JSON as far as they go."""
    packer = compressobj(9, wbits=31)
    block = b" " * 2**20
    return b"".join([*(packer.compress(block) for _ in range(megabytes)), packer.flush()])
