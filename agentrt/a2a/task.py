"""One message to a remote agent, and its task, followed until the task ends or asks a question.

The state of the conversation has the ids of the context and of the task, and the step of the reply that the task is
for. A process that resumes the reply follows that task, and sends nothing twice.
"""

import json
from contextlib import suppress
from typing import Any

import anyio

from agentrt._runtime.text import escape_controls, one_line
from agentrt.a2a.connection import A2AConnection, RpcResults
from agentrt.a2a.progress import OVER_STATES, TaskPiece, TaskProgress
from agentrt.errors import ModelError, Refused, Rejected, Transient
from agentrt.message import TextBlock, ToolCallBlock

ANSWER_TOOL = "answer"
"""The tool that stands for a question of the remote agent; its result is the answer."""
_NOTHING_SAID = "[The agent said nothing.]"
STATE_KEY = "A2AAgent"
_SECONDS_TO_CANCEL = 5.0
_MAX_DROPS = 3
_FIRST_WAIT = 0.25
_LONGEST_WAIT = 5.0
_SETTLE_SECONDS = 1.0  # in which a stream ends, after the end of its task


class RemoteTask:
    """The task for one step of the reply of `agent`; `parts` are those of the message to send."""

    def __init__(self, connection: A2AConnection, agent: Any, parts: list[dict[str, Any]], step: int) -> None:
        self._connection = connection
        self._agent = agent
        self._reply = agent.run
        self._parts = parts
        self._step = step
        self._record: dict[str, Any] = agent.state.middleware_data.setdefault(STATE_KEY, {})
        self._timer = connection.new_timer()
        self._results: RpcResults | None = None
        self._progress = TaskProgress(connection.source, "", "", {})
        self._is_sent = self._is_in_doubt = False
        self._drops, self._pause = 0, _FIRST_WAIT

    async def begin(self) -> None:
        """Record in the state which message is about to be sent, unless the remote agent is known to have it."""
        record, is_open = self._record, bool(self._record.get("is_open"))
        is_of_reply = record.get("reply_id") == self._reply.id
        is_same = is_of_reply and record.get("step") == self._step
        # After a failure, or in another process: a message that was received is not sent again, only followed.
        self._is_sent = is_same and is_open and bool(record.get("is_taken"))
        if not self._is_sent:
            is_answer = is_of_reply and is_open
            self._is_in_doubt = is_answer and is_same
            if is_open and not is_answer:
                await self._cancel()  # an earlier reply was ended while it waited, where nothing could be sent
            # A message that is sent again keeps its id; after a failed task, a new message is sent.
            attempt = record.get("attempt", 0) + bool(record.get("task_id") and not is_open) if is_same else 0
            if not is_answer:
                record |= {"task_id": "", "known": {}, "is_open": False}
            record |= {"reply_id": self._reply.id, "step": self._step, "attempt": attempt, "is_taken": False}
            if is_answer:
                await self._agent.save()  # a process that resumes from here has to ask for the outcome
        ids = record["task_id"], record.get("context_id", "")
        self._progress = TaskProgress(self._connection.source, *ids, record.get("known", {}))

    async def next_result(self) -> dict[str, Any] | None:
        """Return the next result of the task, `None` when it has ended or waits for a message."""
        while not self._progress.is_settled:
            failure = Transient(f"{self._connection.source} ended its answer before the end of the task")
            try:
                if self._results is None:
                    self._results = await self._open()
                result = await self._results.next()
                if result is not None:
                    return result
            except Transient as error:
                failure = error
            await self.aclose()
            if not self._record["is_taken"]:
                self._is_sent, self._is_in_doubt = False, True
            # A message whose task is unknown may have been received, so it is not sent again here.
            if not self._progress.task_id:
                raise failure
            # A server that does not stream is polled for the task until the time is up.
            self._drops += 1
            if self._drops > _MAX_DROPS and await self._streams():
                raise failure
            await self._timer.wait(anyio.sleep(self._pause))
            self._timer.note_progress()  # the pause was ours
            self._pause = min(2 * self._pause, _LONGEST_WAIT)
        return None

    async def read(self, result: dict[str, Any]) -> list[TaskPiece]:
        """Return what the result adds to the answer; a new task is saved before any of it is passed on."""
        # Saved once per task: from here on, another process follows it instead of sending the message again.
        progress, record = self._progress, self._record
        pieces = progress.read(result)
        if "sending" in record:  # any result shows that the message arrived
            record |= {"asked_by": self._reply.id, "taken": record.pop("sending")}
        if progress.task_id and not record["is_taken"]:
            ids = {"task_id": progress.task_id, "context_id": progress.context_id}
            record |= {**ids, "is_open": True, "is_taken": True}
            await self._agent.save()
        return pieces

    async def settle(self) -> list[ToolCallBlock | TextBlock]:
        """Return the last blocks of the answer, such as the question of a task; raises for a task that failed."""
        progress, record = self._progress, self._record
        source, state = self._connection.source, progress.state
        record["context_id"] = progress.context_id
        if state == "INPUT_REQUIRED":
            record["known"] = progress.passed_on()  # the task still has it after the answer
            arguments = {"question": progress.words, **({"data": progress.data} if progress.data else {})}
            return [ToolCallBlock(self._reply.new_id(), ANSWER_TOOL, json.dumps(arguments))]
        if state in OVER_STATES:
            record["is_open"] = False
            # A result after the end is out of order, and `read` raises for it.
            with anyio.move_on_after(_SETTLE_SECONDS), suppress(Transient):
                while self._results is not None and (result := await self._results.next()) is not None:
                    progress.read(result)
        if state == "COMPLETED":
            # After an empty answer the model would be called again, and the remote agent would do its work twice.
            return [] if progress.has_answer else [TextBlock(_NOTHING_SAID)]
        words = f": {escape_controls(one_line(progress.words))}" if progress.words else ""
        if state == "AUTH_REQUIRED":
            raise Rejected(f"{source} needs further credentials{words}: give A2AAgent(headers=...) or auth=...")
        if state == "REJECTED":
            raise Refused(f"{source} declined{words}")
        raise ModelError(f"{source} ended its task as {state}{words}")

    async def leave(self, error: BaseException) -> None:
        """Cancel the task, unless it may be followed later: after a hand-over, or a lost connection."""
        record, progress = self._record, self._progress
        # The first result that names the task may be invalid, so the task may not be recorded yet.
        if progress.task_id and not record["is_taken"]:
            record |= {"task_id": progress.task_id, "is_open": progress.state not in OVER_STATES}
        if record.get("is_open") and not isinstance(error, Transient) and not self._reply.is_handed_over:
            record["is_open"] = False
            await self._cancel()

    async def aclose(self) -> None:
        # Cleared first, so that a cancelled close is not repeated.
        results, self._results = self._results, None
        if results is not None:
            await results.aclose()

    async def _streams(self) -> bool:
        # The card is not trusted.
        capabilities = (await self._connection.card(self._timer)).get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get("streaming") is True

    async def _open(self) -> RpcResults:
        """Send the message, or ask for its task again."""
        streams, progress = await self._streams(), self._progress
        if self._is_in_doubt:
            results = (await self._connection.call("GetTask", {"id": progress.task_id}, self._timer)).as_task()
            task = await (await results.peek()).next() or {}
            await results.aclose()
            # A task that still waits did not receive the answer.
            status = task.get("task", {}).get("status")
            self._is_sent = not isinstance(status, dict) or status.get("state") != "TASK_STATE_INPUT_REQUIRED"
            self._is_in_doubt = False
        if not self._is_sent:
            self._is_sent = True
            message_id = f"{self._record['reply_id']}.{self._step}.{self._record['attempt']}"
            ids = {"messageId": message_id, "contextId": progress.context_id, "taskId": progress.task_id}
            message: dict[str, Any] = {name: value for name, value in ids.items() if value}
            message |= {"role": "ROLE_USER", "parts": self._parts}
            # Without streaming the task is returned at once, since a task with an unknown id cannot be cancelled.
            params = {"message": message, "configuration": {"returnImmediately": not streams}}
            return await self._connection.call(
                "SendStreamingMessage" if streams else "SendMessage", params, self._timer
            )
        of_task = {"id": progress.task_id}
        if streams:
            # A task that has ended cannot be followed: `GetTask` says how it ended.
            with suppress(Rejected):
                return await (await self._connection.call("SubscribeToTask", of_task, self._timer)).peek()
        return (await self._connection.call("GetTask", of_task, self._timer)).as_task()

    async def _cancel(self) -> None:
        """Cancel the task at the remote agent; if that cannot be reached, nothing more can be done."""
        timer = self._connection.new_timer()
        with anyio.move_on_after(_SECONDS_TO_CANCEL, shield=True), suppress(ModelError):
            results = await self._connection.call("CancelTask", {"id": self._record["task_id"]}, timer)
            try:
                await results.next()
            finally:
                await results.aclose()
