"""The recorder: an observer that records everything that happens in its agents' replies."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from time import time_ns
from typing import Any
from weakref import WeakKeyDictionary

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError, NoReplyError
from agentrt.event import (
    AgentEvent,
    ModelCallEndEvent,
    ModelCallStartEvent,
    ReplyClosedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
)
from agentrt.hooks import LayerRecord, MiddlewareBase
from agentrt.message import ToolResultState, copy_block
from agentrt.model import ChatUsage, PublishedPrices, WireRecord
from agentrt.model.catalog.rates import CostOfCall, check_price_table, cost_at
from agentrt.runs.contents import Scrubber
from agentrt.runs.log import RunEnd, RunLog, RunSettings, StepState
from agentrt.runs.redaction import Redactor, redactors_of
from agentrt.runs.store import RunStore
from agentrt.state.state import dump_head
from agentrt.types import JSONObject

_UNFINISHED = ToolResultState.RUNNING
_STEP_KINDS: dict[type, str] = {
    ModelCallStartEvent: "model",
    ModelCallEndEvent: "answer",
    ToolResultEndEvent: "result",
    RequireUserConfirmEvent: "question",
    RequireExternalExecutionEvent: "question",
}


class RunRecorder(MiddlewareBase):
    """Records each reply and everything that happens in it, in the `runs` of a session store.

    It only observes, so its place in the list does not matter, and no layer can hide anything from it. Sub-agents are
    recorded as well. A thread writes the lines: a reply never waits for its record, and never fails because of it.

    `layers=False` leaves out the calls of layers, and `content=False` everything except numbers, sizes, names and
    hashes. `redact` takes the same values as that of a `cassette`, and is applied before anything is hashed or written.
    `prices` and `cost_of` are as in `UsageMiddleware`; other models have their published prices.
    `store.runs.expire()` deletes a run `keep` seconds after its start. Beyond `max_bytes`, only the end of a run is
    recorded. `sign`, a secret of at least 16 bytes, signs the end of each run.
    """

    inherited = True
    opens_in_replies = False

    def __new__(cls, *args: Any, layers: bool = True, **options: Any) -> "RunRecorder":
        # Hooks are overridden by the class, and a hook that is not overridden costs nothing.
        return super().__new__(_RecorderWithoutLayers if cls is RunRecorder and not layers else cls)

    def __init__(
        self,
        store: Any,
        *,
        layers: bool = True,
        content: bool = True,
        redact: Redactor | Sequence[Redactor] = (),
        prices: Mapping[str, Sequence[float]] | None = None,
        cost_of: CostOfCall | None = None,
        keep: float = 30 * 86_400,
        max_bytes: int = 16_000_000,
        sign: str | bytes | None = None,
    ) -> None:
        runs = getattr(store, "runs", None)
        if not isinstance(runs, RunStore):
            raise MiddlewareConfigError(
                f"RunRecorder(store) must be a session store of agentrt.state, such as SQLiteStore('agent.db'), "
                f"not {store!r:.100}"
            )
        _check_above_zero("keep", keep)
        _check_above_zero("max_bytes", max_bytes)
        if cost_of is not None and not callable(cost_of):
            raise MiddlewareConfigError(f"RunRecorder(cost_of=...) must be a function, not {cost_of!r:.100}")
        secret = sign.encode() if isinstance(sign, str) else sign
        if secret is not None and len(secret) < 16:
            raise MiddlewareConfigError(
                "RunRecorder(sign=...) must be a secret of at least 16 bytes, not a shorter one"
            )
        self._store = store
        self._runs = runs
        self._put = runs.writer.put
        self._last: tuple[Any, Any] = (None, None)  # the agent of the last event, and the log of its reply
        self._prices = check_price_table("RunRecorder(prices=...)", {} if prices is None else prices)
        self._cost_of = cost_of
        scrubber = Scrubber(redactors_of("RunRecorder(redact=...)", redact), bool(content))
        self._settings = RunSettings(scrubber, self._price, int(keep * 1e9), int(max_bytes), secret)
        # By ids, to find the log when a run ends or a sub-agent's run starts.
        self._live: dict[tuple[str, str], RunLog] = {}
        # `explain` takes milliseconds, and conversations share their chains.
        self._chains: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"RunRecorder({self._store!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_live": {}, "_chains": None, "_runs": None, "_put": None, "_last": (None, None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        runs = state["_store"].runs
        vars(self).update(state, _chains=WeakKeyDictionary(), _runs=runs, _put=runs.writer.put)

    @property
    def runs(self) -> RunStore:
        """The run store that it writes to."""
        return self._runs

    async def add_verdicts(self, session_id: str, reply_id: str, verdicts: Sequence[JSONObject]) -> None:
        """Add verdicts to the record of a finished run, redacted like it; without content they have no reasons."""
        scrubber = self._settings.scrubber
        scrubbed = [{**verdict, "reason": scrubber.text(str(verdict.get("reason", "")))} for verdict in verdicts]
        await self._runs.add_verdicts(session_id, reply_id, scrubbed)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Wait at the end until queued lines are written, for five seconds at most."""
        yield
        await self._runs.flush()

    def on_event(self, agent: Any, event: Any) -> None:
        kind = event.__class__
        if kind is ReplyClosedEvent:
            self._close(agent, event)
            return
        seen, log = self._last
        if seen is not agent or event.reply_id != log.reply_id:
            log = self._log_of(agent)
            if event.reply_id != log.reply_id:
                return  # an event of a sub-agent, whose own reply is observed as well
            # One assignment, so that another thread sees both values or neither.
            self._last = agent, log  # for the deltas that follow
        self._put(log, event.created_at, RunLog.event, event)
        if kind is ToolResultStartEvent:
            log.running.add(event.tool_call_id)
        elif kind in _STEP_KINDS:
            if kind is ToolResultEndEvent:
                log.running.discard(event.tool_call_id)
                # `running` has the calls that have no result yet.
                if log.running:  # the state is incomplete until all concurrent calls have results
                    return
            self._record_step(log, agent, _STEP_KINDS[kind], event)

    def on_wire(self, agent: Any, record: WireRecord) -> None:
        log = self._log_of(agent)
        if record.kind == "request":
            self._put(log, time_ns(), RunLog.request, (record, log.core_call))
        else:
            self._put(log, time_ns(), RunLog.answer, record)

    def on_layer(self, agent: Any, record: LayerRecord) -> None:
        try:
            if record.kind == "end":
                self._put(self._log_of(agent), time_ns(), RunLog.layer, record)
            elif record.layer is None and record.hook == "on_model_call":
                self._log_of(agent).core_call = record.call_id
        except NoReplyError:  # layers called between replies belong to no run
            return

    def _log_of(self, agent: Any) -> RunLog:
        log: RunLog | None
        # Most layers are called in the reply of the last event; looking at `agent.run` takes five times as long.
        seen, log = self._last
        if seen is agent and log is not None:  # until its reply is closed
            return log
        notes = agent.run.scratch(self)
        log = notes.get("log")
        if log is None:
            run, session_id = agent.run, agent.state.session_id
            parent = None if run.parent is None else self._parent_log(run.parent)
            log = notes["log"] = RunLog(self._settings, agent, session_id, run.id, parent, time_ns())
            log.chains = self._chains_of(agent)
            self._live[session_id, run.id] = log
        return log

    def _parent_log(self, parent: Any) -> RunLog | None:
        log = self._live.get((parent.agent.state.session_id, parent.id))
        # A resumed reply may enter a sub-agent before its own first event is observed.
        if log is None and any(layer is self for layer in parent.agent.middlewares):
            log = self._log_of(parent.agent)
        return log

    def _chains_of(self, agent: Any) -> bytes:
        chains = agent.chains
        text = self._chains.get(chains)
        if text is None:
            text = self._chains[chains] = agent.explain("json").encode()
        return text

    def _record_step(self, log: RunLog, agent: Any, kind: str, event: AgentEvent) -> None:
        conversation = agent.state
        reply = conversation.reply_context
        if reply is not None and agent.runs_reply_loop:
            # Not in the thread, since the state changes before that writes.
            head = dump_head(conversation) if self._settings.scrubber.content else b"{}"
            # A running result, as at a question of its tool, gets its output later; in other blocks, only the state
            # changes.
            blocks = [
                (copy_block(block) if (state := getattr(block, "state", None)) is _UNFINISHED else block, state)
                for block in reply.blocks
            ]
            step = StepState(kind, event.seq, head, list(conversation.context), blocks)
            self._runs.writer.put_step(log, event.created_at, step)

    def _close(self, agent: Any, event: ReplyClosedEvent) -> None:
        self._last = None, None
        log = self._live.pop((agent.state.session_id, event.reply_id), None)
        if log is not None:
            # Read now, since the next reply may start before the thread writes.
            state = agent.state
            reply = state.reply_context
            if reply is not None and reply.reply_id == event.reply_id:
                message = reply.message.snapshot()
            else:
                message = next((found for found in reversed(state.context[-3:]) if found.id == event.reply_id), None)
            if message is not None:
                message = agent.released(message, "output")  # as its caller reads it
            self._runs.writer.put_end(log, time_ns(), RunEnd(event.reason, message, agent.state.context[-2:]))

    def _price(self, model: Any, usage: ChatUsage) -> float | None:
        # The user's prices win over published ones.
        rates = self._prices.get(model.model)
        if rates is not None:
            return cost_at(rates, usage)
        if self._cost_of is not None:
            cost = self._cost_of(model, usage)
            return None if cost is None else float(cost)
        url = getattr(model, "base_url", None)
        published = model.capabilities.prices or PublishedPrices(model.model, url, model.provider)
        cost = published.cost(usage)
        return None if cost is None else float(cost)


class _RecorderWithoutLayers(RunRecorder):
    on_layer = MiddlewareBase.on_layer


_RecorderWithoutLayers.__name__ = _RecorderWithoutLayers.__qualname__ = "RunRecorder"  # its key in saved states


def run_stores(agent: AgentBase) -> list[RunStore]:
    """Return the stores of the agent's recorders, each once."""
    return list(dict.fromkeys(layer.runs for layer in agent.middlewares if isinstance(layer, RunRecorder)))


def _check_above_zero(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e12:
        raise MiddlewareConfigError(f"RunRecorder({name}=...) must be a number above 0, not {value!r:.100}")
