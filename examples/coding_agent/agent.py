"""A coding agent in a sandbox mends a small program, and continues after its process was killed.

It works on a copy of `repository`: it runs the tests, reads and edits the code, and asks before a command that no rule
allows. A script plays the model, so this runs offline; `make_agent(..., model="openai:gpt-5-mini")` takes a real one.
Needs bubblewrap: `pip install "agentrt[sandbox]"`.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrt import Agent, AgentState, Msg
from agentrt.event import (
    AnyEvent,
    RequireUserConfirmEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule
from agentrt.state import FileStateStore
from agentrt.tool import workspace_tools
from agentrt.workspace import BubblewrapSandbox, LocalWorkspace

RUN_TESTS = ["python3", "-m", "unittest", "-q"]
RULES = [
    # Not the tests, so it cannot make them pass by a change there.
    PermissionRule("edit_file", "shop/*", PermissionBehavior.ALLOW),
    PermissionRule("run_command", " ".join(RUN_TESTS), PermissionBehavior.ALLOW),
]
SCRIPT: list[tuple[str, dict[str, object]]] = [
    ("run_command", {"argv": RUN_TESTS}),
    ("search_files", {"pattern": "def total", "files": "**/*.py"}),
    ("read_file", {"path": "shop/total.py"}),
    ("edit_file", {"path": "shop/total.py", "old": "- discount", "new": "* (100 - discount) // 100"}),
    ("run_command", {"argv": ["pip", "install", "pytest"]}),
    ("run_command", {"argv": RUN_TESTS}),
]
EDIT = "call-3"


def next_step(messages: Sequence[Msg], _: object) -> Any:
    """Play a model, in any process: make the next call of the script."""
    count = sum(len(message.get_content_blocks("tool_result")) for message in messages)
    if count == len(SCRIPT):
        return "The discount is a percentage now, and all tests pass."
    name, arguments = SCRIPT[count]
    return [ToolCallBlock(f"call-{count}", name, json.dumps(arguments))]


def make_agent(folder: Path, state: AgentState | None, model: Any = None) -> Agent:
    return Agent(
        "coder",
        "You mend programs. Run the tests before and after.",
        model or ScriptedChatModel([next_step] * 20),
        tools=workspace_tools(write=True, run=True),
        workspace=LocalWorkspace(folder / "copy", sandbox=BubblewrapSandbox()),
        state=state or AgentState(session_id="coder", permission_context=PermissionContext(rules=RULES)),
        state_store=FileStateStore(folder / "states"),
    )


async def begin(folder: Path) -> None:
    """Work until the code is edited, and then die as a process does that is out of memory."""
    async with make_agent(folder, None) as agent, agent.reply_stream("total() is wrong: mend it.") as events:
        async for event in events:
            show(event)
            if isinstance(event, ToolResultEndEvent) and event.tool_call_id == EDIT:
                os.kill(os.getpid(), signal.SIGKILL)


async def resume(folder: Path) -> None:
    """Load what the killed process saved, and continue there."""
    state = await FileStateStore(folder / "states").load("coder")
    async with make_agent(folder, state) as agent:
        async with agent.reply_stream() as events:
            async for event in events:
                show(event)
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        print(f"may it run {question.tool_calls[0].input}? no")
        async with agent.reply_stream(question.deny("The sandbox has no network: use unittest.")) as events:
            async for event in events:
                show(event)
        assert events.message is not None
        print(events.message.get_text_content())


def show(event: AnyEvent) -> None:
    """Print the first line of each result."""
    if isinstance(event, ToolResultStartEvent):
        print(f"{event.tool_call_name}: ", end="")
    elif isinstance(event, ToolResultTextDeltaEvent):
        print(event.delta.partition("\n")[0], flush=True)


def main() -> None:
    repository = Path(__file__).parent / "repository"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(repository, folder / "copy")
        first = subprocess.run([sys.executable, __file__, name], check=False)
        assert first.returncode == -signal.SIGKILL, "the first process should have been killed"
        print("(killed)", flush=True)
        asyncio.run(resume(folder))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run(begin(Path(sys.argv[1])))
