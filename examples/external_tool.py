"""A tool that runs outside of the agent: the reply waits until its caller brings the result."""

import asyncio
import json

from agentrt import Agent
from agentrt.event import ExternalExecutionResultEvent, RequireExternalExecutionEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
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


def look_out_of_the_window(call: ToolCallBlock) -> ToolResultBlock:
    """Do the tool's work, in a browser or on a phone, say."""
    city = json.loads(call.input)["city"]
    print(f"(a colleague in {city} looks out of the window)")
    return ToolResultBlock(call.id, call.name, f"It is snowing in {city}.")


async def main() -> None:
    agent = Agent(name="assistant", model="rules", tools=[GetWeather()])
    calls: list[ToolCallBlock] = []
    async with agent.reply_stream("What is the weather in Oslo?") as events:
        async for event in events:
            if isinstance(event, RequireExternalExecutionEvent):
                reply_id, calls = event.reply_id, event.tool_calls
    results = [look_out_of_the_window(call) for call in calls]
    msg = await agent.reply(ExternalExecutionResultEvent(reply_id, results))
    print(msg.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
