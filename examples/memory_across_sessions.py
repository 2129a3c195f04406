"""Facts from one conversation of a user are known in the next one, and to nobody else."""

import asyncio
import tempfile
from pathlib import Path

from agentrt import Agent, AgentState, Msg
from agentrt.memory import LongTermMemory
from agentrt.middleware import LongTermMemoryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.rag import SQLiteTextStore

USERS = {"monday-ann": "ann", "tuesday-ann": "ann", "tuesday-bob": "bob"}


def recall(messages: list[Msg], tools: object) -> str:
    """Quote the memories in the request, as a real model would use them."""
    hints = [block.hint for message in messages for block in message.get_content_blocks("hint")]
    return hints[0].splitlines()[2] if hints else "nothing is remembered"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # yours would stay
        memory = LongTermMemory(SQLiteTextStore(Path(folder) / "memory.db"))
        layer = LongTermMemoryMiddleware(
            memory, owner=lambda agent: USERS[agent.state.session_id], mode="static_control"
        )
        model = ScriptedChatModel(["Noted.", recall, recall, recall])
        agent = Agent("cook", "You cook.", model, middlewares=[layer])

        async def ask(session: str, question: str) -> str | None:
            conversation = agent.with_state(AgentState(session_id=session))
            return (await conversation.reply(question)).get_text_content()

        print("Monday, ann:", await ask("monday-ann", "I am allergic to nuts."))
        print("Tuesday, ann:", await ask("tuesday-ann", "May I have a cake with nuts?"))
        print("Tuesday, bob:", await ask("tuesday-bob", "May I have a cake with nuts?"))
        await memory.forget("ann")
        print("forgotten:", await ask("tuesday-ann", "And now, with nuts?"))


if __name__ == "__main__":
    asyncio.run(main())
