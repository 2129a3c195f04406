"""Ask the user before a tool runs: yes, no, or yes to something else."""

import asyncio
import json

from agentrt import Agent, AgentState
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.message import Msg, TextBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from agentrt.types import JSONSchema, PermissionContext


async def delete(path: str) -> str:
    """Delete a file (this one only says so)."""
    return f"Deleted {path}."


def ask(call: ToolCallBlock) -> ConfirmResult:
    answer = input(f"{call.name} {call.input}? [y, n, or another path] ").strip()
    if answer in ("y", "n"):
        return ConfirmResult(answer == "y", call)
    return ConfirmResult(True, ToolCallBlock(call.id, call.name, json.dumps({"path": answer})))


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
                    answer = UserConfirmResultEvent(event.reply_id, [ask(call) for call in event.tool_calls])
                elif isinstance(event, Msg) and answer is None:
                    print(event.get_text_content())
        inputs = answer


if __name__ == "__main__":
    asyncio.run(main())
