"""Three debaters in a hub hear each other, and a judge who listens decides."""

import asyncio

from agentrt import Agent, UserMsg
from agentrt.message import Msg
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import MsgHub
from agentrt.types import JSONSchema

TOPIC = "Is tea better than coffee?"


def names_of_speakers(messages: list[Msg]) -> str:
    """Name who has spoken so far, according to what an agent has heard."""
    return ", ".join(msg.name for msg in messages if msg.role == "assistant") or "nobody"


def debater(name: str, opinion: str) -> Agent:
    def speak(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
        return f"{opinion} (Before me spoke: {names_of_speakers(messages)}.)"

    return Agent(name, f"You are {name}. Argue for your opinion.", ScriptedChatModel([speak, speak]))


def verdict(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    words = {msg.name: len((msg.get_text_content() or "").split("(")[0].split()) for msg in messages[1:]}
    return f"Of {names_of_speakers(messages)}, the most was said by {max(words, key=lambda name: words[name])}."


async def main() -> None:
    alice = debater("Alice", "Tea is calm in a warm cup.")
    bob = debater("Bob", "Coffee gets things done before noon.")
    carol = debater("Carol", "Water is free.")
    judge = Agent("Judge", "Decide who won the debate.", ScriptedChatModel([verdict]))

    async with MsgHub([alice, bob, carol, judge], announcement=UserMsg("host", TOPIC)) as hub:
        for speaker in (alice, bob, carol):
            answer = await speaker()
            print(f"{answer.name}: {answer.get_text_content()}")
        hub.delete(carol)  # from here on she does not observe the others, nor they her
        for speaker in (carol, bob):
            answer = await speaker()
            print(f"{answer.name}: {answer.get_text_content()}")
    decision = await judge()
    print(f"{decision.name}: {decision.get_text_content()}")


if __name__ == "__main__":
    asyncio.run(main())
