"""Agents for the tests of what is composed of agents."""

from typing import Any

import anyio

from agentrt import AgentBase, Msg
from agentrt.message import ContentBlock


def said(text: str | list[ContentBlock], by: str = "user") -> Msg:
    return Msg(by, text, "user" if by == "user" else "assistant")


class Speaker(AgentBase):
    """Answers with its name behind what it was given, and keeps what it observes."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.heard: list[Msg] = []

    async def observe(self, msg: Msg) -> None:
        self.heard.append(msg)

    async def reply(self, msg: Msg | None = None, ending: str = "") -> Msg:
        before = "" if msg is None else msg.get_text_content() or ""
        return said(f"{before}{self.name}{ending}", self.name)

    @property
    def texts(self) -> list[str | None]:
        return [msg.get_text_content() for msg in self.heard]


class Deaf(Speaker):
    async def observe(self, msg: Msg) -> None:
        raise RuntimeError("a secret")


class Failing(AgentBase):
    def __init__(self, name: str, error: BaseException, go: anyio.Event | None = None) -> None:
        super().__init__(name=name)
        self.error = error
        self.go = go

    async def reply(self, msg: Any = None) -> Msg:
        if self.go is not None:
            await self.go.wait()
        raise self.error


class Waiting(AgentBase):
    """Never answers, and says when it began and when it was stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.began = anyio.Event()
        self.log: list[str] = []

    async def reply(self, msg: Any = None) -> Msg:
        self.log.append("began")
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.log.append("stopped")
        raise AssertionError


class Printer(AgentBase):
    """Prints a message a word at a time, without ever waiting for anything else, then answers with it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name=name)
        self.text = text
        self.printed = 0

    async def reply(self, msg: Any = None) -> Msg:
        answer = said("", self.name)
        words = self.text.split()
        for n in range(1, len(words) + 1):
            answer.content = " ".join(words[:n])
            await self.print(answer, n == len(words))
            self.printed = n
        return answer
