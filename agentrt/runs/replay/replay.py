"""The replay of a run."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from agentrt._runtime.flow.handles import take_tag
from agentrt.agent import Agent
from agentrt.errors import UsageError
from agentrt.event import TaskStartedEvent
from agentrt.message import Msg
from agentrt.runs.recorder import RunRecorder
from agentrt.runs.replay.answers import RecordedAnswers
from agentrt.runs.replay.differences import Difference, differences_of
from agentrt.runs.replay.record import given_inputs
from agentrt.runs.run import After, Run
from agentrt.state import AgentState, InMemoryStateStore, TaskRecord

_MAX_REPLAYED_QUESTIONS = 1_000
_MAX_REPLAY_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay: the differences in the order of the run, and the last message.

    `finished` says whether the replay reached the end of the record.
    """

    differences: list[Difference] = field(default_factory=list)
    message: Msg | None = None
    finished: bool = True

    @property
    def first(self) -> Difference | None:
        """The first difference."""
        return self.differences[0] if self.differences else None


async def replay_run(run: Run, agent: Agent, after: After) -> Replay:
    """Replay a run with an agent, as `Run.replay` does."""
    if not isinstance(agent, Agent):
        raise UsageError(f"replay(agent) must be an Agent, not {agent!r:.100}")
    if after not in get_args(After):
        raise UsageError(f'replay(after=...) must be "stop", "keep" or "ask", not {after!r:.100}')
    if any(line["kind"] == "gap" for line in run.lines):
        raise UsageError(f"{run!r} cannot be replayed: its lines of the kind 'gap' say what was not recorded")
    if not run.inputs and not run.steps:  # a fork of the last answer, which had nothing more to do
        return Replay(message=run.message)
    state, answers = run.first_state(), RecordedAnswers(run, after)
    # The recorded answers have handles of the recorded conversation.
    take_tag(state, (run.state_at(step.number) for step in run.steps))
    async with InMemoryStateStore() as store:
        # In a store of its own, so that nothing is added to the record.
        layers = [layer for layer in agent.middlewares if not isinstance(layer, RunRecorder)]
        recorder = RunRecorder(store, max_bytes=_MAX_REPLAY_BYTES)
        conversation = agent.with_middlewares([recorder, *layers, answers]).with_state(state)
        conversation.state_store = None
        answers.conversation = conversation
        if any(isinstance(event, TaskStartedEvent) for event in run.events):
            conversation.live_conversation.task_host = _RecordedTasks()
        message = await _converse(conversation, run, answers)
        await store.runs.flush()
        replayed = await store.runs.load(run.session_id, run.reply_id)
    differences = differences_of(run, replayed, is_whole=not answers.is_left)
    if after != "keep":
        del differences[1:]
    return Replay(differences, message, not answers.is_left or answers.is_at_end)


class _RecordedTasks:
    """Lets background calls go as in the record, and runs none of them."""

    async def start(self, task: TaskRecord, state: AgentState) -> None:
        pass

    async def state_of(self, task: TaskRecord) -> Literal["over"]:
        return "over"

    # For the model's tools, which the record answers.

    async def describe(self) -> str:
        return ""

    async def read(self, task_id: str) -> str:
        return ""

    async def stop(self, task_id: str) -> bool:
        return False


async def _converse(conversation: Agent, run: Run, answers: RecordedAnswers) -> Msg | None:
    """Reply to the input, and give the recorded answers to questions; returns the last message."""
    reply = run.state_at(0).reply_context if run.steps else None
    form = None if reply is None else reply.structured
    schema = None if form is None or form.is_replaced else form.schema
    try:
        message: Msg | None = None
        if conversation.state.reply_context is None:
            message = await conversation.reply(given_inputs(run) or None, schema, reply_id=run.reply_id)
        elif conversation.waiting() is None:  # a fork, which continues the reply of its first state
            message = await conversation.reply(None)
        for _ in range(_MAX_REPLAYED_QUESTIONS):
            question = None if answers.is_left else conversation.waiting()
            answer = None if question is None else answers.answer_to(question)
            if answer is None:
                break
            message = await conversation.reply(answer)
    except Exception:  # noqa: BLE001  # the recorded run may have failed too; the part until here is compared
        message = None
    return message
