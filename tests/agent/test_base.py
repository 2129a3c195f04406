"""Agents that write their own reply."""

import asyncio
import gc
import pickle
import re
import threading
import weakref
from copy import copy, deepcopy
from functools import partial
from typing import Any

import anyio.to_thread
import pytest
import shortuuid

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt.agent import ReActAgentBase
from agentrt.agent.overrides import custom_reply
from agentrt.errors import ChainContractError, ChainError, ConfigError, MiddlewareConfigError, UsageError
from agentrt.event import CustomEvent, ReplyEndEvent, ReplyStartEvent
from agentrt.model import ScriptedChatModel
from agentrt.module import StateModule
from agentrt.pipeline import MsgHub


class Echo(AgentBase):
    async def reply(self, msg):
        return msg

    async def observe(self, msg):
        self.heard = [*getattr(self, "heard", []), msg]


class Patient(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.waits = anyio.Event()

    async def reply(self, msg):
        self.waits.set()
        await anyio.sleep_forever()


class Passing(MiddlewareBase):
    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.items: list[Any] = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.values.append(dict(input_kwargs))
        async for item in next_handler():
            self.items.append(item)
            yield item


def said(text: str) -> Msg:
    return UserMsg("user", text)


def test_an_agent_has_an_id_and_the_name_of_its_class_by_default():
    one, other = Echo(), Echo(name="other")
    assert (one.name, other.name) == ("Echo", "other")
    assert one.id
    assert one.id != other.id
    assert one.reply_id is None


@pytest.mark.parametrize("options", [{"name": ""}, {"name": 3}, {"middlewares": Passing}, {"middlewares": {}}])
def test_parts_that_do_not_fit_are_refused(options):
    with pytest.raises(ConfigError, match=r"Echo\((name|middlewares)=\.\.\.\) must be"):
        Echo(**options)


async def test_each_reply_has_an_id_of_its_own_called_directly_or_not():
    agent = Echo()
    ids = []
    for ask in (agent, agent.reply, agent):
        await ask(said("a"))
        ids.append(agent.reply_id)
    assert None not in ids
    assert len(set(ids)) == 3


async def test_replies_side_by_side_have_runs_of_their_own():
    both, seen = anyio.Event(), {}

    class Busy(AgentBase):
        async def reply(self, msg):
            self.run.scratch(self)["told"] = msg.content
            mine = self.reply_id
            if len(seen) == 1:
                both.set()
            seen[msg.content] = mine
            await both.wait()
            assert self.reply_id == self.run.id == mine
            assert self.run.scratch(self) == {"told": msg.content}
            return msg

    agent = Busy()
    async with anyio.create_task_group() as group:
        group.start_soon(agent, said("a"))
        group.start_soon(agent.reply, said("b"))
    assert len(set(seen.values())) == 2


async def test_there_is_no_run_between_replies():
    agent = Echo()
    await agent(said("a"))
    with pytest.raises(UsageError, match="agent 'Echo' has no reply in progress"):
        _ = agent.run


async def test_a_task_outliving_its_reply_has_neither_run_nor_hooks():
    over, checked = anyio.Event(), []

    class Leaving(AgentBase):
        async def reply(self, msg):
            if msg.content == "leave":
                group.start_soon(later, self)
            return msg

    async def later(agent):
        await over.wait()
        with pytest.raises(UsageError):
            _ = agent.run
        await agent.reply(said("later"))

    agent = Leaving()
    async with anyio.create_task_group() as group:
        await agent(said("leave"))
        agent.register_instance_hook("pre_reply", "n", lambda self, kwargs: checked.append(kwargs["msg"].content))
        over.set()
    assert checked == ["later"]


async def test_a_reply_inside_one_of_the_same_agent_has_its_own_run():
    ids = []

    class Nested(AgentBase):
        async def reply(self, depth):
            ids.append(self.run.id)
            if depth:
                await self.reply(depth - 1)
            ids.append(self.run.id)
            return said("done")

    await Nested()(1)
    outer, inner = ids[0], ids[1]
    assert ids == [outer, inner, inner, outer]
    assert outer != inner


async def test_layers_see_start_emitted_events_end_and_message():
    class Telling(AgentBase):
        async def reply(self, msg):
            self.run.emit(CustomEvent("first", 1))
            self.run.emit(CustomEvent("second", 2))
            return msg

    layer = Passing()
    agent = Telling(middlewares=[layer])
    answer = await agent(said("a"))
    start, first, second, end, message = layer.items
    assert isinstance(start, ReplyStartEvent)
    assert isinstance(end, ReplyEndEvent)
    assert [first.name, second.name] == ["first", "second"]
    assert message is answer
    assert {each.reply_id for each in layer.items[:-1]} == {agent.reply_id}


async def test_layers_have_scratch_data_and_data_of_the_conversation():
    class Counting(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            for data in (agent.run.scratch(self), agent.state_of(self)):
                data["calls"] = data.get("calls", 0) + 1
            assert agent.run.scratch(self) == {"calls": 1}
            async for item in next_handler():
                yield item

    agent = Echo(middlewares=[Counting()])
    await agent(said("a"))
    await agent(said("a"))
    assert agent.state.middleware_data == {"Counting": {"calls": 2}}


async def test_another_round_cannot_be_asked_of_a_reply_without_rounds():
    class Asking(AgentBase):
        async def reply(self, msg):
            self.run.continue_with("more")

    with pytest.raises(UsageError, match="an agent that writes its own reply does not have"):
        await Asking()(said("a"))


async def test_on_reply_has_the_parameters_of_the_class_as_its_keys():
    class Manifold(AgentBase):
        async def reply(self, first, /, second=2, *rest, third, fourth=4, **more):
            return said(repr((first, second, rest, third, fourth, more)))

    class Changing(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            changed = next_handler(first="one", rest=[0], more={"six": 6})
            async for item in changed:
                yield item

    layer = Passing()
    answer = await Manifold(middlewares=[layer, Changing()])(1, third=3, five=5)
    assert layer.values == [{"first": 1, "second": 2, "rest": (), "third": 3, "fourth": 4, "more": {"five": 5}}]
    assert answer.content == "('one', 2, (0,), 3, 4, {'six': 6})"


async def test_a_key_that_the_reply_does_not_have_is_refused_by_name():
    class Wrong(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler(inputs=None):
                yield item

    with pytest.raises(ChainError, match="'inputs'"):
        await Echo(middlewares=[Wrong()])(said("a"))


@pytest.mark.parametrize("layers", [[], [Passing]], ids=["no layer", "a layer"])
async def test_parameters_may_have_names_that_the_runtime_uses(layers):
    class Named(AgentBase):
        async def reply(this, agent, owner, values, hook, inputs, method, args, kwargs, cls):
            return said("".join([agent, owner, values, hook, inputs, method, args, kwargs, cls]))

    agent = Named(middlewares=[layer() for layer in layers])
    agent.register_instance_hook("pre_reply", "change", lambda self, kwargs: {**kwargs, "agent": "A"})
    assert (await agent("a", "b", "c", hook="d", inputs="e", method="f", args="g", kwargs="h", cls="i")).content == (
        "Abcdefghi"
    )


async def test_observe_and_print_may_have_other_parameters():
    class Own(AgentBase):
        async def observe(self, sender, msg):
            self.heard = (sender, msg)

        async def print(self, last, msg="nothing"):
            self.shown = (last, msg)

    agent = Own()
    agent.register_instance_hook("pre_print", "n", lambda self, kwargs: None)
    await agent.observe("me", "hello")
    await agent.print(True, msg="look")
    assert (agent.heard, agent.shown) == (("me", "hello"), (True, "look"))


async def test_unknown_arguments_are_a_type_error_naming_the_method():
    with pytest.raises(TypeError, match=r"Echo\.reply\(\) takes \(msg\); arguments given: mgs=\.\.\."):
        await Echo()(mgs=said("a"))


async def test_a_layer_that_asks_again_has_the_reply_written_again():
    class Again(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if not isinstance(item, Msg):
                    yield item
            async for item in next_handler():
                yield item

    class Counting(AgentBase):
        replies = 0

        async def reply(self, msg):
            self.replies += 1
            self.run.emit(CustomEvent("replying", self.replies))
            return said(f"{self.replies}")

    agent = Counting(middlewares=[Again()])
    assert (await agent(said("a"))).content == "2"


async def test_a_layer_may_answer_without_the_reply():
    class Short(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield said("in short")

    assert (await Echo(middlewares=[Short()])(said("a"))).content == "in short"


async def test_a_layer_that_swallows_the_answer_breaks_its_contract():
    class Swallowing(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if not isinstance(item, Msg):
                    yield item

    with pytest.raises(ChainContractError, match="on_reply ended without the final Msg"):
        await Echo(middlewares=[Swallowing()])(said("a"))


async def test_a_layer_changes_what_is_observed_and_what_is_printed():
    class Louder(MiddlewareBase):
        async def on_observe(self, agent, input_kwargs, next_handler):
            await next_handler(msg=said("heard"))

        async def on_print(self, agent, input_kwargs, next_handler):
            await next_handler(msg=said("shown"), last=False)

    class Showing(Echo):
        async def print(self, message, last=True, speech=None):
            self.shown = (message.content, last)

    agent = Showing(middlewares=[Louder()])
    await agent.observe(said("a"))
    await agent.print(said("a"))
    assert [each.content for each in agent.heard] == ["heard"]
    assert agent.shown == ("shown", False)


async def test_a_reply_may_say_nothing():
    class Silent(AgentBase):
        async def reply(self, msg):
            return None

    layer = Passing()
    assert await Silent(middlewares=[layer])(said("a")) is None
    assert [type(each) for each in layer.items] == [ReplyStartEvent, ReplyEndEvent]


@pytest.mark.parametrize("returned", ["text", 3, []], ids=repr)
async def test_a_reply_that_returns_no_message_is_named(returned):
    class Wrong(AgentBase):
        async def reply(self, msg):
            return returned

    with pytest.raises(ChainContractError, match=r"Wrong\.reply\(\) must return a Msg, or None to say nothing, not"):
        await Wrong()(said("a"))


async def test_a_reply_must_be_a_coroutine_function():
    class Plain(AgentBase):
        def reply(self, msg):
            return msg

    with pytest.raises(ChainContractError, match=r"Plain\.reply\(\) must be a coroutine function: write `async def"):
        await Plain()(said("a"))


async def test_a_plain_reply_that_returns_a_coroutine_is_fine():
    class Handing(Echo):
        def reply(self, msg):
            return super().reply(msg)

    assert (await Handing()(said("a"))).content == "a"


def test_a_reply_that_is_not_a_coroutine_function_is_refused():
    class Yielding(AgentBase):
        async def reply(self, msg):
            yield msg

    class Static(AgentBase):
        @staticmethod
        async def reply(msg):
            return msg

    class Attribute(AgentBase):
        reply = "text"

    for cls, why in ((Yielding, "it yields"), (Static, "it is not a method"), (Attribute, "it is not a method")):
        with pytest.raises(ConfigError, match=rf"{cls.__name__}\.reply\(\) must be a coroutine function .*{why}"):
            cls()


async def test_a_missing_reply_or_observe_is_an_error_with_the_remedy():
    class Empty(AgentBase):
        pass

    with pytest.raises(NotImplementedError, match="Empty has no reply: write `async def reply"):
        await Empty()(said("a"))
    with pytest.raises(NotImplementedError, match="Empty cannot observe messages: write `async def observe"):
        await Empty().observe(said("a"))


async def test_a_missing_super_init_is_an_error_at_first_use():
    class Forgetful(AgentBase):
        def __init__(self):
            self.mood = "calm"

        async def reply(self, msg):
            return msg

    agent = Forgetful()
    for use in (lambda: agent.explain(), lambda: agent.name, lambda: agent.id, lambda: agent.state):
        with pytest.raises(UsageError, match=r"Forgetful\.__init__\(\) did not call super\(\)\.__init__\(\)"):
            use()
    with pytest.raises(UsageError, match=r"super\(\)\.__init__"):
        await agent(said("a"))
    with pytest.raises(AttributeError, match="no attribute 'moood'"):
        _ = agent.moood


class Reasoning(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


def test_a_custom_agent_has_on_reasoning_only_if_it_reasons():
    class Thinking(ReActAgentBase):
        async def _reasoning(self, msg):
            return msg

    assert "1. Reasoning" in Thinking(middlewares=[Reasoning()]).explain()
    with pytest.raises(MiddlewareConfigError, match=r"Reasoning would never run in .*Echo.* writes? .* own reply"):
        Echo(middlewares=[Reasoning()])


def test_explain_says_which_hooks_never_run_here():
    class Both(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler()

    page = Echo(name="echo", middlewares=[Both()]).explain()
    assert "Agent 'echo': the chains, outermost first" in page
    assert "1. Both" in page
    assert "Never here, for this agent has no such step: on_model_call (Both)" in page
    assert "test_base.py" in page


def test_the_entries_look_like_the_methods_that_they_stand_for():
    agent = Echo()
    assert type(agent.reply).__name__ == "method"
    assert agent.reply.__name__ == "reply"
    assert agent.reply.__wrapped__ is Echo.reply
    assert agent.reply.__self__ is agent
    assert agent.observe.__wrapped__ is Echo.observe


async def test_without_layers_and_hooks_the_entries_are_the_cores():
    agent = Echo()
    [reply] = [each for each in agent._compiled.overrides if each.name == "reply"]
    assert agent.chains.on_reply is reply.core
    assert agent.chains.on_print is AgentBase._cores["on_print"]


async def test_a_parents_method_reached_by_super_is_plain():
    class Louder(Echo):
        async def reply(self, msg):
            return said(f"{(await super().reply(msg)).content}!")

        async def observe(self, msg):
            await super().observe(said(f"{msg.content}!"))

    layer = Passing()
    agent = Louder(middlewares=[layer])
    assert (await agent(said("a"))).content == "a!"
    await agent.observe(said("b"))
    assert len(layer.values) == 1
    assert [each.content for each in agent.heard] == ["b!"]


async def interrupted(agent: AgentBase, waiting: Patient | None = None, interrupt: Any = None) -> Msg | None:
    """Return the agent's answer if it is interrupted as soon as the agent that waits, by default itself, waits."""

    async def act() -> None:
        await (waiting or agent).waits.wait()
        assert await (interrupt or agent.interrupt)()

    answer = failure = None
    async with anyio.create_task_group() as group:
        group.start_soon(act)
        try:
            answer = await agent(said("a"))
        except ChainContractError as error:  # to be raised without the group around it
            failure = error
    if failure is not None:
        raise failure
    return answer


async def test_handle_interrupt_answers_an_interrupt_from_another_task():
    agent = Patient()
    heard = Echo()
    agent.reset_subscribers("hub", [heard])
    answer = await interrupted(agent)
    assert (answer.metadata, answer.finished_reason) == ({"_is_interrupted": True}, "interrupted")
    assert [each.id for each in heard.heard] == [answer.id]
    assert not agent.interrupt()


async def test_an_interrupt_from_a_thread_wakes_the_reply():
    agent = Patient()
    answer = await interrupted(agent, interrupt=lambda: anyio.to_thread.run_sync(agent.interrupt))
    assert answer.finished_reason == "interrupted"


async def test_an_interrupt_from_inside_ends_a_reply_at_its_next_wait():
    went_on = []

    class Giving(Echo):
        async def reply(self, msg):
            self.interrupt()
            await anyio.sleep_forever()
            went_on.append(msg)

    answer = await Giving()(said("a"))
    assert answer.finished_reason == "interrupted"
    assert went_on == []


async def test_handle_interrupt_gets_the_arguments_of_the_reply():
    class Sorry(Patient):
        async def handle_interrupt(self, *args, **kwargs):
            return said(f"sorry about {args[0].content}")

    assert (await interrupted(Sorry())).content == "sorry about a"


async def test_an_interrupt_stops_all_replies_of_its_agent_alone():
    agent, other = Patient(), Patient()
    answers = []

    async def ask(who):
        answers.append(await who(said("a")))

    async with anyio.create_task_group() as group:
        for who in (agent, agent, other):
            group.start_soon(ask, who)
        await agent.waits.wait()
        await other.waits.wait()
        await anyio.wait_all_tasks_blocked()
        agent.interrupt()
        await anyio.wait_all_tasks_blocked()
        assert len(answers) == 2
        other.interrupt()
    assert len(answers) == 3


async def test_the_callers_timeout_is_not_swallowed_or_broadcast():
    agent, heard = Patient(), Echo()
    agent.reset_subscribers("hub", [heard])
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await agent(said("a"))
    assert not hasattr(heard, "heard")
    assert not agent.interrupt()


async def test_the_callers_cancellation_wins_over_an_interrupt():
    agent = Patient()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(agent, said("a"))
            await agent.waits.wait()
            agent.interrupt()
            scope.cancel()
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_timeout_and_cancel_are_not_swallowed(anyio_backend):
    agent, heard = Patient(), Echo()
    agent.reset_subscribers("hub", [heard])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await agent(said("a"))
    task = asyncio.get_running_loop().create_task(agent(said("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not hasattr(heard, "heard")


async def test_a_direct_reply_is_stopped_by_its_caller_only():
    agent = Patient()
    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.reply, said("a"))
            await agent.waits.wait()
            assert not agent.interrupt()
            scope.cancel()
    assert scope.cancelled_caught


def test_interrupting_an_idle_agent_does_nothing_in_any_thread():
    agent = Echo()
    results = []
    thread = threading.Thread(target=lambda: results.append(agent.interrupt()))
    thread.start()
    thread.join()
    assert results == [False]


async def test_an_interrupt_of_an_inner_agent_stops_that_one_alone():
    inner = Patient()

    class Asking(Echo):
        async def reply(self, msg):
            answer = await inner(msg)
            return said(f"it said: {answer.finished_reason}")

    answer = await interrupted(Asking(), inner, inner.interrupt)
    assert answer.content == "it said: interrupted"


async def test_an_interrupt_of_the_outer_agent_silences_the_inner_one():
    inner, heard = Patient(), Echo()
    inner.reset_subscribers("hub", [heard])

    class Asking(Echo):
        async def reply(self, msg):
            return await inner(msg)

    answer = await interrupted(Asking(), inner)
    assert answer.name == "Asking"
    assert not hasattr(heard, "heard")


async def test_what_an_agent_registers_and_holds_is_its_state():
    class Memory(StateModule):
        def __init__(self):
            super().__init__()
            self.messages = []
            self.register_state("messages")

    class Remembering(AgentBase):
        def __init__(self):
            super().__init__()
            self.memory = Memory()
            self.mood = "calm"
            self.register_state("mood")

        async def reply(self, msg):
            self.memory.messages.append(msg.content)
            return msg

    agent, other = Remembering(), Remembering()
    await agent(said("a"))
    assert agent.state_dict() == {"memory": {"messages": ["a"]}, "mood": "calm"}
    other.load_state_dict(agent.state_dict())
    assert other.memory.messages == ["a"]


async def test_a_reply_from_a_mixin_is_the_core():
    class Mixin:
        async def reply(self, msg):
            return said(f"mixed {msg.content}")

    class Mixed(Mixin, AgentBase):
        pass

    layer = Passing()
    assert (await Mixed(middlewares=[layer])(said("in"))).content == "mixed in"
    assert len(layer.values) == 1


def test_an_agent_is_an_agent_base():
    assert issubclass(Agent, ReActAgentBase)
    assert issubclass(ReActAgentBase, AgentBase)


def test_the_state_of_an_agent_is_a_state():
    assert isinstance(Echo().state, AgentState)


async def test_a_queue_that_is_falsy_while_empty_is_used():
    class Line(list):
        async def put(self, item):
            self.append(item)

    agent, line = Echo(), Line()
    agent.disable_console_output()
    agent.set_msg_queue_enabled(True, line)
    await agent.print(UserMsg("user", "hi"))
    assert [msg.content for msg, _, _ in line] == ["hi"]


@pytest.mark.parametrize("answer", ["", 5, ["a"]])
async def test_handle_interrupt_must_return_a_message_or_nothing(answer):
    class Odd(Patient):
        async def handle_interrupt(self, *args):
            return answer

    with pytest.raises(ChainContractError, match=r"Odd\.handle_interrupt\(\) must return a Msg, or None"):
        await interrupted(Odd())


async def test_handle_interrupt_must_be_a_coroutine_function():
    class Plain(Patient):
        def handle_interrupt(self, *args):
            return said("stopped")

    with pytest.raises(ChainContractError, match="write `async def handle_interrupt`"):
        await interrupted(Plain())


async def test_handle_interrupt_may_say_nothing():
    class Silent(Patient):
        async def handle_interrupt(self, *args):
            return None

    assert await interrupted(Silent()) is None


async def test_a_reply_of_an_ended_event_loop_blocks_no_interrupt():
    agent = Patient()

    def of_a_loop_that_has_ended():
        raise RuntimeError("Event loop is closed")

    for _ in range(8):  # they have no order
        agent.live_conversation.stops[partial(of_a_loop_that_has_ended)] = None
    answer = await interrupted(agent)
    assert answer.metadata["_is_interrupted"]


async def test_tasks_left_behind_do_not_accumulate_replies():
    known: list[int] = []

    class Heir(AgentBase):
        async def reply(self, generations):
            known.append(len(custom_reply._replies.get()))
            if generations:
                group.start_soon(later, self._over, generations)

        async def __call__(self, *args):
            self._over = anyio.Event()
            await super().__call__(*args)
            self._over.set()

    async def later(over, generations):
        await over.wait()
        await Heir()(generations - 1)

    async with anyio.create_task_group() as group:
        await Heir()(5)
    assert known == [1] * 6


async def test_a_method_set_on_a_class_later_is_the_core_of_new_agents(monkeypatch):
    class Old(AgentBase):
        async def reply(self, msg):
            return said("old")

    async def new(self, msg, loudly=False):
        return said("NEW" if loudly else "new")

    before = Old()
    monkeypatch.setattr(Old, "reply", new)
    assert (await Old()(said("hi"), loudly=True)).content == "NEW"
    assert (await before(said("hi"))).content == "old"


async def test_events_that_no_layer_reads_are_dropped():
    class Busy(AgentBase):
        async def reply(self, msg):
            for n in range(10_001):
                self.run.emit(CustomEvent("tick", n))
            return msg

    assert (await Busy()(said("hi"))).content == "hi"


def test_classes_of_agents_are_collected_with_their_hooks():
    def made_and_dropped() -> weakref.ref[Any]:
        held = Echo()

        class Local(AgentBase):
            async def reply(self, msg):
                return await held(await super().reply(msg))

        Local.register_class_hook("pre_reply", "held", lambda self, kwargs: held.name and None)
        Local()
        return weakref.ref(held)

    held = made_and_dropped()
    gc.collect()
    assert held() is None


async def test_an_overridden_method_says_that_init_was_forgotten():
    class Unready(Echo):
        def __init__(self):
            self.colour = "red"

    with pytest.raises(UsageError, match=r"Unready\.__init__\(\) did not call super\(\)\.__init__\(\)"):
        await Unready().reply(UserMsg("user", "hi"))


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (lambda agent: agent.set_msg_queue_enabled(True, []), r"needs a queue with an async `put`, not \[\]"),
        (lambda agent: agent.set_audio_player(3), "makes a player, not 3"),
        (lambda agent: agent.reset_subscribers("hub", ["x"]), "the subscribers of 'Echo' must be agents, not 'x'"),
    ],
    ids=["queue", "player", "subscribers"],
)
def test_what_cannot_be_used_is_refused_at_once(misuse, words):
    with pytest.raises(UsageError, match=words):
        misuse(Echo())


def test_conversations_share_an_audience_until_one_changes_it() -> None:
    agent = Agent("a", "You answer.", ScriptedChatModel(["Yes."]))
    other = agent.with_state(AgentState())
    assert other.live_conversation.audience is agent.live_conversation.audience
    other.set_msg_queue_enabled(True)
    other.set_console_output_enabled(True)
    assert agent.msg_queue is None
    assert not agent.live_conversation.audience.shows
    assert other.live_conversation.audience.shows


async def test_agents_sessions_hubs_and_replies_have_ids_of_one_kind(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(shortuuid.set_alphabet, shortuuid.get_alphabet()))
    shortuuid.set_alphabet("ab/")  # for the names of the program itself
    agent = Agent("a", "You answer.", ScriptedChatModel(["Yes."]))
    answer = await agent.reply("Do you?")
    ids = [agent.id, agent.state.session_id, agent.reply_id, answer.id, MsgHub([]).name, Echo().id]
    assert all(re.fullmatch("[2-9A-HJ-NP-Za-km-z]{22}", str(each)) for each in ids)
    assert len(set(ids)) == 5  # the final message has that of its reply


def test_no_id_is_made_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortuuid.ShortUUID, "uuid", None)
    Agent("a", "You answer.", ScriptedChatModel(["Yes."]), state=AgentState())


@pytest.mark.parametrize(
    "another",
    [
        copy,
        deepcopy,
        lambda agent: pickle.loads(pickle.dumps(agent)),
        lambda agent: agent.with_state(agent.state),
        lambda agent: agent.with_middlewares([]),
    ],
    ids=["copy", "deepcopy", "pickle", "with_state", "with_middlewares"],
)
def test_a_copy_has_the_ids_that_were_not_read_yet(another) -> None:
    agent = Agent("a", "You answer.", ScriptedChatModel(["Yes."]))
    other = another(agent)
    assert (other.id, other.state.session_id) == (agent.id, agent.state.session_id)
