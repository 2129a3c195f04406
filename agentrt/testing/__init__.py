'''Doubles, a fault harness and a middleware kit, for those who build agents and middlewares.

`check_every_suspension` runs a conversation again and again, with a fault at a later place each time: it is
cancelled, interrupted or left, or its store or its model fails. In every case, the conversation must be whole
afterwards and continue. In a test of your own it looks like this:

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

`check_middleware` tries a middleware in everything that can happen to it, on both event loops if you want, and says in
words what broke:

    >>> from agentrt import MiddlewareBase
    >>> from agentrt.testing import check_middleware_on_both_loops
    >>> class Shout(MiddlewareBase):
    ...     async def on_system_prompt(self, agent, current_prompt):
    ...         return current_prompt + " Answer in capitals."
    >>> for report in check_middleware_on_both_loops(Shout, faults=["cancel"]).values():
    ...     assert "nothing found" in str(report)

`lint` puts a watching layer around every layer of an agent, so that a broken contract names its layer:

    >>> from agentrt.errors import ChainContractError
    >>> from agentrt.testing import lint
    >>> class Forgets(MiddlewareBase):
    ...     async def on_reply(self, agent, input_kwargs, next_handler):
    ...         async for item in next_handler():
    ...             if item.__class__.__name__ != "Msg":
    ...                 yield item
    >>> agent = Agent("poet", model=ScriptedChatModel(["Hello."]), middlewares=lint([Shout(), Forgets()]))
    >>> try:
    ...     agent.run_sync("Hello?")
    ... except ChainContractError as error:
    ...     print(str(error).partition("(")[0])
    Forgets.on_reply ended with ReplyEndEvent
'''

from agentrt.model.scripted import ScriptedCall, ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.testing.embedding import HashingEmbedding
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.await_faults import SuspensionReport, check_every_suspension
from agentrt.testing.harness.cassette import Cassette, CassetteError, CassetteMiss, cassette, cassette_scope
from agentrt.testing.harness.chaos import (
    ChaosLayer,
    InjectedFault,
    cut_result,
    fail_model,
    fail_tool,
    garble_result,
    slow_tool,
)
from agentrt.testing.harness.checkable import Checkable
from agentrt.testing.harness.faults import FAULTS
from agentrt.testing.harness.lint import Lint, lint
from agentrt.testing.harness.tool_log import ToolLog, ToolRun
from agentrt.testing.harness.trajectory import ExpectedStep, TrajectoryOrder, answer, assert_trajectory, call
from agentrt.testing.kit.conformance import (
    MiddlewareProblems,
    MiddlewareReport,
    check_middleware,
    check_middleware_on_both_loops,
)
from agentrt.testing.stores.check import StoreProblems, StoreReport, check_store
from agentrt.testing.stores.exact import ExactStore
from agentrt.testing.stores.runs import check_run_store

__all__ = [
    "FAULTS",
    "Cassette",
    "CassetteError",
    "CassetteMiss",
    "ChaosLayer",
    "Checkable",
    "ExactStore",
    "ExpectedStep",
    "HashingEmbedding",
    "InMemoryStateStore",
    "InjectedFault",
    "Lint",
    "MiddlewareProblems",
    "MiddlewareReport",
    "ScriptedCall",
    "ScriptedChatModel",
    "StoreProblems",
    "StoreReport",
    "SuspensionReport",
    "ToolLog",
    "ToolRun",
    "TrajectoryOrder",
    "answer",
    "approve",
    "assert_trajectory",
    "call",
    "cassette",
    "cassette_scope",
    "check_every_suspension",
    "check_middleware",
    "check_middleware_on_both_loops",
    "check_run_store",
    "check_store",
    "cut_result",
    "fail_model",
    "fail_tool",
    "garble_result",
    "lint",
    "slow_tool",
]
