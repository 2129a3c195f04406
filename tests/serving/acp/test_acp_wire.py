"""ACP over file descriptors, to an editor that reads slowly."""

import json
import os
import threading
from select import select
from typing import Any

import anyio
import pytest

from agentrt._runtime.concurrency.wire import Wire
from agentrt.serving.acp.wire import _WireTransport

_MUCH = 1_000_000  # more than a pipe takes


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which the SDK needs
async def test_a_cancelled_message_does_not_mix_with_the_next(anyio_backend: str) -> None:
    agent_reads, editor_writes = os.pipe()
    editor_reads, agent_writes = os.pipe()
    others = set(threading.enumerate())
    transport, scope = _WireTransport(Wire(agent_reads, agent_writes), _MUCH), anyio.CancelScope()
    [reader] = set(threading.enumerate()) - others

    async def send_much() -> None:
        with scope:
            await transport.send({"text": "x" * _MUCH})

    def read_lines() -> list[Any]:
        with os.fdopen(editor_reads, "rb") as file:
            return [json.loads(file.readline()) for _ in range(2)]

    async with anyio.create_task_group() as group:
        group.start_soon(send_much)
        await anyio.to_thread.run_sync(select, [editor_reads], [], [])
        scope.cancel()
        group.start_soon(transport.send, {"text": "next"})
        first, second = await anyio.to_thread.run_sync(read_lines)
    assert (len(first["text"]), second) == (_MUCH, {"text": "next"})
    os.close(editor_writes)
    assert await transport.receive() is None
    await anyio.to_thread.run_sync(reader.join)
    await transport.close()
    os.close(agent_reads)
    os.close(agent_writes)
