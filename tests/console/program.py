"""The console as a program, and what it is given: a slow model, and tools."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds; only a failure waits that long


def environment(**more: str) -> dict[str, str]:
    more_paths = filter(None, [os.environ.get("PYTHONPATH")])  # an empty entry would be the current folder
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware"), *more_paths])
    dropped = ("NO_COLOR", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "AGENTRT_MODEL")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", "TERM": "xterm", **more}


THINGS = '''
import os
import time

import anyio

from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.errors import Transient
from agentrt.tool import FunctionTool


class Slow(ChatModelBase):
    """Does what the last message says."""

    def __init__(self):
        super().__init__(model="slow")

    async def _call(self, messages, tools, tool_choice):
        last = messages[-1]
        said = last.get_text_content() or ""
        if said == "fail":
            raise Transient("the line\\x1b[31m is cut")
        return self._answer(said, messages, last.has_content_blocks("tool_result"))

    async def _answer(self, said, messages, has_result):
        if said == "dawdle":
            yield ChatResponse([TextBlock("It has BEGUN, ")], False)
            await anyio.sleep_forever()
        if said == "code":
            yield ChatResponse([TextBlock("BEGIN\\n\\n```\\nCODE\\n")], False)
            await anyio.to_thread.run_sync(wait_for_a_file)
        if said in ("wait", "hold", "add", "ask") and not has_result:
            if said == "ask":
                await anyio.to_thread.run_sync(wait_for_a_file)
            arguments = '{"a": 20, "b": 22}' if said == "add" else "{}"
            yield ChatResponse([ToolCallBlock("1", said, arguments)])
            return
        texts = [m.get_text_content() for m in messages if m.role == "user"]
        yield ChatResponse([TextBlock(f"HEARD {len(texts)}: **{texts[-1]}**")], usage=ChatUsage(7, 5))


def wait_for_a_file():
    print("ABOUT TO ASK", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)


async def ask() -> str:
    """Do what must be asked about."""
    return "ASKED AND DONE"


async def wait() -> str:
    """Wait for ever."""
    print("TOOL BEGINS", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print("TOOL STOPS", flush=True)


async def hold() -> str:
    """Wait for ever, whoever cancels it."""
    print("TOOL HOLDS", flush=True)
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


tools = [wait, hold, add]
asking_tools = [FunctionTool(ask, ask=True)]
'''


def put_things(folder: Path) -> None:
    (folder / "things.py").write_text(THINGS, encoding="utf-8")
