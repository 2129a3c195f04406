"""DBOS in this process: it takes requests from the queue and calls the worker, and nobody hears anything of it."""

import asyncio
import logging
from concurrent.futures import Future
from typing import Any, Protocol

from agentrt._runtime.database.operations import DatabaseError
from agentrt._runtime.options import import_extra
from agentrt.errors import UsageError
from agentrt.runner.dbos.database import RunnerDatabase
from agentrt.runner.dbos.queue import WORKFLOW

_DBOS_APPLICATION = "agentrt"
_DBOS_POLL_SECONDS = 0.1
_POOL_SIZE = 3  # a claim, an outcome and a look at the queue are short


class TakesRequests(Protocol):
    """Called in DBOS's thread for each request: must not block, and sets the future's result at the end."""

    def __call__(self, workflow: str, outcome: "Future[dict[str, Any]]") -> None: ...


class DBOSEngine:
    """DBOS while this process works. It is one per process, since DBOS is."""

    _take: TakesRequests | None = None
    _connections: Any = None

    @classmethod
    def launch(
        cls,
        database: RunnerDatabase,
        executor: str,
        version: str,
        queue: str,
        max_concurrency: int,
        take: TakesRequests,
    ) -> None:
        """Begin to take requests; blocks."""
        dbos = import_dbos("DBOSRunner")
        if cls._take is not None:
            raise UsageError("a runner works in this process already: start each worker in a process of its own")
        cls._take, cls._connections = take, make_connections(database)
        try:
            dbos.DBOS(
                config={
                    "name": _DBOS_APPLICATION,
                    "system_database_url": "postgresql://only:so@that/there-is-one",  # the engine is what counts
                    "system_database_engine": cls._connections,
                    "dbos_system_schema": database.schema,
                    "application_version": version,
                    "executor_id": executor,
                    # Its messages and events are not used, so it need not listen for them.
                    "use_listen_notify": False,
                    "log_level": "CRITICAL",
                    "enable_otlp": False,
                }
            )
            if dbos.DBOS.executor_id != executor:
                raise UsageError(
                    "this program has launched DBOS for itself, which is one per process: start the worker in a "
                    "process of its own"
                )
            # The same function each time, which DBOS takes for the same workflow.
            dbos.DBOS.workflow(name=WORKFLOW, serialization_type=dbos.WorkflowSerializationFormat.PORTABLE)(_reply)
            # Else it would serve every queue in the schema, and those of other agents are not its own.
            dbos.DBOS.listen_queues([queue])
            dbos.DBOS.launch()
            dbos.DBOS.register_queue(
                queue,
                partition_concurrency=1,
                worker_concurrency=max_concurrency,
                polling_interval_sec=_DBOS_POLL_SECONDS,
            )
        except BaseException:
            cls.destroy(0)
            raise

    @classmethod
    def destroy(cls, seconds: float) -> None:
        """Take no more requests, and wait so long until those that were taken are done; blocks."""
        dbos = import_dbos("DBOSRunner")
        dbos.DBOS.destroy(workflow_completion_timeout_sec=int(seconds))
        cls._connections.dispose()
        cls._take = None

    @classmethod
    async def take(cls, workflow: str) -> dict[str, Any]:
        """Have the worker run a request; this is in a thread and an event loop of DBOS."""
        take = cls._take
        if take is None:
            raise UsageError("nobody works in this process")
        outcome: Future[dict[str, Any]] = Future()
        take(workflow, outcome)
        return await asyncio.wrap_future(outcome)


async def _reply(request: str) -> dict[str, Any]:
    return await DBOSEngine.take(import_dbos("DBOSRunner").DBOS.workflow_id)


def migrate(database: RunnerDatabase, url: str) -> None:
    """Make the tables of DBOS, or bring them up to date; blocks."""
    dbos = import_dbos("DBOSRunner")
    reason = ""
    try:
        dbos.DBOS.migrate(url, schema=database.schema)
    except Exception as error:  # noqa: BLE001  # it may quote the URL, and with it the password
        reason = type(error).__name__
    if reason:
        raise DatabaseError(f"the tables of DBOS could not be made ({reason})")


def make_client(database: RunnerDatabase, connections: Any) -> Any:
    """Return a client of DBOS, for the queue."""
    dbos = import_dbos("DBOSRunner")
    return dbos.DBOSClient(
        system_database_engine=connections,
        dbos_system_schema=database.schema,
        application_name=_DBOS_APPLICATION,
        retry_connection_errors=False,
        lazy=True,
    )


def make_connections(database: RunnerDatabase) -> Any:
    """Return connections for DBOS, to be disposed of; no URL, and so no password, is known to it."""
    import sqlalchemy

    return sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=database.connect_for_dbos,
        pool_size=_POOL_SIZE,
        max_overflow=2,
        pool_timeout=10,
        pool_pre_ping=True,
    )


def import_dbos(owner: str) -> Any:
    """Return the package, which writes nothing to any log."""
    # It adds a handler of its own to a logger that has none.
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return import_extra(owner, "durable", "dbos")
