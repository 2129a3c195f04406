"""Let two agents work in parallel for a third one; one of them asks, and all resume from JSON."""

import asyncio
import json

from agentrt import Agent, AgentState
from agentrt.console import show
from agentrt.event import RequireUserConfirmEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool


async def search_web(topic: str) -> str:
    """Search the web."""
    return f"{topic}: 363300 km at its closest"


async def publish(title: str) -> str:
    """Publish an article."""
    return f"{title!r} is published"


def call(call_id: str, name: str, **arguments: str) -> ToolCallBlock:
    return ToolCallBlock(call_id, name, json.dumps(arguments))


def make_boss() -> Agent:
    # The models follow a script, so that this runs offline.
    searcher = Agent(
        "searcher",
        "Find and cite.",
        ScriptedChatModel([[call("s1", "search_web", topic="the Moon")], "It is 363300 km away at its closest."]),
        tools=[search_web],
    )
    writer = Agent(
        "writer",
        "Write it up.",
        ScriptedChatModel([[call("w1", "publish", title="The Moon")], "The article is out."]),
        tools=[FunctionTool(publish, ask=True)],
    )
    delegations = [
        call("b1", "searcher", query="How far is the Moon?"),
        call("b2", "writer", query="Write about the Moon."),
    ]
    return Agent(
        "boss",
        "Delegate, then answer.",
        ScriptedChatModel([delegations, "Both are done."]),
        tools=[searcher.as_tool("Finds public sources."), writer.as_tool("Writes and publishes.")],
    )


async def main() -> None:
    boss = make_boss()
    await show(boss.reply_stream("A report on the Moon, please."), color=False)
    saved = boss.state.model_dump_json()  # both conversations are in it

    # Perhaps in another process, and days later.
    boss = boss.with_state(AgentState.model_validate_json(saved))
    question = boss.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    for waiting in question.tool_calls:
        print(f"--- {' > '.join(question.inside[waiting.id])} may run {waiting.name}: yes")
    await show(boss.reply_stream(question.approve()), color=False)


if __name__ == "__main__":
    asyncio.run(main())
