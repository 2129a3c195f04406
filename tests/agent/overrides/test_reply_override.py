"""An `Agent` whose class writes its own `reply`."""

import gc
import weakref
from functools import wraps
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, Msg, Toolkit, UserMsg
from agentrt.errors import AgentBusyError, ChainContractError, ConfigError, UsageError
from agentrt.event import CustomEvent, ReplyEndEvent
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of, rebuilt, short


class Polite(Agent):
    async def reply(self, inputs=None, structured_schema=None):
        answer = await super().reply(inputs, structured_schema)
        return Msg(self.name, f"{answer.get_text_content()}, thank you", "assistant", id=answer.id)


class Marked(Agent):
    """Runs what a test wants before and after the loop."""

    before: Any = None
    after: Any = None

    async def reply(self, inputs=None, structured_schema=None):
        if self.before is not None:
            await self.before()
        answer = await super().reply(inputs, structured_schema)
        return answer if self.after is None else await self.after(answer) or answer


def one_of(kind: type[Agent], responses: list[Any], *tools: Any, **options: Any) -> Any:
    return kind("tester", "You are tested.", ScriptedChatModel(responses), Toolkit(tools=list(tools)), **options)


class Waiting:
    """A place where somebody waits for ever."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.left = False

    async def __call__(self, *_: Any) -> None:
        self.reached.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.left = True


async def run_out(patience: anyio.CancelScope, place: Waiting) -> None:
    """End the time of a scope as soon as the place is reached."""
    await place.reached.wait()
    patience.deadline = anyio.current_time()


class Stuck:
    """An answer of the model that never comes."""

    def __init__(self) -> None:
        self.place = Waiting()

    async def __call__(self, messages, tools):
        await self.place()


def reason_of(items: list[Any]) -> str:
    return next(item.finished_reason for item in reversed(items) if isinstance(item, ReplyEndEvent))


async def test_the_override_is_the_core_streamed_or_not():
    script = [[call("1", "add", a=1, b=2)], "it is three"]
    answers = []
    for ask in (lambda agent: agent.reply("go"), lambda agent: agent("go")):
        answers.append(await ask(one_of(Polite, script, add)))
    *events, last = await items_of(one_of(Polite, script, add))
    assert [each.content for each in [*answers, last]] == ["it is three, thank you"] * 3
    *plain, end, _ = [short(each) for each in await items_of(agent_of(script, add))]
    instead = ["BLOCKS_WITHDRAWN", "TX_START", "TX_DELTA", "TX_END"]
    assert [short(each) for each in events] == [*plain, *instead, end]
    assert [each.seq for each in events] == list(range(1, len(events) + 1))


async def test_conversations_beside_it_run_the_override():
    agent = one_of(Polite, ["one"])
    assert (await agent.with_state(AgentState()).reply("go")).content == "one, thank you"


def test_run_sync_runs_the_override():
    assert one_of(Polite, ["one"]).run_sync("go").content == "one, thank you"


async def test_the_conversation_keeps_what_the_override_returned():
    agent = one_of(Polite, ["one"])
    await agent.reply("go")
    assert [each.get_text_content() for each in agent.state.context] == ["go", "one, thank you"]


async def test_events_of_the_loop_arrive_while_the_override_runs():
    read = anyio.Event()
    agent = one_of(Marked, ["one two three"])

    async def after(answer):
        await read.wait()

    agent.after = after
    seen = []
    async with agent.reply_stream("go", yield_final_msg=True) as items:
        async for item in items:
            seen.append(short(item))
            if seen[-1] == "RE(completed)" or seen[-1] == "TX_END":
                read.set()
    assert seen[-2:] == ["RE(completed)", "Msg"]


async def test_an_override_may_rename_parameters_and_add_its_own():
    class Named(Agent):
        async def reply(self, msg=None, structured_model=None, mood="calm"):
            answer = await super().reply(msg, structured_model)
            return Msg(self.name, f"{answer.get_text_content()} ({mood})", "assistant")

    agent = one_of(Named, ["one", "two", "three"])
    assert (await agent.reply("go")).content == "one (calm)"
    assert (await agent.reply(msg=UserMsg("user", "go"))).content == "two (calm)"
    assert (await agent.reply(inputs="go")).content == "three (calm)"


async def test_a_structured_schema_reaches_the_override():
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = []

    class Formal(Agent):
        async def reply(self, msg=None, structured_model=None):
            given.append(structured_model)
            return await super().reply(msg, structured_model)

    agent = one_of(Formal, [[call("1", "GenerateStructuredOutput", n=3)]])
    answer = await agent.reply("go", structured_model=form)
    assert given == [form]
    assert answer.structured_output == {"n": 3}


async def test_an_overridden_observe_is_the_core_and_super_the_parent():
    class Picky(Agent):
        async def observe(self, msg):
            if msg.content != "noise":
                await super().observe(msg)

    agent = one_of(Picky, ["one"])
    await agent.observe(UserMsg("user", "noise"))
    await agent.observe(UserMsg("user", "news"))
    assert [each.get_text_content() for each in agent.state.context] == ["news"]


async def test_a_call_running_when_the_override_gives_up_has_a_result():
    class Hasty(Agent):
        async def reply(self, inputs=None):
            with patience:
                await super().reply(inputs)
            await place()

    async def slow() -> str:
        patience.cancel()
        await anyio.sleep_forever()

    patience = anyio.CancelScope()
    place = Waiting()
    agent = one_of(Hasty, [[call("1", "slow")], "again"], slow)
    items = []

    async def run():
        items.extend(await items_of(agent))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await place.reached.wait()
        agent.interrupt()
    assert "RESULT_END:1(interrupted)" in [short(each) for each in items]
    kept = agent.state.context[-1]
    assert rebuilt(items).content == kept.content
    assert [block.type for block in kept.content] == ["tool_call", "tool_result"]


async def test_an_interrupt_after_the_loop_parked_closes_the_question():
    agent = one_of(Marked, [[call("1", "add", a=1, b=2)], "again"], FunctionTool(add, ask=True))
    agent.after = place = Waiting()
    items = []

    async def run():
        items.extend(await items_of(agent))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await place.reached.wait()
        agent.interrupt()
    assert reason_of(items) == "interrupted"
    assert agent.state.reply_context is None
    agent.after = None
    assert (await agent.reply("on")).get_text_content() == "again"


def test_an_override_without_an_input_is_refused_at_construction():
    class Deaf(Agent):
        async def reply(self):
            raise AssertionError

    with pytest.raises(
        ConfigError, match=r"Deaf\.reply\(\) takes \(self\), but a reply of an Agent is given its input"
    ):
        one_of(Deaf, [])


def test_an_override_that_yields_is_refused_at_construction():
    class Yielding(Agent):
        async def reply(self, inputs=None):
            yield "text"

    with pytest.raises(ConfigError, match=r"Yielding\.reply\(\) must be a coroutine function"):
        one_of(Yielding, [])


@pytest.mark.parametrize("returned", [None, "text", 3])
async def test_an_override_must_return_a_message(returned):
    class Wrong(Agent):
        async def reply(self, inputs=None):
            return returned

    agent = one_of(Wrong, ["one"])
    with pytest.raises(ChainContractError, match=r"Wrong\.reply\(\) must return a Msg, not"):
        await agent.reply("go")


async def test_an_override_without_the_loop_still_has_start_and_end():
    class Alone(Agent):
        async def reply(self, inputs=None):
            self.run.emit(CustomEvent("thinking", None))
            return Msg(self.name, "by myself", "assistant")

    agent = one_of(Alone, [])
    *events, answer = await items_of(agent)
    said = ["TX_START", "TX_DELTA", "TX_END"]
    assert [short(each) for each in events] == ["RS", "thinking", *said, "RE(completed)"]
    assert answer.content == "by myself"
    assert agent.model.calls == []
    assert agent.state.reply_context is None


async def test_calling_the_loop_twice_in_one_reply_is_an_error():
    class Twice(Agent):
        async def reply(self, inputs=None):
            await super().reply(inputs)
            return await super().reply(inputs)

    agent = one_of(Twice, ["one", "two"])
    with pytest.raises(UsageError, match=r"super\(\)\.reply\(\)"):
        await agent.reply("go")
    assert agent.state.reply_context is None


async def test_the_loop_asked_again_after_it_failed_starts_again():
    class Stubborn(Agent):
        async def reply(self, inputs=None):
            try:
                return await super().reply(inputs)
            except LookupError:
                return await super().reply(inputs)

    agent = one_of(Stubborn, [LookupError("once"), "two"])
    *events, answer = await items_of(agent)
    assert answer.get_text_content() == "two"
    assert reason_of(events) == "completed"
    assert [each.get_text_content() for each in agent.state.context] == ["go", "two"]


async def test_calling_the_loop_outside_of_its_reply_is_an_error():
    agent = one_of(Polite, ["one"])
    with pytest.raises(UsageError, match=r"super\(\)\.reply\(\) of 'tester' was called outside of its own reply\(\)"):
        await Agent.reply(agent, "go")


async def test_an_override_that_calls_its_own_entry_gets_a_busy_error():
    class Circular(Agent):
        async def reply(self, inputs=None):
            return await self.reply(inputs)

    with pytest.raises(AgentBusyError):
        await one_of(Circular, ["one"]).reply("go")


async def test_an_error_of_the_override_ends_the_reply_and_is_raised():
    async def fail(*_):
        raise LookupError("mine")

    for place in ("before", "after"):
        agent = one_of(Marked, ["one", "two"])
        setattr(agent, place, fail)
        items = []
        with pytest.raises(LookupError, match="mine"):
            async with agent.reply_stream("go") as stream:
                async for item in stream:
                    items.append(item)
        assert reason_of(items) == ("error" if place == "before" else "completed")
        setattr(agent, place, None)
        assert (await agent.reply("again")).get_text_content() in ("one", "two")


@pytest.mark.parametrize("place", ["before", "inside", "after"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "drained"])
async def test_an_interrupt_stops_the_override_wherever_it_is(place, streamed):
    stuck = Stuck()
    agent = one_of(Marked, [stuck if place == "inside" else "one", "again"])
    where = stuck.place
    if place != "inside":
        where = Waiting()
        setattr(agent, place, where)
    items = []

    async def run():
        if streamed:
            items.extend(await items_of(agent))
        else:
            items.append(await agent.reply("go"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await where.reached.wait()
        assert agent.interrupt("enough")
    assert where.left
    assert items[-1].metadata["_is_interrupted"]
    if streamed:
        # The loop had ended by itself before the override was interrupted after it.
        assert reason_of(items) == ("completed" if place == "after" else "interrupted")
    agent.before = agent.after = None
    assert (await agent.reply("go")).get_text_content() == ("one" if place == "before" else "again")


@pytest.mark.parametrize("place", ["before", "inside", "after"])
async def test_the_callers_timeout_is_the_callers_wherever_it_comes(place):
    stuck = Stuck()
    agent = one_of(Marked, [stuck if place == "inside" else "one", "again"])
    where = stuck.place
    if place != "inside":
        where = Waiting()
        setattr(agent, place, where)
    async with anyio.create_task_group() as group:
        with pytest.raises(TimeoutError):
            with anyio.fail_after(60) as patience:
                group.start_soon(run_out, patience, where)
                await agent.reply("go")
    assert agent.state.reply_context is None
    agent.before = agent.after = None
    assert (await agent.reply("go")).get_text_content() == ("one" if place == "before" else "again")


async def test_an_override_may_limit_the_time_of_the_loop():
    class Hasty(Agent):
        async def reply(self, inputs=None):
            try:
                with anyio.fail_after(60) as patience:
                    scopes.append(patience)
                    return await super().reply(inputs)
            except TimeoutError:
                return Msg(self.name, "it took too long", "assistant")

    stuck = Stuck()
    scopes = []
    agent = one_of(Hasty, [stuck, "in time"])

    async def run_out_of_time():
        await stuck.place.reached.wait()
        await run_out(scopes[0], stuck.place)

    async with anyio.create_task_group() as group:
        group.start_soon(run_out_of_time)
        *events, answer = await items_of(agent)
    assert stuck.place.left
    assert answer.content == "it took too long"
    assert sum(isinstance(each, ReplyEndEvent) for each in events) == 1
    assert agent.state.reply_context is None
    assert (await agent.reply("go")).get_text_content() == "in time"


async def test_a_reply_parks_and_resumes_through_the_override():
    inputs = []

    class Noting(Agent):
        async def reply(self, given=None):
            inputs.append(type(given).__name__)
            return await super().reply(given)

    agent = one_of(Noting, [[call("1", "add", a=1, b=2)], "three"], FunctionTool(add, ask=True))
    await agent.reply("go")
    assert agent.state.reply_context is not None
    *events, answer = await items_of(agent, confirmation_of(agent))
    assert answer.get_text_content() == "three"
    assert reason_of(events) == "completed"
    assert inputs == ["Msg", "UserConfirmResultEvent"]


@pytest.mark.parametrize("where", ["inside", "after"])
async def test_a_reader_that_leaves_early_stops_everything(where):
    stuck = Stuck()
    agent = one_of(Marked, [stuck if where == "inside" else "one", "again"])
    place = stuck.place
    if where == "after":
        agent.after = place = Waiting()
    async with agent.reply_stream("go") as stream:
        async for item in stream:
            if short(item) == ("MS" if where == "inside" else "ME"):
                break
        await place.reached.wait()
    assert place.left
    agent.after = None
    await agent.reply("again")


async def test_handle_interrupt_gives_the_message_of_an_override():
    class Sorry(Marked):
        async def handle_interrupt(self, inputs=None, *, reason=None):
            return Msg(self.name, f"stopped: {reason}", "assistant")

    agent = one_of(Sorry, ["one"])
    agent.before = place = Waiting()
    answers = []

    async def run():
        answers.append(await agent("go"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await place.reached.wait()
        agent.interrupt("enough")
    assert [each.content for each in answers] == ["stopped: enough"]


async def test_an_overrides_parent_is_its_plain_method():
    class Politer(Polite):
        async def reply(self, inputs=None, structured_schema=None):
            answer = await super().reply(inputs, structured_schema)
            return Msg(self.name, f"{answer.content} very much", "assistant")

    fired = []
    agent = one_of(Politer, ["one"])
    agent.register_instance_hook("pre_reply", "n", lambda self, kwargs: fired.append(kwargs["msg"].content))
    assert (await agent.reply("go")).content == "one, thank you very much"
    assert len(fired) == 1


async def test_the_entry_looks_like_the_method():
    agent = one_of(Polite, ["one"])
    assert type(agent.reply).__name__ == "method"
    assert agent.reply.__name__ == "reply"
    assert agent.reply.__wrapped__ is Polite.reply


async def test_an_unbound_call_enters_the_chain_unless_overridden():
    agent = agent_of(["done"])
    assert (await Agent.reply(agent, "go")).get_text_content() == "done"
    await Agent.observe(agent, "noted")
    assert agent.state.context[-1].get_text_content() == "noted"


async def test_a_parents_method_in_a_decorator_counts_as_overridden():
    seen: list[str] = []

    def noting(method):
        @wraps(method)
        async def noted(self, *args, **kwargs):
            seen.append("before")
            return await method(self, *args, **kwargs)

        return noted

    class Noting(Agent):
        reply = noting(Agent.reply)

    agent = Noting("tester", model=ScriptedChatModel(["done"]))
    assert [item.type async for item in agent.reply_stream("go")][-1] == "REPLY_END"
    assert seen == ["before"]


def test_an_agent_without_overrides_is_freed_at_once():
    gc.disable()
    try:
        agent = agent_of(["done"])
        watched = [weakref.ref(agent), weakref.ref(agent.with_state(AgentState()))]
        del agent
        assert [each() for each in watched] == [None, None]
    finally:
        gc.enable()
