"""An agent for a server: `agentrt serve app:agent` in this folder, or this file itself, serves it to this machine.

It answers questions about this project, and asks before it takes a note. Without a key of a provider, rules answer.
"""

import sys
from pathlib import Path
from typing import Any

from agentrt import Agent
from agentrt.__main__ import main as run_command
from agentrt.console import folder_tools
from agentrt.middleware import LayerTimes, RetryMiddleware, UsageMiddleware
from agentrt.model import default_model
from agentrt.tool import FunctionTool

notes: list[str] = []  # of all users; data of one user belongs in their session


async def take_note(text: str) -> str:
    """Take a note."""
    notes.append(text)
    return f"Noted: {text!r}, which makes {len(notes)}."


project = Path(__file__).resolve().parents[2]
here = project if (project / "pyproject.toml").is_file() else Path()
tools: list[Any] = [*folder_tools(here), FunctionTool(take_note, ask=True)]
agent = Agent(
    "assistant",
    "You answer questions about the files of a project.",
    default_model(),
    tools=tools,
    middlewares=[UsageMiddleware(), RetryMiddleware(), LayerTimes()],  # the studio shows its times, at /studio
)

if __name__ == "__main__":
    sys.exit(run_command(["serve", "app:agent", *sys.argv[1:]]))
