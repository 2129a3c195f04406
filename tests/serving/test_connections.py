"""Connections that send no request: half a head, nothing, or one byte in a while."""

import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from agentrt import AgentState
from agentrt.message import UserMsg
from agentrt.serving import BearerTokens, Limits, create_app
from agentrt.serving.connections import BoundedProtocol, network_of
from agentrt.state import InMemoryStateStore
from tests.console.program import environment
from tests.runner.conftest import make_agent
from tests.serving.conftest import halfway_agent, open_socket, read_all, run_server

HEALTH = "GET /healthz HTTP/1.1"


@contextmanager
def bounded_server(limits: Limits, protocol: type[BoundedProtocol] = BoundedProtocol) -> Iterator[str]:
    app = create_app(make_agent(), auth=BearerTokens({"ann-token": "ann"}), limits=limits)
    with run_server(app, http=protocol.with_limits(limits)) as url:
        yield url


def read_answer(client: socket.socket) -> bytes:
    """Return the first answer, and leave the connection open."""
    found = b""
    while b"}" not in found:
        found += client.recv(65536)
    return found


def send_until_closed(client: socket.socket, byte: bytes) -> bytes:
    """Send a byte in a while, which is not long, and return what comes before the server closes the connection."""
    client.settimeout(0.02)
    found = b""
    while True:
        try:
            client.sendall(byte)
            part = client.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            return found
        if not part:
            return found
        found += part


def test_head_that_does_not_come_in_time_is_given_up():
    with bounded_server(Limits(head_seconds=0.3)) as url, ExitStack() as stack:
        half, slow, later, refused = (
            stack.enter_context(open_socket(url, line)) for line in (HEALTH, HEALTH, HEALTH, "POST /a2a HTTP/1.1")
        )
        later.sendall(b"\r\n")
        refused.sendall(b"Content-Length: 100000\r\n\r\n")
        assert b'"ok"' in read_answer(later)
        assert b" 401 " in read_answer(refused)
        answer = read_all(half)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"too_slow"' in answer
        assert b'"limit":"head_seconds"' in answer
        # Bytes do not start the time again: not of the first head, nor of a later one, nor of a body that nobody reads.
        assert b" 408 " in send_until_closed(slow, b"x")
        assert b" 408 " in send_until_closed(later, b"G")
        assert b" 408 " not in send_until_closed(refused, b" ")


def test_connection_that_sends_nothing_is_closed_in_silence():
    with bounded_server(Limits(head_seconds=0.1)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            assert read_all(client) == b""


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())


def test_websocket_of_another_route_is_left_alone():
    app = Starlette(routes=[WebSocketRoute("/echo", echo)])
    protocol = BoundedProtocol.with_limits(Limits(head_seconds=0.2))
    with run_server(app, http=protocol, ws="wsproto") as url, ExitStack() as stack:
        client = stack.enter_context(open_socket(url, "GET /echo HTTP/1.1"))
        half = stack.enter_context(open_socket(url, HEALTH))
        client.sendall(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n")
        client.sendall(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 101 ")
        assert b" 408 " in read_all(half)  # the time of both is over
        client.sendall(b"\x81\x82\0\0\0\0Hi")
        assert client.recv(65536) == b"\x81\x02Hi"


def test_client_that_takes_no_answer_is_given_up():
    store = InMemoryStateStore()
    limits = Limits(stall_seconds=0.1, head_seconds=0.5)
    app = create_app(make_agent(), store=store, limits=limits)
    anyio.run(store.save, AgentState(session_id="s1", context=[UserMsg("user", "x" * 20_000_000)]))
    with run_server(app, http=BoundedProtocol.with_limits(limits)) as url, ExitStack() as stack:
        client = stack.enter_context(open_socket(url, "GET /api/sessions/s1 HTTP/1.1"))
        client.sendall(b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        # It reads on when five times the limit have passed, as the time of this one shows.
        assert b" 408 " in read_all(stack.enter_context(open_socket(url, HEALTH)))
        with suppress(ConnectionResetError):
            assert len(read_all(client)) < 20_000_000


class ForeignProtocol(BoundedProtocol):
    """Takes each client for one of another machine, since tests have no other."""

    def peer(self) -> str | None:
        return "192.0.2.1"


def test_connections_of_a_peer_are_counted_while_they_wait(caplog):
    limits = Limits(connections_per_peer=2, head_seconds=20)
    with bounded_server(limits, ForeignProtocol) as url, ExitStack() as stack:
        first, _ = (stack.enter_context(open_socket(url, HEALTH)) for _ in range(2))
        for _ in range(2):
            with open_socket(url, HEALTH) as third, suppress(ConnectionResetError):
                assert read_all(third) == b""
        assert caplog.text.count("Limits(connections_per_peer=...)") == 1
        first.close()
        # Its place is free as soon as the server sees that.
        answer = b""
        while not answer.startswith(b"HTTP/1.1 200 "):
            with open_socket(url, HEALTH) as another, suppress(ConnectionError):
                another.sendall(b"Connection: close\r\n\r\n")
                answer = read_all(another)


def test_connection_with_a_request_is_not_counted():
    agent, gate = halfway_agent()
    limits = Limits(connections_per_peer=1)
    app = create_app(agent, limits=limits)
    with run_server(app, http=ForeignProtocol.with_limits(limits)) as url, ExitStack() as stack:
        for number in range(3):
            reader = stack.enter_context(open_socket(url, f"POST /api/sessions/s{number}/replies HTTP/1.1"))
            reader.sendall(
                b"Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
                b'{"input": "Hi"}'
            )
            assert reader.recv(65536).startswith(b"HTTP/1.1 200 ")
        gate.set()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", None),
        ("::1", None),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:0db8:0000:0000"),
        ("2001:db8::ffff:1", "2001:0db8:0000:0000"),
        ("fe80::1%eth0", "fe80:0000:0000:0000"),
    ],
)
def test_peers_are_addresses_and_networks(address, network):
    assert network_of(address) == network


@pytest.mark.slow
def test_slow_heads_leave_a_server_of_few_files_reachable(tmp_path: Path):
    (tmp_path / "app.py").write_text(
        textwrap.dedent("""
        from agentrt import Agent
        from agentrt.model import ScriptedChatModel

        agent = Agent("assistant", "", ScriptedChatModel(["Hello."]))
        """)
    )
    serve = [sys.executable, "-m", "agentrt", "serve", "app:agent", "--port", "0", "--limit", "head_seconds=1"]
    few_files = ["sh", "-c", 'ulimit -n 150 && exec "$@"', "sh"]
    process = subprocess.Popen([*few_files, *serve], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment())
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split(" is at ")[1].split(",")[0]
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(open_socket(url, HEALTH))
            with open_socket(url, HEALTH) as client:
                client.sendall(b"Connection: close\r\n\r\n")
                assert b'"ok"' in read_all(client)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
