"""A person at a keyboard, for the tests of questions."""

import threading
from queue import SimpleQueue

from anyio.lowlevel import checkpoint
from pydantic import BaseModel

from agentrt._runtime.terminal.user_input import TerminalUserInput, UserInputData
from agentrt.message import TextBlock


class Keyboard:
    """A person's lines, and what they were shown; `reads` says how often somebody began to read."""

    def __init__(self, *lines: str) -> None:
        self.lines: SimpleQueue[str] = SimpleQueue()
        self.shown: list[str] = []
        self.reads = 0
        self.reading = threading.Semaphore(0)
        self.type(*lines)

    def type(self, *lines: str) -> None:
        for line in lines:
            self.lines.put(f"{line}\n")

    def close(self) -> None:
        self.lines.put("")

    def read_line(self) -> str:
        self.reads += 1
        self.reading.release()
        return self.lines.get()

    def input(self, hint: str = "> ") -> TerminalUserInput:
        return TerminalUserInput(hint, read_line=self.read_line, write=self.shown.append)

    async def is_read(self) -> None:
        while not self.reading.acquire(blocking=False):
            await checkpoint()

    @property
    def screen(self) -> str:
        return "".join(self.shown)


async def asked(terminal: TerminalUserInput, model: type[BaseModel] | None = None) -> UserInputData:
    return await terminal("id", "friday", structured_model=model)


async def text_of(terminal: TerminalUserInput) -> str:
    [block] = (await asked(terminal)).blocks_input or []
    assert isinstance(block, TextBlock)
    return block.text
