"""An agent that writes its own reply: middlewares, printing, interrupts and a saved state come with it."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

from agentrt import AgentBase, Msg
from agentrt.event import AgentEvent
from agentrt.memory import InMemoryMemory
from agentrt.message import TextBlock
from agentrt.middleware import MiddlewareBase
from agentrt.session import JSONSession


class Politeness(MiddlewareBase):
    """Adds a polite word, for any `reply` of the agent."""

    async def on_reply(
        self, agent: AgentBase, input_kwargs: dict[str, Any], next_handler: Any
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(times=input_kwargs["times"] + 1):
            if isinstance(item, Msg):
                item = Msg(item.name, f"{item.get_text_content()} Thank you.", item.role)
            yield item


class Parrot(AgentBase):
    """Repeats the last message, one word at a time, and remembers all messages."""

    def __init__(self, name: str, middlewares: list[MiddlewareBase]) -> None:
        super().__init__(name=name, middlewares=middlewares)
        self.memory = InMemoryMemory()  # part of the saved state, since it is a StateModule

    async def observe(self, msg: Msg) -> None:
        await self.memory.add(msg)

    async def reply(self, msg: Msg, times: int = 1) -> Msg:
        await self.observe(msg)
        answer = Msg(self.name, [TextBlock("")], "assistant")
        for word in ((msg.get_text_content() or "") + " ").split() * times:
            answer.content = [TextBlock(f"{answer.get_text_content()} {word}".strip())]
            await self.print(answer, last=False)  # shows the new part
        await self.print(answer)
        return answer


async def main() -> None:
    parrot = Parrot("parrot", middlewares=[Politeness()])
    print(f"({(await parrot(Msg('user', 'Hello there!', 'user'))).get_text_content()})")
    with tempfile.TemporaryDirectory() as folder:
        session = JSONSession(save_dir=folder)
        await session.save_session_state("talk", parrot=parrot)
        other = Parrot("another", middlewares=[])
        await session.load_session_state("talk", parrot=other)
    print([msg.get_text_content() for msg in await other.memory.get_memory()])


if __name__ == "__main__":
    asyncio.run(main())
