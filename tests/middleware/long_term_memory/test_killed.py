"""Processes that are killed with SIGKILL after each of their saves, and others that continue."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from agentrt.rag import SQLiteTextStore

CHILD = Path(__file__).with_name("killed_child.py")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


def run(folder: Path, saves: int, backend: str) -> int:
    command = [sys.executable, "-W", "error", str(CHILD), str(folder), str(saves), backend]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr[-2000:]
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_no_finished_exchange_is_lost_or_recorded_twice(tmp_path: Path, backend: str) -> None:
    kills = 0
    for saves in range(1, 12):
        folder = tmp_path / str(saves)
        folder.mkdir()
        while run(folder, saves, backend) != 0:  # each process is killed at the same place, and gets further
            kills += 1
            if saves == 1:  # a process that is killed at each of its saves may get no further
                saves = 2
        texts = anyio.run(SQLiteTextStore(folder / "memory.db").list_texts, "memory/ann")
        exchanges = [f"user: Question {number}?\nassistant: Yes." for number in range(3)]
        assert sorted(text.text for text in texts) == exchanges
    assert kills > 10
