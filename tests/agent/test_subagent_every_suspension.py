"""A conversation with a sub-agent that writes its own reply is whole, and continues, wherever something goes wrong."""

from typing import Any

import anyio
import pytest

from agentrt import Agent, Msg, Toolkit
from agentrt.agent import SubAgentBase, SubAgentSpec, make_subagent_tool
from agentrt.model import ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.testing import FAULTS, ToolLog, check_every_suspension
from tests.loop.helpers import call

emptied: list[int] = []


class Working(SubAgentBase):
    """Works for a while, with a tool, and notes at its end how much its memory holds."""

    async def reply(self, msg: Msg) -> Msg:
        await self.memory.add(msg)
        await anyio.lowlevel.checkpoint()
        result = await self.call_tool("work", what=msg.get_text_content())
        return Msg(self.name, result.text, "assistant")

    async def delegate(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().delegate(*args, **kwargs)
        finally:
            emptied.append(len(self.memory.content))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_supervisor_is_whole_after_any_fault_at_any_place(fault: str) -> None:
    async def work(what: str) -> str:
        await anyio.lowlevel.checkpoint()
        return f"did {what}"

    spec = SubAgentSpec("worker", "Works.", tools_allowlist=["work"])
    function, keywords = await make_subagent_tool(Working, spec, tool_name="agent_worker", host=Toolkit([work]))
    emptied.clear()

    def make(log: ToolLog) -> Agent:
        toolkit = Toolkit()
        toolkit.register_tool_function(function, **keywords)
        calls = [call(str(number), "agent_worker", query=f"task {number}") for number in range(2)]
        model = ScriptedChatModel([calls, *["Done."] * 20], stream=True)
        return Agent("boss", model=model, toolkit=toolkit, state_store=InMemoryStateStore())

    await check_every_suspension(make, faults=[fault], at_least=5)
    assert emptied
    assert set(emptied) == {0}
