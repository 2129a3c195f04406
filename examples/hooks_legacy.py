"""Pre and post hooks: on one agent, on a class of agents, and around the tools of a loop."""

import asyncio
from typing import Any

from agentrt import Agent, AgentBase, Msg
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.types import ToolResponse


class Echo(AgentBase):
    """Repeats the message."""

    async def reply(self, msg: Msg) -> Msg:
        return msg


def mark_for_instance(self: AgentBase, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs["msg"].content += " [instance]"  # a copy: it takes effect because it is returned
    return kwargs


def mark_for_class(self: AgentBase, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs["msg"].content += " [class]"
    return kwargs


async def print_result(self: AgentBase, kwargs: dict[str, Any], output: ToolResponse) -> None:
    text = "".join(block.text for block in output.content if isinstance(block, TextBlock))
    print(f"{kwargs['tool_call'].name} gave {text} ({output.state})")


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


async def main() -> None:
    agent = Echo(name="echo")
    Echo.register_class_hook("pre_reply", "mark", mark_for_class)
    agent.register_instance_hook("pre_reply", "mark", mark_for_instance)
    print((await agent(Msg("user", "Hello, world!", "user"))).content)
    Echo.clear_class_hooks()
    print((await agent(Msg("user", "Hello, world!", "user"))).content)

    model = ScriptedChatModel([[ToolCallBlock("1", "add", '{"a": 2, "b": 3}')], "It is 5."])
    solver = Agent("solver", model=model, tools=[add])
    solver.register_instance_hook("post_acting", "look", print_result)
    solver.register_instance_hook("post_reply", "praise", lambda self, kwargs, output: Msg("solver", "5!", "assistant"))
    print((await solver("What is 2 + 3?")).content)
    print(next(line for line in solver.explain().splitlines() if "ActingHookMiddleware" in line).split("  /")[0])


if __name__ == "__main__":
    asyncio.run(main())
