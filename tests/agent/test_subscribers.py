"""What others of a hub hear of an agent's answers."""

import logging
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentBase, Msg, UserMsg
from agentrt.message import AssistantMsg, ProviderBlock, TextBlock, ThinkingBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call


class Listener(AgentBase):
    """Says what it was told to say, and keeps what it hears."""

    def __init__(self, answer: Any = None, log: list[str] | None = None, name: str = "listener") -> None:
        super().__init__(name=name)
        self.answer = answer
        self.heard: list[Msg] = []
        self.log = [] if log is None else log

    async def reply(self, msg=None):
        return self.answer

    async def observe(self, msg):
        await anyio.lowlevel.checkpoint()
        self.log.append(self.name)
        self.heard.append(msg)


class Failing(Listener):
    async def observe(self, msg):
        raise LookupError("a secret")


def thought() -> Msg:
    content = [ThinkingBlock("hm"), TextBlock("aha"), ProviderBlock("anthropic", "{}")]
    return AssistantMsg("speaker", content, metadata={"mood": "calm"})


async def test_an_answer_is_observed_without_thinking():
    speaker, listener = Listener(thought()), Listener()
    speaker.reset_subscribers("hub", [listener])
    answer = await speaker()
    [heard] = listener.heard
    assert [block.type for block in answer.content] == ["thinking", "text", "provider"]
    assert [block.type for block in heard.content] == ["text"]
    assert (heard.id, heard.name, heard.role) == (answer.id, answer.name, answer.role)
    assert (heard.metadata, heard.created_at) == (answer.metadata, answer.created_at)


async def test_a_direct_reply_is_not_broadcast():
    speaker, listener = Listener(thought()), Listener()
    speaker.reset_subscribers("hub", [listener])
    await speaker.reply()
    assert listener.heard == []


async def test_a_reply_without_a_message_is_not_broadcast():
    speaker, listener = Listener(None), Listener()
    speaker.reset_subscribers("hub", [listener])
    assert await speaker() is None
    assert listener.heard == []


async def test_a_reply_that_fails_is_not_broadcast():
    class Moody(Listener):
        async def reply(self, msg=None):
            raise LookupError

    speaker, listener = Moody(), Listener()
    speaker.reset_subscribers("hub", [listener])
    with pytest.raises(LookupError):
        await speaker()
    assert listener.heard == []


async def test_each_observer_has_a_message_of_its_own():
    speaker, listeners = Listener(UserMsg("speaker", [TextBlock("hello")])), [Listener(), Listener()]
    speaker.reset_subscribers("hub", listeners)
    answer = await speaker()
    [one], [other] = (each.heard for each in listeners)
    one.content[0].text = "changed"
    one.metadata["changed"] = True
    assert other.content[0].text == answer.content[0].text == "hello"
    assert other.metadata == answer.metadata == {}


async def test_observers_observe_in_order_and_once_over_all_hubs():
    log: list[str] = []
    speaker = Listener(UserMsg("speaker", "hello"))
    one, two, three = (Listener(log=log, name=name) for name in ("one", "two", "three"))
    speaker.reset_subscribers("first", [two, one, two])
    speaker.reset_subscribers("second", [one, three])
    await speaker()
    assert log == ["two", "one", "three"]


async def test_a_failing_observer_is_logged_by_its_type_alone(caplog):
    speaker, listener = Listener(UserMsg("speaker", "hello")), Listener()
    speaker.reset_subscribers("hub", [Failing(name="deaf"), listener])
    with caplog.at_level(logging.ERROR, "agentrt"):
        assert (await speaker()).content == "hello"
    assert len(listener.heard) == 1
    assert caplog.messages == ["agent 'deaf' failed to observe a message: LookupError"]


async def test_a_cancellation_while_others_listen_leaves():
    class Slow(Listener):
        async def observe(self, msg):
            await anyio.sleep_forever()

    speaker, listener = Listener(UserMsg("speaker", "hello")), Listener()
    speaker.reset_subscribers("hub", [Slow(), listener])
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await speaker()
    assert listener.heard == []


async def test_an_agent_never_observes_itself():
    speaker = Listener(UserMsg("speaker", "hello"))
    speaker.reset_subscribers("hub", [speaker])
    await speaker()
    assert speaker.heard == []


async def test_subscribers_are_replaced_and_removed_by_hub(caplog):
    speaker, one, other = Listener(UserMsg("speaker", "hello")), Listener(), Listener()
    speaker.reset_subscribers("first", [one])
    speaker.reset_subscribers("second", [other])
    speaker.reset_subscribers("first", [])
    await speaker()
    speaker.remove_subscribers("second")
    await speaker()
    assert (len(one.heard), len(other.heard)) == (0, 1)
    with caplog.at_level(logging.WARNING, "agentrt"):
        speaker.remove_subscribers("second")
    assert caplog.messages == ["agent 'listener' has no subscribers of a hub named 'second'"]


async def test_observers_hooks_run_for_what_is_broadcast():
    speaker, listener = Listener(UserMsg("speaker", "hello")), Listener()
    listener.register_instance_hook("pre_observe", "louder", lambda self, kwargs: {"msg": UserMsg("x", "HELLO")})
    speaker.reset_subscribers("hub", [listener])
    await speaker()
    assert [each.content for each in listener.heard] == ["HELLO"]


async def test_what_post_reply_makes_of_an_answer_is_broadcast():
    speaker, listener = Listener(UserMsg("speaker", "hello")), Listener()
    speaker.register_instance_hook("post_reply", "louder", lambda self, kwargs, output: UserMsg("speaker", "HELLO"))
    speaker.reset_subscribers("hub", [listener])
    await speaker()
    assert [each.content for each in listener.heard] == ["HELLO"]


async def test_an_answer_is_broadcast_but_not_an_open_question():
    model = ScriptedChatModel([[call("1", "add", a=1, b=2)], "no matter", "second"])
    agent, listener = agent_of(["answer"]), Listener()
    agent.reset_subscribers("hub", [listener])
    await agent("go")
    assert [each.get_text_content() for each in listener.heard] == ["answer"]
    from_parked = Agent("tester", model=model)
    from_parked.toolkit.register_tool_function(FunctionTool(add, ask=True))
    from_parked.reset_subscribers("hub", [listener])
    await from_parked("go")
    assert from_parked.state.reply_context is not None
    assert len(listener.heard) == 1


async def test_agents_take_in_what_they_observe():
    speaker, agent = Listener(thought()), agent_of(["answer"])
    speaker.reset_subscribers("hub", [agent])
    await speaker()
    await agent.reply("go")
    assert [each.get_text_content() for each in agent.model.calls[0].messages[1:]] == ["aha", "go"]
