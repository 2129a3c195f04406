"""A thread is a session, and a run follows a reply until it is over or asks."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt import AgentState, Msg
from agentrt.errors import AgentRTError, UsageError
from agentrt.runner import ReplyHandle
from agentrt.serving.agui.events import RunTranslator
from agentrt.serving.agui.input import RunInput, no_new_message
from agentrt.serving.bodies import is_reply_id, read_json, read_on_disconnect
from agentrt.serving.gate import Gate
from agentrt.serving.sessions import Visitor
from agentrt.serving.sse import EventStream, encode_data
from agentrt.serving.submission import read_status, submit_answer, submit_messages

__all__ = ["AgUi"]

_logger = logging.getLogger("agentrt")


class _Run(NamedTuple):
    """A reply that was started or resumed, with the events to send: those after `after`; `message` has earlier content.

    `is_repeated` says that the client lost its connection, and gets the whole reply again.
    """

    handle: ReplyHandle
    after: int
    message: Msg | None
    is_repeated: bool = False


class AgUi:
    """Answers runs, for the agent that `?agent=` names, or else the first one."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[Route]:
        return [Route("/agui", self._gate.endpoint(self._answer_run), methods=["POST"])]

    async def _answer_run(self, request: Request, visitor: Visitor) -> ASGIApp:
        leave = read_on_disconnect(request)
        body = await read_json(request, self._gate.limits, None)
        run_input = RunInput.read(body)
        slots = self._gate.slots
        # Before anything is stored: a refused stream must not leave a reply that runs.
        slots.take(visitor.owner)
        try:
            run = await self._begin(visitor, run_input)
        except BaseException:
            slots.release(visitor.owner)
            raise
        return EventStream(
            partial(self._messages, visitor, run_input, run),
            self._gate.limits,
            name=f"reply {run.handle.reply_id}",
            on_leave=run.handle.interrupt if leave == "interrupt" else None,
            on_close=partial(slots.release, visitor.owner),
            headers={},
        )

    async def _begin(self, visitor: Visitor, run_input: RunInput) -> _Run:
        info = await visitor.find(run_input.thread_id)
        state = None if info is None else await visitor.load(run_input.thread_id)
        agent = visitor.runner.agent
        question = None if state is None else agent.with_state(state).waiting()
        reply = None if state is None else _latest_reply(state)
        answer = run_input.answer_to(question, reply)
        if answer is not None:
            handle = await submit_answer(visitor, run_input.thread_id, answer)
            answered = run_input.answered_calls(answer.reply_id)
            if question is None or answered.isdisjoint(call.id for call in question.tool_calls):
                return _Run(handle, 0, None, is_repeated=True)
            # The client has read what came before its answer, and a snapshot has to repeat it.
            context = None if state is None else state.reply_context
            return _Run(handle, question.seq, None if context is None else context.message)
        reply_id = run_input.run_id if is_reply_id(run_input.run_id) else None
        messages = run_input.new_messages(agent, state)
        if not messages:
            if reply is not None and run_input.has_result_for(reply):
                reply_id = reply.id
            if reply_id is None or state is None or not await visitor.runner.has_reply(state.session_id, reply_id):
                raise no_new_message()
            return _Run(visitor.runner.handle(state.session_id, reply_id), 0, None, is_repeated=True)
        handle = await submit_messages(visitor, run_input.thread_id, messages, reply_id)
        return _Run(handle, 0, None)

    async def _messages(self, visitor: Visitor, run_input: RunInput, run: _Run) -> AsyncGenerator[bytes, None]:
        translator = RunTranslator(
            run_input.thread_id,
            run_input.run_id,
            run.handle.reply_id,
            agent_name=visitor.runner.agent.name,
            messages=run_input.messages,
            state=run_input.state,
            said_before=run.message,
            answered=run_input.answered_calls(run.handle.reply_id) if run.is_repeated else frozenset(),
        )
        yield encode_data(translator.begin())
        if run.is_repeated:
            yield encode_data(translator.snapshot())  # without the part of the answer that the client has
        try:
            async with aclosing(run.handle.events(after=run.after)) as events:
                async for event in events:
                    for translated in translator.translate(event):
                        yield encode_data(translated)
            # A run that is repeated under its id may find a reply that is over.
            if not translator.is_over:
                status = await read_status(visitor, run.handle)
                for translated in translator.end(status):
                    yield encode_data(translated)
        except UsageError:
            # The runner was closed. Nobody can come back to a run: the next one finds what became of it.
            yield encode_data(translator.fail("closed", "this server stops: the reply continues in the next one"))
        except AgentRTError as error:
            _logger.warning("a reader of reply %s was left: %s", run.handle.reply_id, type(error).__name__)
            yield encode_data(translator.fail("store", "the store of the sessions does not answer: try again"))


def _latest_reply(state: AgentState) -> Msg | None:
    """Return the message of the reply in progress, or of the one that ended last."""
    if state.reply_context is not None:
        return state.reply_context.message
    last = state.last_reply
    return next((message for message in reversed(state.context) if last and message.id == last.reply_id), None)
