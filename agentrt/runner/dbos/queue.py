"""The queue of a runner on many machines: workflows of DBOS, by its public calls.

A request is a workflow whose partition is its session, and of a partition one workflow runs at a time. What takes it
from a worker enqueues it again first, as the next attempt, and cancels it then: dying in between loses nothing, and the
next attempt waits until the one before it has ended.
"""

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from json import dumps, loads
from sys import maxsize
from time import time_ns
from typing import Any, Literal

from agentrt._runtime.database.operations import OperationQueue
from agentrt.errors import InvalidInputError, SessionIOError
from agentrt.event import UserInterruptEvent
from agentrt.runner.dbos.database import RunnerDatabase, to_text
from agentrt.runner.queue import SUSPECT_DEATHS, ClaimedRequest, QueueRoom, ReplyQueue, Result, Standing, queue_full
from agentrt.runner.requests import Request, check_contradiction, make_request

WORKFLOW = "agentrt.reply"
_QUEUE_THREADS = 3
_QUEUED = ["ENQUEUED", "DELAYED"]
_ACTIVE = [*_QUEUED, "PENDING"]
# A lower number goes first: started requests, then answers, which other inputs wait for, then messages.
_BEGUN_PRIORITY, _ANSWER_PRIORITY, _MESSAGE_PRIORITY = 1, 2, 3
_REMEMBERED_DAYS = 7  # for which a reply id is known
_ELSEWHERE_AFTER = 600_000  # milliseconds
_MAX_FORGOTTEN = 500
Why = Literal["died", "frozen", "left", "held", "version"]


class DBOSQueue(ReplyQueue):
    """The requests of one agent in the database. Methods that are not `async` block, and are for threads."""

    def __init__(self, database: RunnerDatabase, client: Any, name: str, version: str, accepts: Iterable[str]) -> None:
        self.name = name
        self.executor = ""  # of this process, while it works
        self.version = version
        self._accepts = list(accepts)
        self._database = database
        self._client = client
        self._operations = OperationQueue(_QUEUE_THREADS)

    async def add(self, request: Request, due_at: int, room: QueueRoom) -> None:
        # One name for one key: enqueued twice under it is enqueued once.
        workflow = sha256(dumps([request.session_id, request.key]).encode()).hexdigest()[:32]
        session = to_text(request.session_id)
        owner = to_text(request.owner)
        place = {"queue": self.name, "session": session, "workflow": workflow, "owner": owner}
        [(*waiting, version, digest)] = await self._database.ask("room", place)
        if digest is None:
            if request.kind == "answer":
                check_contradiction(request, await self.pending_answers(request.session_id, request.reply_id))
            # An answer lets others go ahead, so there is always room for it.
            full = room.find_full(request, *waiting) if request.kind == "message" else None
            if full is not None:
                [[finished]] = await self._database.ask("pace")
                raise queue_full(full, finished)
            delay = (due_at - time_ns()) / 1e9
            add = partial(
                self._enqueue,
                workflow,
                request,
                priority=_ANSWER_PRIORITY if request.kind == "answer" else _MESSAGE_PRIORITY,
                # What comes after others of its session waits for the same workers: so it cannot overtake them.
                version=version or self.version,
                delay=delay if delay > 0 else None,
            )
            await self._run(add)
            # Of two that came at once, one was stored.
            [(*_, digest)] = await self._database.ask("room", place)
        if digest != request.digest:
            raise InvalidInputError(
                f"the reply {request.reply_id!r} of session {request.session_id!r:.100} was asked for with another "
                f"input: give each new input a reply id of its own"
            )

    async def read_claimed(self, workflow: str) -> ClaimedRequest:
        """Return what is known of a request that DBOS has given to this worker."""
        base, _, attempt = workflow.partition("/")
        attempts = [base, *(f"{base}/{number}" for number in range(2, int(attempt or 1) + 1))]
        rows = {row.workflow_id: row for row in await self._list(workflow_ids=attempts)}
        row, deaths = rows[workflow], 0
        for name in attempts[:-1]:
            attributes = rows[name].attributes if name in rows else {}
            # A worker that was only slow to show that it is alive has said so since.
            is_dead = attributes.get("ended") == "frozen" or (
                attributes.get("ended") == "died" and not attributes.get("survived")
            )
            deaths += is_dead and (deaths < SUSPECT_DEATHS or bool(attributes.get("begun")))
        request = _stored_request(row)
        is_saved = any(rows[name].attributes.get("saved") for name in attempts if name in rows)
        if request.labels is not None and (is_saved or await self._was_saved_since(rows[base])):
            request = replace(request, labels=None)
        return ClaimedRequest(workflow, request, deaths, bool(row.attributes.get("interrupted")))

    async def _was_saved_since(self, row: Any) -> bool:
        """Say whether the session of a request was saved by others since that was stored."""
        stored_at = datetime.fromtimestamp(row.created_at / 1000, UTC).isoformat()
        session = {"session": row.attributes["session"]}
        finished = await self._list(
            attributes=session, status="SUCCESS", completed_after=stored_at, load_input=False, load_output=True
        )
        return any(isinstance(item.output, dict) and item.output.get("number") is not None for item in finished)

    async def find_owned(self, workflows: Iterable[Any]) -> set[Any]:
        """Return those of the workflows that this worker still has."""
        rows = await self._database.ask("owns", list(workflows), self.executor)
        return {workflow for (workflow,) in rows}

    async def begin(self, claimed: ClaimedRequest) -> None:
        await self._mark(str(claimed.name), begun=True)

    async def note_saved(self, claimed: ClaimedRequest) -> None:
        await self._mark(str(claimed.name), saved=True)

    async def finish(self, claimed: ClaimedRequest, result: Result) -> None:
        request = claimed.request
        # How the reply ended is the outcome of its workflow, which DBOS notes when this is done.
        if result.kind == "over":
            await self.release_held(request.session_id)
        elif (await self.read_claimed(str(claimed.name))).is_interrupted:
            # Asked for while the reply came to its question.
            interrupt = UserInterruptEvent(request.reply_id)
            answer = make_request(request.session_id, request.reply_id, interrupt, owner=request.owner)
            await self.add(answer, 0, QueueRoom(maxsize, maxsize))
        await self._database.notify("over", request.session_id, request.reply_id)

    async def give_back(self, claimed: ClaimedRequest) -> bool:
        workflow = str(claimed.name)
        if not await self.find_owned([workflow]):
            # Another one has it, which took this one for dead.
            await self._mark(workflow, survived=True)
            return False
        await self._run(partial(self._take_from_worker, workflow, "left"))
        return True

    async def hold(self, claimed: ClaimedRequest) -> None:
        await self._mark(str(claimed.name), held=True)

    async def release_held(self, session_id: str) -> None:
        """Enqueue again what waits for the answer to a question of the session, in the order in which it came."""
        for row in await self._list(attributes={"session": to_text(session_id), "held": True}):
            # In this order too: enqueued twice under one name is enqueued once.
            await self._run(partial(self._enqueue_again, row, "held"))
            await self._mark(row.workflow_id, held=False)

    async def standing(self, session_id: str, reply_id: str) -> Standing | None:
        latest = await self._latest(session_id, reply_id)
        if not latest:
            return None
        is_pending = any(row.status in _ACTIVE and not _is_cancelled(row) for row in latest)
        is_held = any(row.attributes.get("held") and not row.attributes.get("interrupted") for row in latest)
        worker = next((row.executor_id for row in latest if row.status == "PENDING"), "")
        last = latest[-1]
        if _is_cancelled(last) or (last.attributes.get("held") and last.attributes.get("interrupted")):
            return Standing(is_pending or is_held, worker, "interrupted", None)
        outcome = last.output if isinstance(last.output, dict) else {}
        end = (outcome.get(name) for name in ("reason", "error", "number"))
        return Standing(is_pending or is_held, worker, *end)

    async def find_sessions(self, reply_id: str, owner: str | None, limit: int) -> list[str]:
        rows = await self._list(attributes={"reply": reply_id}, load_input=False, sort_desc=True)
        if owner is not None:
            rows = [row for row in rows if row.attributes.get("owner", "") in ("", to_text(owner))]
        return list(dict.fromkeys(map(_session_of, rows)))[:limit]

    async def find_replies(self, session_id: str) -> list[str]:
        rows = await self._list(attributes={"session": to_text(session_id)}, load_input=False)
        open_rows = (row for row in rows if row.status in _ACTIVE or row.attributes.get("held"))
        return list(dict.fromkeys(row.attributes["reply"] for row in open_rows))

    async def pending_answers(self, session_id: str, reply_id: str) -> list[Request]:
        attributes = {"session": to_text(session_id), "reply": reply_id, "kind": "answer"}
        return [_stored_request(row) for row in await self._list(attributes=attributes, status=_ACTIVE)]

    async def interrupt(self, session_id: str, reply_id: str) -> bool:
        # The note stays with the request, for a worker that takes it later; the notice is for one that has it.
        is_there = False
        for row in await self._latest(session_id, reply_id):
            if row.status in _ACTIVE or row.attributes.get("held"):
                is_there = is_there or not row.attributes.get("interrupted")
                is_begun = row.status == "PENDING" or row.priority == _BEGUN_PRIORITY
                # A task that was not started is ended by a worker, which wakes its parent.
                is_cancelled = not is_begun and row.attributes["kind"] != "task"
                await self._mark(row.workflow_id, interrupted=True, cancelled=is_cancelled)
        if is_there:
            await self._database.notify("interrupt", session_id, reply_id)
        return is_there

    async def forget(self, session_id: str) -> None:
        rows = await self._list(attributes={"session": to_text(session_id)}, load_input=False)
        over = [row.workflow_id for row in rows if row.status not in _ACTIVE and not row.attributes.get("held")]
        if over:
            await self._run(partial(self._client.delete_workflows, over))

    async def last_tick(self, name: str) -> int | None:
        rows = await self._database.ask("last_tick", name)
        return rows[0][0] if rows else None

    async def note_tick(self, name: str, ticked_at: int) -> None:
        await self._database.ask("note_tick", name, ticked_at)

    def take_from_dead(self, executor: str, why: Why) -> list[tuple[str, str]]:
        """Enqueue again what a worker had that is dead; returns the sessions and replies."""
        rows = self._client.list_workflows(
            executor_id=executor, status="PENDING", queue_name=self.name, load_input=False, load_output=False
        )
        for row in rows:
            self._take_from_worker(row.workflow_id, why)
        return [(_session_of(row), row.attributes["reply"]) for row in rows]

    def adopt(self, workflows: list[str]) -> None:
        """Enqueue again, for workers like this one, what waits for those of another version."""
        for workflow in workflows:
            self._take_from_worker(workflow, "version")

    def of_other_versions(self) -> dict[str, Any]:
        """Return the values of the statement that finds what to adopt."""
        return {
            "queue": self.name,
            "version": self.version,
            "accepts": self._accepts,
            "milliseconds": _ELSEWHERE_AFTER,
        }

    def forget_finished(self) -> None:
        """Remove what was over a week ago."""
        before = (datetime.now(UTC) - timedelta(days=_REMEMBERED_DAYS)).isoformat()
        rows = self._client.list_workflows(
            name=WORKFLOW, completed_before=before, limit=_MAX_FORGOTTEN, load_input=False, load_output=False
        )
        old = [row.workflow_id for row in rows if not row.attributes.get("held")]
        if old:
            self._client.delete_workflows(old)

    def _take_from_worker(self, workflow: str, why: Why) -> None:
        [row] = self._client.list_workflows(workflow_ids=[workflow], load_output=False)
        # In this order: a process that dies in between leaves both, and the second one waits for the first.
        if why in ("died", "frozen"):
            self._client.update_workflow_attributes(workflow, {"ended": why}, merge=True)
        self._enqueue_again(row, why)
        self._client.cancel_workflow(workflow)

    def _enqueue_again(self, row: Any, why: Why) -> None:
        request = _stored_request(row)
        base, _, attempt = row.workflow_id.partition("/")
        self._enqueue(
            # The same name for all who do this at once, so that it is done once.
            f"{base}/{int(attempt or 1) + 1}",
            request,
            priority=row.priority if why == "version" else _BEGUN_PRIORITY,
            version=self.version if why == "version" else row.app_version,
            is_interrupted=bool(row.attributes.get("interrupted")),
        )

    def _enqueue(
        self,
        workflow: str,
        request: Request,
        *,
        priority: int,
        version: str | None,
        delay: float | None = None,
        is_interrupted: bool = False,
    ) -> None:
        from dbos import WorkflowSerializationFormat

        options: dict[str, Any] = {
            "workflow_name": WORKFLOW,
            "queue_name": self.name,
            "workflow_id": workflow,
            "queue_partition_key": to_text(request.session_id),
            "priority": priority,
            "serialization_type": WorkflowSerializationFormat.PORTABLE,
            "attributes": {
                "session": to_text(request.session_id),
                "reply": request.reply_id,
                "kind": request.kind,
                "digest": request.digest,
                "owner": to_text(request.owner),
            },
        }
        if version:
            options["app_version"] = version
        if delay is not None:
            options["delay_seconds"] = delay
        if is_interrupted:
            options["attributes"]["interrupted"] = True
        # The owner is an attribute alone, so that workers of an earlier version can read the request.
        stored = {name: value for name, value in asdict(request).items() if name != "owner"}
        self._client.enqueue(options, dumps(stored))

    async def _latest(self, session_id: str, reply_id: str) -> list[Any]:
        """Return the last attempt of each request for the reply, in the order in which they came."""
        attributes = {"session": to_text(session_id), "reply": reply_id}
        rows = await self._list(attributes=attributes, load_input=False, load_output=True)
        # Each attempt is a separate workflow, and the outcomes of earlier ones are irrelevant.
        latest: dict[str, Any] = {}
        for row in rows:
            base = row.workflow_id.partition("/")[0]
            latest[base] = max(latest.get(base, row), row, key=lambda one: int(one.workflow_id.partition("/")[2] or 1))
        return list(latest.values())

    async def _list(self, *, load_output: bool = False, **filters: Any) -> list[Any]:
        rows = await self._run(partial(self._client.list_workflows, load_output=load_output, **filters))
        return [row for row in rows if row.name == WORKFLOW]

    async def _mark(self, workflow: str, **attributes: bool) -> None:
        await self._run(partial(self._client.update_workflow_attributes, workflow, attributes, merge=True))

    async def _run(self, call: Any) -> Any:
        try:
            return await self._operations.run(object(), lambda deadline: call(), shield=True)
        except TimeoutError as error:
            reason = error.strerror or type(error).__name__
        except Exception as error:  # noqa: BLE001  # of the driver, of its pool, of DBOS: they may quote what was stored
            reason = type(getattr(error, "orig", None) or error).__name__
        raise SessionIOError(f"the queue in {self._database.place} cannot be used: {reason}")


def outcome_of(result: Result) -> dict[str, Any]:
    """Return what a workflow returns, for `standing`."""
    return {"kind": result.kind, "reason": result.reason, "error": result.error, "number": result.number}


def read_request(text: str) -> Request:
    return Request(**loads(text))


def _stored_request(row: Any) -> Request:
    owner = loads(f'"{row.attributes.get("owner", "")}"')
    return replace(read_request(row.input["args"][0]), owner=owner)


def _session_of(row: Any) -> str:
    return str(loads(f'"{row.attributes["session"]}"'))


def _is_cancelled(row: Any) -> bool:
    # It waits in the queue all the same, and the worker whose turn it is sees that there is nothing to do.
    return bool(row.attributes.get("cancelled")) and row.status in _ACTIVE
