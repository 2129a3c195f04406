"""Applications and their clients: in memory, on both event loops, and on a port of this machine."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import uvicorn

from agentrt import Msg
from agentrt.event import AgentEvent
from agentrt.serving import create_app

PATIENCE = 30.0


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
def run_server(app: Any) -> Iterator[str]:
    """Serve the application on a free port, in a thread, and return its URL."""
    config = uvicorn.Config(app, port=0, log_level="warning", ws="none", timeout_graceful_shutdown=1)
    sock = config.bind_socket()
    sock.listen()  # a client that is faster than the thread waits in line
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


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
