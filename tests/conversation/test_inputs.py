"""The forms in which an agent takes messages: text, objects, dicts, and lists of these."""

import json
from typing import Any

import pytest

from agentrt import Agent, AgentBase, Msg, UserAgent, UserMsg
from agentrt.agent import ReActAgent, UserInputBase, UserInputData
from agentrt.errors import ChainError, InvalidInputError
from agentrt.event import UserConfirmResultEvent, UserInterruptEvent
from agentrt.message import AssistantMsg, Base64Source, DataBlock, SystemMsg, TextBlock, URLSource
from agentrt.middleware import MiddlewareBase
from agentrt.pipeline import MsgHub
from tests.loop.helpers import agent_of, items_of

PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}


def kept(messages: list[Msg]) -> list[tuple[str, str, Any]]:
    return [(message.role, message.name, message.content) for message in messages]


@pytest.mark.parametrize(
    ("inputs", "messages"),
    [
        ("Hi", [("user", "user", "Hi")]),
        ({"role": "user", "content": "Hi"}, [("user", "user", "Hi")]),
        ({"role": "user", "content": "Hi", "name": "bob"}, [("user", "bob", "Hi")]),
        (["Hi", UserMsg("bob", "Ho")], [("user", "user", "Hi"), ("user", "bob", "Ho")]),
        (("Hi", {"role": "user", "content": "Ho"}), [("user", "user", "Hi"), ("user", "user", "Ho")]),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, "Bye"],
            [("user", "user", "Hi"), ("assistant", "assistant", "Yes?"), ("user", "user", "Bye")],
        ),
        # As OpenAI's library writes the answer of a model.
        (
            {"role": "assistant", "content": "Yes?", "refusal": None, "annotations": [], "tool_calls": None},
            [("assistant", "assistant", "Yes?")],
        ),
    ],
)
@pytest.mark.parametrize("cls", [Agent, ReActAgent])
async def test_a_reply_takes_text_objects_dicts_and_lists_of_them(cls, inputs, messages):
    agent = cls("tester", "", agent_of(["Hello.", "Hello."]).model)
    await agent.reply(inputs)
    assert kept(agent.state.context)[:-1] == messages
    await agent(inputs)
    assert kept(agent.state.context)[len(messages) + 1 : -1] == messages


@pytest.mark.parametrize("inputs", [{"role": "user", "content": "Hi"}, ["Hi"]], ids=["dict", "list"])
async def test_streams_and_observed_messages_take_the_same_forms(inputs):
    agent = agent_of(["Hello."])
    await agent.observe(inputs)
    await items_of(agent, inputs)
    assert kept(agent.state.context)[:-1] == [("user", "user", "Hi")] * 2


def test_run_sync_takes_a_dict():
    agent = agent_of(["Hello."])
    assert agent.run_sync({"role": "user", "content": "Hi"}).get_text_content() == "Hello."


class Sees(MiddlewareBase):
    """Keeps each input and each message observed."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.seen.append(input_kwargs["inputs"])
        async for item in next_handler():
            yield item

    async def on_observe(self, agent, input_kwargs, next_handler):
        self.seen.append(input_kwargs["msg"])
        await next_handler()


async def test_layers_see_messages_whatever_the_caller_wrote():
    layer = Sees()
    agent = agent_of(["Hello."] * 3, middlewares=[layer])
    for inputs in ("Hi", {"role": "user", "content": "Hi"}):
        await agent.reply(inputs)
        await agent.observe(inputs)
    assert [message.content for message in layer.seen] == ["Hi"] * 4
    await agent.reply(["Hi"])
    assert [message.content for message in layer.seen[-1]] == ["Hi"]


async def test_a_dict_passed_on_by_a_layer_is_a_message_further_in():
    class Changes(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(inputs={"role": "user", "content": "Changed"}):
                yield item

        async def on_observe(self, agent, input_kwargs, next_handler):
            await next_handler(msg={"role": "user", "content": "Changed"})

    layer = Sees()
    agent = agent_of(["Hello."], middlewares=[Changes(), layer])
    await agent.reply("Hi")
    await agent.observe("Hi")
    assert kept(layer.seen) == [("user", "user", "Changed")] * 2
    assert kept([agent.state.context[0], agent.state.context[2]]) == kept(layer.seen)


async def test_a_layer_that_passes_on_a_wrong_dict_is_named():
    class Slips(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(inputs={"role": "user", "text": "Hi"}):
                yield item

    with pytest.raises(ChainError, match=r"Slips.on_reply passed inputs=.* unknown key 'text': did you mean"):
        await agent_of(["Hello."], middlewares=[Slips()]).reply("Hi")


async def test_a_layer_may_pass_on_dicts_in_a_list():
    class Adds(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(inputs=[{"role": "user", "content": "Added"}, input_kwargs["inputs"]]):
                yield item

    agent = agent_of(["Hello."], middlewares=[Adds()])
    await agent.reply("Hi")
    assert kept(agent.state.context)[:-1] == [("user", "user", "Added"), ("user", "user", "Hi")]


async def test_a_dict_may_hold_text_and_images():
    agent = agent_of(["A pixel."])
    photo = {"type": "image_url", "image_url": {"url": "https://example.org/a.JPG?size=1", "detail": "auto"}}
    unknown = {"type": "image_url", "image_url": {"url": "https://example.org/photo"}}
    block = DataBlock(URLSource("https://example.org/a.pdf", "application/pdf"))
    parts = [{"type": "text", "text": "What is this?"}, IMAGE, photo, unknown, block, TextBlock("And this?")]
    await agent.reply({"role": "user", "content": parts})
    blocks = agent.state.context[0].content
    assert [block.text for block in blocks if isinstance(block, TextBlock)] == ["What is this?", "And this?"]
    assert [block.source for block in blocks if isinstance(block, DataBlock)] == [
        Base64Source("iVBORw0KGgo=", "image/png"),
        URLSource("https://example.org/a.JPG?size=1", "image/jpeg"),
        URLSource("https://example.org/photo", "image/*"),
        block.source,
    ]


def part_in(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [content]}


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (7, 'an agent takes a str, a Msg, a dict such as {"role": "user", "content": "Hi"}, or a list of these, not 7'),
        ([["Hi"]], "or a list of these, not ['Hi']"),
        ({}, 'the message {} has no \'role\': write {"role": "user", "content": "Hi"}'),
        ({"role": "user"}, "has no 'content'"),
        ({"role": "assistant", "content": None}, "has no 'content'"),
        ({"role": "user", "contnet": "Hi"}, "has the unknown key 'contnet': did you mean 'content'? it takes"),
        ({"role": "user", "text": "Hi"}, "did you mean 'content'?"),
        ({"role": "user", "content": "Hi", "zzz": 1}, "the unknown key 'zzz': it takes role, content, name"),
        ({"role": "user", "content": "Hi", "id": "7"}, "cannot have 'id': write a Msg instead, or read what Msg.to_"),
        ({"role": "user", "content": "Hi", "name": 7}, "the name in a message must be a str, not 7"),
        ({"role": "user", "content": 7}, "must be a str or a list of parts, not 7"),
        ({"role": "system", "content": "Obey"}, "has the role 'system': give Agent(system_prompt=...) instead"),
        ({"role": "developer", "content": "Obey"}, "cannot be 'developer': give Agent(system_prompt=...) instead"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "cannot have 'messages': give the list by itself"),
        ({"role": "tool", "content": "4"}, "cannot be 'tool': calls of tools and their results are made by replies"),
        ({"role": "tool", "content": "4", "tool_call_id": "1"}, "cannot have 'tool_call_id': calls of tools"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "cannot have 'tool_calls': calls of"),
        ({"role": "human", "content": "Hi"}, "cannot be 'human': write 'user'"),
        ({"role": "model", "content": "Hi"}, "cannot be 'model': write 'assistant'"),
        ({"role": ["user"], "content": "Hi"}, "cannot be ['user']: write 'user'"),
        ({"role": "user", "content": " "}, "the message from 'user' is empty"),
        (part_in("Hi"), 'holds \'Hi\', which is not understood: write a part such as {"type": "text", "text": "Hi"}'),
        (part_in({"type": "video"}), "holds {'type': 'video'}, which is not understood"),
        (part_in({"type": "text"}), "a part of the type 'text' must have a str as its 'text', not None"),
        (part_in({"type": "text", "text": "Hi", "txt": 1}), "has the unknown key 'txt': did you mean 'text'?"),
        (part_in({**IMAGE, "detail": "low"}), "a part of the type 'image_url' has the unknown key 'detail'"),
        (part_in({"type": "image_url", "image_url": PIXEL}), "must be a dict with 'url', not 'data:image/png"),
        (part_in({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}), "is not base64: write data:"),
        (part_in({"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}), "is not base64: write data:image"),
        ({"type": "USER_INTERRUPT", "reply_id": "r"}, "cannot have 'reply_id': read an event"),
        (json.loads(UserInterruptEvent("r").to_json()), "with AgentEvent.from_json(text)"),
        ({"text": "Hi", "role": "user", "id": "1"}, "cannot have 'id': write a Msg instead"),
        ([UserInterruptEvent("r")], "USER_INTERRUPT came where an agent takes messages: give it by itself"),
        (["Hi", UserConfirmResultEvent("r", [])], "as in agent.reply(event)"),
        (part_in({"type": "image_url", "image_url": {"url": f"data:{'a' * 200_000}"}}), "is not base64: write data:"),
        (part_in({"type": "image_url", "image_url": {"url": "data:,x"}}), "'data:,x' is not base64: write data:image"),
        (part_in({"type": "image_url", "image_url": {"url": PIXEL + "?"}}), "holds data that is not base64"),
        (part_in({"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}), "is 'low': leave it out"),
    ],
)
async def test_a_wrong_message_is_refused_with_what_to_write(inputs, problem):
    agent = agent_of(["Hello."])
    with pytest.raises(InvalidInputError) as caught:
        await agent.reply(inputs)
    assert problem in str(caught.value)
    with pytest.raises(InvalidInputError) as caught:
        agent.reply_stream([inputs])
    assert problem in str(caught.value) or inputs == 7 or isinstance(inputs, list)
    assert agent.state.context == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("content", 7, "its content is 7: it must be a str or a list of blocks"),
        ("content", None, "its content is None: it must be a str or a list of blocks"),
        ("role", "tool", "has the role 'tool': send it with the role 'user'"),
    ],
)
@pytest.mark.parametrize("method", ["reply", "observe"])
async def test_a_message_that_was_changed_is_refused_before_it_is_kept(method, field, value, problem):
    agent = agent_of(["Hello."])
    message = UserMsg("Hi")
    setattr(message, field, value)
    with pytest.raises(InvalidInputError) as caught:
        await getattr(agent, method)(message)
    assert problem in str(caught.value)
    assert agent.state.context == []


@pytest.mark.parametrize("observed", [{"role": "system", "content": "Begin."}, SystemMsg("Begin.")], ids=type)
async def test_an_observed_system_message_counts_as_a_users(observed):
    agent = agent_of([])
    await agent.observe([observed])
    assert kept(agent.state.context) == [("user", "system", "Begin.")]


@pytest.mark.parametrize(
    "announcement", ["Begin.", {"role": "user", "content": "Begin."}, [UserMsg("Begin.")]], ids=type
)
async def test_a_hub_announces_and_broadcasts_the_same_forms(announcement):
    heard: list[Msg] = []

    class Listener(AgentBase):
        async def observe(self, msg):
            heard.append(msg)

    async with MsgHub([Listener()], announcement) as hub:
        await hub.broadcast(announcement)
    assert kept(heard) == [("user", "user", "Begin.")] * 2


async def test_the_users_own_agent_takes_the_same_forms():
    class Answers(UserInputBase):
        async def __call__(self, *args: Any, **kwargs: Any) -> UserInputData:
            return UserInputData([TextBlock("Fine.")])

    agent = UserAgent("bob")
    agent.disable_console_output()
    agent.override_instance_input_method(Answers())
    await agent.observe("Hello.")
    await agent({"role": "assistant", "content": "How are you?"})
    assert [message.content for message in await agent.memory.get_memory()] == ["Hello.", "How are you?", "Fine."]


# Messages by their role


@pytest.mark.parametrize(("make", "role"), [(UserMsg, "user"), (AssistantMsg, "assistant"), (SystemMsg, "system")])
def test_a_message_without_a_name_is_from_its_role(make, role):
    block = TextBlock("Hi")
    messages = [make("Hi"), make(content="Hi"), make("Hi", name=role), make(role, "Hi"), make(name=role, content="Hi")]
    assert kept([*messages, make(role, content="Hi")]) == [(role, role, "Hi")] * 6
    assert kept([make([block], name="bob", id="7")]) == [(role, "bob", [block])]
    assert make("Hi", id="7").id == "7"


@pytest.mark.parametrize(
    ("args", "fields", "problem"),
    [
        ((), {}, "UserMsg() needs a content: write UserMsg('Hi') or UserMsg('bob', 'Hi')"),
        ((), {"name": "bob"}, "UserMsg() needs a content"),
        (("bob", "Hi"), {"name": "ann"}, "UserMsg() was given the name twice, 'bob' and 'ann'"),
        (("bob", "Hi"), {"content": "Ho"}, "UserMsg() was given the content twice, 'Hi' and 'Ho'"),
        (("bob", "Hi", "user"), {}, "takes a name and a content by position, not 3 values"),
        (("bob", None), {}, "Msg content must be a str or a list of blocks, not None"),
    ],
)
def test_a_message_that_cannot_be_made_says_what_to_write(args, fields, problem):
    with pytest.raises(TypeError) as caught:
        UserMsg(*args, **fields)
    assert problem in str(caught.value)
