"""Kill a worker in the middle of a reply, and let another one finish it: they share only a file.

The killed worker is a process of `agentrt worker`; the one that takes over is this process.
"""

import asyncio
import logging
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

from agentrt import Agent, Msg
from agentrt.__main__ import main as run_command
from agentrt.event import ReplyResumedEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.state import SQLiteStore
from agentrt.tool import FunctionTool, ToolContext

CITIES = ("London", "Oslo", "Beijing")


async def measure(city: str, context: ToolContext) -> str:
    """Measure the temperature in a city; this takes a moment."""
    await asyncio.sleep(0.5)
    return f"{city} has {len(city)} degrees ({context.idempotency_key})"


def next_step(messages: Sequence[Msg], _: object) -> Any:
    """Play a model, in any process: measure in one city after the other, and then say so."""
    calls = [call for message in messages for call in message.get_content_blocks("tool_call")]
    if len(calls) < len(CITIES):
        return [ToolCallBlock(str(len(calls)), "measure", f'{{"city": "{CITIES[len(calls)]}"}}')]
    return f"It was measured in {', '.join(CITIES)}."


# Loaded by the workers. The tool may run again with the same key, so an interrupted call is not in doubt.
tools = [FunctionTool(measure, idempotent=True)]
agent = Agent("assistant", "You measure.", ScriptedChatModel([next_step] * 100), tools=tools)


def show(text: str, style: str) -> None:
    try:
        from rich.console import Console
    except ImportError:  # the same words, without colours
        print(text, flush=True)
    else:
        Console(highlight=False, emoji=False, soft_wrap=True).print(text, style=style, markup=False)


def work(database: str) -> None:
    """Run a worker, like the command `agentrt worker`."""
    with redirect_stderr(sys.stdout):
        run_command(["worker", "killed_worker:agent", "--store", f"sqlite:{database}"])


async def main(database: str, worker: multiprocessing.Process) -> None:
    logging.basicConfig(stream=sys.stdout, format="this process: %(message)s")
    logging.getLogger("agentrt").setLevel(logging.INFO)  # logs its waits and takeovers
    store = SQLiteStore(database)
    async with Runner(agent, store) as runner, asyncio.TaskGroup() as group:
        handle = await runner.submit("weather", "How warm is it?", reply_id="demo")
        standby: asyncio.Task[None] | None = None
        async for event in handle.events():  # in this process: the events saved by the worker
            # The worker is running, so this process can only wait for its end.
            standby = standby or group.create_task(runner.work())
            if isinstance(event, ReplyResumedEvent) and len(event.blocks) >= 2:
                break  # one call has its result, and the next one starts
        worker.kill()  # with SIGKILL: it can save nothing more
        show("killed the worker in the middle of the reply", "red")
        message = await handle.result()
        show(message.get_text_content() or "", "green")
        await runner.drain()
        state = await store.load("weather")
        assert state is not None
        results = state.context[-1].get_content_blocks("tool_result")
        print(*(f"  {result.state.value}: {result.text}" for result in results), sep="\n")


if __name__ == "__main__":
    show("A worker is killed, and another one finishes its reply", "bold")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # On Linux a copy of this process, without new imports.
        worker = multiprocessing.Process(target=work, args=[f"{folder}/agent.db"])
        worker.start()
        try:
            asyncio.run(main(f"{folder}/agent.db", worker))
        finally:
            worker.kill()
            worker.join()
    print(f"in {time.monotonic() - start:.1f} s")
