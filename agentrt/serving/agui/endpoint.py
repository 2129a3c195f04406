"""A thread is a session, and a run follows a reply until it is over or asks."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt import AgentState, Msg
from agentrt.errors import AgentRTError
from agentrt.runner import ReplyHandle
from agentrt.serving.agui.events import RunTranslator
from agentrt.serving.agui.input import RunInput, no_new_message
from agentrt.serving.bodies import is_reply_id, read_on_disconnect
from agentrt.serving.budget import read_json
from agentrt.serving.failure import as_api_error
from agentrt.serving.gate import Gate
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.serving.sse import EventStream, encode_data
from agentrt.serving.submission import read_status, submit_answer, submit_messages


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

    async def _answer_run(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        leave = read_on_disconnect(request)
        body = await read_json(request, self._gate.limits, None, items=("messages", "resume"))
        run_input = RunInput.read(body)
        # Before anything is stored: a refused stream must not leave a reply that runs.
        sessions.take_place("streams")
        run = await self._begin(sessions, run_input)
        return EventStream(
            partial(self._messages, sessions, run_input, run),
            self._gate.limits,
            name=f"reply {run.handle.reply_id}",
            on_leave=run.handle.interrupt if leave == "interrupt" else None,
            headers={},
        )

    async def _begin(self, sessions: OwnerSessions, run_input: RunInput) -> _Run:
        info = await sessions.find(run_input.thread_id)
        state = None if info is None else await sessions.load(run_input.thread_id)
        agent = sessions.agent
        question = None if state is None else agent.with_state(state).waiting()
        reply = None if state is None else _latest_reply(state)
        answer = run_input.answer_to(question, reply)
        if answer is not None:
            handle = await submit_answer(sessions, run_input.thread_id, answer)
            answered = run_input.answered_calls(answer.reply_id)
            if question is None or answered.isdisjoint(call.id for call in question.tool_calls):
                return _Run(handle, 0, None, is_repeated=True)
            # The client has read what came before its answer, and a snapshot has to repeat it.
            context = None if state is None else state.reply_context
            return _Run(handle, question.seq, None if context is None else context.message)
        reply_id = run_input.run_id if is_reply_id(run_input.run_id) else None
        messages = await run_input.new_messages(state)
        if not messages:
            if reply is not None and run_input.has_result_for(reply):
                reply_id = reply.id
            thread_id = run_input.thread_id
            if reply_id is None or state is None or not await sessions.has_reply(thread_id, reply_id):
                raise no_new_message()
            return _Run(sessions.handle(thread_id, reply_id), 0, None, is_repeated=True)
        handle = await submit_messages(sessions, run_input.thread_id, messages, reply_id, run_input.schema)
        return _Run(handle, 0, None)

    async def _messages(self, sessions: OwnerSessions, run_input: RunInput, run: _Run) -> AsyncGenerator[bytes, None]:
        translator = RunTranslator(
            run_input.thread_id,
            run_input.run_id,
            run.handle.reply_id,
            agent_name=sessions.agent.name,
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
                status = await read_status(sessions, run.handle)
                for translated in translator.end(status):
                    yield encode_data(translated)
        except (AgentRTError, OSError) as error:
            # Nobody can come back to a run: the next one finds how the reply ended.
            failure = as_api_error(error, "a run").body["error"]
            yield encode_data(translator.fail(failure["code"], failure["message"]))


def _latest_reply(state: AgentState) -> Msg | None:
    """Return the message of the reply in progress, or of the one that ended last."""
    if state.reply_context is not None:
        return state.reply_context.message
    last = state.last_reply
    return next((message for message in reversed(state.context) if last and message.id == last.reply_id), None)
