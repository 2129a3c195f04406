"""What was changed in a record is found at its line."""

from dataclasses import replace
from typing import Any

import pytest

from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.runs.conftest import call, find, make_agent

KEY = b"a key of sixteen bytes"


async def record(store: InMemoryStateStore, **options: Any) -> list[bytes]:
    """Record two runs of one session, and return the lines of the first as they are kept."""
    agent = make_agent(store, script=["one", "two"], **options).with_state(AgentState(session_id="s1"))
    for reply_id in ("r1", "r2"):
        await agent.reply("Go", reply_id=reply_id)
    await store.runs.flush()
    return store.runs._rows._lines["s1", "r1"]


def change(lines: list[bytes]) -> None:
    lines[4] = lines[4].replace(b"TEXT", b"FEXT") if b"TEXT" in lines[4] else lines[4].replace(b'"t":', b'"t":1')


def remove(lines: list[bytes]) -> None:
    del lines[4]


def swap(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


def cut(lines: list[bytes]) -> None:
    del lines[-1:]


@pytest.mark.parametrize(("tamper", "line"), [(change, 5), (remove, 5), (swap, 5), (cut, None)])
async def test_tampering_is_found_at_its_line(store: InMemoryStateStore, tamper: Any, line: int | None):
    lines = await record(store)
    assert (await store.runs.verify("s1")).ok
    count = len(lines)
    tamper(lines)
    found = await store.runs.verify("s1")
    assert (found.ok, found.reply_id, found.first_wrong) == (False, "r1", line or count)
    assert (await store.runs.verify("s1", "r2")).ok


async def test_an_end_that_is_cut_with_its_row_lacks_its_end(store: InMemoryStateStore):
    lines = await record(store)
    row = store.runs._rows._rows["s1", "r1"]
    del lines[-1]
    digest = lines[-1][-66:-2].decode()
    store.runs._rows._rows["s1", "r1"] = replace(row, lines=row.lines - 1, hash=digest)
    found = await store.runs.verify("s1", "r1")
    assert (found.ok, found.reason, found.first_wrong) == (False, "no end", None)


async def test_a_run_that_was_taken_out_is_missing(store: InMemoryStateStore):
    await record(store)
    del store.runs._rows._rows["s1", "r1"]
    found = await store.runs.verify("s1")
    assert (found.ok, found.reply_id, found.reason) == (False, "r2", "the run 'r1' before it is missing")


async def test_a_signature_finds_those_who_compute_the_hashes_anew(store: InMemoryStateStore):
    await record(store, sign=KEY)
    found = await store.runs.verify("s1", key=KEY)
    assert (found.ok, found.is_signed) == (True, True)
    other = InMemoryStateStore()
    async with other:
        lines = await record(other)  # as somebody without a key would write it
        assert (await other.runs.verify("s1")).ok
        found = await other.runs.verify("s1", key=KEY)
        assert (found.ok, found.first_wrong, found.is_signed) == (False, len(lines), False)


async def test_a_run_that_waited_and_is_deleted_keeps_the_chain_whole(open_sqlite: Any):
    """The run after it began while it waited, and so names a line in the middle of it."""
    store = open_sqlite()
    waiting = make_agent(store, tools=[FunctionTool(find, ask=True)]).with_state(AgentState(session_id="s1"))
    await waiting.reply("Find it", reply_id="r1")
    newer = make_agent(store, script=["Hi"]).with_state(AgentState(session_id="s1"))
    newer.state_store = None
    await newer.reply("Hello", reply_id="r2")
    await waiting.reply(UserConfirmResultEvent("r1", [ConfirmResult(True, call("c1"))]))
    assert (await store.runs.verify("s1")).ok
    assert await store.runs.delete("s1", "r1") == 1
    assert (await store.runs.verify("s1")).ok
