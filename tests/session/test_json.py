"""A session's file: plain JSON, whole at any moment, and nowhere but in its directory."""

import json
import os
import stat
import sys
import traceback
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import ConfigError, SessionCorrupt, SessionIOError, SessionUnserializable, UsageError
from agentrt.memory import InMemoryMemory
from agentrt.message import UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.module import StateModule
from agentrt.session import JSONSession, SessionBase
from agentrt.state import AgentState, FileStateStore
from agentrt.tool import ToolGroup, Toolkit
from tests.state.disk import fill_disk_at

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="speaks of links and modes as POSIX has them")


class Counter(StateModule):
    def __init__(self, count: Any = 0) -> None:
        super().__init__()
        self.count = count
        self.register_state("count")


class Pair(StateModule):
    def __init__(self) -> None:
        super().__init__()
        self.toolkit, self.name = Counter(), ""
        self.register_state("name")


def saved_in(path: Path) -> Any:
    return json.loads(path.read_bytes())


async def test_what_is_saved_is_loaded_into_other_objects(tmp_path):
    memory, toolkit = InMemoryMemory(), Toolkit(groups=[ToolGroup("web", "The web.", active=True)])
    await memory.add(UserMsg("user", "hello"), marks="greeting")
    await JSONSession(tmp_path).save_session_state("s", memory=memory, toolkit=toolkit)
    other, kit = InMemoryMemory(), Toolkit(groups=[ToolGroup("web", "The web.")])
    await JSONSession(tmp_path).load_session_state("s", memory=other, toolkit=kit)
    assert await other.get_memory("greeting") == await memory.get_memory()
    assert kit.active_groups == ["web"]


@pytest.mark.parametrize(("ids", "name"), [(("s",), "s.json"), (("s", "alice"), "alice_s.json"), (("s", ""), "s.json")])
async def test_file_is_named_by_its_ids_and_holds_states_by_name(tmp_path, ids, name):
    await JSONSession(tmp_path).save_session_state(*ids, one=Counter(1), two=Counter([2]))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == [name]
    assert saved_in(tmp_path / name) == {"one": {"count": 1}, "two": {"count": [2]}}


async def test_a_file_that_another_program_wrote_is_loaded(tmp_path):
    (tmp_path / "s.json").write_text('{"one": {"count": 5, "more": 1}, "two": null}\n')
    counter = Counter()
    await JSONSession(tmp_path).load_session_state("s", one=counter)
    assert counter.count == 5


async def test_names_that_the_file_does_not_have_are_ignored(tmp_path):
    session, one, two = JSONSession(tmp_path), Counter(), Counter(2)
    await session.save_session_state("s", one=Counter(1))
    await session.load_session_state("s", one=one, two=two)
    assert (one.count, two.count) == (1, 2)


async def test_a_session_that_does_not_exist_is_fine_unless_it_must(tmp_path):
    session, counter = JSONSession(tmp_path / "none"), Counter(7)
    await session.load_session_state("s", counter=counter)
    with pytest.raises(ValueError, match=r"session 's' does not exist: '.*/none/u_s\.json' was not found"):
        await session.load_session_state("s", user_id="u", allow_not_exist=False, counter=counter)
    assert counter.count == 7
    assert [*tmp_path.iterdir()] == []


async def test_surrogates_survive(tmp_path):
    memory, other = InMemoryMemory(), InMemoryMemory()
    texts = ["half \ud83d", "two halves \ud83d\ude00", "a whole \U0001f600", "会话"]
    await memory.add([UserMsg("user", text) for text in texts])
    await JSONSession(tmp_path).save_session_state("s", memory=memory)
    await JSONSession(tmp_path).load_session_state("s", memory=other)
    assert [msg.content for msg in await other.get_memory()] == texts
    assert "会话" in (tmp_path / "s.json").read_text(errors="surrogatepass")


ODD = ["../x", "/etc/x", "..", ".", ".hidden", "a/b", "a\\b", "a\0b", "a:b", "\ud800", "x" * 300, "会" * 100, "a" * 64]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("as_user", [False, True])
async def test_odd_id_still_names_a_file_in_the_directory(tmp_path, odd, as_user):
    session, directory = JSONSession(tmp_path / "in"), tmp_path / "in"
    ids = ("s", odd) if as_user else (odd,)
    await session.save_session_state(*ids, counter=Counter(1))
    counter = Counter()
    await session.load_session_state(*ids, allow_not_exist=False, counter=counter)
    assert counter.count == 1
    assert [*tmp_path.iterdir()] == [directory]
    (path,) = directory.glob("*.json")
    name = f"{odd}_s" if as_user else odd
    hashed = f"{sha256(name.encode(errors='surrogatepass')).hexdigest()}.json"
    assert path.name == (f"{name}.json" if as_user and odd == "a" * 64 else hashed)


async def test_no_session_id_is_the_file_name_of_another_one(tmp_path):
    session, name = JSONSession(tmp_path), sha256(b"a/b").hexdigest()
    for each in (name, name.upper()):
        await session.save_session_state(each, counter=Counter(2))
    await session.save_session_state("a/b", counter=Counter(1))
    assert len([*tmp_path.glob("*.json")]) == 3


@pytest.mark.parametrize("ids", [("",), (None,), (7,), ("s", None), ("s", 7)])
async def test_invalid_id_is_refused(tmp_path, ids):
    session = JSONSession(tmp_path)
    for operation in (session.save_session_state, session.load_session_state):
        with pytest.raises(UsageError, match=r"id must be a str"):
            await operation(*ids, counter=Counter())
    assert [*tmp_path.iterdir()] == []


async def test_object_that_is_not_a_module_is_refused_by_name(tmp_path):
    session = JSONSession(tmp_path)
    for operation in (session.save_session_state, session.load_session_state):
        with pytest.raises(TypeError, match=r"usr_id=\.\.\. must be a StateModule.* not 'alice'"):
            await operation("s", usr_id="alice")


async def test_what_json_cannot_hold_is_refused_and_the_file_stays(tmp_path):
    session = JSONSession(tmp_path)
    counter = Counter(1)
    await session.save_session_state("s", counter=counter)
    counter.count = {"secret"}
    with pytest.raises(SessionUnserializable, match=r"Counter\.count"):
        await session.save_session_state("s", counter=counter)
    assert saved_in(tmp_path / "s.json") == {"counter": {"count": 1}}


async def test_modules_are_loaded_together_or_not_at_all(tmp_path):
    (tmp_path / "s.json").write_text('{"one": {"count": 5}, "agent": {"toolkit": {}, "name": "Bob"}}')
    one, agent = Counter(1), Pair()
    with pytest.raises(KeyError, match=r"agent\.toolkit\.count"):
        await JSONSession(tmp_path).load_session_state("s", one=one, agent=agent)
    assert (one.count, agent.name) == (1, "")


DAMAGES = {
    "empty": b"",
    "cut": b'{"one": {"count": "the content',
    "zeros": bytes(20),
    "no UTF-8": b'{"one": {"count": "the content \xff"}}',
    "no object": b'["the content"]',
    "too deep": b'{"one": ' + b"[" * 100_000,
    "no state": b'{"one": "the content"}',
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_is_refused_and_kept_and_not_quoted(tmp_path, damage):
    path, one, two = tmp_path / "s.json", Counter(1), Counter(2)
    path.write_bytes(DAMAGES[damage])
    with pytest.raises(SessionCorrupt, match=r"s\.json") as caught:
        await JSONSession(tmp_path).load_session_state("s", one=one, two=two)
    assert "the content" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
    assert (one.count, two.count) == (1, 2)
    assert path.read_bytes() == DAMAGES[damage]
    await JSONSession(tmp_path).save_session_state("s", one=one)


async def test_full_disk_at_any_operation_leaves_the_old_or_new_file(tmp_path, monkeypatch):
    await JSONSession(tmp_path).save_session_state("s", counter=Counter("old"))
    failed: list[str] = []
    for number in range(1, 100):
        with monkeypatch.context() as patch:
            done = fill_disk_at(number, patch)
            try:
                await JSONSession(tmp_path).save_session_state("s", counter=Counter("new"))
                break
            except SessionIOError as exc:
                text = str(exc)
        failed.append(done[number - 1])
        assert "could not save session 's'" in text
        assert "No space left" in text
        assert saved_in(tmp_path / "s.json")["counter"]["count"] in ("old", "new")
        assert not [*tmp_path.glob("*.tmp")]
    assert {"open", "write", "fsync", "replace"} <= set(failed)
    assert saved_in(tmp_path / "s.json") == {"counter": {"count": "new"}}


async def test_content_is_synced_before_its_name_and_then_save_returns(tmp_path, monkeypatch):
    session = JSONSession(tmp_path)
    await session.save_session_state("s", counter=Counter("old"))
    done = fill_disk_at(0, monkeypatch)
    await session.save_session_state("s", counter=Counter("new"))
    assert done[-5:] == ["write", "fsync", "replace", "open", "fsync"]


async def test_file_in_place_of_the_directory_is_named_in_the_error(tmp_path):
    session = JSONSession(tmp_path / "states")
    (tmp_path / "states").write_text("a file")
    with pytest.raises(ConfigError, match="it is a file"):
        JSONSession(tmp_path / "states")
    for operation in (session.save_session_state, session.load_session_state):
        with pytest.raises(SessionIOError, match=r"could not \w+ session 's' in '.*/states/s\.json': Not a directory"):
            await operation("s", counter=Counter())


async def test_files_are_for_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        await JSONSession(tmp_path / "in").save_session_state("s", counter=Counter())
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "in").stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "in").iterdir()} == {0o600}


async def test_symbolic_link_is_never_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "in" / "s.json"
    victim.write_text('{"counter": {"count": 9}}')
    path.parent.mkdir()
    path.symlink_to(victim)
    with pytest.raises(SessionIOError, match="symbolic link"):
        await JSONSession(path.parent).load_session_state("s", counter=Counter())
    await JSONSession(path.parent).save_session_state("s", counter=Counter(1))
    assert (path.is_symlink(), saved_in(victim)) == (False, {"counter": {"count": 9}})


async def test_saves_hold_the_state_at_their_call_and_keep_their_order(tmp_path):
    session, counter = JSONSession(tmp_path), Counter(0)
    async with anyio.create_task_group() as group:

        async def save(number: int) -> None:
            counter.count = number
            await session.save_session_state("s", counter=counter)

        for number in range(1, 21):
            group.start_soon(save, number)
        await anyio.wait_all_tasks_blocked()
        last, counter.count = counter.count, -1
    assert saved_in(tmp_path / "s.json") == {"counter": {"count": last}}
    assert session._operations._lines == {}


async def test_save_cancelled_before_it_begins_writes_nothing(tmp_path):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await JSONSession(tmp_path).save_session_state("s", counter=Counter())
    assert scope.cancelled_caught
    assert [*tmp_path.iterdir()] == []


async def test_load_error_names_the_session_its_file_and_the_place(tmp_path):
    (tmp_path / "s.json").write_text('{"memory": {"content": 3}}')
    with pytest.raises(SessionCorrupt, match="must be a list of messages") as caught:
        await JSONSession(tmp_path).load_session_state("s", memory=InMemoryMemory())
    notes = "\n".join(caught.value.__notes__)
    assert "raised when memory was to be loaded" in notes
    assert "session 's'" in notes
    assert str(tmp_path / "s.json") in notes


async def test_module_without_a_name_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(UsageError, match="modules are given by their names, as in agent=agent"):
        await JSONSession(tmp_path).save_session_state("s", Counter())  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 3])
def test_invalid_folder_is_refused_with_its_value(wrong):
    with pytest.raises(ConfigError, match=rf"save_dir=...\) must be the path of a folder, not {wrong}"):
        JSONSession(wrong)


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("-inf")]}], ids=repr)
async def test_non_finite_number_leaves_the_saved_file_as_it_is(tmp_path, value):
    session, counter = JSONSession(tmp_path), Counter(1)
    await session.save_session_state("s", counter=counter)
    counter.count = value
    with pytest.raises(SessionUnserializable, match=r"Counter\.count holds something that JSON cannot hold"):
        await session.save_session_state("s", counter=counter)
    await session.load_session_state("s", counter=(loaded := Counter()))
    assert loaded.count == 1


async def test_a_file_that_was_saved_with_such_a_number_still_loads(tmp_path):
    (tmp_path / "s.json").write_text('{"counter": {"count": Infinity}}')
    await JSONSession(tmp_path).load_session_state("s", counter=(counter := Counter()))
    assert counter.count == float("inf")


async def test_agent_with_unloadable_state_leaves_the_saved_file_alone(tmp_path):
    session, agent = JSONSession(tmp_path), Agent("a", model=ScriptedChatModel(["hi"]))
    await agent.observe("good")
    await session.save_session_state("s", agent=agent)
    agent.state.context[0].id = None
    with pytest.raises(SessionUnserializable, match=r"its context\[0\] holds"):
        await session.save_session_state("s", agent=agent)
    other = Agent("a", model=ScriptedChatModel(["hi"]))
    await session.load_session_state("s", agent=other)
    assert other.state.context[0].content == "good"


async def test_sessions_and_states_may_share_a_directory(tmp_path):
    store, session, counter = FileStateStore(tmp_path), JSONSession(tmp_path), Counter()
    await store.save(AgentState(session_id="s", summary="a summary"))
    await session.save_session_state("s", counter=Counter(1))
    await session.load_session_state("s", counter=counter)
    assert ((await store.load("s")).summary, counter.count) == ("a summary", 1)


async def test_custom_session_overrides_two_methods():
    for operation in (SessionBase().save_session_state, SessionBase().load_session_state):
        with pytest.raises(NotImplementedError):
            await operation("s")
    assert issubclass(JSONSession, SessionBase)
