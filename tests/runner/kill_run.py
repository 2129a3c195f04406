"""Conversations of three tools, and workers that are killed while they are busy: `python -m tests.runner.kill_run`."""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from agentrt import Msg
from agentrt.event import ReplyEndEvent
from agentrt.runner import Runner
from agentrt.state import SQLiteStore
from tests.program_runner import ProgramRunner, RunningProgram, open_program_runner

COMMAND = "import sys\nfrom agentrt.console.cli import main\nsys.exit(main())"


class Report(NamedTuple):
    """What came of it; `problems` is empty where every promise was kept."""

    kills: int
    seconds: float
    finished: int
    results: Counter[str]
    problems: list[str]


class Workers:
    """Workers of one database, of which one works and the others wait; a killed one is replaced at once."""

    def __init__(
        self,
        programs: ProgramRunner,
        folder: Path,
        count: int,
        environment: dict[str, str],
        runner: str = "tests.runner.kill_worker:runner",
    ) -> None:
        self.kills = 0
        self.environment = environment
        self._programs = programs
        self._runner = runner
        self._database = folder / "agent.db"
        self._log = folder / "effects.log"
        self._errors = folder / "workers.log"
        self._done_before = -1
        self._processes = [self.start() for _ in range(count)]

    def start(self) -> RunningProgram:
        return self._programs.start(COMMAND, "worker", self._runner, errors=self._errors, environment=self.environment)

    def find_busy(self) -> list[RunningProgram]:
        """Return the workers that run replies at this moment, and have run a tool.

        Empty until a call has ended since the last kill: else a slow machine would never come to an end.
        """
        if count_done(self._log) == self._done_before:
            return []
        pids = {int(name.split(":")[1]) for name in self.names_of_busy()}
        pids &= {json.loads(line)["pid"] for line in self._log.read_text().splitlines()}
        # A name may be that of a worker that was killed, until the next one has queued again what it left.
        return [process for process in self._processes if process.pid in pids]

    def names_of_busy(self) -> Iterable[str]:
        with closing(sqlite3.connect(self._database, timeout=5)) as connection:
            rows = connection.execute("SELECT DISTINCT worker FROM runner_queue WHERE status = 'running'").fetchall()
        return [name for (name,) in rows]

    def kill_busy(self) -> bool:
        """Kill a busy worker, if there is one, and start another; returns whether there was one."""
        return self.disturb_busy(self.kill)

    def disturb_busy(self, disturb: Callable[[RunningProgram], None]) -> bool:
        busy = self.find_busy()
        if busy:
            self._done_before = count_done(self._log)
            self.kills += 1
            disturb(random.choice(busy))
        return bool(busy)

    def kill(self, process: RunningProgram) -> None:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        self._processes.remove(process)
        self._processes.append(self.start())

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            assert process.wait() in (0, -signal.SIGTERM)  # the last one may not have been ready for a signal


def count_done(log: Path) -> int:
    """Return how many calls have come to their end, each counted once."""
    lines = map(json.loads, log.read_text().splitlines())
    return len({line["key"] for line in lines if line["what"] == "done"})


async def run(
    programs: ProgramRunner,
    folder: Path,
    *,
    conversations: int,
    replies: int,
    workers: int,
    every: float,
    idempotent: bool,
) -> Report:
    log = folder / "effects.log"
    log.touch()
    environment = {**os.environ, "KILL_TEST_LOG": str(log), "KILL_TEST_DATABASE": str(folder / "agent.db")}
    environment["KILL_TEST_IDEMPOTENT"] = "1" if idempotent else "0"
    os.environ["KILL_TEST_LOG"] = str(log)
    from tests.runner.kill_app import agent

    begun = time.monotonic()
    problems: list[str] = []
    finished: list[str] = []
    store = SQLiteStore(folder / "agent.db")
    async with Runner(agent, store) as runner:
        handles = [
            await runner.submit(f"s{number}", f"Go {turn}", reply_id=f"r{turn}")
            for turn in range(replies)
            for number in range(conversations)
        ]
        processes = Workers(programs, folder, workers, environment)
        try:
            async with anyio.create_task_group() as killing:

                async def kill() -> None:
                    while True:
                        while not await anyio.to_thread.run_sync(processes.find_busy):  # noqa: ASYNC110
                            await anyio.sleep(0.05)  # no event tells of it
                        # From there on by chance, so that the kills fall into every part of the work.
                        await anyio.sleep(random.uniform(0, 2 * every))
                        await anyio.to_thread.run_sync(processes.kill_busy)

                killing.start_soon(kill)
                async with anyio.create_task_group() as following:
                    for handle in handles:
                        following.start_soon(follow, handle, store, problems, finished)
                killing.cancel_scope.cancel()
        finally:
            await anyio.to_thread.run_sync(processes.stop)
        results = await check_effects(store, conversations, log, problems, idempotent=idempotent)
    return Report(processes.kills, time.monotonic() - begun, len(finished), results, problems)


async def follow(handle: Any, store: SQLiteStore, problems: list[str], finished: list[str]) -> None:
    """Follow a reply to its end, and compare what its events build with what is saved."""
    name = f"{handle.session_id}/{handle.reply_id}"
    message, numbers, ends = Msg("assistant", [], "assistant"), [0], 0
    async for event in handle.events():
        message.append_event(event)
        numbers.append(event.seq)
        ends += isinstance(event, ReplyEndEvent)
    state = await store.load(handle.session_id)
    kept = next((item for item in state.context if item.id == handle.reply_id), None)
    if ends != 1 or numbers != sorted(set(numbers)):
        problems.append(f"{name}: {ends} ends, numbers {numbers}")
    # A reply in which nothing was said leaves no message.
    if message.content != ([] if kept is None else kept.content):
        problems.append(f"{name}: the follower has another message than the state: {message}, {kept}")
    finished.append(name)


async def check_effects(
    store: SQLiteStore, conversations: int, log: Path, problems: list[str], *, idempotent: bool
) -> Counter[str]:
    """Compare the results in the states with the lines that the tools wrote; returns the results, counted."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    counts = Counter((line["what"], line["key"]) for line in lines)
    results: Counter[str] = Counter()
    for number in range(conversations):
        state = await store.load(f"s{number}")
        assert state is not None
        for message in state.context:
            for result in message.get_content_blocks("tool_result"):
                results[result.state] += 1
                key = f"s{number}/{message.id}/{result.id}"
                if result.state == "success" and not counts["done", key]:
                    problems.append(f"{key} is called a success and was not done")
                if not idempotent and counts["begun", key] > 1:
                    problems.append(f"{key} ran {counts['begun', key]} times")
                if idempotent and result.state != "success":
                    problems.append(f"{key} is {result.state}, and it may run again")
            if message.finished_reason not in (None, "completed"):
                problems.append(f"s{number}/{message.id} ended with {message.finished_reason}: {message.error}")
        order = [line["key"].split("/")[1] for line in lines if line["key"].startswith(f"s{number}/")]
        if order != sorted(order):
            problems.append(f"s{number}: its replies overlap: {order}")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--replies", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills")
    parser.add_argument("--idempotent", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_program_runner() as programs:
        report = anyio.run(
            lambda: run(
                programs,
                Path(folder),
                conversations=options.conversations,
                replies=options.replies,
                workers=options.workers,
                every=options.every,
                idempotent=options.idempotent,
            )
        )
        sys.stdout.write(
            f"{report.kills} kills of busy workers, {report.seconds:.1f} s, {report.finished} replies finished\n"
        )
        sys.stdout.write(f"results: {dict(report.results)}\n")
        sys.stdout.write("\n".join(report.problems or ["no problem"]) + "\n")
        if report.problems:
            sys.stdout.write((Path(folder) / "workers.log").read_text()[-5000:])
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
