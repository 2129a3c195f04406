"""Applications and their clients: in memory, on both event loops, and on a port of this machine."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import anyio
import httpx2
import uvicorn
import uvicorn.server

from agentrt import Agent, Msg
from agentrt.event import AgentEvent
from agentrt.message import TextBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.serving import create_app
from agentrt.tool import ToolBase

PATIENCE = 30.0
WORDS = [f"word{number} " for number in range(60)]


class HalfwayModel(ChatModelBase):
    """Says `WORDS`; in the middle of them it waits until the test opens `gate`."""

    def __init__(self) -> None:
        super().__init__(model="halfway", stream=True)
        self.gate = threading.Event()

    async def _call(self, *_: Any) -> AsyncIterator[ChatResponse]:
        return self._stream()

    async def _stream(self) -> AsyncIterator[ChatResponse]:
        for number, word in enumerate(WORDS):
            if number == len(WORDS) // 2:
                await anyio.to_thread.run_sync(self.gate.wait, PATIENCE, abandon_on_cancel=True)
            yield ChatResponse([TextBlock(word)], is_last=False)


def halfway_agent(**options: Any) -> tuple[Agent, threading.Event]:
    """Return an agent that says `WORDS`, and the gate in the middle of them."""
    model = HalfwayModel()
    return Agent("assistant", "", model, **options), model.gate


@asynccontextmanager
async def open_client(app: Any, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Run the application in this event loop; a stream is there when it has ended."""
    transport = httpx2.ASGITransport(app=app)
    client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", **options)
    async with app.router.lifespan_context(app), client:
        yield client


@asynccontextmanager
async def serve(agent: Any, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with open_client(create_app(agent, **options)) as client:
        yield client


@contextmanager
def run_server(app: Any, *, http: Any = "auto", ws: Any = "none") -> Iterator[str]:
    """Serve the application on a free port, in a thread, and return its URL."""
    config = uvicorn.Config(app, http=http, ws=ws, port=0, log_level="warning", timeout_graceful_shutdown=1)
    sock = config.bind_socket()
    sock.listen()  # a client that is faster than the thread waits in line
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    with patch.object(uvicorn.server, "asyncio", _ASYNCIO_OF_UVICORN):
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def _sleep_a_tenth(seconds: float) -> Awaitable[None]:
    return asyncio.sleep(seconds / 10)


# uvicorn looks only every 0.1 seconds whether it is to end, and sleeps as long for its connections to end.
_ASYNCIO_OF_UVICORN = SimpleNamespace(**{**vars(asyncio), "sleep": _sleep_a_tenth})


def open_socket(url: str, request: str) -> socket.socket:
    """Connect, and send the first lines of the head of a request."""
    host, port = url.removeprefix("http://").split(":")
    client = socket.socket()
    # Small, so that the server notices soon that nobody reads.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(20)
    client.connect((host, int(port)))
    client.sendall(f"{request}\r\nHost: {host}:{port}\r\n".encode())
    return client


def read_all(client: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_stream(text: str) -> list[tuple[str, Any]]:
    """Return the id, or else the name, and the data of each server-sent event."""
    found = []
    for part in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields.get("id") or fields["event"], json.loads(fields["data"])))
    return found


def rebuild(events: list[tuple[str, Any]]) -> Msg:
    """Build the message as a client does."""
    message = Msg("assistant", [], "assistant")
    for name, data in events:
        if name != "done":
            message.append_event(AgentEvent.from_json(json.dumps(data)))
    return message


class Camera(ToolBase):
    name = "camera"
    description = "Take a picture."
    input_schema: ClassVar = {"type": "object", "properties": {}}
    is_external_tool = True
