"""Who hears whom in a hub."""

import logging
from itertools import combinations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent
from agentrt.errors import ConfigError, InvalidInputError, UsageError
from agentrt.message import TextBlock, ThinkingBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import MsgHub
from tests.pipeline.helpers import Deaf, Speaker, Waiting, said


@pytest.fixture
def three() -> list[Speaker]:
    return [Speaker("a"), Speaker("b"), Speaker("c")]


def subscriptions(agents: list[Speaker]) -> list[dict[str, list[str]]]:
    return [
        {hub: [each.name for each in heard_by] for hub, heard_by in agent.live_conversation.subscribers.items()}
        for agent in agents
    ]


async def test_participants_observe_each_other_and_never_themselves(three):
    a, b, c = three
    async with MsgHub(three):
        await a()
        await b(said("x"))
    assert (a.texts, b.texts, c.texts) == (["xb"], ["a"], ["a", "xb"])


async def test_a_reply_not_made_by_calling_the_agent_is_not_broadcast(three):
    async with MsgHub(three):
        await three[0].reply()
    assert three[1].heard == []


async def test_an_announcement_reaches_all_but_late_joiners(three):
    a, b, c = three
    announcement = [said("welcome"), said("begin")]
    async with MsgHub([a, b], announcement=announcement) as hub:
        hub.add(c)
    assert (a.texts, b.texts, c.texts) == (["welcome", "begin"], ["welcome", "begin"], [])


async def test_a_message_alone_can_be_announced(three):
    async with MsgHub(three, said("welcome")):
        pass
    assert [each.texts for each in three] == [["welcome"]] * 3


@pytest.mark.parametrize("announcement", [7, [said("x"), None]])
def test_an_announcement_that_is_not_a_message_is_refused(announcement):
    with pytest.raises(InvalidInputError, match=r"a hub takes a str, a Msg, a dict .*, not (7|None)$"):
        MsgHub([], announcement)


async def test_no_subscription_is_left_after_the_block(three):
    async with MsgHub(three, name="talk") as hub:
        assert subscriptions(three) == [{"talk": ["b", "c"]}, {"talk": ["a", "c"]}, {"talk": ["a", "b"]}]
        assert hub.name == "talk"
    assert subscriptions(three) == [{}, {}, {}]
    await three[0]()
    assert three[1].heard == []


async def test_no_subscription_is_left_after_a_failed_block(three):
    with pytest.raises(ZeroDivisionError):
        async with MsgHub(three):
            raise ZeroDivisionError
    assert subscriptions(three) == [{}, {}, {}]


async def test_no_subscription_is_left_after_a_cancelled_block(three):
    with anyio.CancelScope() as scope:
        async with MsgHub(three):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert subscriptions(three) == [{}, {}, {}]


async def test_a_cancelled_announcement_leaves_no_subscriptions(three):
    class Slow(Speaker):
        async def observe(self, msg):
            scope.cancel()
            await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        async with MsgHub([*three, Slow("slow")], said("welcome")):
            raise AssertionError
    assert scope.cancelled_caught
    assert subscriptions(three) == [{}, {}, {}]


async def test_a_deleted_participant_neither_observes_nor_is_observed(three):
    a, b, c = three
    async with MsgHub(three) as hub:
        hub.delete(b)
        assert hub.participants == [a, c]
        await b()
        await a()
        await hub.broadcast(said("all"))
    assert (a.texts, b.texts, c.texts) == (["all"], [], ["a", "all"])


async def test_several_join_and_leave_at_once_and_may_come_back(three):
    a, b, c = three
    async with MsgHub([a]) as hub:
        hub.add([b, c])
        hub.delete([a, b])
        hub.add(b)
        assert hub.participants == [c, b]
        await c()
    assert (a.texts, b.texts, c.texts) == ([], ["c"], [])


async def test_an_agent_takes_part_once_however_often_it_is_given(three):
    a, b, _ = three
    async with MsgHub([a, b, a], said("welcome")) as hub:
        hub.add([a, b, b])
        assert hub.participants == [a, b]
        await a()
    assert (a.texts, b.texts) == (["welcome"], ["welcome", "a"])


async def test_deleting_an_agent_that_is_not_in_the_hub_is_a_warning(three, caplog):
    a, b, c = three
    async with MsgHub([a, b], name="talk") as hub:
        hub.delete([c, b])
        assert hub.participants == [a]
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", "agent 'c' is not in the hub 'talk'")
    ]


async def test_a_hub_that_works_says_nothing_to_the_log(three, caplog):
    caplog.set_level(logging.DEBUG, "agentrt")
    for automatic in (True, False):
        async with MsgHub(three, said("x"), automatic) as hub:
            hub.delete(three[0])
            hub.set_auto_broadcast(not automatic)
            hub.add(three[0])
            await three[0]()
    assert caplog.records == []


async def test_a_hub_may_begin_and_end_empty(three):
    async with MsgHub([], said("nobody hears this")) as hub:
        assert hub.participants == []
        hub.add(three)
        await three[0]()
        hub.delete(three)
    assert three[1].texts == ["a"]


async def test_automatic_broadcasts_can_be_switched_off_and_on(three):
    a, b, _ = three
    async with MsgHub([a, b], enable_auto_broadcast=False) as hub:
        assert not hub.enable_auto_broadcast
        await a()
        await hub.broadcast(said("by hand"))
        hub.set_auto_broadcast(True)
        await a(said("on "))
        hub.set_auto_broadcast(False)
        await a(said("off "))
    assert (a.texts, b.texts) == (["by hand"], ["by hand", "on a"])


async def test_a_broadcast_gives_each_a_copy_without_thinking(three):
    message = said([ThinkingBlock("hm"), TextBlock("hello")], "a")
    message.metadata["mood"] = ["good"]
    async with MsgHub(three) as hub:
        await hub.broadcast(message)
    copies = [each.heard[0] for each in three]
    assert [[block.type for block in copy.content] for copy in copies] == [["text"]] * 3
    assert {(copy.id, copy.created_at) for copy in copies} == {(message.id, message.created_at)}
    for one, other in combinations([*copies, message], 2):
        assert one is not other
        assert one.metadata == other.metadata == {"mood": ["good"]}
        assert one.metadata["mood"] is not other.metadata["mood"]
        assert one.content[-1] is not other.content[-1]


async def test_a_failing_observer_is_logged_and_affects_no_other(three, caplog):
    a, b, _ = three
    async with MsgHub([a, Deaf("deaf"), b], said("welcome")):
        await a()
    assert b.texts == ["welcome", "a"]
    assert [each.message for each in caplog.records] == ["agent 'deaf' failed to observe a message: RuntimeError"] * 2


async def test_an_agent_in_two_hubs_observes_an_answer_once(three):
    a, b, c = three
    async with MsgHub([a, b]), MsgHub([a, b, c]):
        await a()
    assert (b.texts, c.texts) == (["a"], ["a"])


async def test_an_inner_hub_leaves_the_outer_one_as_it_was(three):
    a, b, c = three
    async with MsgHub([a, b], name="outer"):
        async with MsgHub([a, c], name="inner"):
            await a(said("1"))
        await a(said("2"))
    assert (b.texts, c.texts) == (["1a", "2a"], ["1a"])


async def test_hubs_may_end_in_another_order_than_they_began(three):
    a, b, c = three
    first, second = MsgHub([a, b]), MsgHub([a, c])
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    await a()
    await second.__aexit__(None, None, None)
    assert (b.texts, c.texts) == ([], ["a"])
    assert subscriptions(three) == [{}, {}, {}]


async def test_a_hub_that_is_entered_cannot_be_entered_again(three):
    async with MsgHub(three, name="talk") as hub:
        with pytest.raises(
            UsageError, match="hub 'talk' has already been entered: make another MsgHub over the same agents"
        ):
            async with hub:
                raise AssertionError
        await three[0]()
    assert three[1].texts == ["a"]


async def test_a_hub_can_be_entered_again_after_its_end(three):
    hub = MsgHub(three, said("welcome"))
    for _ in range(2):
        async with hub:
            await three[0]()
    assert three[1].texts == ["welcome", "a"] * 2


@pytest.mark.parametrize("how", ["enter", "add", "switch on"])
async def test_two_hubs_of_one_name_are_refused(three, how):
    a, b, c = three
    async with MsgHub([a, b], name="talk"):
        with pytest.raises(UsageError, match="agent 'a' is in another hub named 'talk': give this one another name"):
            async with MsgHub(
                [c] if how == "add" else [c, a], enable_auto_broadcast=how != "switch on", name="talk"
            ) as hub:
                hub.add(a) if how == "add" else hub.set_auto_broadcast(True)
        assert hub_is_whole(three)
        await a()
    assert (b.texts, c.texts) == (["a"], [])
    assert subscriptions(three) == [{}, {}, {}]


def hub_is_whole(three: list[Speaker]) -> bool:
    return subscriptions(three) == [{"talk": ["b"]}, {"talk": ["a"]}, {}]


async def test_what_changes_outside_of_the_block_counts_within_it(three):
    a, b, c = three
    hub = MsgHub([a], enable_auto_broadcast=False)
    hub.add([b, c])
    hub.delete(c)
    hub.set_auto_broadcast(True)
    assert subscriptions(three) == [{}, {}, {}]
    async with hub:
        await a()
    hub.add(c)
    assert subscriptions(three) == [{}, {}, {}]
    assert (b.texts, c.texts) == (["a"], [])


async def test_a_hub_may_be_entered_in_one_task_and_left_in_another(three):
    hub = MsgHub(three)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.__aenter__)
    await three[0]()
    async with anyio.create_task_group() as group:
        group.start_soon(hub.__aexit__, None, None, None)
    assert three[1].texts == ["a"]
    assert subscriptions(three) == [{}, {}, {}]


async def test_an_agent_deleted_while_it_answers_is_not_observed(three):
    a, b, _ = three
    waiting = Waiting("w")
    async with MsgHub([a, b, waiting]) as hub, anyio.create_task_group() as group:
        group.start_soon(waiting)
        await waiting.began.wait()
        hub.delete(waiting)
        waiting.interrupt()
    assert (a.heard, b.heard) == ([], [])


@pytest.mark.parametrize("wrong", ["a", 3, None, [3], [Speaker], ["a"]])
async def test_only_agents_take_part(three, wrong):
    with pytest.raises(ConfigError, match=r"MsgHub\(participants=...\) takes (a list of )?agents, not"):
        MsgHub(wrong)
    async with MsgHub(three) as hub:
        with pytest.raises(ConfigError, match=r"MsgHub.add\(\) takes"):
            hub.add(wrong)
        with pytest.raises(ConfigError, match=r"MsgHub.delete\(\) takes"):
            hub.delete(wrong)
        assert hub.participants == three


@pytest.mark.parametrize("name", ["", 3])
def test_a_name_is_a_text(name):
    with pytest.raises(ConfigError, match=r"MsgHub\(name=...\) must be a str that is not empty, not"):
        MsgHub([], name=name)


def test_hubs_without_a_name_get_one_of_their_own():
    assert MsgHub([]).name != MsgHub([]).name


async def test_agents_with_a_model_observe_each_others_answers():
    alice = Agent("alice", model=ScriptedChatModel([[ThinkingBlock("hm"), TextBlock("I am Alice.")]]))
    bob = Agent("bob", model=ScriptedChatModel(["I am Bob."]))
    async with MsgHub([alice, bob], said("Who are you?", "host")):
        await alice()
        await bob()
    assert [(msg.name, msg.get_text_content()) for msg in bob.state.context] == [
        ("host", "Who are you?"),
        ("alice", "I am Alice."),
        ("bob", "I am Bob."),
    ]
    assert not bob.state.context[1].has_content_blocks("thinking")
    assert [msg.name for msg in alice.state.context] == ["host", "alice", "bob"]


# Against a model: who hears what, after any sequence of changes.

NAMES = "abcd"
SOME = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)
DEEDS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 1), SOME),
    st.tuples(st.just("delete"), st.integers(0, 1), SOME),
    st.tuples(st.just("auto"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("block"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("tell"), st.integers(0, 1), st.none()),
    st.tuples(st.just("answer"), st.sampled_from(NAMES), st.none()),
)


class Model:
    """What a hub is, in three sets of names."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.auto = True
        self.is_open = False

    def hearing(self, speaker: str) -> set[str]:
        heard = self.auto and self.is_open and speaker in self.members
        return set(self.members) - {speaker} if heard else set()


async def carry_out(deeds: list[tuple[str, object, object]]) -> None:
    agents = {name: Speaker(name) for name in NAMES}
    hubs, models = [MsgHub([]), MsgHub([])], [Model(), Model()]
    expected: dict[str, list[str]] = {name: [] for name in NAMES}
    for number, (deed, where, what) in enumerate(deeds):
        if deed == "answer":
            await agents[where](said(f"{number}"))
            for name in models[0].hearing(where) | models[1].hearing(where):
                expected[name].append(f"{number}{where}")
            continue
        hub, model = hubs[where], models[where]
        if deed == "add":
            hub.add([agents[name] for name in what])
            model.members += [name for name in dict.fromkeys(what) if name not in model.members]
        elif deed == "delete":
            hub.delete([agents[name] for name in what])
            model.members = [name for name in model.members if name not in what]
        elif deed == "auto":
            hub.set_auto_broadcast(what)
            model.auto = what
        elif deed == "block" and what is not model.is_open:
            await (hub.__aenter__() if what else hub.__aexit__(None, None, None))
            model.is_open = what
        elif deed == "tell":
            await hub.broadcast(said(f"{number}"))
            for name in model.members:
                expected[name].append(f"{number}")
        assert [each.name for each in hub.participants] == model.members
    assert {name: agent.texts for name, agent in agents.items()} == expected
    for hub in hubs:
        await hub.__aexit__(None, None, None)
    assert subscriptions(list(agents.values())) == [{}] * len(NAMES)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@given(deeds=st.lists(DEEDS, max_size=30))
def test_after_any_change_exactly_the_participants_observe(loop, deeds):
    anyio.run(carry_out, deeds, backend=loop)
