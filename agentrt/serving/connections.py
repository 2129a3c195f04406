"""Limits of connections, below their requests: their number per address, and the wait for a head or a reader."""

import asyncio
import logging
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any, ClassVar, Self

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agentrt.serving.failure import failure_body
from agentrt.serving.guard import is_loopback
from agentrt.serving.limits import Limits
from agentrt.serving.responses import JsonResponse

_logger = logging.getLogger("agentrt")


class BoundedProtocol(H11Protocol):
    """A connection of uvicorn that is closed when a request head is late, or its client stops reading.

    Give it to uvicorn as `http=`, or as `--http agentrt.serving.connections:BoundedProtocol`. It enforces
    `head_seconds`, `connections_per_peer` and `stall_seconds`. h11 refuses a head of more than 16 KB, and uvicorn
    closes a connection that is idle for `timeout_keep_alive` seconds.
    """

    limits: ClassVar = Limits()
    _waiting: ClassVar[Counter[str]] = Counter()  # connections without a request, by their peer
    _has_warned: ClassVar = False

    @classmethod
    def with_limits(cls, limits: Limits) -> type[Self]:
        """Return a class with these limits and its own count."""
        return type(cls.__name__, (cls,), {"limits": limits, "_waiting": Counter(), "_has_warned": False})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._peer: str | None = None  # set while it is counted
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._look(has_sent=True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look(has_sent=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look(has_sent=False)

        self._watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        if self._reader_timer is not None:
            self._reader_timer.cancel()

    def peer(self) -> str | None:
        """Return the address or network whose connections count together, or `None` for no limit."""
        return network_of(self.client[0]) if self.client else None

    def _look(self, *, has_sent: bool) -> None:
        """Update whether the connection waits for a request head, which any byte may start or end."""
        # Before the first request it is `None`, whatever uvicorn's annotation says.
        cycle: RequestResponseCycle | None = self.cycle
        is_busy = cycle is not None and not cycle.response_complete
        # A WebSocket has taken over the connection, so no more requests come.
        is_left = self.transport.is_closing() or self.transport.get_protocol() is not self
        if is_busy or is_left:
            self._stop_waiting()
        elif self._peer is None and not self._start_waiting():
            self.transport.close()  # without an answer, which would be lost: the client may be sending
        # Further bytes do not restart it: one now and then would keep the connection open.
        elif has_sent and self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self._give_up)

    def _start_waiting(self) -> bool:
        """Count the connection; returns whether its peer is below the limit."""
        peer = self.peer()
        if peer is not None:
            if self._waiting[peer] >= self.limits.connections_per_peer:
                self._warn_once(peer)
                return False
            self._waiting[peer] += 1
            self._peer = peer
        return True

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._peer is not None:
            self._waiting[self._peer] -= 1
            # Otherwise every address would stay in memory.
            if not self._waiting[self._peer]:
                del self._waiting[self._peer]
            self._peer = None

    @classmethod
    def _warn_once(cls, peer: str) -> None:
        if not cls._has_warned:
            cls._has_warned = True
            _logger.warning(
                "closed a connection from %s, which has %d without a request: behind a proxy, raise "
                "Limits(connections_per_peer=...); this warning comes once",
                peer,
                cls.limits.connections_per_peer,
            )

    def _give_up(self) -> None:
        # Browsers open connections ahead of use, and would take this for the answer to a later request.
        if self.conn.trailing_data[0]:
            message = f"the head of the request did not arrive within {self.limits.head_seconds:g} seconds"
            body = failure_body("too_slow", message, {"limit": "head_seconds"})
            response = JsonResponse(body, 408, {"Connection": "close"})
            lines = [b": ".join(header) for header in response.raw_headers]
            self.transport.write(b"\r\n".join([b"HTTP/1.1 408 Request Timeout", *lines, b"", bytes(response.body)]))
        self.transport.close()

    def _watch_reader(self) -> None:
        """Watch for a client that stops reading, which a request or a closing connection would wait for."""
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        unsent = self.transport.get_write_buffer_size()
        seconds = self.limits.stall_seconds
        self._reader_timer = self.loop.call_later(seconds, self._check_reader, unsent) if unsent else None

    def _check_reader(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._watch_reader()
        else:
            self.transport.abort()


def network_of(address: str) -> str | None:
    """Return an IPv4 address, or the network of an IPv6 address; `None` for this machine, where a proxy may run."""
    if is_loopback(address):
        return None
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        # A client with one IPv6 address has all that begin with these groups.
        return str(parsed.ipv4_mapped or parsed.exploded[:19])
    return address
