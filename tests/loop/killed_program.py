"""A tool with twenty calls, in processes that are killed: `python killed_program.py DIRECTORY BACKEND WHERE EVERY`.

This process imports everything and never runs an event loop. For each place, it forks one process that is killed there,
and then others, one for each answer, that finish what is left. WHERE is "inside" for places inside of the called tools,
or "anywhere" for events and saves as well. It prints how many places there are.
"""

import os
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from agentrt import Agent, AgentState, Toolkit
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore
from agentrt.testing import approve
from agentrt.tool import FunctionTool, ToolContext, ToolResponse
from tests.killed import Reach, TellingStore, run_in_fork
from tests.loop.helpers import call

CALLS = 20
ASKING, REPEATABLE = 3, 7  # the numbers of the call that asks, and of the one that may run again


def agent_in(directory: Path, reach: Reach, state: AgentState) -> Agent:
    def write(line: str) -> None:
        descriptor = os.open(directory / "ran", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    async def pay(number: int) -> str:
        reach("inside: before")
        write(str(number))
        reach("inside: after")
        await anyio.lowlevel.checkpoint()
        return f"paid {number}"

    async def settle(context: ToolContext) -> ToolResponse | str:
        states: list[str] = []
        for number in range(1, CALLS + 1):
            name = {ASKING: "ask_and_pay", REPEATABLE: "pay_by_key"}.get(number, "pay")
            paid = await context.call(name, {"number": number})
            if paid.waits:
                return paid
            states.append(paid.state)
        return " ".join(states)

    tools = [
        FunctionTool(settle, is_resumable=True),
        FunctionTool(pay),
        FunctionTool(pay, name="ask_and_pay", ask=True),
        FunctionTool(pay, name="pay_by_key", idempotent=True),
    ]
    begun = state.reply_context is not None and bool(state.reply_context.blocks)
    model = ScriptedChatModel([*([] if begun else [[call("c", "settle")]]), "All done."])
    store = TellingStore(directory, reach)
    return Agent("clerk", "You pay.", model, Toolkit(tools=tools), state=state, state_store=store)


async def live(directory: Path, reach: Reach) -> None:
    """Begin, or take what is left on, to the next question or the end."""
    state = await FileStateStore(directory).load("s")
    agent = agent_in(directory, reach, state or AgentState(session_id="s"))
    if agent.state.last_reply is not None:
        return
    inputs: Any = "go" if state is None else approve(agent.state) if agent.waiting() is not None else None
    async for event in agent.reply_stream(inputs):
        reach(event.type)


def is_over(directory: Path) -> bool:
    state = anyio.run(FileStateStore(directory).load, "s")
    return state is not None and state.last_reply is not None


def check(directory: Path, was_killed: bool) -> None:
    """Check what is left at the end: each call ran once, but the one in doubt, and the one that may run again."""
    state = anyio.run(FileStateStore(directory).load, "s")
    [message] = [message for message in state.context if message.role == "assistant"]
    [result] = message.get_content_blocks("tool_result")
    states = result.text.split()
    ran = Counter((directory / "ran").read_text().split())
    for number in range(1, CALLS + 1):
        at_most = 2 if number == REPEATABLE else 1
        at_least = 0 if states[number - 1] == "unknown" else 1
        assert at_least <= ran[str(number)] <= at_most, (number, ran, states)
    assert set(states) <= {"success", "unknown"}
    assert states.count("unknown") <= was_killed


def main(directory: Path, backend: str, where: str, every: int) -> None:
    # What pydantic builds on first use is built here, and not in each of the processes.
    AgentState.model_validate_json(AgentState().model_dump_json())
    places = 0
    for question in (0, 1):  # whether the process that is killed is the first one, or the one with the answer
        for place in count(1, every):
            here = directory / f"{question}-{place}"
            here.mkdir()
            if question:
                assert not run_in_fork(live, here, backend, 0)
            was_killed = run_in_fork(live, here, backend, place, "" if where == "anywhere" else where)
            for _ in range(4):
                if not is_over(here):
                    assert not run_in_fork(live, here, backend, 0)
            check(here, was_killed)
            if not was_killed:
                break
            places += 1
    sys.stdout.write(f"{places}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
