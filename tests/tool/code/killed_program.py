"""A program of a model, in processes that are killed: `python killed_program.py DIRECTORY BACKEND`.

This process never runs a program itself. For each place inside of a payment it forks a process that is killed there,
and another that finishes what is left. It prints how many places there are.
"""

import sys
from collections import Counter
from itertools import count
from pathlib import Path

from agentrt import Agent, AgentState, Toolkit
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore
from agentrt.tool import CodeTool
from tests.killed import Reach, run_in_fork
from tests.tool.code.test_in_a_reply import program

CALLS = 6
CODE = """
import asyncio
async def try_to_pay(number):
    try:
        return await pay(number)
    except ToolError as error:
        return str(error).partition(":")[0]
first = [await try_to_pay(number) for number in range(3)]
first + await asyncio.gather(*[try_to_pay(number) for number in range(3, 6)])
"""


async def live(directory: Path, reach: Reach) -> None:
    """Start the reply, or finish what is left of it."""
    store = FileStateStore(directory)
    state = await store.load("s")

    async def pay(number: int) -> str:
        reach("before")
        with open(directory / "paid", "a", encoding="utf-8") as file:
            file.write(f"{number}\n")
        reach("after")
        return f"paid {number}"

    model = ScriptedChatModel(["Done."] if state is not None and state.reply_context else [program(CODE), "Done."])
    agent = Agent(
        "clerk",
        "",
        model,
        toolkit=Toolkit([CodeTool([pay])]),
        state=state or AgentState(session_id="s"),
        state_store=store,
    )
    await agent.reply("Pay" if state is None else None)
    if agent.state.reply_context is None:
        [result] = agent.state.context[-1].get_content_blocks("tool_result")
        (directory / "result").write_text(result.text, encoding="utf-8")


def main(directory: Path, backend: str) -> int:
    for place in count(1):
        here = directory / str(place)
        here.mkdir()
        if not run_in_fork(live, here, backend, place):
            return place - 1
        run_in_fork(live, here, backend, 0)
        paid = Counter((here / "paid").read_text(encoding="utf-8").split())
        assert set(paid.values()) == {1}, (place, paid)
        states = (here / "result").read_text(encoding="utf-8")
        unknown = states.count("Unknown")
        assert 1 <= unknown <= 3, states  # the one that was killed, and those beside it
        assert states.count("paid") == CALLS - unknown, states
    raise AssertionError


if __name__ == "__main__":
    sys.stdout.write(str(main(Path(sys.argv[1]), sys.argv[2])))
