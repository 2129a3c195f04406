"""A tree of agents in processes that are killed: `python killed_process.py DIRECTORY BACKEND EVERY`.

This process lives once undisturbed, so that the others import and build nothing for the first time. For each place, it
forks one process that is killed there, and then one that finishes what is left. What the agents publish is a line in a
file each. It prints how many places there are.
"""

import os
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from agentrt import Agent, AgentState
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore
from agentrt.testing import approve
from agentrt.tool import FunctionTool
from tests.agent.delegation.helpers import agent_of, call
from tests.agent.delegation.test_every_suspension import script
from tests.killed import Reach, TellingStore, end_threads, run_in_fork


def tree(directory: Path, reach: Reach, state: AgentState) -> Agent:
    def worker(name: str, ask: bool) -> Agent:
        async def publish(what: str) -> str:
            reach("before publishing")
            descriptor = os.open(directory / "published", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{what}\n".encode())
            os.close(descriptor)
            reach("after publishing")
            await anyio.lowlevel.checkpoint()
            return f"{what} is out"

        agent = agent_of(name, [], FunctionTool(publish, ask=ask))
        agent.model = ScriptedChatModel([script([call("k1", "publish", what=name)], "It is out.")] * 20)
        return agent

    editor = agent_of("editor", [], worker("writer", True).as_tool("Writes."))
    editor.model = ScriptedChatModel([script([call("e1", "writer", query="go")], "Edited.")] * 20)
    children = [editor, worker("printer", False)]
    calls: list[Any] = [call(str(number), child.name, query="go") for number, child in enumerate(children)]
    tools = [child.as_tool("Works.") for child in children]
    store = TellingStore(directory, reach)
    boss = agent_of("boss", [], *tools, state=state, state_store=store)
    boss.model = ScriptedChatModel([script(calls, *["All done."] * 2)] * 20)
    return boss


async def live(directory: Path, reach: Reach) -> None:
    """Begin, or continue what is left, to the end."""
    state = await FileStateStore(directory).load("s")
    boss = tree(directory, reach, state or AgentState(session_id="s"))
    inputs: Any = "go" if state is None else None
    while boss.state.last_reply is None:
        inputs = inputs or (approve(boss.state) if boss.waiting() is not None else None)
        async for event in boss.reply_stream(inputs):
            reach(event.type)
        inputs = None


def check(directory: Path) -> None:
    """Check what is left at the end: one result for each call, and nothing published twice."""
    state = anyio.run(FileStateStore(directory).load, "s")
    assert state.reply_context is None
    [message] = [message for message in state.context if message.role == "assistant"]
    calls = message.get_content_blocks("tool_call")
    results = {block.id: block for block in message.get_content_blocks("tool_result")}
    assert [results[block.id].state for block in calls] == ["success"] * 2
    assert message.get_text_content() == "All done."
    path = directory / "published"
    published = Counter(path.read_text().split()) if path.exists() else Counter()
    assert set(published.values()) <= {1}, published


def main(directory: Path, backend: str, every: int) -> None:
    undisturbed = directory / "undisturbed"
    undisturbed.mkdir()
    anyio.run(live, undisturbed, lambda _: None)  # not on trio, which keeps its threads for a while
    anyio.run(anyio.lowlevel.checkpoint, backend=backend)
    end_threads()
    for place in count(1, every):
        here = directory / str(place)
        here.mkdir()
        was_killed = run_in_fork(live, here, backend, place)
        if was_killed:
            assert not run_in_fork(live, here, backend, 0)
        check(here)
        if not was_killed:
            sys.stdout.write(f"{place}\n")
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
