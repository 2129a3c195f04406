"""What a hostile server sends does the same harm to a model, an embedding, a remote agent and MCP: none."""

import logging
import traceback
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import anyio
import pytest

import agentrt.tool.mcp.connection  # noqa: F401  # with the SDK, which takes ten seconds to load if memory is traced
from agentrt.a2a import A2AAgent
from agentrt.embedding import OpenAIEmbedding
from agentrt.errors import AgentRTError
from agentrt.message import UserMsg
from agentrt.model import AnthropicChatModel, OpenAIChatModel, Timeouts
from agentrt.tool import MCPToolset
from tests.http.raw_server import HANG, bomb, head, raw_server

CANARY = "canary-0123456789abcdef"
PATIENCE = 20.0  # seconds
IMPATIENCE = 1.0  # with what answers nothing, or without an end


def sign(method: str, url: str, body: bytes) -> dict[str, str]:
    return {"authorization": f"Bearer {CANARY}"}


async def ask_model(url: str, seconds: float = PATIENCE) -> None:
    timeouts = Timeouts(total=seconds)
    model = OpenAIChatModel("m", base_url=url, auth=sign, timeouts=timeouts, max_bytes=1_000_000)
    try:
        async for _ in await model([UserMsg("user", "Hi")]):  # type: ignore[union-attr]
            pass
    finally:
        await model.aclose()


async def ask_whole(url: str, seconds: float) -> None:
    limits: Any = {"max_bytes": 1_000_000, "timeouts": Timeouts(total=seconds)}
    model = AnthropicChatModel("m", base_url=url, api_key=lambda: CANARY, stream=False, **limits)
    try:
        await model([UserMsg("user", "Hi")])
    finally:
        await model.aclose()


async def embed(url: str, seconds: float = PATIENCE) -> None:
    limits: Any = {"max_bytes": 1_000_000, "timeouts": Timeouts(total=seconds)}
    model = OpenAIEmbedding("m", dimensions=2, base_url=url, auth=sign, **limits)
    try:
        await model(["Hi"])
    finally:
        await model.aclose()


async def read_card(url: str, seconds: float = PATIENCE) -> None:
    async with A2AAgent(url, auth=sign, timeouts=Timeouts(total=seconds)) as agent:
        await agent.card()


async def open_toolset(url: str, seconds: float = PATIENCE) -> None:
    async with MCPToolset("s", url=f"{url}/mcp", auth=sign, timeout=seconds):
        pass


def endless_headers() -> Iterable[Any]:
    yield b"HTTP/1.1 200 OK\r\n"
    yield from repeat(b"x-header: " + b"x" * 10_000 + b"\r\n")


ANSWERS: dict[str, Callable[[], Iterable[Any]]] = {
    "bomb": lambda: [head("content-type: application/json", "content-encoding: gzip"), bomb(20)],
    "bomb of events": lambda: [head("content-type: text/event-stream", "content-encoding: gzip"), bomb(20)],
    "bomb of an error": lambda: [head("content-encoding: gzip", status="500 Oh"), bomb(20)],
    "endless headers": endless_headers,
    "redirect": lambda: [head("location: http://127.0.0.1:1/elsewhere", status="307 Temporary Redirect")],
    "echo": lambda: [head("content-type: text/plain", status="401 No"), f"Bearer {CANARY}".encode()],
}


DOORS = [ask_model, ask_whole, embed, read_card, open_toolset]


@pytest.mark.parametrize("door", DOORS)
async def test_a_hostile_server_gets_no_memory_no_time_and_no_key(
    door: Any, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, answer in ANSWERS.items():
        if door is open_toolset and name == "bomb of events" and anyio_backend == "trio":
            continue  # httpx2 leaves the generators of its event source suspended when an event is too long
        # What the MCP SDK decodes has no limit but its time.
        is_impatient = door is open_toolset and name == "bomb"
        async with raw_server(answer) as server:
            tracemalloc.start()
            try:
                with anyio.fail_after(PATIENCE + 60), pytest.raises(AgentRTError) as caught:
                    await door(server.url, IMPATIENCE if is_impatient else PATIENCE)
                assert tracemalloc.get_traced_memory()[1] < 70 * 2**20, name
            finally:
                tracemalloc.stop()
            assert CANARY.encode() in server.requests[0], name
        assert CANARY not in caplog.text + "".join(traceback.format_exception(caught.value)), name


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the limit is waited for once, at all doors together
async def test_a_silent_server_gets_no_time_and_no_key(anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def knock(door: Any) -> None:
        async with raw_server(lambda: [HANG]) as server:
            with anyio.fail_after(PATIENCE), pytest.raises(AgentRTError) as caught:
                await door(server.url, IMPATIENCE)
            assert CANARY.encode() in server.requests[0], door
        assert CANARY not in "".join(traceback.format_exception(caught.value)), door

    async with anyio.create_task_group() as group:
        for door in DOORS:
            group.start_soon(knock, door)
    assert CANARY not in caplog.text


@pytest.mark.parametrize("door", [ask_model, embed, read_card, open_toolset])
async def test_a_function_that_fails_is_named_at_each_door(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> dict[str, str]:
        raise LookupError(CANARY)

    monkeypatch.setattr(f"{__name__}.sign", fail)
    async with raw_server(lambda: [HANG]) as server:
        with (
            anyio.fail_after(30),
            pytest.raises(AgentRTError, match=r"the function auth=\.\.\. raised LookupError") as error,
        ):
            await door(server.url)
        assert server.requests == []
    assert CANARY not in "".join(traceback.format_exception(error.value))
