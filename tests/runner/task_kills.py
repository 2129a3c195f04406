"""Background calls, and workers that are killed while these work: `python -m tests.runner.task_kills`."""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from agentrt.errors import SessionIOError
from tests.program_runner import open_program_runner
from tests.runner.kill_app import TOOLS
from tests.runner.kill_run import Report, Workers

WORKER = "tests.runner.tasks_app:runner"


def environment_of(folder: Path, url: str, *, idempotent: bool) -> dict[str, str]:
    """Return the environment of the workers, and set that of this process to the same."""
    (folder / "effects.log").touch()
    values = {"KILL_TEST_LOG": str(folder / "effects.log"), "KILL_TEST_IDEMPOTENT": "1" if idempotent else "0"}
    os.environ.update(values)
    return {**os.environ, "KILL_TEST_DATABASE": url}


async def run(
    workers: Workers, folder: Path, url: str, *, conversations: int, every: float, idempotent: bool
) -> Report:
    """Let three calls of each conversation go, and kill workers until all of them have come back."""
    from tests.runner.tasks_app import make_runner

    begun = time.monotonic()
    async with make_runner(url) as runner:
        for number in range(conversations):
            await runner.submit(f"s{number}", "Go", reply_id="r", labels={"owner": f"o{number % 3}"})
        try:
            async with anyio.create_task_group() as killing:

                async def kill() -> None:
                    while True:
                        await anyio.sleep(random.uniform(0, 2 * every))
                        await anyio.to_thread.run_sync(workers.kill_busy)

                killing.start_soon(kill)
                left = {f"s{number}" for number in range(conversations)}
                while left:
                    for session_id in sorted(left):
                        with suppress(SessionIOError):  # the server may be away
                            if await is_done(runner.store, session_id):
                                left.remove(session_id)
                    await anyio.sleep(0.2)
                killing.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(workers.stop)
        results, problems = await check(runner.store, conversations, folder / "effects.log", idempotent=idempotent)
    return Report(workers.kills, time.monotonic() - begun, conversations, results, problems)


async def is_done(store: Any, session_id: str) -> bool:
    state = await store.load(session_id)
    return state is not None and not state.tasks and state.reply_context is None and len(state.context) > len(TOOLS)


async def check(store: Any, conversations: int, log: Path, *, idempotent: bool) -> tuple[Counter[str], list[str]]:
    """Compare the wakes in the states with the lines that the tools wrote; returns the results, counted."""
    counts = Counter((line["what"], line["key"]) for line in map(json.loads, log.read_text().splitlines()))
    results: Counter[str] = Counter()
    problems: list[str] = []
    for number in range(conversations):
        state = await store.load(f"s{number}")
        wakes = [message for message in state.context if message.name == "task"]
        ids = [message.metadata["task_id"] for message in wakes]
        if len(set(ids)) != len(TOOLS) or len(ids) != len(TOOLS):
            problems.append(f"s{number} was woken by {ids}")
        replies = [message for message in state.context if message.role == "assistant"]
        if [reply.finished_reason for reply in replies] != ["completed"] * (1 + len(TOOLS)):
            problems.append(f"s{number} has the replies {replies}")
        for task_id in ids:
            task = await store.load(f"s{number}~{task_id}")
            [result] = task.context[0].get_content_blocks("tool_result")
            results[result.state] += 1
            key = f"s{number}~{task_id}/{task_id}/{result.id}"
            if result.state == "success" and not counts["done", key]:
                problems.append(f"{key} is called a success and was not done")
            if not idempotent and counts["begun", key] > 1:
                problems.append(f"{key} ran {counts['begun', key]} times")
            if idempotent and result.state != "success":
                problems.append(f"{key} is {result.state}, and it may run again")
    return results, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between kills")
    parser.add_argument("--idempotent", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, open_program_runner() as programs:
        folder = Path(name)
        url = str(folder / "agent.db")
        environment = environment_of(folder, url, idempotent=options.idempotent)
        workers = Workers(programs, folder, options.workers, environment, WORKER)
        arguments = {"conversations": options.conversations, "every": options.every, "idempotent": options.idempotent}
        report = anyio.run(lambda: run(workers, folder, url, **arguments))
        log = (folder / "workers.log").read_text()
    sys.stdout.write(f"{report.kills} kills of busy workers, {report.seconds:.1f} s, results {dict(report.results)}\n")
    sys.stdout.write("\n".join(report.problems or ["no problem"]) + "\n")
    if report.problems:
        sys.stdout.write(log[-5000:])
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
