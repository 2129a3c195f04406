"""An empty input is refused before the model is asked."""

from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt.errors import InvalidInputError
from agentrt.message import Base64Source, DataBlock, TextBlock
from agentrt.model import ScriptedChatModel
from agentrt.state import InMemoryStateStore
from tests.loop.helpers import agent_of

EMPTY: list[Any] = [
    "",
    " \n",
    UserMsg("user", ""),
    UserMsg("user", []),
    UserMsg("user", [TextBlock(" ")]),
    [UserMsg("user", "Hello."), UserMsg("user", "")],
]


@pytest.mark.parametrize("inputs", EMPTY)
async def test_an_empty_message_is_refused_and_changes_nothing(inputs: Any) -> None:
    agent = agent_of(["Hello.", "Hello again."])
    await agent.reply("Hello?")
    before = agent.state.model_dump_json()
    with pytest.raises(InvalidInputError, match="the message from 'user' is empty"):
        await agent.reply(inputs)
    assert agent.state.model_dump_json() == before
    assert len(agent.model.calls) == 1


@pytest.mark.parametrize("inputs", [None, []])
async def test_no_input_in_an_empty_conversation_is_refused(inputs: Any) -> None:
    agent = agent_of(["Hello."])
    with pytest.raises(InvalidInputError, match="asked to reply to nothing"):
        await agent.reply(inputs)
    assert (agent.model.calls, agent.state.context, agent.state.reply_context) == ([], [], None)


@pytest.mark.parametrize("inputs", [None, []])
async def test_no_input_answers_what_was_observed(inputs: Any) -> None:
    agent = agent_of(["Hello."])
    await agent.observe("Hello?")
    assert (await agent.reply(inputs)).get_text_content() == "Hello."


async def test_no_input_answers_what_was_summarised() -> None:
    agent = Agent("a", model=ScriptedChatModel(["Hello."]), state=AgentState(summary="They met."))
    assert (await agent.reply()).get_text_content() == "Hello."


async def test_a_message_that_holds_data_alone_is_answered() -> None:
    picture = UserMsg("user", [DataBlock(Base64Source("AAAA", "image/png"))])
    assert (await agent_of(["Nice."]).reply(picture)).get_text_content() == "Nice."


class Says(MiddlewareBase):
    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler(inputs=self.inputs):
            yield item


async def test_a_layer_may_give_the_input_that_is_missing() -> None:
    agent = agent_of(["Hello."], middlewares=[Says("Hello?")])
    assert (await agent.reply()).get_text_content() == "Hello."


@pytest.mark.parametrize("inputs", ["", UserMsg("user", ""), None])
async def test_an_empty_input_from_a_layer_is_refused(inputs: Any) -> None:
    agent = agent_of(["Hello."], middlewares=[Says(inputs)])
    with pytest.raises(InvalidInputError):
        await agent.reply("Hello?")
    assert agent.model.calls == []


@pytest.mark.parametrize("msg", ["", Msg("friend", [], "assistant"), [Msg("friend", "\n", "user")]])
async def test_an_empty_message_that_is_observed_is_left_out(msg: Any) -> None:
    agent = agent_of(["Hello."], state_store=InMemoryStateStore())
    await agent.observe([UserMsg("user", "Hello?")])
    await agent.observe(msg)
    assert [message.content for message in agent.state.context] == ["Hello?"]
