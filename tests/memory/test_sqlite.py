"""A memory in a SQLite file: shared by processes, kept apart by session."""

import copy
import os
import pickle
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt.agent import ReActAgent
from agentrt.errors import ConfigError, SessionCorrupt, SessionUnserializable, StoreError
from agentrt.memory import SQLiteMemory
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.model import ScriptedChatModel
from tests.memory.test_memory import fill, message, texts


def execute(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)


async def test_another_process_finds_messages_marks_and_summary(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    first = SQLiteMemory(path, "s")
    await fill(first)
    await first.update_compressed_summary("so far")
    second = SQLiteMemory(path, "s")
    assert await texts(second) == ["so far", "one", "two", "three", "four"]
    assert await texts(second, "old", prepend_summary=False) == ["four"]
    assert await first.read_revision() == await second.read_revision()


async def test_sessions_in_one_file_are_apart(tmp_path: Path) -> None:
    mine, yours = (SQLiteMemory(tmp_path / "memory.db", name) for name in ("mine", "yours"))
    await fill(mine)
    await yours.add(message("one"))
    await yours.update_compressed_summary("yours")
    await mine.clear()
    assert await texts(yours) == ["yours", "one"]
    assert await yours.delete_by_mark("hint") == 0


async def test_messages_of_every_kind_come_back(tmp_path: Path) -> None:
    blocks: list[ContentBlock] = [
        TextBlock("text"),
        HintBlock("hint", "here"),
        ToolCallBlock("1", "search", "{}"),
        ToolResultBlock("1", "search", [TextBlock("found"), DataBlock(Base64Source("aGk=", "image/png"))]),
    ]
    msg = Msg("agent", blocks, "assistant", metadata={"a": [1]}, structured_output={"b": None})
    memory = SQLiteMemory(tmp_path / "memory.db", "s")
    await memory.add(msg)
    assert await memory.get_memory() == [msg]


async def test_an_agent_continues_in_another_process(tmp_path: Path) -> None:
    def agent_of(*script: str) -> ReActAgent:
        memory = SQLiteMemory(tmp_path / "memory.db", "s")
        agent = ReActAgent("friday", "", ScriptedChatModel(list(script)), memory=memory)
        agent.disable_console_output()
        return agent

    await agent_of("one")("a")
    later = agent_of("two", "three")
    await later("b")
    await SQLiteMemory(tmp_path / "memory.db", "s").add(message("from elsewhere"))
    await later("c")
    asked: Any = later.model.calls[-1].messages  # type: ignore[attr-defined]
    assert [msg.get_text_content() for msg in asked] == ["a", "one", "b", "two", "from elsewhere", "c"]
    assert len(await texts(later.memory)) == 7


async def test_an_unchanged_memory_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SQLiteMemory(tmp_path / "memory.db", "s")
    agent = ReActAgent("friday", "", ScriptedChatModel(["one", "two", "three"]), memory=memory)
    agent.disable_console_output()
    await agent("a")

    async def refuse(*arguments: object, **options: object) -> list[Msg]:
        raise AssertionError

    monkeypatch.setattr(memory, "get_memory", refuse)
    await agent("b")
    await agent("c")
    assert await memory.size() == 6


def test_its_state_is_empty(tmp_path: Path) -> None:
    memory = SQLiteMemory(tmp_path / "memory.db", "s")
    memory.load_state_dict(memory.state_dict())
    assert memory.state_dict() == {}
    with pytest.raises(TypeError, match="the state of SQLiteMemory must be a dict"):
        memory.load_state_dict(None)  # type: ignore[arg-type]


async def test_a_pickled_copy_has_the_same_messages(tmp_path: Path) -> None:
    memory = SQLiteMemory(tmp_path / "memory.db", "s")
    await memory.add(Msg("ann", "Tea, please.", "user"))
    assert copy.deepcopy(memory) is memory
    [msg] = await pickle.loads(pickle.dumps(memory)).get_memory()
    assert msg.get_text_content() == "Tea, please."
    with pytest.raises(TypeError, match="a SQLiteMemory in memory cannot be pickled: give it the path of a file"):
        pickle.dumps(SQLiteMemory(":memory:", "s"))


@pytest.mark.parametrize("value", [object(), float("nan")])
async def test_what_json_cannot_hold_is_refused_when_it_is_added(value: object) -> None:
    memory = SQLiteMemory(":memory:", "s")
    with pytest.raises(SessionUnserializable, match="message 1"):
        await memory.add([message("one"), message("two", metadata={"a": value})])
    assert await memory.size() == 0


@pytest.mark.parametrize("text", ["no JSON: a secret", '{"name": "a secret"}', "null"])
async def test_a_damaged_message_is_refused_and_not_quoted(text: str, tmp_path: Path) -> None:
    memory = SQLiteMemory(tmp_path / "memory.db", "s")
    await fill(memory)
    execute(tmp_path / "memory.db", "UPDATE memory_messages SET message = ? WHERE place = 2", text)
    with pytest.raises(SessionCorrupt, match="message 1 of a memory") as caught:
        await memory.get_memory()
    assert "a secret" not in str(caught.value)


@pytest.mark.parametrize("session", ["", None, 5, "x" * 1_001])
def test_a_session_without_a_name_is_refused(session: Any) -> None:
    with pytest.raises(ConfigError, match=r"SQLiteMemory\(session=...\) must be a str of 1 to 1,000 characters"):
        SQLiteMemory(":memory:", session)


async def test_a_database_that_fails_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    memory = SQLiteMemory(path, "s")
    agent = ReActAgent("friday", "", ScriptedChatModel(["one", "two"]), memory=memory)
    agent.disable_console_output()
    await agent("a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 or os.name == "nt"
    execute(path, "ALTER TABLE memory_messages RENAME TO gone")
    with pytest.raises(StoreError, match="SQLiteMemory could not write"):
        await agent("b")
    execute(path, "ALTER TABLE gone RENAME TO memory_messages")
    await agent.observe(message("c"))
    assert [msg.get_text_content() for msg in await memory.get_memory()] == ["a", "one", "b", "two", "c"]
