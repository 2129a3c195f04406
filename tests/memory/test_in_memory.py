"""Messages in, messages out, and nothing shared on the way."""

import json
import traceback
from typing import Any

import pytest

from agentrt.errors import SessionCorrupt, SessionUnserializable
from agentrt.memory import InMemoryMemory, MemoryBase
from agentrt.message import Base64Source, DataBlock, HintBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentrt.module import StateModule


def message(text: str, **fields: Any) -> Msg:
    return UserMsg("user", text, id=text, **fields)


async def filled() -> InMemoryMemory:
    memory = InMemoryMemory()
    await memory.add([message("one"), message("two")])
    await memory.add(message("three"), marks="hint")
    await memory.add(message("four"), marks=["hint", "old"])
    return memory


async def texts(memory: MemoryBase, *arguments: Any, **options: Any) -> list[Any]:
    return [msg.content for msg in await memory.get_memory(*arguments, **options)]


# Adding


async def test_messages_come_back_in_their_order():
    memory = await filled()
    await memory.add(None)
    await memory.add([])
    assert await texts(memory) == ["one", "two", "three", "four"]
    assert await memory.size() == 4


async def test_a_message_that_is_known_by_its_id_is_added_once():
    memory = await filled()
    await memory.add([message("one"), message("new"), message("new")], marks="again")
    assert await texts(memory) == ["one", "two", "three", "four", "new"]
    assert await texts(memory, "again") == ["new"]


async def test_duplicates_are_added_where_they_are_wanted():
    memory = await filled()
    await memory.add([message("one"), message("one")], allow_duplicates=True)
    assert await texts(memory) == ["one", "two", "three", "four", "one", "one"]


async def test_stored_and_returned_messages_are_copies():
    memory, given, marks = InMemoryMemory(), UserMsg("user", [TextBlock("text")], metadata={"a": [1]}), ["m"]
    await memory.add(given, marks)
    for each in (given, *await memory.get_memory()):
        each.content[0].text = "changed"
        each.content.append(TextBlock("more"))
        each.metadata["a"].append(2)
    marks.append("more")
    (kept,) = await memory.get_memory("m")
    assert (kept.get_text_content(), kept.metadata) == ("text", {"a": [1]})
    assert await memory.get_memory("more") == []


@pytest.mark.parametrize("bad", ["text", [message("x"), "text"], {"id": 1}])
async def test_object_that_is_not_a_message_is_refused(bad):
    memory = InMemoryMemory()
    with pytest.raises(TypeError, match="takes a Msg, a list of them or None, not a str"):
        await memory.add(bad)
    assert await memory.size() == 0


# Finding


async def test_messages_are_found_by_their_marks_and_left_out_by_them():
    memory = await filled()
    assert await texts(memory, "hint") == ["three", "four"]
    assert await texts(memory, exclude_mark="hint") == ["one", "two"]
    assert await texts(memory, mark="hint", exclude_mark="old") == ["three"]
    assert await texts(memory, "none") == []


async def test_summary_precedes_the_messages_unless_switched_off():
    memory = await filled()
    await memory.update_compressed_summary("so far")
    first, *rest = await memory.get_memory(exclude_mark="hint")
    assert (first.content, first.role, len(rest)) == ("so far", "user", 2)
    assert await texts(memory, "hint", prepend_summary=False) == ["three", "four"]
    assert await memory.size() == 4


# Removing


async def test_messages_are_deleted_by_id():
    memory = await filled()
    assert await memory.delete(["one", "three", "unknown"]) == 2
    assert await texts(memory) == ["two", "four"]
    assert await memory.delete("two") == 1


async def test_messages_are_deleted_by_any_of_some_marks():
    memory = await filled()
    assert await memory.delete_by_mark("old") == 1
    assert await memory.delete_by_mark(["none", "hint"]) == 1
    assert await memory.delete_by_mark([]) == 0
    assert await texts(memory) == ["one", "two"]


async def test_clearing_forgets_the_summary_too():
    memory = await filled()
    await memory.update_compressed_summary("so far")
    await memory.clear()
    assert (await memory.get_memory(), await memory.size()) == ([], 0)


# Marking


async def test_a_mark_is_put_on_all_or_on_some():
    memory = await filled()
    assert await memory.update_messages_mark("new", msg_ids=["one", "three"]) == 2
    assert await texts(memory, "new") == ["one", "three"]
    assert await texts(memory, "hint") == ["three", "four"]
    assert await memory.update_messages_mark("all") == 4
    assert await texts(memory, "all") == ["one", "two", "three", "four"]


async def test_a_mark_takes_the_place_of_another():
    memory = await filled()
    assert await memory.update_messages_mark("old", old_mark="hint") == 2
    assert await texts(memory, "hint") == []
    assert await texts(memory, "old") == ["three", "four"]
    assert [marks for _, marks in memory.content] == [[], [], ["old"], ["old"]]


async def test_a_mark_is_taken_off():
    memory = await filled()
    assert await memory.update_messages_mark(None, old_mark="hint", msg_ids=["one", "four"]) == 1
    assert [marks for _, marks in memory.content] == [[], [], ["hint"], ["old"]]


async def test_an_update_without_a_mark_is_refused():
    with pytest.raises(ValueError, match="needs a new_mark to add"):
        await InMemoryMemory().update_messages_mark(None)


async def test_invalid_mark_is_refused_by_name():
    memory = await filled()
    for work, name in (
        (memory.get_memory(1), "mark"),
        (memory.get_memory(exclude_mark=["hint"]), "exclude_mark"),
        (memory.update_messages_mark(1), "new_mark"),
        (memory.update_messages_mark("x", 1), "old_mark"),
        (memory.add(message("x"), marks=[1]), "marks"),
        (memory.delete([1]), "msg_ids"),
        (memory.delete_by_mark([None]), "mark"),
        (memory.update_compressed_summary(None), "a memory's summary"),
    ):
        with pytest.raises(TypeError, match=rf"^{name} must be"):
            await work
    assert await memory.size() == 4


# Its state


async def test_single_object_instead_of_a_list_is_refused_by_its_type():
    memory = InMemoryMemory()
    with pytest.raises(TypeError, match="a memory takes a Msg, a list of them or None, not an int"):
        await memory.add(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="marks must be a str or a list of them, not an int"):
        await memory.add(None, marks=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="msg_ids must be a str or a list of them, not an int"):
        await memory.delete(3)  # type: ignore[arg-type]


async def test_memory_state_holds_the_summary_messages_and_marks():
    memory = InMemoryMemory()
    await memory.add(message("one"), marks=["hint"])
    await memory.update_compressed_summary("so far")
    state = memory.state_dict()
    assert list(state) == ["_compressed_summary", "content"]
    assert state["_compressed_summary"] == "so far"
    [[saved, marks]] = state["content"]
    assert (Msg.from_json(json.dumps(saved)), marks) == (*await memory.get_memory(prepend_summary=False), ["hint"])


async def test_messages_of_every_kind_come_back_from_a_state():
    memory, other = await filled(), InMemoryMemory()
    blocks = [
        TextBlock("text"),
        HintBlock("hint", "here"),
        ToolCallBlock("1", "search", "{}"),
        ToolResultBlock("1", "search", [TextBlock("found"), DataBlock(Base64Source("aGk=", "image/png"))]),
    ]
    await memory.add(Msg("agent", blocks, "assistant", metadata={"a": [1]}, structured_output={"b": None}))
    other.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    assert other.content == memory.content
    assert other.state_dict() == memory.state_dict()


async def test_state_from_before_marks_and_summaries_is_loaded():
    memory, other = await filled(), InMemoryMemory()
    await other.update_compressed_summary("of another conversation")
    other.load_state_dict({"content": [msg for msg, _ in memory.state_dict()["content"]]})
    assert await texts(other) == ["one", "two", "three", "four"]
    assert [marks for _, marks in other.content] == [[]] * 4


async def test_without_strict_what_the_state_lacks_stays():
    memory = await filled()
    await memory.update_compressed_summary("so far")
    memory.load_state_dict({}, strict=False)
    assert await texts(memory) == ["so far", "one", "two", "three", "four"]
    memory.load_state_dict({"content": []}, strict=False)
    assert await texts(memory) == ["so far"]
    with pytest.raises(KeyError, match=r"InMemoryMemory\.content"):
        memory.load_state_dict({})


BAD: dict[str, Any] = {
    "no list": {"content": "the content"},
    "no pair": {"content": [["the content"]]},
    "no marks": {"content": [[{}, "the content"]]},
    "marks that are no texts": {"content": [[{"name": "a", "content": "the content", "role": "user"}, [1]]]},
    "no message": {"content": [[{"name": "a", "content": {"the content": 1}, "role": "user"}, []]]},
    "a role": {"content": [{"name": "a", "content": "x", "role": "the content"}]},
    "a field": {"content": [{"name": "a", "content": "x", "role": "user", "more": "the content"}]},
    "a summary": {"content": [], "_compressed_summary": ["the content"]},
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_state_that_is_wrong_changes_nothing_and_is_not_quoted(bad):
    memory = await filled()
    before = memory.state_dict()
    with pytest.raises((SessionCorrupt, TypeError)) as caught:
        memory.load_state_dict(BAD[bad])
    assert "the content" not in "".join(traceback.format_exception(caught.value))
    assert memory.state_dict() == before


async def test_state_that_is_not_a_dict_is_refused():
    with pytest.raises(TypeError, match="the state of InMemoryMemory must be a dict"):
        InMemoryMemory().load_state_dict(None)


async def test_message_that_json_cannot_hold_is_refused_by_its_number():
    memory = await filled()
    await memory.add(message("five", metadata={"a": object()}))
    with pytest.raises(SessionUnserializable, match=r"message 4 of a memory .*metadata"):
        memory.state_dict()


async def test_a_memory_is_a_child_like_any_other():
    class Agent(StateModule):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.name = InMemoryMemory(), "a"
            self.register_state("name")

    agent, other = Agent(), Agent()
    await agent.memory.add(message("one"))
    other.load_state_dict(agent.state_dict())
    assert await texts(other.memory) == ["one"]
    with pytest.raises(SessionCorrupt):
        other.load_state_dict({"name": "changed", "memory": {"content": [1]}})
    assert (other.name, await texts(other.memory)) == ("a", ["one"])


async def test_custom_memory_overrides_the_methods():
    memory = MemoryBase()
    for work in (
        memory.add(None),
        memory.delete([]),
        memory.delete_by_mark(""),
        memory.size(),
        memory.clear(),
        memory.get_memory(),
        memory.update_messages_mark(""),
    ):
        with pytest.raises(NotImplementedError):
            await work
    assert memory.state_dict() == {"_compressed_summary": ""}
