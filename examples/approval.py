"""Ask the user before a tool runs: yes, no, or yes to something else."""

import asyncio

from agentrt import Agent, AgentState
from agentrt.event import RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.message import Msg, TextBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from agentrt.types import JSONSchema, PermissionContext


async def delete(path: str) -> str:
    """Delete a file (this one only says so)."""
    return f"Deleted {path}."


def ask(question: RequireUserConfirmEvent) -> UserConfirmResultEvent:
    [call] = question.tool_calls
    answer = input(f"{call.name} {call.input}? [y, n, or another path] ").strip()
    if answer == "y":
        return question.approve()
    return question.deny() if answer == "n" else question.answer({"path": answer})


def report(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    [result] = messages[-1].get_content_blocks("tool_result")
    return "The tool said: " + "".join(block.text for block in result.output if isinstance(block, TextBlock))


async def main() -> None:
    agent = Agent(
        name="assistant",
        model=ScriptedChatModel([[ToolCallBlock("1", "delete", '{"path": "draft.txt"}')], report]),
        tools=[FunctionTool(delete, ask=True)],
        state=AgentState(permission_context=PermissionContext(allow_edited_input=True)),
    )
    inputs: str | UserConfirmResultEvent | None = "Please tidy up."
    while inputs is not None:
        answer: UserConfirmResultEvent | None = None
        async with agent.reply_stream(inputs, yield_final_msg=True) as events:
            async for event in events:
                if isinstance(event, RequireUserConfirmEvent):
                    answer = ask(event)
                elif isinstance(event, Msg) and answer is None:
                    print(event.get_text_content())
        inputs = answer


if __name__ == "__main__":
    asyncio.run(main())
