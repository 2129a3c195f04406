"""Delegations side by side do not see each other."""

from contextvars import ContextVar

import anyio

from agentrt import Msg
from agentrt.agent import SubAgentBase
from tests.agent.subagents import Echo, results_of, supervisor

_task: ContextVar[str] = ContextVar("task", default="none")


async def test_subagent_parallel_calls() -> None:
    """Each call has an instance of its own, all run at once, and the results keep the order of the calls."""
    begun: list[str] = []
    everyone = anyio.Event()

    class Slow(Echo):
        async def reply(self, msg: Msg) -> Msg:
            await self.memory.add(msg)
            begun.append(msg.get_text_content() or "")
            if len(begun) == 3:
                everyone.set()
            await everyone.wait()  # which only comes if all of them run
            for _ in range(3 - begun.index(msg.get_text_content() or "")):
                await anyio.lowlevel.checkpoint()
            self.sizes.append(await self.memory.size())
            return msg

    boss = await supervisor(Slow, "one", "two", "three")
    await boss.reply("go")
    assert [result.text for result in results_of(boss)] == ["one", "two", "three"]
    assert len({id(agent) for agent in Slow.made}) == 3
    assert [agent.sizes for agent in Slow.made] == [[2]] * 3


async def test_each_call_begins_with_a_memory_of_one() -> None:
    boss = await supervisor(Echo, "one", "two", "three")
    await boss.reply("go")
    assert [agent.sizes for agent in Echo.made] == [[1]] * 3


async def test_failing_call_leaves_the_others_alone() -> None:
    class Picky(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            if msg.get_text_content() == "two":
                raise ValueError("not this one")
            return msg

    boss = await supervisor(Picky, "one", "two", "three")
    await boss.reply("go")
    assert [result.text for result in results_of(boss)] == ["one", "[subagent_error] echo: ValueError", "three"]


async def test_context_variables_of_a_call_stay_its_own() -> None:
    seen: list[str] = []

    class Setting(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            seen.append(_task.get())
            _task.set(msg.get_text_content() or "")
            await anyio.lowlevel.checkpoint()
            seen.append(_task.get())
            return msg

    boss = await supervisor(Setting, "one", "two")
    await boss.reply("go")
    assert sorted(seen) == ["none", "none", "one", "two"]
