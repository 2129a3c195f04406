"""Get a structured answer: a pydantic model defines its form, and the language model learns about its mistakes."""

import asyncio
import json

from pydantic import BaseModel, Field

from agentrt import Agent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel


class Trip(BaseModel):
    """A journey that the user wants to make."""

    city: str
    days: int = Field(gt=0)
    by_train: bool = True


def answer(**fields: object) -> list[ToolCallBlock]:
    """Answer as models do: by calling the tool that exists for this reply only."""
    return [ToolCallBlock(str(fields), "GenerateStructuredOutput", json.dumps(fields))]


async def main() -> None:
    # The first attempt is invalid, and the model learns why; the second one is valid.
    model = ScriptedChatModel([answer(city="Kyoto", days=-3), answer(city="Kyoto", days=3)])
    agent = Agent(name="assistant", model=model)
    msg = await agent.reply("Three days in Kyoto, please.", Trip)
    [refused] = model.calls[1].messages[-2].get_content_blocks("tool_result")
    print("".join(block.text for block in refused.output if isinstance(block, TextBlock)))
    trip = msg.structured_output  # a Trip, also for type checkers; None if no answer was valid
    if trip is not None:
        print(f"{trip.days} days in {trip.city}, by {'train' if trip.by_train else 'plane'}")


if __name__ == "__main__":
    asyncio.run(main())
