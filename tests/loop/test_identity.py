"""The identity of a reply is fixed when it begins; answers from other users or processes do not change it."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.errors import ChainContractError, UsageError
from agentrt.model import ScriptedChatModel
from agentrt.testing import approve
from agentrt.tool import FunctionTool
from tests.loop.helpers import agent_of, call, elsewhere


class Whose(MiddlewareBase):
    """Notes for whom each request is, and keeps a word of each reply."""

    inherited = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seen: list[Any] = []

    def identify(self, agent: Any) -> Mapping[str, str]:
        self.asked.append(agent.run.deps)
        return {"user": {"ann": "Ann", "bob": "Bob"}[agent.run.deps]}

    async def on_model_call(self, agent, input_kwargs, next_handler):
        words = agent.run.state_of(self)
        words["requests"] = words.get("requests", 0) + 1
        try:
            self.seen.append((agent.name, agent.run.identity(self)["user"], words["requests"]))
        except (KeyError, UsageError) as error:
            self.seen.append(type(error))
        return await next_handler()


def noop() -> str:
    return "done"


ASKS = FunctionTool(noop, ask=True)


async def test_resumed_reply_stays_for_whom_it_began() -> None:
    whose = Whose()
    agent = agent_of([[call("1", "noop")], "one", "two"], ASKS, middlewares=[whose])
    await agent.reply("go", deps="ann", reply_id="same")
    agent = elsewhere(agent)
    await agent.reply(approve(agent.state), deps="bob")
    agent.state.context.clear()
    agent.state.last_reply = None
    await agent.reply("go", deps="bob", reply_id="same")
    assert whose.seen == [("tester", "Ann", 1), ("tester", "Ann", 2), ("tester", "Bob", 1)]
    assert whose.asked == ["ann", "bob"]


async def test_identity_is_known_before_a_layer_first_asks_for_it() -> None:
    class Late(Whose):
        on_model_call = MiddlewareBase.on_model_call

        async def on_acting(self, agent, input_kwargs, next_handler):
            self.seen.append(agent.run.identity(self)["user"])
            async for item in next_handler():
                yield item

    late = Late()
    agent = agent_of([[call("1", "noop")], "one"], ASKS, middlewares=[late])
    await agent.reply("go", deps="ann")
    agent = elsewhere(agent)
    await agent.reply(approve(agent.state), deps="bob")
    assert late.seen == ["Ann"]


async def test_sub_agent_works_for_whom_the_reply_above_is() -> None:
    whose = Whose()
    child = Agent("child", "", ScriptedChatModel(["done"]))
    script = [[call("1", "noop")], [call("2", "child", query="go")], "one"]
    toolkit = Toolkit(tools=[ASKS, child.as_tool("Works.")])
    agent = Agent("lead", "", ScriptedChatModel(script), toolkit, middlewares=[whose])
    await agent.reply("go", deps="ann")
    agent = elsewhere(agent)
    await agent.reply(approve(agent.state), deps="bob")
    assert ("child", "Ann", 1) in whose.seen
    assert whose.asked == ["ann"]


async def test_failed_identity_is_not_asked_for_after_a_resume() -> None:
    whose = Whose()
    agent = agent_of([[call("1", "noop")], "one"], ASKS, middlewares=[whose])
    await agent.reply("go", deps="nobody")
    agent = elsewhere(agent)
    await agent.reply(approve(agent.state), deps="bob")
    assert whose.seen == [KeyError, UsageError]


@pytest.mark.parametrize("value", [7, "half \ud800"])
async def test_identity_that_is_not_text_is_refused(value: Any) -> None:
    class Number(Whose):
        def identify(self, agent: Any) -> Any:
            return {"user": value}

    with pytest.raises(ChainContractError, match=r"Number.identify\(\) must return a dict of str by str"):
        await agent_of(["one"], middlewares=[Number()]).reply("go")


async def test_async_identify_is_answered_with_the_remedy() -> None:
    class Later(Whose):
        async def identify(self, agent: Any) -> Any:
            return {"user": "ann"}

    with pytest.raises(ChainContractError, match=r"Later.identify\(\) must .*: write `def`, without `async`"):
        await agent_of(["one"], middlewares=[Later()]).reply("go")


async def test_identity_between_replies_is_that_of_a_new_one() -> None:
    class Named(Whose):
        def identify(self, agent: Any) -> Any:
            self.asked.append(agent.name)
            return {"user": agent.name}

    named = Named()
    agent = agent_of(["one"], middlewares=[named])
    assert agent.identity_of(named) == {"user": agent.name}
    await agent.reply("go")
    assert named.asked == [agent.name] * 2
