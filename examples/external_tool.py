"""A tool that runs outside the agent: the reply waits until its caller sends the result."""

import asyncio
import json

from agentrt import Agent
from agentrt.event import RequireExternalExecutionEvent
from agentrt.message import ToolCallBlock
from agentrt.tool import ToolBase


class GetWeather(ToolBase):
    """Tell the weather in a city."""

    name = "get_weather"
    is_external_tool = True
    input_schema = {  # noqa: RUF012  # it is never changed
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }


def look_out_of_the_window(call: ToolCallBlock) -> str:
    """Do the tool's work, for example in a browser or on a phone."""
    city = json.loads(call.input)["city"]
    print(f"(a colleague in {city} looks out of the window)")
    return f"It is snowing in {city}."


async def main() -> None:
    agent = Agent(name="assistant", model="rules", tools=[GetWeather()])
    await agent.reply("What is the weather in Oslo?")
    question = agent.waiting()
    assert isinstance(question, RequireExternalExecutionEvent)
    msg = await agent.reply(question.answer(look_out_of_the_window(question.tool_calls[0])))
    print(msg.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
