"""A conversation in a file is there whole or not at all."""

import os

import pytest

from agentrt import AgentState, UserMsg
from agentrt.console.session import SessionFile
from agentrt.errors import StateError


async def test_what_is_saved_is_read_again(tmp_path):
    session = SessionFile(str(tmp_path / "talk.json"))
    state = AgentState(context=[UserMsg("user", "早")])
    assert session.read() is None
    await session.save(state)
    assert session.read() == state == await session.load(state.session_id)
    assert await session.load("another") is None


async def test_the_last_one_saved_is_kept_and_nothing_else_is_left(tmp_path):
    session = SessionFile(str(tmp_path / "talk.json"))
    for text in ("one", "two"):
        await session.save(AgentState(summary=text))
    assert session.read().summary == "two"
    assert os.listdir(tmp_path) == ["talk.json"]


async def test_a_save_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    session = SessionFile(str(tmp_path / "talk.json"))
    await session.save(AgentState(summary="one"))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            await session.save(AgentState(summary="two"))
    assert session.read().summary == "one"
    assert os.listdir(tmp_path) == ["talk.json"]


async def test_a_link_is_followed_and_stays_one(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "talk.json")
    await SessionFile(str(tmp_path / "link.json")).save(AgentState(summary="one"))
    assert (tmp_path / "link.json").is_symlink()
    assert SessionFile(str(tmp_path / "talk.json")).read().summary == "one"


@pytest.mark.parametrize("content", [b"", b"no json", b"\xff\xfe", b"[]", b'{"version": 2}', b'{"colour": "red"}'])
def test_a_file_that_holds_something_else_is_refused_and_left_alone(content, tmp_path):
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(
        StateError, match=r"talk\.json' holds no conversation that this version reads \(.*left as it is"
    ):
        SessionFile(str(path)).read()
    assert path.read_bytes() == content


def test_a_folder_is_no_session_file(tmp_path):
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        SessionFile(str(tmp_path)).read()


def test_a_file_in_no_folder_is_refused_at_once(tmp_path):
    with pytest.raises(StateError, match=r"there is no folder .*missing"):
        SessionFile(str(tmp_path / "missing" / "talk.json"))
