"""Followers: whatever they have seen and missed, they build the message that the state has."""

from typing import Any

import anyio
import pytest

from agentrt import AgentState
from agentrt.event import ReplyResumedEvent
from agentrt.message import Msg
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner, base, events
from agentrt.runner.events import EventLog, ReplyLog
from agentrt.state import InMemoryStateStore
from tests.loop.helpers import rebuilt
from tests.runner.conftest import make_agent, work
from tests.runner.test_tasks import background, crawl, started

WORDS = " ".join(f"word{number}" for number in range(30))


async def reply_events() -> tuple[list[Any], Any]:
    async def look() -> str:
        return "seen"

    agent = make_agent(look, state=AgentState(session_id="s"))
    events = [event async for event in agent.reply_stream(f"call look {WORDS}".replace("look ", "look\n", 1))]
    return events, agent.state.context[-1]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [4, 11, 1000])
async def test_follower_that_is_behind_gets_all_in_one_event(monkeypatch, limit):
    monkeypatch.setattr(events, "_MAX_REPLY_EVENTS", limit)
    sent, message = await reply_events()
    log = ReplyLog("s", rebuilt(sent[:1]), 0)
    for index, event in enumerate(sent):
        log.add(event)
        for after in range(index):
            seen = [*sent[:after], *log.read(after)]
            numbers = [item.seq for item in seen]
            assert numbers == sorted(set(numbers))
            assert rebuilt(seen).content == rebuilt(sent[: index + 1]).content
    assert rebuilt(log.read(0)).content == message.content
    assert len(log) <= limit
    assert log.has_ended


async def test_follower_waits_for_what_comes_and_for_the_end():
    sent, message = await reply_events()
    log, seen = EventLog(60).open("s", rebuilt(sent[:1]), 0), []

    async def follow() -> None:
        while log.is_open:
            await log.wait(seen[-1].seq if seen else 0)
            seen.extend(log.read(seen[-1].seq if seen else 0))

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        for event in sent:
            log.add(event)
            await anyio.lowlevel.checkpoint()
        log.close()
    assert rebuilt(seen).content == message.content


async def test_logs_that_are_closed_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr(events, "_MAX_CLOSED_REPLIES", 2)
    sent, _ = await reply_events()
    logs = EventLog(60)
    for number in range(4):
        logs.open(f"s{number}", rebuilt(sent[:1]), 0)
        logs.close(f"s{number}", sent[0].reply_id)
    assert [logs.get(f"s{number}", sent[0].reply_id) is None for number in range(4)] == [True, True, False, False]
    logs.open("open", rebuilt(sent[:1]), 0)
    old = EventLog(0)
    old.open("s", rebuilt(sent[:1]), 0)
    old.close("s", sent[0].reply_id)
    await anyio.sleep(0.001)
    old.open("t", rebuilt(sent[:1]), 0)
    old.close("t", sent[0].reply_id)
    assert old.get("s", sent[0].reply_id) is None


async def test_follower_elsewhere_sees_what_is_saved(sqlite):
    go, seen = anyio.Event(), []

    async def wait() -> str:
        await go.wait()
        return "waited"

    client = Runner(make_agent(wait), sqlite)
    async with client, work(Runner(make_agent(wait), sqlite)):
        handle = await client.submit("s", "call wait")
        async for event in handle.events():
            seen.append(event)
            go.set()
        late = [event async for event in handle.events(after=seen[0].seq)]
        message = (await sqlite.load("s")).context[-1]
    assert isinstance(seen[0], ReplyResumedEvent)
    assert rebuilt(seen).content == rebuilt(late).content == message.content
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers))


async def test_any_number_of_followers_see_the_same(sqlite):
    model = ScriptedChatModel([WORDS], stream=True)
    seen: list[list[Any]] = [[] for _ in range(5)]
    async with work(Runner(make_agent(model=model), sqlite)) as runner:
        handle = await runner.submit("s", "Say it.")

        async def follow(events: list[Any], delay: float) -> None:
            async for event in handle.events():
                events.append(event)
                await anyio.sleep(delay)

        async with anyio.create_task_group() as group:
            for number, events in enumerate(seen):
                group.start_soon(follow, events, number * 0.001)
    assert {rebuilt(events).get_text_content() for events in seen} == {WORDS}
    assert len({events[-1].seq for events in seen}) == 1


async def test_a_reply_that_begins_wakes_its_own_followers_alone():
    log, woken = EventLog(60.0), []

    async def follow(reply_id: str) -> None:
        await log.next_change("s", reply_id).wait()
        woken.append(reply_id)

    async with anyio.create_task_group() as group:
        for reply_id in ("a", "b", "a"):
            group.start_soon(follow, reply_id)
        await anyio.wait_all_tasks_blocked()
        log.open("s", Msg("assistant", [], "assistant", id="a"), 0)
        await anyio.wait_all_tasks_blocked()
        assert woken == ["a", "a"]
        group.cancel_scope.cancel()


async def test_follower_of_a_task_hears_of_its_end_without_a_look(sqlite, monkeypatch):
    # The task ends in the queue only after the message that wakes its parent is stored there.
    for pause in ("_FIRST_PAUSE", "_MAX_PAUSE"):
        monkeypatch.setattr(base, pause, float("inf"))
    with anyio.fail_after(20):
        async with work(Runner(make_agent(background(crawl)), sqlite)) as runner:
            task = await started(await runner.submit("s", "call crawl"))
            done = await runner.handle(task.session_id, task.task_id).result()
    assert done.finished_reason == "completed"


async def test_many_followers_together_look_no_more_often(monkeypatch):
    pauses: list[float] = []

    class LookedEnough(Exception):
        pass

    async def wait(log: EventLog, change: anyio.Event, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            raise LookedEnough

    monkeypatch.setattr(EventLog, "awaited", 1_000)
    monkeypatch.setattr(EventLog, "wait", wait)
    async with Runner(make_agent(), InMemoryStateStore()) as runner:
        handle = await runner.submit("s", "Hi!")  # and nothing works
        with pytest.raises(LookedEnough):
            async for _ in handle.events():
                pass
    assert (pauses[0], pauses[-1]) == (0.1, 20.0)
