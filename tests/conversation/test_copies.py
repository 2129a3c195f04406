"""Copies of agents: they answer as themselves, and are in nobody's hub."""

import copy
import pickle
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentBase, MiddlewareBase, Msg, UserMsg
from agentrt.errors import UsageError
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import add, call


class Counter(AgentBase):
    """Says its name and how often it was asked."""

    def __init__(self, name: str, middlewares: Any = ()) -> None:
        super().__init__(name=name, middlewares=middlewares)
        self.asked = []

    async def reply(self, msg):
        self.asked.append(msg.content)
        return UserMsg(self.name, f"{self.name} {len(self.asked)}")

    async def observe(self, msg):
        self.heard = msg


class Marking(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg):
                item.content += " *"
            yield item


class Noting(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        data = agent.state_of(self)
        data["replies"] = data.get("replies", 0) + 1
        async for item in next_handler():
            yield item


class Lending(MiddlewareBase):
    def list_tools(self):
        return [add]


class Polite(Agent):
    async def reply(self, inputs=None, structured_schema=None):
        answer = await super().reply(inputs, structured_schema)
        return Msg(self.name, f"{answer.get_text_content()}, thank you", "assistant")


def exclaim(self, kwargs, output):
    return UserMsg(output.name, f"{output.get_text_content()}!")


def pickled(agent: AgentBase) -> Any:
    return pickle.loads(pickle.dumps(agent))


COPIES = [copy.copy, copy.deepcopy, pickled]


async def text_of(agent: AgentBase) -> str | None:
    return (await agent(UserMsg("user", "go"))).get_text_content()


@pytest.mark.parametrize("copied", COPIES)
async def test_the_copy_of_a_custom_agent_answers_as_itself(copied):
    agent = Counter("one", [Marking()])
    await agent(UserMsg("user", "before"))
    other = copied(agent)
    other.name = "other"
    other.asked = list(other.asked)
    assert await text_of(other) == "other 2 *"
    assert await text_of(agent) == "one 2 *"
    assert other.reply.__self__ is other
    assert other.asked == agent.asked


@pytest.mark.parametrize("copied", COPIES)
async def test_hooks_go_along_and_those_registered_later_do_not(copied):
    agent = Counter("one")
    agent.register_instance_hook("post_reply", "exclaim", exclaim)
    other = copied(agent)
    assert await text_of(other) == "one 1!"
    other.register_instance_hook("post_reply", "again", exclaim)
    agent.register_instance_hook("post_reply", "more", exclaim)
    agent.register_instance_hook("post_reply", "most", exclaim)
    assert (await text_of(other)).endswith("2!!" if other.asked is not agent.asked else "!!")
    assert (await text_of(agent)).endswith("!!!")
    other.clear_instance_hooks()
    assert not (await text_of(other)).endswith("!")
    assert (await text_of(agent)).endswith("!!!")


@pytest.mark.parametrize("copied", COPIES)
async def test_a_copy_has_no_subscribers_and_no_message_queue(copied):
    agent, listener = Counter("one"), Counter("listener")
    agent.reset_subscribers("hub", [listener])
    agent.set_msg_queue_enabled(True)
    other = copied(agent)
    other.disable_console_output()
    await other(UserMsg("user", "go"))
    await other.print(UserMsg("user", "look"))
    assert not hasattr(listener, "heard")
    assert agent.msg_queue.empty()
    assert other.msg_queue is None
    await agent(UserMsg("user", "go"))
    assert listener.heard.content.startswith("one")


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
async def test_a_deep_copy_shares_no_state(copied):
    agent = Counter("one")
    other = copied(agent)
    other.state.middleware_data["mine"] = {}
    other.asked.append("more")
    assert agent.state.middleware_data == {}
    assert agent.asked == []


async def test_an_agent_is_copied_while_it_replies():
    inside, on = anyio.Event(), anyio.Event()

    class Waiting(Counter):
        async def reply(self, msg):
            if msg.content == "wait":
                inside.set()
                await on.wait()
            return await super().reply(msg)

    agent = Waiting("one")
    async with anyio.create_task_group() as group:
        group.start_soon(agent, UserMsg("user", "wait"))
        await inside.wait()
        other = copy.deepcopy(agent)
        assert not other.interrupt()
        assert await text_of(other) == "one 1"
        on.set()


@pytest.mark.parametrize("kind", [Agent, Polite])
@pytest.mark.parametrize("copied", COPIES)
async def test_the_copy_of_an_agent_answers_as_itself(copied, kind):
    agent = kind("tester", "You are tested.", ScriptedChatModel(["one", "two", "three"]), middlewares=[Noting()])
    await agent.reply("go")
    other = copied(agent)
    other.name = "other"
    answer = await other.reply("on")
    assert answer.name == "other"
    assert answer.get_text_content() == ("two, thank you" if kind is Polite else "two")
    assert other.reply.__self__ is other
    assert len(other.state.context) == 4
    assert len(agent.state.context) == (4 if copied is copy.copy else 2)
    assert other.state.middleware_data["Noting"]["replies"] == 2


async def test_a_shallow_copy_shares_the_conversation_a_deep_one_not():
    agent = Agent("tester", model=ScriptedChatModel(["one", "two", "three"]))
    same, another = copy.copy(agent), copy.deepcopy(agent)
    assert same.state is agent.state
    assert another.state is not agent.state
    await agent.reply("go")
    assert len(same.state.context) == 2
    assert another.state.context == []
    assert (await another.reply("go")).get_text_content() == "one"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
async def test_the_tools_of_middlewares_go_along(copied):
    model = ScriptedChatModel([[call("1", "add", a=1, b=2)], "three"])
    other = copied(Agent("tester", model=model, middlewares=[Lending()]))
    await other.reply("go")
    [result] = other.state.context[-1].get_content_blocks("tool_result")
    assert result.output[0].text == "3"


def test_a_copy_of_an_agent_that_was_not_set_up_is_told_so():
    class Unready(AgentBase):
        def __init__(self):
            self.colour = "red"

    with pytest.raises(UsageError, match=r"Unready\.__init__\(\) did not call super\(\)\.__init__\(\)"):
        copy.copy(Unready())
