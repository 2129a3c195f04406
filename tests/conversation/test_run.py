"""`agent.run`: what hooks and tools may use of the reply in progress."""

from typing import Any

from agentrt import AgentBase, MiddlewareBase, Msg, UserMsg
from agentrt.tool import ToolContext
from tests.loop.helpers import agent_of, call

FOR_HOOKS = {
    *("id", "deps", "toolkit", "is_internal", "ended", "deadline", "now", "new_id", "next_seq"),
    *("scratch", "call_name", "emit", "continue_with"),
}


class Looking(MiddlewareBase):
    """Keeps what it sees of the reply."""

    def __init__(self) -> None:
        self.runs: list[Any] = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.runs.append(agent.run)
        agent.run.scratch(self)["place"] = "on_reply"
        async for item in next_handler():
            yield item
        self.runs.append(agent.run)


async def test_run_shows_what_hooks_may_use_and_nothing_else() -> None:
    looking = Looking()
    await agent_of(["hello"], middlewares=[looking]).reply("go")
    assert {name for name in dir(looking.runs[0]) if not name.startswith("_")} == FOR_HOOKS


async def test_hooks_and_tools_have_one_run_of_a_reply() -> None:
    looking = Looking()

    async def look(context: ToolContext) -> str:
        """Look at the reply."""
        looking.runs += [context.run, context.agent.run]
        return context.agent.run.scratch(looking)["place"]

    agent = agent_of([[call("1", "look")], "done", "done again"], look, middlewares=[looking])
    await agent.reply("go")
    assert len({id(run) for run in looking.runs}) == 1
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "on_reply"
    await agent.reply("go")
    assert looking.runs[-1] is not looking.runs[0]
    assert looking.runs[0].ended


async def test_run_of_a_custom_agent_shows_the_same() -> None:
    looking = Looking()

    class Echo(AgentBase):
        async def reply(self, msg):
            looking.runs.append(self.run.scratch(looking)["place"])
            return Msg(self.name, "hi", "assistant")

    await Echo(middlewares=[looking])(UserMsg("user", "go"))
    first, place, last = looking.runs
    assert {name for name in dir(first) if not name.startswith("_")} == FOR_HOOKS
    assert (place, first.id) == ("on_reply", last.id)
