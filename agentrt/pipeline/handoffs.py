"""Handoffs: one conversation that several agents share, one of them at a time."""

import copy
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self, TypeVar, overload

import anyio

from agentrt._runtime.concurrency.coroutine_reader import hand_out
from agentrt._runtime.concurrency.event_loop import in_event_loop
from agentrt._runtime.concurrency.interrupt import InterruptResult
from agentrt._runtime.concurrency.reaper import Reaper
from agentrt._runtime.conversation.inputs import ANSWERS, MessagesInput, as_input
from agentrt._runtime.conversation.turns import Claim, lock_of
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import one_line
from agentrt.agent import Agent, AgentInput, ReplyStream
from agentrt.agent.validation import as_state_store
from agentrt.errors import UsageError
from agentrt.event import AnyEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.message import Msg
from agentrt.pipeline.handoff_middleware import HANDOFF_KEY, HandoffHistory, HandoffMiddleware, check_active
from agentrt.pipeline.team import check_start, common_permissions, common_store, members_by_name
from agentrt.state import AgentState, StateStore
from agentrt.types import JSONObject

_AnswerType = TypeVar("_AnswerType")
_MAX_DESCRIPTION = 200  # characters


class Handoffs:
    """One conversation shared by several agents, one of them active: its model may transfer it to another one.

        team = Handoffs([triage, billing, refunds])
        answer = await team.reply("I was charged twice.")

    Each agent gets a tool `transfer_to_<name>` for each of the others, described by the beginning of its system
    prompt; the agents themselves are not changed. `start`, a name or an agent, answers first, and later the agent that
    answered last. The `state` records that agent: loaded again, the conversation continues with it.

    Each agent's part, until it transfers, is a reply of its own, with its own id, start and end; the message of the
    last one is the answer. A waiting reply is resumed as with any agent. After `max_handoffs` transfers in one
    answer further ones are refused, and the speaker answers. With `history="text"` an agent reads calls of tools that
    it does not have as notes, with "calls" unchanged.

    Without a `state`, the conversation has all deny and ask rules of the agents, and the strictest of their modes;
    allow rules count if all agents have the same ones. The `state_store` is that of the agents, if they share one. A
    second reply at the same time raises `AgentBusyError`.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        *,
        start: str | Agent | None = None,
        state: AgentState | None = None,
        state_store: StateStore | str | None = None,
        history: HandoffHistory = "text",
        max_handoffs: int = 8,
    ) -> None:
        members = members_by_name(agents)
        self._start = check_start(start, members)
        if state is None:
            state = AgentState(permission_context=common_permissions(members.values()))
        own_store = as_state_store(type(self).__name__, state_store)
        store = common_store(members.values()) if own_store is None else own_store
        self._agents = {}
        # Of one without a description they learn the beginning of its prompt: most prompts begin with its role.
        descriptions = {
            name: one_line(agent.description or agent.system_prompt, _MAX_DESCRIPTION)
            for name, agent in members.items()
        }
        for name, agent in members.items():
            peers = {other: description for other, description in descriptions.items() if other != name}
            layer = HandoffMiddleware(peers, history=history, max_handoffs=max_handoffs)
            member = agent.with_middlewares(layer.place_among(agent.middlewares)).with_state(state)
            member.state_store = store
            self._agents[name] = member
        self._exit_stacks: list[AsyncExitStack] = []
        self._claim: Claim | None = None
        self._interrupts = 0  # since the last part began
        self._state = state
        check_active(state, self._start, self._agents)

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._agents)}; {self.active.name} has the conversation>"

    def __getstate__(self) -> dict[str, object]:
        # A copy has no reply in progress.
        return {**vars(self), "_claim": None, "_interrupts": 0}

    @property
    def state(self) -> AgentState:
        """The conversation, which all agents share; another one can be assigned between two replies."""
        return self._state

    @state.setter
    def state(self, state: AgentState) -> None:
        agents = {name: agent.with_state(state) for name, agent in self._agents.items()}
        check_active(state, self._start, agents)
        self._state, self._agents, self._claim = state, agents, None

    @property
    def agents(self) -> dict[str, Agent]:
        """The agents by their names, as they take part in this conversation."""
        return dict(self._agents)

    @property
    def active(self) -> Agent:
        """The agent that has the conversation."""
        return self._agents[self._data().get("active", self._start)]

    @overload
    async def reply(
        self, inputs: AgentInput, structured_schema: type[_AnswerType], *, reply_id: str | None = None, deps: Any = None
    ) -> Msg[_AnswerType]: ...

    @overload
    async def reply(
        self,
        inputs: AgentInput = None,
        structured_schema: object = None,
        *,
        reply_id: str | None = None,
        deps: Any = None,
    ) -> Msg: ...

    async def reply(
        self, inputs: AgentInput = None, structured_schema: Any = None, *, reply_id: str | None = None, deps: Any = None
    ) -> Msg:
        """Answer with the final message, as `Agent.reply` does, through any number of agents."""
        given_id = reply_id
        inputs = self._open_turn(as_input(inputs), reply_id)
        while True:
            part_id = self._begin_part(given_id)
            answer: Msg = await self.active.reply(inputs, structured_schema, reply_id=part_id, deps=deps)
            if not self._was_transferred(answer):
                return answer
            if self._interrupts:
                return await self.active.handle_interrupt()
            self._pass_on()
            inputs, given_id = None, self._data().get("reply_id")

    __call__ = reply

    def reply_stream(
        self,
        inputs: AgentInput = None,
        structured_schema: Any = None,
        *,
        yield_final_msg: bool = False,
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent | Msg]:
        """Answer as a stream of the events of all agents, with the final message after them on request."""
        claim = Claim(reply_id, after)
        claim.form = None if structured_schema is None else AnswerForm(structured_schema)
        options = {"after": after, "deps": deps}
        work = partial(self._tell_parts, claim, as_input(inputs), structured_schema, reply_id, options)
        return ReplyStream(work, claim, yield_final_msg)

    async def _tell_parts(
        self, claim: Claim, inputs: AgentInput, structured_schema: Any, reply_id: str | None, options: JSONObject
    ) -> None:
        claim.reaper = Reaper()  # here, inside an event loop
        given_id = reply_id
        inputs = self._open_turn(inputs, reply_id)
        self._claim = claim
        while True:
            part_id = self._begin_part(given_id)
            stream = self.active.reply_stream(inputs, structured_schema, reply_id=part_id, **options)
            claim.part = stream
            async with stream as events:
                is_first = True
                async for event in events:
                    if is_first:  # by which the text reader recognises this answer
                        claim.reply_id, is_first = event.reply_id, False
                    await hand_out(event)
            if claim.is_handed_over:
                return
            claim.final = stream.message
            if not self._was_transferred(stream.message):
                break
            if self._interrupts:
                claim.final = await self.active.handle_interrupt()
                break
            self._pass_on()
            inputs, given_id = None, self._data().get("reply_id")
        if claim.tells_message:
            await hand_out(claim.final)

    def run_sync(self, inputs: AgentInput = None, structured_schema: Any = None, *, deps: Any = None) -> Msg:
        """Answer with the final message, from a program without an event loop."""
        if in_event_loop():
            raise UsageError("run_sync() was called inside a running event loop: write `await team.reply(...)` there")
        return anyio.run(self._reply_and_close, inputs, structured_schema, deps)

    async def _reply_and_close(self, inputs: AgentInput, structured_schema: Any, deps: Any) -> Msg:
        async with self:
            return await self.reply(inputs, structured_schema, deps=deps)

    async def observe(self, msg: MessagesInput | None) -> None:
        """Take in messages without answering them."""
        await self.active.observe(msg)

    def waiting(self) -> RequireUserConfirmEvent | RequireExternalExecutionEvent | None:
        """Return the event with the pending question of the conversation or `None`."""
        return self.active.waiting()

    def interrupt(self, reason: str | Msg | None = None) -> InterruptResult:
        """End the reply of this conversation cleanly, whichever agent is active, from any task or thread."""
        # Between two agents no reply has to end, but the next one must not start.
        self._interrupts += 1
        return self.active.interrupt(reason)

    def with_state(self, state: AgentState) -> Self:
        """Return another conversation with the same agents."""
        other = copy.copy(self)
        other.state = state
        return other

    def explain(self) -> str:
        """Return the compiled chains of each agent."""
        return "\n\n".join(agent.explain() for agent in self._agents.values())

    async def aclose(self) -> None:
        """Close the open resources of the models in this event loop."""
        for agent in self._agents.values():
            await agent.aclose()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for agent in self._agents.values():
                await stack.enter_async_context(agent)  # its toolsets
            self._exit_stacks.append(stack.pop_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stacks.pop().aclose()

    def _data(self) -> JSONObject:
        return self.state.middleware_data.setdefault(HANDOFF_KEY, {})

    def _open_turn(self, inputs: AgentInput, reply_id: str | None) -> AgentInput:
        """Record the start of a new answer, unless the input continues one; returns the first speaker's input."""
        data, unfinished = self._data(), self.state.reply_context
        if lock_of(self.state).run is not None or isinstance(inputs, ANSWERS):
            return inputs  # it is refused, or resumes a waiting reply: no new answer starts
        is_same = reply_id is not None and reply_id == data.get("reply_id")
        if unfinished is not None and (unfinished.parked or inputs is None or is_same):
            return inputs
        if is_same:
            # The input is already in the conversation if a further agent has started, or was about to.
            inputs = None if data.get("count") else inputs
        elif inputs is not None or data.get("next") is None:
            data.update(count=0, reply_id=reply_id)
        # Also if a process died after one agent had ended, and before the next one started.
        self._pass_on()
        return inputs

    def _pass_on(self) -> None:
        """Complete a pending transfer of the conversation."""
        data = self._data()
        data["active"] = data.pop("next", None) or self.active.name
        data["part"] = data.get("count", 0)

    def _begin_part(self, reply_id: str | None) -> str | None:
        """Make the active agent wait for a dropped stream to close; returns the id of its reply."""
        part, claim = self._data().get("part"), self._claim
        self._interrupts = 0
        is_dropped = claim is not None and claim.dropped
        # Such a stream is closing; then the conversation is free.
        self.active.when_busy = "wait" if is_dropped else "raise"
        if is_dropped:
            self._claim = None
        return f"{reply_id}:{part}" if reply_id is not None and part else reply_id

    def _was_transferred(self, answer: Msg) -> bool:
        """Say whether the reply that ended with this message has transferred the conversation."""
        is_over = self.state.reply_context is None and answer.finished_reason == "completed"
        return is_over and self._data().get("next") is not None
