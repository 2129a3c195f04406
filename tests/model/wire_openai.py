"""A server that plays what it is told to, without a socket, and remembers what it was asked and what is still open."""

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import httpx2
import pytest

from agentrt.errors import ModelError
from agentrt.message import Msg, UserMsg
from agentrt.model import ChatResponse, OpenAIChatModel

KEY = "sk-canary-0123456789abcdef"
URL = "http://test.invalid/v1"
DONE = b"data: [DONE]\n\n"
SHORT = 0.03  # seconds, for time limits that are meant to pass
HANG = object()
PINGS = object()
HELLO = [UserMsg("user", "Hello")]


@dataclass
class Answer:
    """One HTTP response; an exception among its chunks is raised there, an event waited for, `HANG` hangs, `PINGS`
    sends pings for ever."""

    chunks: Iterable[Any] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Server(httpx2.AsyncBaseTransport):
    """Gives its answers one after the other, and the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[httpx2.Request] = []
        self.open: set[object] = set()
        self.hanging = anyio.Event()
        self._answers = list(answers)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            answer = answer(request)
        await anyio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        if answer is HANG:
            self.hanging.set()
            await anyio.sleep_forever()
        body = _Body(self, answer.chunks)
        self.open.add(body)
        return httpx2.Response(answer.status, headers=answer.headers, stream=body)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, server: Server, chunks: Iterable[Any]) -> None:
        self._server = server
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks_to_send():  # which nobody closes, just as in real connections
            yield chunk

    async def _chunks_to_send(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            await anyio.lowlevel.checkpoint()
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, anyio.Event):
                self._server.hanging.set()
                await chunk.wait()
                continue
            if chunk is HANG:
                self._server.hanging.set()
                await anyio.sleep_forever()
            while chunk is PINGS:
                yield b": ping\n\n" + events({"choices": [{"index": 0, "delta": {}}]})
                await anyio.sleep(0.001)
            yield chunk

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # as real connections do
            await anyio.lowlevel.checkpoint()
            self._server.open.discard(self)


def model_of(*answers: Any, **options: Any) -> tuple[OpenAIChatModel, Server]:
    server = Server(*answers)
    settings: dict[str, Any] = {"api_key": KEY, "base_url": URL, **options}
    return OpenAIChatModel("gpt-test", http_client=lambda: httpx2.AsyncClient(transport=server), **settings), server


def events(*data: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in data)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    fields = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [{key: value for key, value in fields.items() if value is not None}]}


def usage(input_tokens: int, output_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": input_tokens, "completion_tokens": output_tokens, **fields}}


def stream_of(*data: Any, **options: Any) -> Answer:
    """A stream of these events, each in a chunk of its own, to its proper end."""
    return Answer([*map(events, data), DONE], **options)


def says(text: str) -> Answer:
    return stream_of(delta(content=text), delta("stop"), usage(3, 2))


def json_of(body: Any, status: int = 200, **headers: str) -> Answer:
    return Answer([json.dumps(body).encode()], status, {"content-type": "application/json", **headers})


def completion(finish: str | None = "stop", **message: Any) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json_of({"id": "chatcmpl-1", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def error(status: int, message: str = "no", code: Any = None, type: str | None = None, **headers: str) -> Answer:
    return json_of({"error": {"message": message, "code": code, "type": type}}, status, **headers)


async def answer_of(model: OpenAIChatModel, messages: list[Msg] | None = None, *rest: Any) -> list[ChatResponse]:
    """Return what the model gives for one call, streamed or not, and close the model."""
    try:
        result = await model(messages or HELLO, *rest)
        return [result] if isinstance(result, ChatResponse) else [piece async for piece in result]
    finally:
        await model.aclose()


async def body_of(receive: Any) -> bytes:
    """Return the body of the request that an ASGI application is given."""
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event["more_body"]
    return body


async def failure_of(*answers: Any, **options: Any) -> ModelError:
    """Return the error of one call, which leaves nothing open."""
    model, server = model_of(*answers, **options)
    with pytest.raises(ModelError) as caught:
        await answer_of(model)
    assert not server.open
    return caught.value


def endless_line() -> Any:
    while True:
        yield b"x" * 10_000
