"""Messages in, messages out, and nothing shared on the way: one suite for every memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrt.memory import InMemoryMemory, MemoryBase, SQLiteMemory
from agentrt.message import Msg, TextBlock, UserMsg

MEMORIES: dict[str, Callable[[Path], MemoryBase]] = {
    "memory": lambda folder: InMemoryMemory(),
    "sqlite": lambda folder: SQLiteMemory(folder / "memory.db", "s"),
}


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryBase:
    return MEMORIES[request.param](tmp_path)


def message(text: str, **fields: Any) -> Msg:
    return UserMsg("user", text, id=text, **fields)


async def fill(memory: MemoryBase) -> None:
    await memory.add([message("one"), message("two")])
    await memory.add(message("three"), marks="hint")
    await memory.add(message("four"), marks=["hint", "old"])


async def texts(memory: MemoryBase, *arguments: Any, **options: Any) -> list[Any]:
    return [msg.content for msg in await memory.get_memory(*arguments, **options)]


# Adding


async def test_messages_come_back_in_their_order(memory):
    await fill(memory)
    await memory.add(None)
    await memory.add([])
    assert await texts(memory) == ["one", "two", "three", "four"]
    assert await memory.size() == 4


async def test_a_message_that_is_known_by_its_id_is_added_once(memory):
    await fill(memory)
    await memory.add([message("one"), message("new"), message("new")], marks="again")
    assert await texts(memory) == ["one", "two", "three", "four", "new"]
    assert await texts(memory, "again") == ["new"]


async def test_a_message_that_was_removed_can_be_added_again(memory):
    await fill(memory)
    await memory.delete(["four"])
    await memory.add([message("four"), message("four")])
    assert await texts(memory) == ["one", "two", "three", "four"]


async def test_duplicates_are_added_where_they_are_wanted(memory):
    await fill(memory)
    await memory.add([message("one"), message("one")], allow_duplicates=True)
    assert await texts(memory) == ["one", "two", "three", "four", "one", "one"]


async def test_stored_and_returned_messages_are_copies(memory):
    given, marks = UserMsg("user", [TextBlock("text")], metadata={"a": [1]}), ["m"]
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
async def test_object_that_is_not_a_message_is_refused(memory, bad):
    with pytest.raises(TypeError, match="takes a Msg, a list of them or None, not a str"):
        await memory.add(bad)
    assert await memory.size() == 0


# Finding


async def test_messages_are_found_by_their_marks_and_left_out_by_them(memory):
    await fill(memory)
    assert await texts(memory, "hint") == ["three", "four"]
    assert await texts(memory, exclude_mark="hint") == ["one", "two"]
    assert await texts(memory, mark="hint", exclude_mark="old") == ["three"]
    assert await texts(memory, "none") == []


async def test_summary_precedes_the_messages_unless_switched_off(memory):
    await fill(memory)
    await memory.update_compressed_summary("so far")
    first, *rest = await memory.get_memory(exclude_mark="hint")
    assert (first.content, first.role, len(rest)) == ("so far", "user", 2)
    assert await texts(memory, "hint", prepend_summary=False) == ["three", "four"]
    assert await memory.size() == 4


# Removing


async def test_messages_are_deleted_by_id(memory):
    await fill(memory)
    assert await memory.delete(["one", "three", "unknown"]) == 2
    assert await texts(memory) == ["two", "four"]
    assert await memory.delete("two") == 1


async def test_messages_are_deleted_by_any_of_some_marks(memory):
    await fill(memory)
    assert await memory.delete_by_mark("old") == 1
    assert await memory.delete_by_mark(["none", "hint"]) == 1
    assert await memory.delete_by_mark([]) == 0
    assert await texts(memory) == ["one", "two"]


async def test_clearing_forgets_the_summary_too(memory):
    await fill(memory)
    await memory.update_compressed_summary("so far")
    await memory.clear()
    assert (await memory.get_memory(), await memory.size()) == ([], 0)


# Marking


async def test_a_mark_is_put_on_all_or_on_some(memory):
    await fill(memory)
    assert await memory.update_messages_mark("new", msg_ids=["one", "three"]) == 2
    assert await texts(memory, "new") == ["one", "three"]
    assert await texts(memory, "hint") == ["three", "four"]
    assert await memory.update_messages_mark("all") == 4
    assert await texts(memory, "all") == ["one", "two", "three", "four"]


async def test_a_mark_takes_the_place_of_another(memory):
    await fill(memory)
    assert await memory.update_messages_mark("old", old_mark="hint") == 2
    assert await texts(memory, "hint") == []
    assert await texts(memory, "old") == ["three", "four"]
    assert await memory.delete_by_mark("old") == 2


async def test_a_mark_is_taken_off(memory):
    await fill(memory)
    assert await memory.update_messages_mark(None, old_mark="hint", msg_ids=["one", "four"]) == 1
    assert (await texts(memory, "hint"), await texts(memory, "old")) == (["three"], ["four"])


async def test_an_update_without_a_mark_is_refused(memory):
    with pytest.raises(ValueError, match="needs a new_mark to add"):
        await memory.update_messages_mark(None)


async def test_invalid_mark_is_refused_by_name(memory):
    await fill(memory)
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


async def test_single_object_instead_of_a_list_is_refused_by_its_type(memory):
    with pytest.raises(TypeError, match="a memory takes a Msg, a list of them or None, not an int"):
        await memory.add(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="marks must be a str or a list of them, not an int"):
        await memory.add(None, marks=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="msg_ids must be a str or a list of them, not an int"):
        await memory.delete(3)  # type: ignore[arg-type]


async def test_the_revision_says_how_many_messages_were_added(memory):
    before = await memory.read_revision()
    await fill(memory)
    await memory.add(message("one"))
    await memory.update_compressed_summary("so far")
    assert await memory.read_revision() == before + 4
    await memory.delete(["one"])
    assert await memory.read_revision() > before + 4


async def test_half_characters_are_kept(memory):
    half = "\ud800"
    await memory.add(UserMsg("user", half, id=half), marks=half)
    await memory.update_compressed_summary(half)
    assert await texts(memory, half) == [half, half]
    assert await memory.delete(half) == 1
