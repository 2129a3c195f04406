"""Anthropic's end of the wire, in this process: what it is to answer is written out, what it was asked is kept."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from agentrt.model import AnthropicChatModel

HANG = object()
CUT = httpx2.RemoteProtocolError("peer closed connection without sending complete message body")
KEY = "sk-ant-canary-0123456789"

Event = dict[str, Any]


@dataclass
class Reply:
    """An answer that is no stream."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Wire(httpx2.AsyncBaseTransport):
    """Gives `answers` one after the other: a `Reply`, or a list of events, bytes, exceptions and `HANG` to stream."""

    def __init__(self, *answers: Reply | Sequence[Any]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.open = 0

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Reply):
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            return httpx2.Response(answer.status, headers=answer.headers, content=content)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Body(self, answer))


class Body(httpx2.AsyncByteStream):
    def __init__(self, wire: Wire, items: Sequence[Any]) -> None:
        self.wire = wire
        self.items = items
        self.is_open = True
        wire.open += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for item in self.items:
            await anyio.lowlevel.checkpoint()
            if item is HANG:
                await anyio.sleep_forever()
            elif isinstance(item, Exception):
                raise item
            else:
                yield item if isinstance(item, bytes) else line(item)

    async def aclose(self) -> None:
        self.wire.open -= self.is_open
        self.is_open = False


def model_on(wire: Wire, model: str = "claude-sonnet-5", **options: Any) -> AnthropicChatModel:
    """Return a model whose server is `wire`, and which marks nothing for the cache unless it is told to."""
    settings = {"api_key": KEY, "cache": "off", **options}
    return AnthropicChatModel(model, http_client=lambda: httpx2.AsyncClient(transport=wire), **settings)


def line(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def usage(**counts: int | None) -> Event:
    return {"input_tokens": 10, "output_tokens": 1, **counts}


def start(**counts: int | None) -> Event:
    return {"type": "message_start", "message": {"id": "msg_1", "usage": usage(**counts)}}


def stop(reason: str = "end_turn", **counts: int | None) -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5, **counts}},
        {"type": "message_stop"},
    ]


def block(index: int, first: Event, *deltas: Event) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": first},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[Event]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thinking(index: int, signature: str, *pieces: str) -> list[Event]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    first = {"type": "thinking", "thinking": "", "signature": ""}
    return block(index, first, *deltas, {"type": "signature_delta", "signature": signature})


def redacted(index: int, data: str) -> list[Event]:
    return block(index, {"type": "redacted_thinking", "data": data})


def tool_use(index: int, call_id: str, name: str, *pieces: str) -> list[Event]:
    first = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, first, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def text_events(*words: str) -> list[Event]:
    """Return a whole stream that says the words."""
    return [start(), *text(0, *words), *stop()]
