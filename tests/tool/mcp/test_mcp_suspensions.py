"""A conversation with an MCP server is whole wherever it is cancelled, interrupted or left."""

import pytest

from agentrt import Agent
from agentrt.testing import ScriptedChatModel, ToolLog, check_every_suspension
from agentrt.tool import MCPToolset
from tests.loop.helpers import call
from tests.tool.mcp.test_mcp import calculator


@pytest.mark.slow
async def test_calls_have_one_result_wherever_they_are_stopped() -> None:
    async with MCPToolset("s", server=calculator()) as tools:

        def make(log: ToolLog) -> Agent:
            answers = [[call("c1", "mcp__s__add", a=1, b=2)], "3"]
            return Agent("a", "Help.", ScriptedChatModel(answers), tools=[tools])

        await check_every_suspension(make, faults=["cancel", "interrupt"], at_least=5)
