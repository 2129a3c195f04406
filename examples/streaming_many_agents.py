"""Read the printed messages of two concurrent agents as one stream, and show only the new part of each message."""

import asyncio

from agentrt import Agent, AgentBase, Msg, UserMsg
from agentrt.message import TextBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import fanout_pipeline, stream_printing_messages


class Counter(AgentBase):
    """Writes its own reply, and prints it as it grows."""

    async def reply(self, msg: Msg | None = None) -> Msg:
        answer = Msg(self.name, [TextBlock("")], "assistant")
        for word in ("one,", "two,", "three"):
            answer.content = [TextBlock(f"{answer.get_text_content()} {word}".strip())]
            await self.print(answer, last=False)
        await self.print(answer)
        return answer


async def main() -> None:
    poet = Agent("poet", "Be brief.", ScriptedChatModel(["A cup of tea"]))
    counter = Counter(name="counter")
    counter.disable_console_output()  # the reader below shows the messages
    agents = [poet, counter]

    lengths: dict[str, int] = {}
    async with stream_printing_messages(agents, fanout_pipeline(agents, UserMsg("user", "Go."))) as messages:
        async for msg, last in messages:
            text = msg.get_text_content() or ""
            new = text[lengths.get(msg.id, 0) :]
            lengths[msg.id] = len(text)
            print(f"{msg.name:>7}: {new.strip()}{' (complete)' if last else ''}")


if __name__ == "__main__":
    asyncio.run(main())
