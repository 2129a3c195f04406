"""What an `Agent` prints of its replies."""

import copy
from itertools import pairwise
from typing import Any

import anyio.lowlevel
import pytest
from pydantic import BaseModel

from agentrt import Agent, AgentBase, MiddlewareBase, Msg
from agentrt._runtime.output import reply_printing
from agentrt._runtime.output.queue import MessageQueue
from agentrt.errors import AgentBusyError, Transient
from agentrt.event import ConfirmResult, TextBlockDeltaEvent, UserConfirmResultEvent
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import InMemoryStateStore, ToolLog, check_every_suspension
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of

TOOL_ROUND = [TextBlock("let me see"), call("1", "add", a=1, b=2)]


class Watching(MiddlewareBase):
    """Keeps what is printed, as it is at that moment."""

    def __init__(self) -> None:
        self.shown: list[tuple[str | None, bool]] = []
        self.messages: list[Msg] = []

    async def on_print(self, agent, input_kwargs, next_handler):
        msg = input_kwargs["msg"]
        self.messages.append(msg)
        self.shown.append((msg.get_text_content(), input_kwargs["last"]))
        await next_handler()


def drained(queue: MessageQueue[Any]) -> list[Any]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


@pytest.fixture
def layer() -> Watching:
    return Watching()


async def test_an_agent_is_quiet_by_default(capsys):
    agent = agent_of([TOOL_ROUND, "it is three"], add)
    await agent.reply("go")
    await items_of(agent_of(["one"]))
    assert capsys.readouterr() == ("", "")
    assert agent.msg_queue is None


async def test_with_console_output_the_text_is_shown_once(capsys):
    agent = agent_of([[ThinkingBlock("hm hm"), TextBlock("one two three")]])
    agent.set_console_output_enabled(True)
    await agent.reply("go")
    out = capsys.readouterr().out
    assert (out.count("one two three"), out.count("hm hm")) == (1, 1)
    assert out.count("tester") >= 1
    agent.disable_console_output()


async def test_console_output_can_be_switched_off_again(capsys):
    agent = agent_of(["one", "two"])
    agent.set_console_output_enabled(True)
    await agent.reply("go")
    agent.disable_console_output()
    await agent.reply("go")
    out = capsys.readouterr().out
    assert "one" in out
    assert "two" not in out


@pytest.mark.parametrize(("variable", "shown"), [("true", ""), ("1", ""), ("false", "echo: hi\n"), ("", "echo: hi\n")])
async def test_the_environment_turns_console_output_off(variable, shown, monkeypatch, capsys):
    class Echo(AgentBase):
        async def reply(self, msg):
            await self.print(msg)
            return msg

    monkeypatch.setenv("AGENTRT_DISABLE_CONSOLE_OUTPUT", variable)
    await Echo()(Msg("echo", "hi", "assistant"))
    assert capsys.readouterr().out == shown


async def test_calls_and_results_are_shown_as_well(capsys):
    agent = agent_of([TOOL_ROUND, "it is three"], add)
    agent.set_console_output_enabled(True)
    await agent.reply("go")
    out = capsys.readouterr().out
    places = [out.index(each) for each in ("let me see", "tool_call", "tool_result", "it is three")]
    assert places == sorted(places)


async def test_the_queue_gets_the_message_as_it_grows():
    texts, lasts = [], []
    agent = agent_of(["one two three"])
    agent.set_msg_queue_enabled(True)

    async def read():
        last = False
        while not last:
            msg, last, speech = await agent.msg_queue.get()
            texts.append(msg.get_text_content())
            lasts.append(last)
            assert speech is None

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        answer = await agent.reply("go")
    assert texts[-1] == answer.get_text_content() == "one two three"
    assert all(late.startswith(early) for early, late in pairwise(texts))
    assert lasts == [False] * (len(lasts) - 1) + [True]


async def test_queue_that_is_set_as_an_attribute_takes_the_place():
    agent = agent_of(["one two three"])
    agent.set_msg_queue_enabled(True)
    agent.msg_queue = queue = MessageQueue()
    await agent.reply("go")
    assert not queue.empty()


async def test_the_queue_holds_the_growing_message_itself():
    agent = agent_of(["one two three"])
    agent.set_msg_queue_enabled(True)
    await agent.reply("go")
    shown = [msg for msg, _, _ in drained(agent.msg_queue)]
    assert len({id(msg) for msg in shown}) == 1
    assert shown[0].get_text_content() == "one two three"


async def test_printed_messages_are_not_part_of_the_conversation():
    agent = agent_of(["one two three"])
    agent.set_msg_queue_enabled(True)
    answer = await agent.reply("go")
    for msg, _, _ in drained(agent.msg_queue):
        msg.content.clear()
    assert agent.state.context[-1].get_text_content() == answer.get_text_content() == "one two three"


async def test_nothing_is_copied_per_piece(monkeypatch):
    copies = []
    agent = agent_of([" ".join(map(str, range(200)))])
    agent.set_msg_queue_enabled(True, MessageQueue(1000))
    for owner, name in ((Msg, "copy"), (copy, "deepcopy")):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, original=original: copies.append(1) or original(*args))
    await agent.reply("go")
    assert agent.msg_queue.qsize() > 200
    assert len(copies) < 10


@pytest.mark.parametrize("kind", ["layer", "hook"])
async def test_a_print_layer_or_hook_makes_an_agent_print_unseen(kind, capsys, layer):
    agent = agent_of(["one two"], middlewares=[layer] if kind == "layer" else [])
    if kind == "hook":
        see = lambda self, kwargs: layer.shown.append((kwargs["msg"].get_text_content(), kwargs["last"]))  # noqa: E731
        agent.register_instance_hook("pre_print", "see", see)
    await agent.reply("go")
    assert layer.shown == [("one ", False), ("one two", False), ("one two", True)]
    assert capsys.readouterr().out == ""


async def test_an_override_of_print_is_what_prints():
    class Own(Agent):
        async def print(self, msg, last=True, speech=None):
            shown.append((msg.get_text_content(), last))

    shown: list[Any] = []
    agent = Own("tester", model=agent_of(["one"]).model)
    await agent.reply("go")
    assert shown == [("one", False), ("one", True)]


async def test_a_message_is_printed_before_the_item_that_adds_to_it(layer):
    agent = agent_of(["one two"], middlewares=[layer])
    async with agent.reply_stream("go") as items:
        async for item in items:
            if item.type == "TEXT_BLOCK_DELTA":
                assert layer.shown[-1][0].endswith(item.delta)


async def test_the_last_is_the_message_that_the_conversation_keeps(layer):
    agent = agent_of([TOOL_ROUND, "it is three"], add, middlewares=[layer])
    await agent.reply("go")
    kept, shown = agent.state.context[-1], layer.messages[-1]
    assert shown is not kept
    assert (shown.id, shown.content, shown.finished_reason) == (kept.id, kept.content, kept.finished_reason)
    assert [last for _, last in layer.shown].count(True) == 1


async def test_after_an_answer_the_message_continues(layer):
    agent = agent_of([TOOL_ROUND, "it is three"], FunctionTool(add, ask=True), middlewares=[layer])
    waiting = await agent.reply("go")
    assert layer.shown[-1] == ("let me see", True)
    before = len(layer.shown)
    await agent.reply(confirmation_of(agent))
    after = layer.messages[-1]
    assert after.id == waiting.id
    assert [block.type for block in after.content] == ["tool_call", "tool_result", "text"]
    assert layer.shown[before:][-1] == ("it is three", True)
    assert [last for _, last in layer.shown[before:]].count(True) == 1


async def test_a_discarded_attempt_is_not_in_the_message(layer):
    script = [["one ", Transient("cut off")], "two three"]
    agent = agent_of(script, middlewares=[layer, RetryMiddleware(initial_delay=0.001)])
    answer = await agent.reply("go")
    assert answer.get_text_content() == "two three"
    texts = [text for text, _ in layer.shown]
    assert "one " in texts
    assert layer.shown[-1] == ("two three", True)
    assert not any("one" in text and "two" in text for text in texts if text)


async def test_an_error_of_a_print_hook_ends_the_reply():
    def fail(self, kwargs):
        raise LookupError("no paper")

    agent = agent_of(["one two", "three"])
    agent.register_instance_hook("pre_print", "fail", fail)
    with pytest.raises(LookupError, match="no paper"):
        await agent.reply("go")
    assert agent.state.reply_context is None
    assert agent.state.last_reply.finished_reason == "interrupted"
    agent.clear_instance_hooks()
    assert (await agent.reply("on")).get_text_content() == "three"


async def test_an_interrupt_from_a_print_hook_prints_the_end():
    shown = []

    def stop(self, kwargs):
        shown.append((kwargs["msg"].get_text_content(), kwargs["last"]))
        self.interrupt("enough")

    agent = agent_of(["one two three four"])
    agent.register_instance_hook("pre_print", "stop", stop)
    answer = await agent.reply("go")
    assert answer.finished_reason == "interrupted"
    assert shown == [("one ", False), ("one ", True)]


async def test_a_reply_waits_for_room_and_its_caller_can_leave():
    agent = agent_of(["one two three", "four"])
    agent.set_msg_queue_enabled(True, MessageQueue(1))
    async with anyio.create_task_group() as group:
        group.start_soon(agent.reply, "go")
        await anyio.wait_all_tasks_blocked()
        assert agent.state.reply_context is not None
        group.cancel_scope.cancel()
    assert agent.state.reply_context is None
    agent.set_msg_queue_enabled(False)
    assert (await agent.reply("on")).get_text_content() == "four"


async def test_a_reader_that_leaves_early_ends_the_printing(layer):
    agent = agent_of(["one two three", "four"], middlewares=[layer])
    async with agent.reply_stream("go") as items:
        async for item in items:
            if item.type == "TEXT_BLOCK_DELTA":
                break
    assert layer.shown == [("one ", False)]
    await agent.reply("on")
    assert layer.shown[-1] == ("four", True)


async def test_replies_after_each_other_print_messages_of_their_own(layer):
    agent = agent_of(["one", "two"], middlewares=[layer])
    await agent.reply("go")
    await agent.reply("on")
    assert [text for text, last in layer.shown if last] == ["one", "two"]
    assert layer.messages[0].id != layer.messages[-1].id


async def test_the_override_of_a_reply_prints_what_it_returns_last(layer):
    class Polite(Agent):
        async def reply(self, inputs=None):
            await super().reply(inputs)
            return Msg(self.name, "thank you", "assistant")

    agent = Polite("tester", model=agent_of(["one"]).model, middlewares=[layer])
    await agent.reply("go")
    assert layer.shown == [("one", False), ("thank you", False), ("thank you", True)]


async def test_print_called_by_hand_shows_in_the_same_places(capsys, layer):
    agent = agent_of([], middlewares=[layer])
    agent.set_msg_queue_enabled(True)
    agent.set_console_output_enabled(True)
    msg = Msg("somebody", "look", "assistant")
    await agent.print(msg)
    [(queued, last, speech)] = drained(agent.msg_queue)
    assert (queued.content, last, speech) == ("look", True, None)
    assert queued is not msg
    assert layer.shown == [("look", True)]
    assert "look" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["reply", "stream"])
async def test_a_reply_with_a_stuck_reader_can_be_interrupted(how, monkeypatch):
    monkeypatch.setattr(reply_printing, "_LAST_SECONDS", 0.01)
    agent = agent_of(["one two three four five"])
    queue = Stuck()
    agent.set_msg_queue_enabled(True, queue)

    async def interrupt():
        await queue.stuck.wait()
        assert agent.interrupt("nobody reads")

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        answer = await agent.reply("go") if how == "reply" else (await items_of(agent))[-1]
    assert answer.finished_reason == "interrupted"
    assert "nobody reads" in answer.get_text_content()
    assert agent.state.last_reply.finished_reason == "interrupted"


async def test_a_timeout_of_a_reply_with_a_stuck_reader_is_the_callers():
    agent = agent_of(["one two three four five"])
    queue = Stuck()
    agent.set_msg_queue_enabled(True, queue)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.reply, "go")
            await queue.stuck.wait()
            scope.cancel()
    assert scope.cancelled_caught


async def test_an_interrupted_reply_is_printed_to_its_end():
    agent = agent_of(["one two three four five"])
    agent.set_msg_queue_enabled(True)
    async with agent.reply_stream("go", yield_final_msg=True) as items:
        async for item in items:
            if isinstance(item, TextBlockDeltaEvent):
                agent.interrupt()
    assert item.finished_reason == "interrupted"
    shown = drained(agent.msg_queue)
    assert [last for _, last, _ in shown] == [False] * (len(shown) - 1) + [True]
    assert shown[-1][0].get_text_content() == "one "


class Stuck(MessageQueue[Any]):
    """A queue for one item, which nobody takes."""

    __slots__ = ("stuck",)

    def __init__(self) -> None:
        super().__init__(1)
        self.stuck = anyio.Event()

    async def put(self, item: Any) -> None:
        if self.full():
            self.stuck.set()
        await super().put(item)


async def test_a_refused_reply_leaves_the_printing_in_progress_alone():
    agent = agent_of(["one two three four five"])
    agent.set_msg_queue_enabled(True)
    async with agent.reply_stream("go") as events:
        async for event in events:
            if isinstance(event, TextBlockDeltaEvent):
                with pytest.raises(AgentBusyError):
                    await agent.reply("another")
    assert len({id(msg) for msg, _, _ in drained(agent.msg_queue)}) == 1


async def test_what_agents_show_at_the_same_time_has_lines_of_its_own(capsys):
    class Speaker(AgentBase):
        async def reply(self, msg=None):
            msg = Msg(self.name, "", "assistant")
            for word in ("one ", "two"):
                msg.content += word
                await self.print(msg, word == "two")
                await anyio.lowlevel.checkpoint()
            return msg

    async with anyio.create_task_group() as group:
        for name in ("Ann", "Bob"):
            group.start_soon(Speaker(name=name))
    lines = capsys.readouterr().out.splitlines()
    for name in ("Ann", "Bob"):
        mine = [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]
        assert "".join(mine) == "one two"
    assert all(line.count(":") == 1 for line in lines)


@pytest.mark.parametrize("text", ["one two three four five", "one"], ids=["in the middle", "at the end"])
async def test_a_reader_that_resumes_after_an_interrupt_sees_the_end(text):
    agent = agent_of([text])
    queue = Stuck()
    agent.set_msg_queue_enabled(True, queue)
    shown = []

    async def interrupt_and_read():
        await queue.stuck.wait()
        agent.interrupt()
        while not (shown and shown[-1][1]):
            shown.append(await queue.get())

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt_and_read)
        await agent.reply("go")
    assert [last for _, last, _ in shown].count(True) == 1


async def test_a_printed_conversation_is_whole_after_any_fault():
    class Slow:
        async def put(self, item):
            await anyio.lowlevel.checkpoint()

    async def wait(self, kwargs, output=None):
        await anyio.lowlevel.checkpoint()

    def make(log: ToolLog) -> Agent:
        agent = agent_of([[call("1", "add", a=1, b=2)], "three"], log.watch(add), state_store=InMemoryStateStore())
        agent.set_msg_queue_enabled(True, Slow())
        agent.register_instance_hook("pre_print", "wait", wait)
        return agent

    await check_every_suspension(make, faults=["cancel", "interrupt", "drop"], at_least=30)


FORM = ToolCallBlock("form", "GenerateStructuredOutput", '{"name": "Oslo"}')
BAD_FORM = ToolCallBlock("bad", "GenerateStructuredOutput", '{"nam": "Oslo"}')


class City(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([[FORM]], ['{"name":"Oslo"}']),
        ([[TextBlock("It is Oslo."), FORM]], ["It is Oslo."]),
        (["Oslo, I think.", [BAD_FORM], [FORM]], ["Oslo, I think.", '{"name":"Oslo"}']),
    ],
    ids=["alone", "with a text", "after other rounds"],
)
async def test_a_structured_answer_is_printed_and_its_tool_is_not(script, said, capsys):
    agent = agent_of(script)
    agent.set_msg_queue_enabled(True)
    agent.set_console_output_enabled(True)
    answer = await agent.reply("where?", City)
    shown = drained(agent.msg_queue)
    assert not any(msg.has_content_blocks("tool_call") or msg.has_content_blocks("tool_result") for msg, _, _ in shown)
    assert [block.text for block in shown[-1][0].get_content_blocks("text")] == said
    assert answer.get_text_content() == said[-1]
    assert "GenerateStructuredOutput" not in capsys.readouterr().out


async def test_a_resumed_reply_does_not_print_its_structured_call():
    agent = agent_of([[call("1", "add", a=1, b=2), FORM], [FORM]], FunctionTool(add, ask=True))
    agent.set_msg_queue_enabled(True)
    asked = await agent.reply("where?", City)
    calls = [each for each in asked.get_content_blocks("tool_call") if each.name == "add"]
    await agent.reply(UserConfirmResultEvent(asked.id, [ConfirmResult(True, each) for each in calls]))
    names = {block.name for msg, _, _ in drained(agent.msg_queue) for block in msg.get_content_blocks("tool_call")}
    assert names == {"add"}


async def test_a_custom_reply_that_waits_for_room_can_be_interrupted(monkeypatch):
    class Own(Agent):
        async def reply(self, inputs=None, structured_schema=None):
            return await super().reply(inputs, structured_schema)

    monkeypatch.setattr(reply_printing, "_LAST_SECONDS", 0.01)
    agent = Own("own", model=ScriptedChatModel(["word " * 200]))  # more than goes ahead of its reader
    queue = Stuck()
    agent.set_msg_queue_enabled(True, queue)

    async def interrupt():
        await queue.stuck.wait()
        agent.interrupt()

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        answer = await agent.reply("go")
    assert answer.finished_reason == "interrupted"
