'''Doubles and a fault harness for those who build agents.

`check_every_suspension` runs a conversation over and over, and each time something goes wrong at one place later: it is
cancelled, interrupted or left, or its store or its model fails. Whatever happened, the conversation must be whole
afterwards and go on. In a test of one's own it looks like this:

    >>> import anyio
    >>> from agentrt import Agent, Toolkit
    >>> from agentrt.message import ToolCallBlock
    >>> from agentrt.testing import InMemoryStateStore, ScriptedChatModel, ToolLog, check_every_suspension
    >>> async def add(a: int, b: int) -> int:
    ...     """Add two numbers."""
    ...     return a + b
    >>> def make_agent(log: ToolLog) -> Agent:
    ...     script = [[ToolCallBlock("1", "add", '{"a": 1, "b": 2}')], "It is 3."]
    ...     return Agent(
    ...         "calculator",
    ...         model=ScriptedChatModel(script),
    ...         toolkit=Toolkit(tools=[log.watch(add)]),
    ...         state_store=InMemoryStateStore(),
    ...     )
    >>> async def test_my_agent_is_whole_whatever_happens():
    ...     return await check_every_suspension(make_agent, ["What is 1 + 2?"], at_least=10)
    >>> anyio.run(test_my_agent_is_whole_whatever_happens).suspensions >= 10
    True
'''

from agentrt.model.scripted import ScriptedCall, ScriptedChatModel
from agentrt.state.store import InMemoryStateStore
from agentrt.testing.answer import approve
from agentrt.testing.faults import FAULTS
from agentrt.testing.parts import Checkable
from agentrt.testing.suspensions import SuspensionReport, check_every_suspension
from agentrt.testing.tool_log import ToolLog, ToolRun

__all__ = [
    "FAULTS",
    "Checkable",
    "InMemoryStateStore",
    "ScriptedCall",
    "ScriptedChatModel",
    "SuspensionReport",
    "ToolLog",
    "ToolRun",
    "approve",
    "check_every_suspension",
]
