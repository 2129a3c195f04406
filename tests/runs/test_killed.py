"""A killed process loses at most a second of its record, and nothing of its state."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrt.state import SQLiteStore

PROGRAM = Path(__file__).parent / "killed_recorder.py"
KILLS = 3


@pytest.mark.slow
async def test_a_kill_loses_a_second_of_the_record_and_no_state(tmp_path: Path):
    path = tmp_path / "agent.db"
    replies = 200  # a few tenths of a second
    for kill in range(KILLS):
        command = [sys.executable, str(PROGRAM), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROGRAM.parents[2]) as process:
            assert process.stdout is not None
            for _ in range(replies + 37 * kill):
                line = process.stdout.readline()
            process.kill()
            line = (process.stdout.read().split("\n")[:-1] or [line])[-1]
        messages, answered_at = map(int, line.split())
        async with SQLiteStore(path) as store:
            state = await store.load("s1")
            assert len(state.context) >= messages
            newest = await store.runs.load("s1")
            assert newest.lines[-1]["t"] > answered_at - 1_000_000_000
            found = await store.runs.verify("s1")
            # All but the newest are whole: the next process ends what its predecessor could not.
            assert found.ok or (found.reason, found.reply_id) == ("no end", newest.reply_id)
