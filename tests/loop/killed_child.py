"""A conversation in a process that is killed again and again: `python killed_child.py DIRECTORY KILLS BACKEND`.

The first process has replied once elsewhere, so that the others import and build nothing for the first time. Each
process that it kills is a fork of it, which loads the session from its file and goes on. A process tells of the place
where it is to be killed. Half of them stop there, and half run on, so that the signal comes a little later.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from agentrt import Agent, AgentState, Msg, Toolkit
from agentrt._runtime.block import new_id
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore, ReplyContext, file, file_store
from agentrt.tool import FunctionTool, ToolBase
from agentrt.types import JSONSchema
from tests.killed import end_threads

ROUNDS = {0: ["write", "write"], 2: ["careful", "elsewhere", "write"], 5: ["alone", "alone"]}  # by the calls so far
IN_A_SAVE = {"open", "write", "fsync", "fdatasync", "replace"}
# The beginnings of places.
WANTED = ["", "tool: in it", "parked", "save: replace", "tool: done", "save: fdatasync", "save", ""]
MOST_PLACES = 60

Reach = Callable[[str], None]


class Elsewhere(ToolBase):
    name = "elsewhere"
    is_external_tool = True
    input_schema: JSONSchema = {"type": "object", "properties": {"token": {"type": "string"}}}  # noqa: RUF012


class TellingOS:
    """The module `os`, telling what it is about to do."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def __getattr__(self, name: str) -> Any:
        if name in IN_A_SAVE:
            self._reach(f"save: {name}")
        return getattr(os, name)


def log(directory: Path, what: str, token: str) -> None:
    """Write a line that is there whatever comes next."""
    descriptor = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{what} {token}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tool_of(name: str, directory: Path, reach: Reach) -> Callable[[str], Any]:
    async def tool(token: str) -> str:
        log(directory, "begin", token)
        reach("tool: in it")
        await anyio.lowlevel.checkpoint()
        log(directory, "end", token)
        reach("tool: done")
        return f"did {token}"

    tool.__name__ = name
    return tool


def respond(reach: Reach, messages: Sequence[Msg], tools: object) -> Any:
    """Call the tools of the next round, or say that there are none left."""
    reach("model")
    problems = [problem for message in messages for problem in problems_of(message)]
    if problems:
        raise SystemExit(f"a model was sent a broken request: {problems}")
    called = len(messages[-1].get_content_blocks("tool_call")) if messages[-1].role == "assistant" else 0
    names = ROUNDS.get(called)
    if names is None:
        return "that is all"
    return [ToolCallBlock(new_id(), name, json.dumps({"token": new_id()})) for name in names]


def problems_of(message: Msg) -> list[str]:
    """Say which calls of the message have not exactly one final result."""
    calls = [block.id for block in message.get_content_blocks("tool_call")]
    results = message.get_content_blocks("tool_result")
    ids = [block.id for block in results]
    problems = [f"{ids.count(call)} results of the call {call}" for call in calls if ids.count(call) != 1]
    problems += [f"a result without the call {each}" for each in ids if each not in calls]
    return problems + [f"the call {block.id} is still running" for block in results if block.state == "running"]


def agent_of(directory: Path, reach: Reach, state: AgentState) -> Agent:
    tools = [
        tool_of("write", directory, reach),
        FunctionTool(tool_of("careful", directory, reach), ask=True),
        FunctionTool(tool_of("alone", directory, reach), is_concurrency_safe=False),
        Elsewhere(),
    ]
    model = ScriptedChatModel(repeat(partial(respond, reach)))
    store = FileStateStore(directory)
    return Agent("a", "", model, Toolkit(tools=tools), state=state, state_store=store)


def answer_to(context: ReplyContext, reach: Reach) -> Any:
    """Answer one of the calls that wait, or else go on; some people would rather talk of something else."""
    waiting = [
        call
        for call in context.message.get_content_blocks("tool_call")
        if call.id in context.decisions and context.decisions[call.id].waits_for and call.state != "finished"
    ]
    if not waiting:
        reach("unfinished")
        return random.choice([None, "never mind, do something else"])
    reach("parked")
    call = random.choice(waiting)
    if context.decisions[call.id].waits_for == "user":
        return UserConfirmResultEvent(context.reply_id, [ConfirmResult(random.random() < 0.7, call)])
    return ExternalExecutionResultEvent(context.reply_id, [ToolResultBlock(call.id, call.name, "done elsewhere")])


async def reply_once(directory: Path) -> None:
    agent = agent_of(directory, lambda place: None, AgentState(session_id="s"))
    await agent.reply("do it all")


async def live(directory: Path, reach: Reach, *, for_ever: bool) -> None:
    """Load the session and go on with it: for ever, or until nothing is open."""
    state = await FileStateStore(directory).load("s") or AgentState(session_id="s")
    agent = agent_of(directory, reach, state)
    while for_ever or agent.state.reply_context is not None:
        context = agent.state.reply_context
        inputs = "do it all" if context is None else answer_to(context, reach)
        async for event in agent.reply_stream(inputs):
            reach(event.type)


def be_killed(directory: Path, backend: str, telling: int, wanted: str, *, stops: bool) -> None:
    """Live; after a while tell of the first place that is wanted, and wait there or run on."""
    left = random.randint(1, MOST_PLACES)

    def reach(place: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0 and place.startswith(wanted):
            os.write(telling, f"{place}\n".encode())
            while stops:
                signal.pause()

    file.os = file_store.os = TellingOS(reach)  # type: ignore[assignment]
    file_store._MAX_SMALL = 0  # so that the file is often written anew
    anyio.run(partial(live, for_ever=True), directory, reach, backend=backend)


def killed_once(directory: Path, backend: str, wanted: str) -> str:
    """Kill a process somewhere, and return the place."""
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            be_killed(directory, backend, its, wanted, stops=random.random() < 0.5)
        finally:
            os._exit(1)
    os.close(its)
    told = os.read(ours, 4096).decode()
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(ours)
    assert os.WIFSIGNALED(status), f"a process came to its end by itself, after {told!r}"
    return told.partition("\n")[0]


def main(directory: Path, kills: int, backend: str) -> None:
    with TemporaryDirectory() as undisturbed:
        anyio.run(partial(reply_once, Path(undisturbed)))  # not on trio, which keeps its threads for a while
    anyio.run(anyio.lowlevel.checkpoint, backend=backend)
    end_threads()
    places = Counter(killed_once(directory, backend, wanted) for wanted in islice(cycle(WANTED), kills))
    file.os = file_store.os = os
    anyio.run(partial(live, for_ever=False), directory, lambda place: None, backend=backend)
    sys.stdout.write(json.dumps(places))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
