"""What every store promises, in memory or in files."""

import traceback
from collections.abc import Callable
from dataclasses import replace
from time import time_ns

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent
from agentrt.errors import SessionConflict, SessionCorrupt, SessionUnserializable, SessionVersion, UsageError
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState, UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.state import EPHEMERAL, AgentState, InMemoryStateStore, ReplyContext
from agentrt.state.state import state_to_json
from agentrt.types import ChatUsage
from tests.state.conftest import checked_before_the_database

ODD_IDS = [
    "../../x",
    "/etc/x",
    "a/b",
    "CON",
    ".",
    "a\0b",
    "e\u0301",
    "\u00e9",
    "A",
    "a",
    " ",
    "x" * 500,
    "\U0001f600" * 500,
]


async def test_loaded_state_equals_the_saved_one_and_shares_nothing(store):
    state = AgentState(context=[UserMsg("user", "see")], middleware_data={"Count": {"n": [1]}})
    await store.save(state)
    loaded = await store.load(state.session_id)
    assert loaded == state
    loaded.middleware_data["Count"]["n"].append(2)
    assert await store.load(state.session_id) == state


async def test_session_that_was_never_saved_loads_none(store):
    assert await store.load("nobody") is None
    await store.delete("nobody")


async def test_state_can_be_saved_repeatedly_and_by_its_last_loader(store):
    state = AgentState()
    for number in range(3):
        state.summary = str(number)
        await store.save(state)
    loaded = await store.load(state.session_id)
    assert (loaded.summary, loaded.revision) == ("2", state.revision)
    await store.save(loaded)


async def test_second_writer_on_one_revision_gets_a_conflict(store):
    await store.save(AgentState(session_id="s"))
    first, second = await store.load("s"), await store.load("s")
    first.summary, second.summary = "first", "second"
    await store.save(first)
    based_on = second.revision
    with pytest.raises(SessionConflict, match=f"'s' was saved .* as revision {first.revision}, .* {based_on}: load"):
        await store.save(second)
    assert second.revision == based_on
    assert (await store.load("s")).summary == "first"


async def test_a_new_state_does_not_overwrite_a_saved_one(store):
    await store.save(AgentState(session_id="s", summary="old"))
    with pytest.raises(SessionConflict, match=r"already saved, as revision .* load the saved state"):
        await store.save(AgentState(session_id="s"))
    assert (await store.load("s")).summary == "old"


async def test_deleted_session_cannot_be_saved_from_an_old_state(store):
    state = AgentState()
    await store.save(state)
    await store.delete(state.session_id)
    assert await store.load(state.session_id) is None
    with pytest.raises(SessionConflict, match=r"not saved here, or no longer.* set state.revision = 0"):
        await store.save(state)
    state.revision = 0
    await store.save(state)
    assert await store.load(state.session_id) == state


async def test_state_of_a_deleted_session_never_fits_its_successor(store):
    old = AgentState(session_id="s")
    await store.save(old)
    await store.delete("s")
    await store.save(AgentState(session_id="s", summary="new"))
    with pytest.raises(SessionConflict):
        await store.save(old)
    assert (await store.load("s")).summary == "new"


@checked_before_the_database
@pytest.mark.parametrize("session_id", ["", None, 3, "x" * 501])
@pytest.mark.parametrize("operation", ["save", "load", "delete"])
async def test_invalid_session_id_is_refused(store, operation, session_id):
    argument = AgentState(session_id=session_id) if operation == "save" else session_id
    with pytest.raises(UsageError, match=f"must be a str of 1 to 500 characters, not {session_id!r:.50}"):
        await getattr(store, operation)(argument)


async def test_odd_session_ids_each_have_a_state_of_their_own(store):
    for session_id in ODD_IDS:
        await store.save(AgentState(session_id=session_id, summary=f"of {session_id}"))
    assert [(await store.load(each)).summary for each in ODD_IDS] == [f"of {each}" for each in ODD_IDS]


async def test_session_id_with_a_surrogate_loads_none_and_is_not_saved(store):
    assert await store.load("\ud800") is None
    with pytest.raises(SessionUnserializable, match=r"its session_id holds"):
        await store.save(AgentState(session_id="\ud800"))


def in_a_middlewares_data(value: object) -> AgentState:
    return AgentState(session_id="s", middleware_data={"Fine": {}, "Cache": {"fine": 1, "broken": value}})


def in_a_message(value: object) -> AgentState:
    return AgentState(session_id="s", context=[UserMsg("user", "a"), UserMsg("user", "b", metadata={"c": value})])


def in_a_field(value: object) -> AgentState:
    return AgentState(session_id="s", summary=value)


class Secret:
    def __repr__(self) -> str:
        return "the content"


cycle: list[object] = ["the content"]
cycle.append(cycle)


@checked_before_the_database
@pytest.mark.parametrize("value", [Secret(), {"the content": Secret()}, cycle, "the content \ud800"], ids=repr)
@pytest.mark.parametrize(
    ("state_with", "place"),
    [
        (in_a_middlewares_data, "the data of the middleware 'Cache'"),
        (in_a_message, r"its context\[1\]"),
        (in_a_field, "its summary"),
    ],
)
async def test_value_without_json_form_is_refused_by_its_place_only(
    store, state_with: Callable[[object], AgentState], place: str, value: object
):
    with pytest.raises(SessionUnserializable, match=f"session 's' cannot be saved: {place} holds") as caught:
        await store.save(state_with(value))
    assert "the content" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
    assert await store.load("s") is None


@checked_before_the_database
async def test_state_that_could_not_be_loaded_again_is_not_saved(store):
    with pytest.raises(SessionUnserializable, match=r"its summary holds something that has .* not the type"):
        await store.save(in_a_field(5))


NAN, INFINITY = float("nan"), float("inf")
UNLOADABLE: dict[str, tuple[AgentState, str]] = {
    "message id": (AgentState(context=[UserMsg("user", "a", id=None)]), r"its context\[0\]"),
    "message name": (AgentState(context=[UserMsg(None, "a")]), r"its context\[0\]"),
    "message": (AgentState(context=[UserMsg("user", "a"), None]), r"its context\[1\]"),
    "text": (AgentState(context=[UserMsg("user", [TextBlock(None)])]), r"its context\[0\]"),
    "type": (AgentState(context=[UserMsg("user", [TextBlock("a", type=None)])]), r"its context\[0\]"),
    "call name": (AgentState(context=[AssistantMsg("a", [ToolCallBlock("1", None)])]), r"its context\[0\]"),
    "usage": (AgentState(context=[AssistantMsg("a", "b", usage="many")]), r"its context\[0\]"),
    "context": (AgentState(context=None), "its context"),
    "summary": (AgentState(summary=None), "its summary"),
    "no data": (AgentState(middleware_data=None), "its middleware_data"),
    "sequence": (AgentState(sequence=None), "its sequence"),
    "reply": (AgentState(reply_context=ReplyContext("r", UserMsg("u", "a"), 3, worked=INFINITY)), "its reply_context"),
    "nan in data": (AgentState(middleware_data={"M": {"a": [NAN]}}), "the data of the middleware 'M'"),
    "nan in data of the reply": (
        AgentState(reply_context=ReplyContext("r", UserMsg("u", "a"), 3, middleware_data={"M": {"a": NAN}})),
        "the data of the middleware 'M'",
    ),
    "infinity in metadata": (AgentState(context=[UserMsg("u", "a", metadata={"a": -INFINITY})]), r"its context\[0\]"),
}


@checked_before_the_database
@pytest.mark.parametrize("case", UNLOADABLE)
async def test_unloadable_state_leaves_the_saved_one_as_it_is(store, case):
    broken, place = UNLOADABLE[case]
    await store.save(good := AgentState(session_id="s", summary="good"))
    broken = replace(broken, session_id="s", revision=good.revision)
    for _ in range(2):  # what was refused once is not taken for proved
        with pytest.raises(SessionUnserializable, match=f"session 's' cannot be saved: {place} holds"):
            await store.save(broken)
    with pytest.raises(SessionUnserializable, match=f"{place} holds"):
        broken.model_dump_json()
    assert (await store.load("s")).summary == "good"


async def test_saved_message_that_was_broken_since_is_refused(store):
    state = AgentState(session_id="s", context=[UserMsg("user", "a"), UserMsg("user", "b")])
    await store.save(state)
    state.context[0].name = None
    state.touch(state.context[0])
    for _ in range(2):
        with pytest.raises(SessionUnserializable, match=r"its context\[0\] holds"):
            await store.save(state)
    state.context[0].name = "user"
    await store.save(state)


async def test_store_in_memory_leaves_saved_messages_alone():
    store, state = InMemoryStateStore(), AgentState(session_id="s", context=[UserMsg("user", "a")])
    await store.save(state)
    loaded = await store.load("s")
    for conversation in (state, loaded):
        # Were all messages serialised, it would find this.
        conversation.context[0].content = "edited"
        conversation.context.append(UserMsg("user", "b"))
    await store.save(loaded)
    assert [message.content for message in (await store.load("s")).context] == ["a", "b"]


async def test_session_for_one_answer_is_removed_after_an_hour(store, monkeypatch):
    await store.save(AgentState(session_id="kept"))
    await store.save(AgentState(session_id="left", labels={"owner": "ann", **EPHEMERAL}))
    await store.fork("left", "copy")  # to have it for longer
    reply = ReplyContext("r", AssistantMsg("assistant", [], id="r"), 1, parked=True)
    await store.save(AgentState(session_id="waits", labels=EPHEMERAL, reply_context=reply))
    assert await store.expire() == 0
    monkeypatch.setattr("agentrt.state.store.time_ns", lambda: time_ns() + 3_601 * 10**9)
    assert await store.expire() == 1
    assert [info.session_id for info in (await store.list()).sessions] == ["copy", "kept", "waits"]
    assert (await store.load("copy")).labels == {"owner": "ann"}


async def test_strings_such_as_nan_are_saved_as_strings(store):
    state = AgentState(summary='NaN, -Infinity and "NaN"', middleware_data={"M": {"NaN": "Infinity"}})
    await store.save(state)
    assert await store.load(state.session_id) == state


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(object())
containers = st.recursive(anything, lambda each: st.lists(each) | st.dictionaries(st.text() | st.integers(), each))


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_state_with_any_field_value_loads_or_is_refused(data):
    blocks: list[object] = [TextBlock("a"), ToolCallBlock("1", "f"), ToolResultBlock("1", "f", [TextBlock("b")])]
    state = AgentState(context=[UserMsg("user", "a"), AssistantMsg("b", blocks, usage=ChatUsage(1, 2))])
    holders = [state, *state.context, *blocks, state.context[1].usage, state.permission_context]
    holder = data.draw(st.sampled_from(holders))
    setattr(holder, data.draw(st.sampled_from(holder.__slots__)), data.draw(containers))
    try:
        text = state_to_json(state)
    except SessionUnserializable:
        return
    loaded = AgentState.model_validate_json(text)
    # A whole number written as 0.0 is written as 0 from then on.
    assert AgentState.model_validate_json(state_to_json(loaded)) == loaded


@pytest.mark.parametrize(
    ("text", "error", "problem"),
    [
        ('{"version": 2}', SessionVersion, "understand its 'version'; load it with the version that saved it"),
        ('{"junk": 1}', SessionVersion, "understand its 'junk'"),
        (
            "the content",
            SessionCorrupt,
            "the text does not hold the JSON of a state; load it from a copy that is whole",
        ),
        ("[]", SessionCorrupt, "does not hold the JSON of a state"),
    ],
)
def test_state_of_another_version_is_not_taken_for_a_damaged_one(text, error, problem):
    with pytest.raises(error, match=problem) as caught:
        AgentState.model_validate_json(text)
    assert caught.value.__context__ is None
    assert "the content" not in str(caught.value)


def test_a_saved_time_is_a_number_and_is_read_as_text_too():
    state = AgentState(context=[UserMsg("Hi", created_at=1_769_860_800_123_456_789)])
    text = state.model_dump_json()
    assert '"created_at":1769860800123456789' in text
    in_words = text.replace("1769860800123456789", '"2026-01-31T12:00:00.123456789Z"')
    assert AgentState.model_validate_json(in_words) == AgentState.model_validate_json(text) == state


async def test_value_that_pydantic_can_convert_is_saved(store):
    state = in_a_message(1)
    state.context[0].content = [ToolResultBlock("1", "add", "3")]
    state.context[0].content[0].state = "success"
    await store.save(state)
    [block] = (await store.load("s")).context[0].content
    assert block.state is ToolResultState.SUCCESS


async def test_conversation_continues_in_another_process_by_the_store(store):
    first = Agent("first", model=ScriptedChatModel(["I remember 7."]), state_store=store)
    await first.reply("remember 7")
    state = await store.load(first.state.session_id)
    second = Agent("second", model=ScriptedChatModel(["It was 7."]), state=state, state_store=store)
    await second.reply("what was it?")
    saved = await store.load(state.session_id)
    assert [message.get_text_content() for message in saved.context][1::2] == ["I remember 7.", "It was 7."]


async def test_reply_on_an_old_state_is_refused_before_the_model_call(store):
    await Agent("first", model=ScriptedChatModel(["a"]), state=AgentState(session_id="s"), state_store=store).reply("x")
    second = Agent("second", model=ScriptedChatModel(["b"]), state=AgentState(session_id="s"), state_store=store)
    with pytest.raises(SessionConflict):
        await second.reply("y")
    assert second.model.calls == []
