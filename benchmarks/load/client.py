"""A client of one connection that costs so little that the server is what is measured."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

__all__ = ["Answer", "Client", "StreamEvent"]

_SSE = {"Accept": "text/event-stream"}


class Answer(NamedTuple):
    """A response without a stream."""

    status: int
    body: bytes

    @property
    def value(self) -> Any:
        """Return what the body holds as JSON."""
        return json.loads(self.body)


class StreamEvent(NamedTuple):
    """A server-sent event: its number, 0 for "done", and its data."""

    number: int
    data: Any


class RefusedError(Exception):
    """The server answered a request for events with something else."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {answer.body[:200]!r}")
        self.answer = answer


class Client:
    """Sends one request after the other to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connection, whatever is on its way."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Answer:
        """Return the answer."""
        status, head = await self._begin(method, path, body, headers)
        return Answer(status, b"".join([part async for part in self._parts(head)]))

    async def events(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] = {},
    ) -> AsyncGenerator[StreamEvent, None]:
        """Follow a stream of events until it ends; raises `RefusedError` where there is none."""
        status, head = await self._begin(method, path, body, {**headers, **_SSE})
        parts = self._parts(head)
        if status != 200 or not head.get("content-type", "").startswith("text/event-stream"):
            raise RefusedError(Answer(status, b"".join([part async for part in parts])))
        left = b""
        async with aclosing(parts):
            async for part in parts:
                *texts, left = (left + part).replace(b"\r\n", b"\n").split(b"\n\n")
                for text in texts:
                    fields = dict(
                        line.split(": ", 1) for line in text.decode().splitlines() if not line.startswith(":")
                    )
                    if "data" in fields:
                        yield StreamEvent(int(fields.get("id", 0)), json.loads(fields["data"]))

    async def _begin(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, dict[str, str]]:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
        lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in headers.items())]
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), {name.lower(): value for name, value in fields.items()}

    async def _parts(self, head: dict[str, str]) -> AsyncGenerator[bytes, None]:
        assert self._reader is not None
        if "content-length" in head:
            yield await self._reader.readexactly(int(head["content-length"]))
        elif "chunked" in head.get("transfer-encoding", ""):
            while size := int(await self._reader.readline(), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readline()
        if head.get("connection") == "close":
            await self.disconnect()
