"""Processes that are killed with SIGKILL after each of their saves, and others that continue."""

import signal
import sys
from pathlib import Path

import anyio
import pytest

from agentrt.rag import SQLiteTextStore
from tests.program_runner import ProgramRunner

CHILD = Path(__file__).with_name("killed_child.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


def run(program_runner: ProgramRunner, folder: Path, saves: int, backend: str) -> int:
    process = program_runner.run(CHILD, str(folder), str(saves), backend)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr[-2000:]
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_no_finished_exchange_is_lost_or_recorded_twice(
    tmp_path: Path, backend: str, program_runner: ProgramRunner
) -> None:
    kills = 0
    for saves in range(1, 12):
        folder = tmp_path / str(saves)
        folder.mkdir()
        # Each process is killed at the same place, and gets further.
        while run(program_runner, folder, saves, backend) != 0:
            kills += 1
            if saves == 1:  # a process that is killed at each of its saves may get no further
                saves = 2
        texts = anyio.run(SQLiteTextStore(folder / "memory.db").list_texts, "memory/ann")
        exchanges = [f"user: Question {number}?\nassistant: Yes." for number in range(3)]
        assert sorted(text.text for text in texts) == exchanges
    assert kills > 10
