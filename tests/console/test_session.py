"""A conversation in a file is there whole or not at all."""

import errno
import os
import sys

import anyio
import pytest

from agentrt import AgentState, UserMsg
from agentrt.console import session
from agentrt.console.session import SessionFile
from agentrt.errors import SessionConflict, SessionIOError, SessionUnserializable, StateError


async def test_a_saved_state_is_read_back(tmp_path):
    session = SessionFile(str(tmp_path / "talk.json"))
    state = AgentState(context=[UserMsg("user", "早")])
    assert session.read() is None
    await session.save(state)
    assert session.read() == state == await session.load(state.session_id)
    assert await session.load("another") is None


async def test_the_last_state_saved_is_kept_without_other_files(tmp_path):
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
        with pytest.raises(SessionIOError, match=r"talk\.json' cannot be saved: No space left"):
            await session.save(AgentState(summary="two"))
    assert session.read().summary == "one"
    assert os.listdir(tmp_path) == ["talk.json"]


async def test_a_symlink_is_followed_and_kept(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "talk.json")
    await SessionFile(str(tmp_path / "link.json")).save(AgentState(summary="one"))
    assert (tmp_path / "link.json").is_symlink()
    assert SessionFile(str(tmp_path / "talk.json")).read().summary == "one"


async def test_a_second_program_is_refused_and_overwrites_nothing(tmp_path):
    path = str(tmp_path / "talk.json")
    await SessionFile(path).save(AgentState(session_id="s", summary="one"))
    first, second = SessionFile(path), SessionFile(path)
    of_first, of_second = first.read(), second.read()
    of_first.summary = "two"
    await first.save(of_first)
    for state in (of_second, AgentState(summary="new")):
        with pytest.raises(SessionConflict, match=r"talk\.json' was saved by another program.*start again to continue"):
            await second.save(state)
    assert SessionFile(path).read() == of_first
    of_first.summary = "three"
    await first.save(of_first)
    assert second.read().summary == "three"
    await second.save(AgentState(summary="four"))


async def test_a_state_that_is_older_than_the_file_is_not_saved(tmp_path):
    session = SessionFile(str(tmp_path / "talk.json"))
    await session.save(AgentState(session_id="s"))
    older, newer = session.read(), session.read()
    newer.summary = "newer"
    await session.save(newer)
    await session.load("s")
    with pytest.raises(SessionConflict):
        await session.save(older)
    assert session.read() == newer


async def test_a_program_that_found_no_file_overwrites_none(tmp_path):
    path = str(tmp_path / "talk.json")
    first, second = SessionFile(path), SessionFile(path)
    assert first.read() is second.read() is None
    await first.save(AgentState(summary="one"))
    with pytest.raises(SessionConflict):
        await second.save(AgentState(summary="two"))
    assert SessionFile(path).read().summary == "one"


async def test_a_file_that_was_removed_is_written_anew(tmp_path):
    session = SessionFile(str(tmp_path / "talk.json"))
    state = AgentState()
    await session.save(state)
    (tmp_path / "talk.json").unlink()
    await session.save(state)
    assert session.read() == state


async def test_a_file_of_a_version_without_revisions_is_continued(tmp_path):
    path = tmp_path / "talk.json"
    path.write_text(AgentState(summary="old").model_dump_json().replace(',"revision":0', ""), encoding="utf-8")
    session = SessionFile(str(path))
    state = session.read()
    state.summary = "new"
    await session.save(state)
    assert session.read().summary == "new"
    assert state.revision


async def test_a_state_that_would_not_load_is_not_saved(tmp_path):
    session = SessionFile(str(tmp_path / "talk.json"))
    await session.save(AgentState(summary="good"))
    with pytest.raises(SessionUnserializable, match="its summary"):
        await session.save(AgentState(summary=None))
    assert session.read().summary == "good"


@pytest.mark.skipif(sys.platform == "win32", reason="a folder cannot be locked there")
def test_of_many_programs_at_once_one_saves_each_revision(tmp_path):
    path = str(tmp_path / "talk.json")
    anyio.run(SessionFile(path).save, AgentState(session_id="s"))
    sessions = [SessionFile(path) for _ in range(8)]
    states = [session.read() for session in sessions]

    async def save_all():
        outcomes = []

        async def save(session, state):
            try:
                await session.save(state)
            except SessionConflict:
                return
            outcomes.append("saved")

        async with anyio.create_task_group() as group:
            for session, state in zip(sessions, states, strict=True):
                group.start_soon(save, session, state)
        return outcomes

    assert anyio.run(save_all) == ["saved"]


def test_a_folder_that_stays_locked_ends_the_wait(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(session, "_LOCK_SECONDS", 0.05)
    path = tmp_path / "talk.json"
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(SessionIOError, match=r"talk\.json' cannot be saved: another process has held its lock"):
            anyio.run(SessionFile(str(path)).save, AgentState(session_id="s"))
    finally:
        os.close(folder)
    assert not path.exists()


def test_a_folder_that_cannot_be_locked_is_saved_to(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = str(tmp_path / "talk.json")
    anyio.run(SessionFile(path).save, AgentState(session_id="s"))
    assert SessionFile(path).read().session_id == "s"


@pytest.mark.parametrize("content", [b"", b"no json", b"\xff\xfe", b"[]", b'{"version": 2}', b'{"colour": "red"}'])
def test_a_file_that_is_not_a_session_is_refused_and_kept(content, tmp_path):
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(
        StateError, match=r"talk\.json' holds no conversation that this version can read \(.*left as it is"
    ):
        SessionFile(str(path)).read()
    assert path.read_bytes() == content


def test_a_folder_is_not_a_session_file(tmp_path):
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        SessionFile(str(tmp_path)).read()


def test_a_file_in_no_folder_is_refused_at_once(tmp_path):
    with pytest.raises(StateError, match=r"the folder .*missing.* does not exist"):
        SessionFile(str(tmp_path / "missing" / "talk.json"))
