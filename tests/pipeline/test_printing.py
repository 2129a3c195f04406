"""What several agents print, as one stream: nothing lost, nobody left running, every queue as it was."""

import asyncio
import gc
import logging
import math
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, AgentState, Msg
from agentrt.agent import MessageQueue, ReActConfig
from agentrt.errors import ConfigError, UsageError
from agentrt.message import Base64Source, DataBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import fanout_pipeline, sequential_pipeline, stream_printing_messages
from tests.pipeline.helpers import Failing, Printer, Speaker, Waiting, said

ROOM = 64
ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Stuck(Printer):
    def __init__(self, name: str, text: str = "stuck") -> None:
        super().__init__(name, text)
        self.waiting = Waiting(name)

    @property
    def log(self) -> list[str]:
        return self.waiting.log

    async def reply(self, msg: Any = None) -> Msg:
        await super().reply(msg)
        return await self.waiting.reply()


class Boxed:
    """An awaitable that is no coroutine."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.work().__await__()


async def read(stream: Any) -> list[tuple[str, bool]]:
    async with stream:
        return [(msg.content, last) async for msg, last in stream]


@pytest.fixture
def printer() -> Printer:
    return Printer("p", "one two three")


PRINTED = [("one", False), ("one two", False), ("one two three", True)]


# What the reader gets


async def test_everything_that_is_printed_comes_in_order_with_its_end(printer):
    assert await read(stream_printing_messages([printer], printer())) == PRINTED


async def test_one_agent_may_be_given_without_a_list_and_twice(printer):
    assert await read(stream_printing_messages(printer, printer())) == PRINTED
    assert await read(stream_printing_messages([printer, printer], printer())) == PRINTED


async def test_the_speech_comes_when_asked_for():
    class Speaking(Speaker):
        async def reply(self, msg=None):
            await self.print(said("hi", self.name), True, sound)
            await self.print(said("bye", self.name))
            return said("bye", self.name)

    sound = DataBlock(Base64Source("AAAA", "audio/pcm"))
    agent = Speaking("s")
    async with stream_printing_messages([agent], agent(), yield_speech=True) as stream:
        items = [(msg.content, last, speech) async for msg, last, speech in stream]
    assert items == [("hi", True, sound), ("bye", True, None)]


async def test_what_other_agents_print_does_not_come(printer):
    other = Printer("o", "a b")
    assert await read(stream_printing_messages([printer], fanout_pipeline([other, printer]))) == PRINTED


async def test_messages_printed_at_once_each_keep_their_order():
    agents = [Printer(name, " ".join(name * 20)) for name in "abc"]
    async with stream_printing_messages(agents, fanout_pipeline(agents)) as stream:
        items = [(msg.name, len(msg.content.split()), last) async for msg, last in stream]
    for name in "abc":
        assert [item[1:] for item in items if item[0] == name] == [(n, n == 20) for n in range(1, 21)]
    assert [item[0] for item in items] != sorted(item[0] for item in items)


@pytest.mark.parametrize("own_queue", [False, True])
async def test_messages_are_seen_while_the_agent_never_waits(own_queue):
    agent = Printer("p", "w " * 50)
    ahead = []
    queue = MessageQueue() if own_queue else None
    async with stream_printing_messages([agent], agent(), queue) as stream:
        async for msg, _ in stream:
            ahead.append(agent.printed - len(msg.content.split()))
    assert len(ahead) == 50
    assert max(ahead) <= 8


async def test_a_slow_reader_slows_the_agents():
    agent = Printer("p", "w " * 500)
    async with stream_printing_messages([agent], agent()) as stream:
        read = 0
        async for _ in stream:
            read += 1
            await anyio.wait_all_tasks_blocked()
            assert agent.printed <= read + 2 * ROOM
    assert read == 500


async def test_the_reader_has_the_growing_message_itself():
    agent = Agent("a", model=ScriptedChatModel(["one two three"]))
    async with stream_printing_messages([agent], agent("go")) as stream:
        items = [(msg, msg.copy().get_text_content(), last) async for msg, last in stream]
    texts = [text for _, text, _ in items]
    assert texts[-1] == "one two three"
    assert len(texts) > 2
    assert all(later.startswith(text) for text, later in pairwise(texts))
    assert [last for *_, last in items] == [False] * (len(items) - 1) + [True]
    assert {msg.id for msg, *_ in items} == {items[0][0].id}
    assert agent.msg_queue is None


async def test_sequential_agents_print_into_one_stream():
    agents = [Printer("a", "1 2"), Printer("b", "3 4")]
    items = await read(stream_printing_messages(agents, sequential_pipeline(agents)))
    assert [content for content, _ in items] == ["1", "1 2", "3", "3 4"]


async def test_work_that_prints_nothing_yields_nothing():
    agent = Speaker("a")
    assert await read(stream_printing_messages([agent], agent())) == []
    assert await read(stream_printing_messages([], agent())) == []


async def test_the_console_shows_what_it_would_show_anyway(capsys):
    for shows in (True, False):
        printer = Printer("p", "one two")
        printer.set_console_output_enabled(shows)
        await printer()
        alone = capsys.readouterr().out
        await read(stream_printing_messages([printer], printer()))
        assert capsys.readouterr().out == alone
        assert bool(alone) is shows


# How the work ends


async def test_an_error_comes_after_all_that_was_printed_before_it(printer):
    error = ValueError("no")
    items = []
    with pytest.raises(ValueError, match="no") as caught:
        async with stream_printing_messages([printer], sequential_pipeline([printer, Failing("f", error)])) as stream:
            async for msg, _ in stream:
                items.append(msg.content)
                await anyio.wait_all_tasks_blocked()
    assert caught.value is error
    assert items == [content for content, _ in PRINTED]
    assert printer.msg_queue is None


async def test_an_error_before_anything_was_printed_is_raised():
    failing = Failing("f", ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await read(stream_printing_messages([failing], failing()))


async def test_an_awaitable_that_is_not_a_coroutine_runs_too(printer):
    assert await read(stream_printing_messages([printer], Boxed(printer))) == PRINTED


async def test_an_awaited_coroutine_is_an_error_for_the_reader(printer):
    work = printer()
    await work
    with pytest.raises(RuntimeError, match="already awaited"):
        await read(stream_printing_messages([printer], work))


async def test_a_time_limit_on_the_first_step_is_none_on_the_work(printer):
    limits = []

    async def work() -> None:
        limits.append(anyio.current_effective_deadline())
        await printer()

    stream = stream_printing_messages([printer], work())
    with anyio.move_on_after(600):
        await stream.__anext__()
    assert len(await read(stream)) == 2
    assert limits == [math.inf]


async def test_a_stream_does_not_count_as_an_enclosing_reply():
    agent = Agent("a", model=ScriptedChatModel(["one"]), react_config=ReActConfig(max_depth=1))
    assert await read_text(stream_printing_messages([agent], agent("go"))) == "one"


async def read_text(stream: Any) -> str | None:
    text = None
    async with stream:
        async for msg, _ in stream:
            text = msg.get_text_content()
    return text


# Leaving early


@pytest.mark.parametrize("how", ["aclose", "break", "error", "cancel"])
async def test_leaving_early_stops_the_work_and_waits_for_it(how):
    agent = Stuck("s")
    stream = stream_printing_messages([agent], agent())
    if how == "aclose":
        await stream.__anext__()
        await agent.waiting.began.wait()
        await stream.aclose()
    elif how == "break":
        async with stream:
            async for _ in stream:
                await agent.waiting.began.wait()
                break
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            async with stream:
                async for _ in stream:
                    await agent.waiting.began.wait()
                    raise ZeroDivisionError
    else:
        with anyio.CancelScope() as scope:
            async with stream:
                async for _ in stream:
                    await agent.waiting.began.wait()
                    scope.cancel()
        assert scope.cancelled_caught
    assert (agent.log, agent.msg_queue) == (["began", "stopped"], None)
    assert await anext(aiter(stream), None) is None


@pytest.mark.slow
async def test_a_dropped_stream_is_closed_and_the_next_waits_for_it():
    agent = Stuck("s")
    for _ in range(3):
        async for _ in stream_printing_messages([agent], agent()):
            await agent.waiting.began.wait()
            break
        agent.waiting.began = anyio.Event()
    gc.collect()
    while agent.msg_queue is not None:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
    assert agent.log == ["began", "stopped"] * 3


async def test_the_agents_of_a_dropped_stream_can_be_streamed_at_once(printer):
    async for _ in stream_printing_messages([printer], printer()):
        break
    assert await read(stream_printing_messages([printer], printer())) == PRINTED


async def test_a_reader_that_leaves_releases_writers_waiting_for_room():
    agent = Stuck("s", "w " * 1000)
    async with stream_printing_messages([agent], agent()) as stream:
        await stream.__anext__()
        await anyio.wait_all_tasks_blocked()
    assert agent.printed < 1000
    assert agent.msg_queue is None


async def test_printing_outside_the_work_continues_without_the_reader():
    agent, work = Printer("p", "w " * 200), Waiting("w")
    async with anyio.create_task_group() as group, stream_printing_messages([agent], work()) as stream:
        group.start_soon(agent)
        await stream.__anext__()
        await anyio.wait_all_tasks_blocked()
        assert agent.printed < 200
    assert agent.printed == 200


async def test_an_agent_that_prints_while_it_is_stopped_does_not_block(caplog):
    class Stubborn(Stuck):
        async def reply(self, msg=None):
            try:
                return await super().reply(msg)
            finally:
                with anyio.CancelScope(shield=True):
                    for _ in range(3 * ROOM):
                        await self.print(said("last words", self.name))
                self.log.append("said it")

    agent = Stubborn("s", "w " * 1000)
    async with stream_printing_messages([agent], agent()) as stream:
        await stream.__anext__()
        await anyio.wait_all_tasks_blocked()
    assert agent.log == ["said it"]
    assert caplog.records == []


@pytest.mark.parametrize("own_queue", [False, True])
async def test_an_error_of_stopped_work_is_logged_by_its_type(own_queue, caplog):
    class Fails(Stuck):
        async def reply(self, msg=None):
            try:
                return await super().reply(msg)
            finally:
                raise KeyError("a secret")

    agent = Fails("f")
    async with stream_printing_messages([agent], agent(), MessageQueue() if own_queue else None) as stream:
        await stream.__anext__()
        await agent.waiting.began.wait()
    assert [each.message for each in caplog.records] == ["work that was stopped when its reader left failed: KeyError"]


async def test_each_step_may_be_taken_in_another_task(printer):
    stream = stream_printing_messages([printer], printer())
    items = []

    async def step() -> None:
        msg, last = await stream.__anext__()
        items.append((msg.content, last))

    for _ in range(3):
        async with anyio.create_task_group() as group:
            group.start_soon(step)
    async with anyio.create_task_group() as group:
        group.start_soon(stream.aclose)
    assert items == PRINTED
    assert printer.msg_queue is None


# Work that is not asked for


async def test_work_of_a_stream_that_is_closed_unread_never_begins(printer):
    waiting = Waiting("w")
    stream = stream_printing_messages([waiting], waiting())
    await stream.aclose()
    await stream.aclose()
    async with stream_printing_messages([waiting], waiting()):
        pass
    assert waiting.log == []
    assert await anext(aiter(stream), None) is None


async def test_work_of_a_stream_that_is_dropped_unread_never_begins():
    waiting = Waiting("w")
    stream_printing_messages([waiting], waiting())
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert waiting.log == []


def test_a_stream_may_be_made_and_dropped_without_an_event_loop():
    agent = Speaker("a")
    stream_printing_messages([agent], agent())
    gc.collect()


# Tasks of the caller's own


@ASYNCIO
async def test_an_error_of_a_task_comes_after_what_was_printed(printer):
    failing = sequential_pipeline([printer, Failing("f", ValueError("no"))])
    task = asyncio.get_running_loop().create_task(failing)
    stream = stream_printing_messages([printer], task)
    items = [(await stream.__anext__())[1] for _ in range(3)]
    with pytest.raises(ValueError, match="no"):
        await stream.__anext__()
    assert items == [False, False, True]


@ASYNCIO
@pytest.mark.parametrize("reads", [True, False])
async def test_leaving_stops_a_task_once_and_lets_it_tidy_up(reads):
    log = []

    async def work() -> None:
        try:
            await agent()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            log.append("tidied up")

    agent = Stuck("s")
    task = asyncio.get_running_loop().create_task(work())
    async with stream_printing_messages([agent], task) as stream:
        if reads:
            await stream.__anext__()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert log == ["tidied up"]


@ASYNCIO
async def test_a_task_is_stopped_when_its_stream_is_dropped_unread():
    waiting = Waiting("w")
    task = asyncio.get_running_loop().create_task(waiting())
    stream_printing_messages([waiting], task)
    gc.collect()
    await asyncio.wait([task])
    assert task.cancelled()


@ASYNCIO
async def test_a_cancelled_task_ends_the_stream_like_awaiting_it():
    agent = Stuck("s")
    task = asyncio.get_running_loop().create_task(agent())
    stream = stream_printing_messages([agent], task)
    await stream.__anext__()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream.__anext__()
    assert agent.msg_queue is None


# The agents' queues


async def test_queues_are_what_they_were_before():
    agents = [Printer(name, "x y") for name in "abc"]
    own: MessageQueue[Any] = MessageQueue()
    agents[1].set_msg_queue_enabled(True, own)
    await read(stream_printing_messages(agents, fanout_pipeline(agents)))
    assert [each.msg_queue for each in agents] == [None, own, None]
    assert own.empty()
    await agents[1]()
    assert own.qsize() == 2


async def test_a_queue_that_was_set_meanwhile_stays(printer):
    stream = stream_printing_messages([printer], printer())
    await stream.__anext__()
    own: MessageQueue[Any] = MessageQueue()
    printer.set_msg_queue_enabled(True, own)
    await stream.aclose()
    assert printer.msg_queue is own


async def test_two_streams_cannot_read_one_agent_at_a_time(printer):
    async with stream_printing_messages([printer], printer()) as first:
        await first.__anext__()
        other = Speaker("o")
        with pytest.raises(UsageError, match="what agent 'p' prints is being read by another stream"):
            await read(stream_printing_messages([other, printer], printer()))
        assert other.msg_queue is None
        assert len([item async for item in first]) == 2
    assert await read(stream_printing_messages([printer], printer())) == PRINTED


async def test_the_work_of_a_stream_that_could_not_begin_is_discarded(printer):
    async with stream_printing_messages([printer], printer()) as first:
        await first.__anext__()
        waiting = Waiting("w")
        refused = stream_printing_messages([printer], waiting())
        with pytest.raises(UsageError):
            await refused.__anext__()
        del refused
        gc.collect()
        assert waiting.log == []


async def test_streams_over_different_agents_run_side_by_side():
    agents = [Printer(name, f"{name} {name}") for name in "ab"]
    streams = [stream_printing_messages([each], each()) for each in agents]
    for stream in streams * 2:
        await stream.__anext__()
    for stream in streams:
        assert await read(stream) == []


async def test_a_stream_within_the_work_gets_its_own_agents(printer):
    inner = Printer("i", "1 2")
    got = []

    class Outer(Printer):
        async def reply(self, msg=None):
            got.extend(await read(stream_printing_messages([inner], inner())))
            return await super().reply(msg)

    outer = Outer("o", "3 4")
    items = await read(stream_printing_messages([outer], outer()))
    assert [content for content, _ in got] == ["1", "1 2"]
    assert [content for content, _ in items] == ["3", "3 4"]


async def test_a_conversation_that_outlives_the_stream_can_print():
    agent = Agent("a", model=ScriptedChatModel(["one"] * 3 + ["w " * 200]))
    others = []

    async def work() -> None:
        await agent("go")
        others.append(agent.with_state(AgentState()))
        await others[0]("go")

    async with stream_printing_messages([agent], work()) as stream:
        items = [msg.id async for msg, _ in stream]
    assert len(set(items)) == 2
    await others[0]("go")
    assert (await others[0]("go")).get_text_content() == "w " * 200


async def test_another_conversation_has_its_own_stream_within_the_work():
    agent = Agent("a", model=ScriptedChatModel(["outer", "inner"]))
    inner = []

    async def work() -> None:
        await agent("go")
        other = agent.with_state(AgentState())
        inner.append(await read_text(stream_printing_messages([other], other("go"))))

    assert await read_text(stream_printing_messages([agent], work())) == "outer"
    assert inner == ["inner"]


# A queue of the caller's own


@pytest.mark.parametrize("size", [1, 100])
async def test_the_agents_print_through_a_given_queue(size, printer):
    queue: MessageQueue[Any] = MessageQueue(size)
    assert await read(stream_printing_messages([printer], printer(), queue)) == PRINTED
    assert queue.empty()


@ASYNCIO
async def test_a_queue_of_asyncio_serves_as_well(printer):
    queue: asyncio.Queue[Any] = asyncio.Queue(1)
    assert await read(stream_printing_messages([printer], printer(), queue, end_signal=None)) == PRINTED
    assert queue.empty()


async def test_an_error_comes_after_all_items_of_a_given_queue(printer):
    items = []
    work = sequential_pipeline([printer, Failing("f", ValueError("no"))])
    with pytest.raises(ValueError, match="no"):
        async with stream_printing_messages([printer], work, MessageQueue(1)) as stream:
            async for item in stream:
                items.append(item)
    assert len(items) == 3


async def test_other_items_in_a_given_queue_end_nothing(printer):
    queue: MessageQueue[Any] = MessageQueue(2)
    await queue.put("[END]")
    await queue.put("something else")
    assert await read(stream_printing_messages([printer], printer(), queue)) == PRINTED


async def test_leaving_early_stops_the_work_behind_a_given_queue():
    agent = Stuck("s", "w " * 1000)
    async with stream_printing_messages([agent], agent(), MessageQueue(1)) as stream:
        await stream.__anext__()
    assert agent.msg_queue is None


async def test_a_closed_queue_ends_the_printing_and_not_the_work(printer):
    queue: MessageQueue[Any] = MessageQueue(1)
    queue.close()
    assert await read(stream_printing_messages([printer], printer(), queue)) == []
    assert printer.printed == 3


async def test_a_queue_that_breaks_is_an_error_for_the_reader():
    class Broken(MessageQueue[Any]):
        async def get(self) -> Any:
            raise OSError("broken")

    agent = Stuck("s")
    with pytest.raises(OSError, match="broken"):
        await read(stream_printing_messages([agent], agent(), Broken()))
    assert agent.msg_queue is None


# Wrong use


@pytest.mark.parametrize("wrong", [3, None, "ab", [3], [Speaker]])
def test_only_agents_are_read(wrong):
    with pytest.raises(ConfigError, match=r"stream_printing_messages\(\) takes (a list of )?agents, not"):
        stream_printing_messages(wrong, Speaker("s")())


@pytest.mark.parametrize("wrong", [None, 3, Speaker, anyio.sleep])
def test_the_work_must_be_an_awaitable(wrong):
    with pytest.raises(ConfigError, match=r"runs an awaitable such as `agent\(msg\)`, not"):
        stream_printing_messages([], wrong)


def test_a_queue_needs_put_and_get():
    with pytest.raises(
        ConfigError, match=r"stream_printing_messages\(queue=...\) needs async `put` and `get`, not \[\]"
    ):
        stream_printing_messages([], anyio.lowlevel.checkpoint(), [])


def test_a_stream_says_how_it_is_read():
    with pytest.raises(TypeError, match="write `async for msg, last in"):
        iter(stream_printing_messages([], anyio.lowlevel.checkpoint()))


# Whatever the agents print and wherever the reader leaves


async def stream_some(lengths: list[int], leave_after: int) -> None:
    agents = [Printer(str(n), "w " * length) for n, length in enumerate(lengths)]
    read = dict.fromkeys(range(len(agents)), 0)
    async with stream_printing_messages(agents, fanout_pipeline(agents)) as stream:
        async for msg, last in stream:
            read[int(msg.name)] += 1
            assert len(msg.content.split()) == read[int(msg.name)]
            assert last is (read[int(msg.name)] == lengths[int(msg.name)])
            if sum(read.values()) == leave_after:
                break
    assert sum(read.values()) == min(sum(lengths), leave_after)
    assert [each.msg_queue for each in agents] == [None] * len(agents)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@given(lengths=st.lists(st.integers(0, 40), max_size=4), leave_after=st.integers(1, 120))
def test_nothing_is_lost_or_doubled_before_the_reader_leaves(loop, lengths, leave_after):
    logging.disable()
    try:
        anyio.run(stream_some, lengths, leave_after, backend=loop)
    finally:
        logging.disable(logging.NOTSET)
