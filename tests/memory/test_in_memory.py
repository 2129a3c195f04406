"""The state of a memory in this process: all of its messages, in JSON."""

import json
import traceback
from typing import Any

import pytest

from agentrt.errors import SessionCorrupt, SessionUnserializable
from agentrt.memory import InMemoryMemory, MemoryBase
from agentrt.message import Base64Source, DataBlock, HintBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.module import StateModule
from tests.memory.test_memory import fill, message, texts


async def filled() -> InMemoryMemory:
    memory = InMemoryMemory()
    await fill(memory)
    return memory


async def test_memory_state_holds_the_summary_messages_and_marks():
    memory = InMemoryMemory()
    await memory.add(message("one"), marks=["hint"])
    await memory.update_compressed_summary("so far")
    state = memory.state_dict()
    assert (list(state), state["_compressed_summary"]) == (["_compressed_summary", "content"], "so far")
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
    assert (other.content, other.state_dict()) == (memory.content, memory.state_dict())


async def test_a_message_that_could_not_be_loaded_is_not_saved():
    memory = await filled()
    memory.content[1][0].name = 5
    with pytest.raises(SessionUnserializable, match="message 1 of a memory"):
        memory.state_dict()


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
