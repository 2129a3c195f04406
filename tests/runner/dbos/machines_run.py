"""Workers that are killed, frozen and cut off while they are busy: `python -m tests.runner.dbos.machines_run`."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import psycopg

from agentrt.errors import SessionIOError
from agentrt.runner import DBOSRunner
from agentrt.state import PostgresStore
from tests.postgres_server import PostgresServer
from tests.runner.kill_run import ROOT, Report, check_effects, count_done, follow

Fault = Literal["kill", "freeze", "cut", "restart"]
LEASE_SECONDS = 2.0


class Machines:
    """Workers over one database, and what is done to them."""

    def __init__(
        self,
        server: PostgresServer,
        folder: Path,
        count: int,
        environment: dict[str, str],
        frozen_seconds: float,
        runner: str = "tests.runner.dbos.machine:runner",
    ) -> None:
        self._runner = runner
        self._server = server
        self._errors = (folder / "workers.log").open("w")
        self._log = folder / "effects.log"
        self._environment = environment
        self._frozen_seconds = frozen_seconds
        self._started = 0
        self._done_before = -1
        self._processes = [self._start() for _ in range(count)]
        self.hits = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "agentrt", "worker", self._runner]
        # Every second one is of the new version, where there are two.
        version = self._environment["KILL_TEST_VERSIONS"] == "2" and self._started % 2 == 1
        self._started += 1
        environment = {**self._environment, "KILL_TEST_IS_NEW": "1" if version else ""}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=self._errors)

    def find_busy(self) -> "list[subprocess.Popen[bytes]]":
        """Return the workers that run replies at this moment, and have run a tool.

        Empty until a call has ended since the last fault: else a slow machine would never come to an end.
        """
        if count_done(self._log) == self._done_before:
            return []
        rows = self._ask("SELECT DISTINCT executor_id FROM agentrt_runner.workflow_status WHERE status = 'PENDING'")
        pids = {int(name.split(":")[1]) for (name,) in rows}
        pids &= {json.loads(line)["pid"] for line in self._log.read_text().splitlines()}
        return [process for process in self._processes if process.pid in pids and process.poll() is None]

    def do(self, fault: Fault) -> bool:
        """Do it to a busy worker, or to the database under it; returns whether there was one."""
        busy = self.find_busy()
        if not busy:
            return False
        process = random.choice(busy)
        self._done_before = count_done(self._log)
        self.hits += 1
        if fault == "kill":
            process.send_signal(signal.SIGKILL)
            process.wait()
            self._processes.remove(process)
            self._processes.append(self._start())
        elif fault == "freeze":
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._frozen_seconds)
            process.send_signal(signal.SIGCONT)
        elif fault == "cut":
            self._ask("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1")
        else:
            self._server.stop()
            time.sleep(1)
            self._server.start()
        return True

    def _ask(self, statement: str) -> list[Any]:
        with suppress(psycopg.Error), psycopg.connect(self._server.url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()
        return []

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes:
            process.wait()
        self._errors.close()


class PatientStore:
    """Loads states also while the server is started again."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def load(self, session_id: str) -> Any:
        with anyio.fail_after(120):
            while True:
                with suppress(SessionIOError):
                    return await self._store.load(session_id)
                await anyio.sleep(0.2)


async def run(
    server: PostgresServer,
    folder: Path,
    *,
    faults: dict[Fault, float],
    conversations: int,
    workers: int = 3,
    idempotent: bool = False,
    lease_seconds: float = LEASE_SECONDS,
    frozen_seconds: float = LEASE_SECONDS + 4,
    versions: int = 1,
) -> Report:
    """Run the conversations, while each fault comes every so many seconds, by chance."""
    log = folder / "effects.log"
    log.touch()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware")])
    environment = {**os.environ, "PYTHONPATH": paths, "KILL_TEST_LOG": str(log), "KILL_TEST_DATABASE": server.url}
    environment["KILL_TEST_IDEMPOTENT"] = "1" if idempotent else "0"
    environment["KILL_TEST_LEASE_SECONDS"] = str(lease_seconds)
    environment["KILL_TEST_VERSIONS"] = str(versions)
    environment.setdefault("KILL_TEST_TOOL_SECONDS", "0.3")
    os.environ["KILL_TEST_LOG"] = str(log)
    os.environ["KILL_TEST_IDEMPOTENT"] = environment["KILL_TEST_IDEMPOTENT"]
    from tests.runner.kill_app import agent

    begun = time.monotonic()
    problems: list[str] = []
    finished: list[str] = []
    store: Any = PostgresStore(server.url)
    async with DBOSRunner(agent, store, server.url) as runner:
        handles = [await runner.submit(f"s{number}", "Go", reply_id="r0") for number in range(conversations)]
        patient: Any = PatientStore(store)
        machines = Machines(server, folder, workers, environment, frozen_seconds)

        async def disturb(fault: Fault, every: float) -> None:
            while True:
                # The first one at once, since a fast machine is done before a second one.
                while not await anyio.to_thread.run_sync(machines.do, fault):  # noqa: ASYNC110
                    await anyio.sleep(0.05)  # no event tells of a busy worker
                await anyio.sleep(random.uniform(0.5 * every, 1.5 * every))

        try:
            async with anyio.create_task_group() as disturbing:
                for fault, every in faults.items():
                    disturbing.start_soon(disturb, fault, every)
                async with anyio.create_task_group() as following:
                    for handle in handles:
                        following.start_soon(follow, handle, patient, problems, finished)
                disturbing.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(machines.stop)
        results = await check_effects(patient, conversations, log, problems, idempotent=idempotent)
    return Report(machines.hits, time.monotonic() - begun, len(finished), results, problems)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--fault", action="append", metavar="NAME=SECONDS", help="kill, freeze, cut or restart")
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--lease", type=float, default=LEASE_SECONDS, help="seconds without a sign of life")
    parser.add_argument("--frozen", type=float, default=LEASE_SECONDS + 4, help="seconds for which a worker is frozen")
    parser.add_argument("--versions", type=int, default=1, choices=[1, 2])
    options = parser.parse_args()
    faults: Any = {name: float(seconds) for name, seconds in (item.split("=") for item in options.fault or ["kill=2"])}
    server = PostgresServer(connections=200)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)

            async def run_all() -> Report:
                return await run(
                    server,
                    folder,
                    faults=faults,
                    conversations=options.conversations,
                    workers=options.workers,
                    idempotent=options.idempotent,
                    lease_seconds=options.lease,
                    frozen_seconds=options.frozen,
                    versions=options.versions,
                )

            report = anyio.run(run_all)
            log = (folder / "workers.log").read_text()
    finally:
        server.close()
    sys.stdout.write(f"{report.kills} hits of busy workers, {report.seconds:.1f} s, {report.finished} finished\n")
    results = {str(state): count for state, count in report.results.items()}
    sys.stdout.write(f"results: {results}; {log.count('taking over')} taken over, {log.count('lost to')} lost\n")
    sys.stdout.write("\n".join(report.problems or ["no problem"]) + "\n")
    if report.problems:
        sys.stdout.write(log[-5000:])
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
