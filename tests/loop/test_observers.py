"""Observers: they see every event of a reply and every request to a model, whatever the layers do."""

import logging

import anyio
import pytest

from agentrt import Agent, AgentBase, Msg
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.event import ReplyClosedEvent
from agentrt.hooks import MiddlewareBase
from agentrt.message import AssistantMsg, TextBlock, UserMsg
from agentrt.middleware import ModelFallbackMiddleware, RetryMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.testing import lint
from agentrt.testing.harness.approve import approve
from agentrt.tool import FunctionTool, Toolkit
from tests.loop.helpers import add, agent_of, call


class Audit(MiddlewareBase):
    def __init__(self):
        self.events = []
        self.records = []

    def on_event(self, agent, event):
        self.events.append(event)

    def on_wire(self, agent, record):
        self.records.append(record)

    @property
    def closed(self):
        return [event.reason for event in self.events if isinstance(event, ReplyClosedEvent)]

    @property
    def ends(self):
        return [record for record in self.records if record.kind == "end"]

    def pairs(self):
        """Return the kinds of records of each call."""
        calls = {}
        for record in self.records:
            calls.setdefault(record.call_id, []).append(record.kind)
        return list(calls.values())


class AnswerByItself(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        yield AssistantMsg("assistant", "a short circuit")


class AnswerForTheModel(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return ChatResponse([TextBlock("from a cache")])


class HoldBack(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        items = [item async for item in next_handler()]
        for item in items:
            yield item


async def read(agent, inputs="go"):
    return [event async for event in agent.reply_stream(inputs)]


@pytest.fixture
def audit() -> Audit:
    return Audit()


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("layers", [(), (AnswerByItself,), (AnswerForTheModel,), (HoldBack,)])
async def test_observer_sees_the_events_that_the_reader_sees(layers, is_streamed, audit):
    model = ScriptedChatModel([[call("1", "add", a=1, b=2)], "done"], stream=is_streamed)
    agent = Agent("tester", model=model, tools=[add], middlewares=[*(layer() for layer in layers), audit])
    events = await read(agent)
    *seen, closed = audit.events
    assert all(one is other for one, other in zip(seen, events, strict=True))
    assert closed == ReplyClosedEvent(agent.state.last_reply.reply_id, "completed")


@pytest.mark.parametrize("layers", [(), (AnswerByItself,), (AnswerForTheModel,), (HoldBack,)])
async def test_observer_sees_a_reply_that_nobody_reads(layers):
    def types_of(audit):
        return [(event.type, getattr(event, "seq", None)) for event in audit.events]

    audits = Audit(), Audit()
    responses = [[call("1", "add", a=1, b=2)], "done"]
    for audit, ask in zip(audits, (read, lambda agent: agent.reply("go")), strict=True):
        model = ScriptedChatModel(list(responses))
        await ask(Agent("tester", model=model, tools=[add], middlewares=[*(layer() for layer in layers), audit]))
    assert types_of(audits[0]) == types_of(audits[1]) != []


async def test_without_observers_the_entries_are_the_cores():
    chains = agent_of(["done"]).chains
    assert chains.on_model_call is chains.on_wire is Agent._cores["on_model_call"]
    assert chains.on_event is Agent._cores["on_event"].plain


async def test_every_attempt_and_every_fallback_is_on_the_wire(audit):
    other = ScriptedChatModel(["from the other"], model="other")
    failing = ScriptedChatModel([Transient("down"), Transient("still down")], model="first")
    layers = [ModelFallbackMiddleware([other]), RetryMiddleware(1, initial_delay=0.001), audit]
    await Agent("tester", model=failing, middlewares=layers).reply("go")
    assert audit.pairs() == [["request", "end"]] * 3
    assert [record.model.model for record in audit.ends] == ["first", "first", "other"]
    assert [type(record.error) for record in audit.ends] == [Transient, Transient, type(None)]
    assert audit.ends[-1].response.content[0].text == "from the other"


async def test_an_answer_of_a_layer_is_not_on_the_wire(audit):
    await agent_of(["never"], middlewares=[audit, AnswerForTheModel()]).reply("go")
    assert audit.records == []


async def test_request_is_told_as_it_is_sent(audit):
    class AddMessage(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler(messages=[*input_kwargs["messages"], UserMsg("user", "and this")])

    agent = agent_of(["done"], add, middlewares=[audit, AddMessage()])
    await agent.reply("go")
    [sent] = agent.model.calls
    request, end = audit.records
    assert (request.messages, request.tools, request.tool_choice) == (sent.messages, sent.tools, sent.tool_choice)
    assert request.messages[-1].get_text_content() == "and this"
    assert (request.purpose, end.pieces > 1, end.seconds > 0) == (None, True, True)


async def test_a_call_by_ask_model_says_its_purpose(audit):
    class Ask(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            await agent.run.ask_model([UserMsg("user", "judge")], purpose="judge")
            async for item in next_handler():
                yield item

    await agent_of(["yes", "done"], middlewares=[audit, Ask()]).reply("go")
    assert [record.purpose for record in audit.ends] == ["judge", None]


async def test_a_stream_that_is_left_early_ends_once_on_the_wire(audit):
    agent = agent_of(["one two three four"], middlewares=[audit])
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert audit.pairs() == [["request", "end"]]
    [end] = audit.ends
    assert (end.error, end.response.is_last, end.pieces) == (None, False, 1)
    assert audit.closed == ["closed"]


async def test_a_stream_that_is_never_read_ends_once_on_the_wire(audit):
    class Discard(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await next_handler()
            return ChatResponse([TextBlock("mine")])

    await agent_of(["one two"], middlewares=[audit, Discard()]).reply("go")
    assert audit.pairs() == [["request", "end"]]
    assert audit.ends[0].response is None


async def test_a_stream_that_fails_ends_with_its_error(audit):
    broken = [ChatResponse([TextBlock("one ")], is_last=False), Transient("gone")]
    with pytest.raises(Transient):
        await agent_of([broken], middlewares=[audit]).reply("go")
    [end] = audit.ends
    assert (type(end.error), end.response.content[0].text, end.response.is_last) == (Transient, "one ", False)
    assert audit.closed == ["error"]


async def test_a_cancelled_call_ends_once_and_closes_the_reply(audit):
    class Waiting(ScriptedChatModel):
        async def _call(self, messages, tools, tool_choice):
            scope.cancel()
            await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await Agent("tester", model=Waiting([]), middlewares=[audit]).reply("go")
    [end] = audit.ends
    assert isinstance(end.error, anyio.get_cancelled_exc_class())
    assert audit.closed == ["cancelled"]


async def test_a_reply_that_waits_is_closed_as_parked_first(audit):
    agent = Agent(
        "tester",
        model=ScriptedChatModel([[call("1", "add", a=1, b=2)], "done"]),
        toolkit=Toolkit(tools=[FunctionTool(add, ask=True)]),
        middlewares=[audit],
    )
    await agent.reply("go")
    await agent.reply(approve(agent.state))
    assert audit.closed == ["parked", "completed"]
    numbers = [event.seq for event in audit.events if not isinstance(event, ReplyClosedEvent)]
    assert numbers == sorted(set(numbers))


async def test_what_an_observer_raises_is_logged_by_type_once(caplog, audit):
    class Broken(MiddlewareBase):
        def on_event(self, agent, event):
            raise ValueError("a secret")

        def on_wire(self, agent, record):
            raise KeyError("a secret")

    with caplog.at_level(logging.ERROR, "agentrt"):
        answer = await agent_of(["done"], middlewares=[Broken(), audit]).reply("go")
    assert answer.get_text_content() == "done"
    assert (audit.closed, audit.pairs()) == (["completed"], [["request", "end"]])
    assert len(caplog.records) == 2
    assert "ValueError" in caplog.text
    assert "a secret" not in caplog.text


async def test_what_an_observer_returns_is_ignored():
    class Answering(MiddlewareBase):
        def on_event(self, agent, event):
            return Msg("other", "mine", "assistant")

    assert (await agent_of(["done"], middlewares=[Answering()]).reply("go")).get_text_content() == "done"


class Coroutine(MiddlewareBase):
    async def on_event(self, agent, event):
        pass


class Generator(MiddlewareBase):
    def on_wire(self, agent, record):
        yield


class WrongParameters(MiddlewareBase):
    def on_event(self, event):
        pass


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Coroutine, r"Coroutine\.on_event must be a plain function \(`def` without `yield`\), but it is a coroutine"),
        (Generator, r"Generator\.on_wire must be a plain function .* but it is a sync generator"),
        (WrongParameters, r"WrongParameters\.on_event must take \(self, agent, event\)"),
    ],
)
def test_an_observer_of_another_shape_is_refused(layer, words):
    with pytest.raises(MiddlewareConfigError, match=words):
        agent_of(["done"], middlewares=[layer()])


async def test_observers_see_the_events_of_a_custom_agent(audit):
    class Echo(AgentBase):
        async def reply(self, msg):
            return AssistantMsg(self.name, msg)

    class Failing(AgentBase):
        async def reply(self, msg):
            raise Transient("down")

    await Echo(middlewares=[audit])("hi")
    with pytest.raises(Transient):
        await Failing(middlewares=[audit])("hi")
    types = [event.type for event in audit.events]
    assert types == ["REPLY_START", "REPLY_END", "REPLY_CLOSED", "REPLY_START", "REPLY_CLOSED"]
    assert audit.closed == ["completed", "error"]


def test_explain_lists_observers_apart():
    text = agent_of(["done"], middlewares=[Audit()]).explain()
    assert "on_wire (observers; no layer can hide anything from them): every request" in text
    assert "1. Audit" not in text


async def test_lint_names_the_observer_that_changes_what_it_sees():
    class Changing(MiddlewareBase):
        def on_event(self, agent, event):
            if event.type == "TEXT_BLOCK_DELTA":
                event.delta = "changed"

        def on_wire(self, agent, record):
            record.purpose = "other"

    layers = lint([Audit(), Changing()])
    await agent_of(["done"], middlewares=layers).reply("go")
    problems = [problem for layer in layers for problem in getattr(layer, "problems", ())]
    assert len(problems) == 3  # the delta, the request and its end
    assert all(problem.startswith("Changing changed the ") for problem in problems)
