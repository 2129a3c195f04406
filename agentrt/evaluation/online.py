"""Evaluation of real conversations: samples finished runs, and judges them in the background."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from threading import get_ident
from typing import Any, ClassVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from opentelemetry import context as otel_context
from opentelemetry._logs import get_logger

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.evaluation.case import Case, Evaluator, name_evaluators, text_of_turn
from agentrt.evaluation.spending import open_budget
from agentrt.evaluation.trial import Trial, judge_trial
from agentrt.event import ReplyClosedEvent
from agentrt.hooks import MiddlewareBase
from agentrt.middleware import Budget
from agentrt.runs import RunRecorder
from agentrt.types import JSONObject

_logger = logging.getLogger("agentrt")
_EVENT = "gen_ai.evaluation.result"

_FinishedRun = tuple[RunRecorder, str, str, Any]
"""The recorder of a run, the ids of its session and reply, and the context of OpenTelemetry at its end."""


class OnlineEvaluation(MiddlewareBase):
    """Judges a `share` of the completed replies in the background; no reply waits for it.

    It needs a `RunRecorder` in the same agent, and works inside `async with agent`, which runners and servers use.
    Verdicts are added to the recorded run, and sent as OpenTelemetry events (`gen_ai.evaluation.result`); with
    `content=True`, these have the reasons too, which may quote the conversation. `budget` limits the judges, as in
    `Budget(cost=5, per="day")`. While `max_pending` runs are pending, further ones are not judged, and `dropped` counts
    them. An evaluator has `timeout` seconds. At the end, pending runs have `drain` seconds.

    An evaluator gets a `Trial` without a world, whose case has the input as its turns and no expected value.
    """

    inherited = False
    opens_in_replies = False
    requires: ClassVar = (RunRecorder,)

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        *,
        share: float = 0.1,
        budget: Budget | None = None,
        content: bool = False,
        max_pending: int = 1_000,
        max_concurrency: int = 2,
        timeout: float = 60.0,
        drain: float = 5.0,
        seed: int | None = None,
    ) -> None:
        self._evaluators = name_evaluators("OnlineEvaluation(evaluators)", evaluators)
        if not self._evaluators:
            raise MiddlewareConfigError("OnlineEvaluation(evaluators) is empty: give functions, such as no_error()")
        options = {"share": (share, 1.0), "timeout": (timeout, 1e6), "drain": (drain, 1e6)}
        counts = {"max_pending": (max_pending, 1e6), "max_concurrency": (max_concurrency, 1e3)}
        for name, (value, largest) in {**options, **counts}.items():
            number: Any = value
            kinds = int if name in counts else (int, float)
            if isinstance(number, bool) or not isinstance(number, kinds) or not 0 < number <= largest:
                raise MiddlewareConfigError(
                    f"OnlineEvaluation({name}=...) must be a number above 0 and at most {largest:g}, not {number!r:.50}"
                )
        self.share, self.content, self.dropped = share, content, 0
        self._budget = open_budget(budget)
        self._max_pending, self._max_concurrency = max_pending, max_concurrency
        self._timeout, self._drain = timeout, drain
        self._random = Random(seed)
        # One for each event loop that has entered the layer, by its thread.
        self._queues: dict[int, MemoryObjectSendStream[_FinishedRun]] = {}

    def on_event(self, agent: AgentBase, event: Any) -> None:
        if event.__class__ is not ReplyClosedEvent or event.reason != "completed" or event.reply_id != agent.reply_id:
            return
        queue = self._queues.get(get_ident())
        if queue is None or self._random.random() >= self.share:
            return
        recorder = next(layer for layer in agent.middlewares if isinstance(layer, RunRecorder))
        try:
            queue.send_nowait((recorder, agent.state.session_id, event.reply_id, otel_context.get_current()))
        except anyio.WouldBlock:
            self.dropped += 1

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Judge runs until the end, and then the pending ones for `drain` seconds at most."""
        queue, finished = anyio.create_memory_object_stream[_FinishedRun](self._max_pending)
        async with anyio.create_task_group() as group, finished:
            for _ in range(self._max_concurrency):
                group.start_soon(self._work, finished.clone())
            self._queues[get_ident()] = queue
            try:
                yield
            finally:
                self._queues.pop(get_ident(), None)
                queue.close()
                group.cancel_scope.deadline = anyio.current_time() + self._drain

    async def _work(self, finished: MemoryObjectReceiveStream[_FinishedRun]) -> None:
        async with finished:
            async for recorder, session_id, reply_id, context in finished:
                try:
                    verdicts = await self._judge(recorder, session_id, reply_id)
                    await recorder.add_verdicts(session_id, reply_id, verdicts)
                    self._emit(verdicts, session_id, reply_id, context)
                except Exception as error:  # noqa: BLE001  # a deleted run, or a failing store: the next may be judged
                    _logger.warning("a run could not be judged: %s", type(error).__name__)

    async def _judge(self, recorder: RunRecorder, session_id: str, reply_id: str) -> list[JSONObject]:
        run = await recorder.runs.load(session_id, reply_id)
        trial = Trial(Case([*map(text_of_turn, run.inputs)] or ""), runs=[run], message=run.message)
        # The judge gets the earlier conversation, too.
        trial.conversation = [(message.role, text_of_turn(message)) for message in (*run.context, *run.inputs)]
        if run.message is not None:
            trial.messages, trial.answer = [run.message], text_of_turn(run.message)
            trial.conversation.append(("assistant", trial.answer))
        trial.usage, trial.cost, trial.seconds = run.usage, run.cost, run.seconds or 0.0
        trial.judges.budget = self._budget
        verdicts: list[JSONObject] = []
        for name, evaluator in self._evaluators.items():
            # One at a time, so that each error has its own line.
            trial.error, trial.verdicts = None, {}
            await judge_trial(trial, {name: evaluator}, self._timeout)
            verdicts += [
                {"evaluator": part, "score": verdict.score, "passed": verdict.passed, "reason": verdict.reason}
                for part, verdict in trial.verdicts.items()
            ]
            if trial.error is not None:
                verdicts.append({"evaluator": name, "score": None, "passed": False, "error": trial.error.type})
        return verdicts

    def _emit(self, verdicts: Sequence[JSONObject], session_id: str, reply_id: str, context: Any) -> None:
        logger = get_logger("agentrt")
        for verdict in verdicts:
            values = {
                "gen_ai.evaluation.name": verdict["evaluator"],
                "gen_ai.evaluation.score.value": verdict["score"],
                "gen_ai.evaluation.score.label": "pass" if verdict["passed"] else "fail",
                "gen_ai.evaluation.explanation": (verdict.get("reason") or None) if self.content else None,
                "gen_ai.conversation.id": session_id,
                "agentrt.agent.reply_id": reply_id,
                "error.type": verdict.get("error"),
            }
            attributes = {name: value for name, value in values.items() if value is not None}
            logger.emit(context=context, event_name=_EVENT, attributes=attributes)
