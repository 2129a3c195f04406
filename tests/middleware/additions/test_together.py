"""A plan, a memory and knowledge at work together: what other processes find, and what their end may cost."""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentrt import Msg
from agentrt.event import CustomEvent
from agentrt.rag import Document
from tests.middleware.additions.assistant import QUESTIONS, blocks_of, build, knowledge_in, memory_in, resume
from tests.middleware.plan.helpers import call, create, start
from tests.program_runner import ProgramRunner

ASSISTANT = Path(__file__).with_name("assistant.py")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(program_runner: ProgramRunner) -> Run:
    """Run the assistant in a process of its own, with these arguments."""

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        process = program_runner.run(ASSISTANT, *map(str, arguments))
        assert process.returncode in (0, -signal.SIGKILL), process.stderr[-2000:]
        return process

    return run


async def exchanges_in(folder: Path) -> list[str]:
    return sorted(text.text for text in await memory_in(folder).store.list_texts("memory/ann"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("other_process", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_plan_memory_and_citations_outlive_a_process(
    tmp_path: Path, anyio_backend_name: str, other_process: bool, run: Run
) -> None:
    knowledge, memory = knowledge_in(tmp_path), memory_in(tmp_path)
    await knowledge.add(Document("office", "The office opens at nine."))
    await knowledge.add(Document("coast", "The coast is long."))
    await memory.record([Msg("user", "I pay for the coast in euros.", "user")], owner="ann", key="earlier")
    rounds = ["Nine [1].", [create("a", "b")], [start(0)], [call("pay", amount=3)]]
    agent, _ = await build(tmp_path, rounds)
    await agent.reply("When does the office open?")
    await agent.reply("Pay for the coast, see [2].")
    assert agent.waiting() is not None
    before = blocks_of(agent.model.calls[-1].messages)  # type: ignore[attr-defined]
    assert set(before) == {"knowledge", "long_term_memory", "plan"}
    assert "in euros" in before["long_term_memory"]
    assert '<passage number="2" document="coast">' in before["knowledge"]
    # What would be found now is something else.
    await knowledge.add(Document("more", "The coast, the coast, pay for the coast!"))
    await memory.record([Msg("user", "I pay for the coast in yen.", "user")], owner="ann", key="meanwhile")
    if other_process:
        after = json.loads(run("resume", tmp_path, anyio_backend_name).stdout)
    else:
        after = await resume(tmp_path)
    assert after["added"] == before
    assert [(place["number"], place["document"]) for place in after["citations"]] == [(2, "coast"), (1, "office")]
    await (await build(tmp_path, ["Bye."]))[0].reply("Bye.")
    assert [text.count("Pay for the coast, see [2].") for text in await exchanges_in(tmp_path)].count(1) == 1


async def test_a_reply_goes_on_where_every_store_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("memory.db", "knowledge.db"):
        (tmp_path / name).write_text("not a database " * 100)
    agent, _ = await build(tmp_path, [[call("search_knowledge", query="tea")], "Hello."])
    with caplog.at_level(logging.WARNING, "agentrt"):
        async with agent.reply_stream("Tea?") as stream:
            events = [event async for event in stream]
    failed = [event.name for event in events if isinstance(event, CustomEvent)]
    assert failed == ["memory_failed", "knowledge_failed", "memory_failed"]  # to retrieve, to search, to record
    assert len(caplog.records) == 4  # with the search of the model
    assert agent.state.context[-1].get_text_content() == "Hello."
    assert (tmp_path / "memory.db").read_text() == "not a database " * 100


@pytest.mark.parametrize("text", ["\0", '"tea" AND (', "tea NEAR/2 x*", "\ud800", "?!", "tea " * 25_000])
async def test_no_words_of_a_user_are_an_error(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await knowledge_in(tmp_path).add(Document("tea", "Tea is hot."))
    agent, _ = await build(tmp_path, ["Yes."])
    with caplog.at_level(logging.WARNING, "agentrt"):
        assert (await agent.reply(text)).get_text_content() == "Yes."
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_no_save_that_is_the_last_costs_a_text(tmp_path: Path, run: Run) -> None:
    pages = {"office.md": "The office opens at nine.\n\n" * 200, "coast.md": "# Coast\n\nThe coast is long.\n" * 200}
    chunks: list[tuple[str, str]] | None = None
    for kill_at in range(100):
        folder, backend = tmp_path / str(kill_at), ("asyncio", "trio")[kill_at % 2]
        (folder / "docs").mkdir(parents=True)
        for name, text in pages.items():
            (folder / "docs" / name).write_text(text)
        was_killed = run("work", folder, backend, kill_at).returncode != 0
        assert run("work", folder, backend, 0).returncode == 0
        assert anyio.run(exchanges_in, folder) == sorted(f"user: {text}\nassistant: See [1]." for text in QUESTIONS)
        texts = anyio.run(knowledge_in(folder).store.list_texts, "knowledge/handbook")
        chunks = chunks or sorted((text.id, text.text) for text in texts)
        assert sorted((text.id, text.text) for text in texts) == chunks
        assert {text.source for text in texts} == {"docs/office.md", "docs/coast.md"}
        if kill_at and not was_killed:  # it had no save so late
            break
    assert 10 < kill_at < 99
