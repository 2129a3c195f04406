"""Processes that are killed with SIGKILL, anywhere, and others that go on with what they left."""

import json
from collections import Counter
from pathlib import Path

import anyio
import pytest

from agentrt import AgentState
from agentrt.message import ToolResultBlock, ToolResultState
from agentrt.state import FileStateStore
from tests.killed import needs_fork, output_of
from tests.loop.killed_child import problems_of

CHILD = Path(__file__).with_name("killed_child.py")
pytestmark = needs_fork


def killed(directory: Path, times: int, backend: str) -> Counter[str]:
    """Kill one process after the other, each of which goes on where the last one was; return where they were."""
    return Counter(json.loads(output_of(CHILD, directory, times, backend)))


def check_whole(directory: Path) -> Counter[str]:
    """Check the record against what the tools wrote down; return how many calls came to which result."""
    state = anyio.run(FileStateStore(directory).load, "s")
    assert state.reply_context is None
    assert AgentState.model_validate_json(state.model_dump_json()) == state
    assert not [problem for message in state.context for problem in problems_of(message)]
    assert len({message.id for message in state.context}) == len(state.context)
    lines = Counter((directory / "log").read_text().splitlines())
    results = Counter[str]()
    for message in state.context:
        inputs = {call.id: json.loads(call.input)["token"] for call in message.get_content_blocks("tool_call")}
        for block in message.get_content_blocks("tool_result"):
            token = inputs[block.id]
            check_call(block, lines.pop(f"begin {token}", 0), lines.pop(f"end {token}", 0))
            results[block.state] += 1
    assert not lines, "tools ran that no message tells of"
    return results


def check_call(block: ToolResultBlock, begun: int, ended: int) -> None:
    if block.name == "elsewhere" or block.state in (ToolResultState.DENIED, ToolResultState.INTERRUPTED):
        assert (begun, ended) == (0, 0), block
    elif block.state is ToolResultState.SUCCESS:
        assert (begun, ended) == (1, 1), block
    else:
        assert block.state is ToolResultState.UNKNOWN, block
        assert ended <= begun <= 1, f"it ran again: {block}"


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kills"), [("asyncio", 100), ("trio", 40)])
def test_a_conversation_outlives_every_kill_wherever_it_comes(tmp_path, backend, kills):
    places = killed(tmp_path, kills, backend)
    assert {"save: replace", "save: fdatasync", "tool: in it", "tool: done", "parked"} <= {*places}
    results = check_whole(tmp_path)
    assert {"success", "unknown"} <= {*results}, results
