"""The limits of a server."""

from dataclasses import dataclass

from agentrt._runtime.options import check_seconds, check_whole


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what clients may take.

    A request has `head_seconds` until its head is complete, and its body `body_seconds`. `items` counts the messages
    and content parts of a body. `connections_per_peer` counts the connections of one address that wait for the head of
    a request, and `connections` the requests that are being answered.

    Where there are owners, each of them has at most `connections_per_owner` requests at a time, with streams, waits and
    slow bodies, `streams_per_owner` streams of events, `queued_per_owner` replies that wait to be run, and
    `sessions_per_owner` sessions. Once these have `bytes_per_owner` in the store, nothing is added to them. A stream
    gets a comment each `ping_seconds`, and is cut when its reader takes nothing for `stall_seconds`.
    """

    head_seconds: float = 10.0
    body_bytes: int = 1_000_000
    body_seconds: float = 30.0
    items: int = 1_000
    connections_per_peer: int = 100
    connections: int = 1_000
    connections_per_owner: int = 100
    streams_per_owner: int = 10
    queued_per_owner: int = 100
    sessions_per_owner: int = 10_000
    bytes_per_owner: int = 1_000_000_000
    ping_seconds: float = 15.0
    stall_seconds: float = 30.0

    def __post_init__(self) -> None:
        counts = (
            *("body_bytes", "items", "connections_per_peer", "connections", "connections_per_owner"),
            *("streams_per_owner", "queued_per_owner", "sessions_per_owner", "bytes_per_owner"),
        )
        for name in counts:
            check_whole(f"Limits({name}=...)", getattr(self, name))
        for name in ("head_seconds", "body_seconds", "ping_seconds", "stall_seconds"):
            check_seconds(f"Limits({name}=...)", getattr(self, name))
