"""Two agents share one conversation: one transfers it to the other, which asks before it acts."""

import asyncio
import json

from agentrt import Agent, Msg
from agentrt.event import RequireUserConfirmEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import Handoffs
from agentrt.tool import FunctionTool


async def refund(order: str) -> str:
    """Refund an order (this one only says so)."""
    return f"Order {order} is refunded."


def call(name: str, **arguments: str) -> list[ToolCallBlock]:
    return [ToolCallBlock("1", name, json.dumps(arguments))]


def last_result(messages: list[Msg], tools: object) -> str:
    return messages[-1].get_content_blocks("tool_result")[-1].text


async def main() -> None:
    transfers = ScriptedChatModel([call("transfer_to_refunds", reason="Order 7 was charged twice.")])
    refunds = ScriptedChatModel([call("refund", order="7"), last_result, "You are welcome."])
    team = Handoffs(
        [
            Agent("triage", "Find out who can help.", transfers),
            Agent("refunds", "Refund what was charged wrongly.", refunds, tools=[FunctionTool(refund, ask=True)]),
        ]
    )
    answer = await team.reply("Order 7 was charged twice.")
    question = team.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    for request in question.tool_calls:
        print(f"{answer.name} asks: {request.name} {request.input}")
    answer = await team.reply(question.approve())
    print(f"{answer.name}: {answer.get_text_content()}")
    answer = await team.reply("Thank you.")
    print(f"{answer.name}: {answer.get_text_content()}")


if __name__ == "__main__":
    asyncio.run(main())
