"""Workers that are killed, frozen and cut off while they are busy: `python -m tests.runner.dbos.machines_run`."""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import psycopg

from agentrt.errors import SessionIOError
from agentrt.runner import DBOSRunner
from agentrt.state import PostgresStore
from tests.postgres_server import PostgresServer
from tests.program_runner import ProgramRunner, RunningProgram, open_program_runner
from tests.runner.kill_run import Report, Workers, check_effects, follow

Fault = Literal["kill", "freeze", "cut", "restart"]
LEASE_SECONDS = 2.0


class Machines(Workers):
    """Workers over one database, and what is done to them."""

    def __init__(
        self,
        programs: ProgramRunner,
        server: PostgresServer,
        folder: Path,
        count: int,
        environment: dict[str, str],
        frozen_seconds: float,
        runner: str = "tests.runner.dbos.machine:runner",
    ) -> None:
        self._server = server
        self._frozen_seconds = frozen_seconds
        self._started = 0
        super().__init__(programs, folder, count, environment, runner)

    def start(self) -> RunningProgram:
        # Every second one is of the new version, where there are two.
        is_new = self.environment["KILL_TEST_VERSIONS"] == "2" and self._started % 2 == 1
        self._started += 1
        self.environment["KILL_TEST_IS_NEW"] = "1" if is_new else ""
        return super().start()

    def names_of_busy(self) -> Iterable[str]:
        rows = self._ask("SELECT DISTINCT executor_id FROM agentrt_runner.workflow_status WHERE status = 'PENDING'")
        return [name for (name,) in rows]

    def do(self, fault: Fault) -> bool:
        """Do it to a busy worker, or to the database under it; returns whether there was one."""
        return self.disturb_busy(getattr(self, fault))

    def freeze(self, process: RunningProgram) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._frozen_seconds)
        process.send_signal(signal.SIGCONT)

    def cut(self, _: RunningProgram) -> None:
        self._ask("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1")

    def restart(self, _: RunningProgram) -> None:
        self._server.stop()
        time.sleep(1)
        self._server.start()

    def _ask(self, statement: str) -> list[Any]:
        with suppress(psycopg.Error), psycopg.connect(self._server.url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()
        return []


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
    programs: ProgramRunner,
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
    environment = {**os.environ, "KILL_TEST_LOG": str(log), "KILL_TEST_DATABASE": server.url}
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
        machines = Machines(programs, server, folder, workers, environment, frozen_seconds)

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
    return Report(machines.kills, time.monotonic() - begun, len(finished), results, problems)


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
        with tempfile.TemporaryDirectory() as name, open_program_runner("dbos") as programs:
            folder = Path(name)

            async def run_all() -> Report:
                return await run(
                    programs,
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
