"""A model is an agent, and a chat completion is a reply: of a session of its own, or of one that is named."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt.errors import AgentRTError
from agentrt.runner import ReplyHandle
from agentrt.serving.bodies import read_idempotency_key
from agentrt.serving.budget import read_json
from agentrt.serving.failure import ApiError, as_api_error
from agentrt.serving.gate import Gate, RouteHandler
from agentrt.serving.openai.answer import Completion, ReplyText
from agentrt.serving.openai.request import ChatRequest, openai_error
from agentrt.serving.openai.typed_text import TypedText
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.serving.responses import AwaitedResponse, JsonResponse
from agentrt.serving.sse import EventStream, encode_data
from agentrt.serving.submission import read_status, submit_first, submit_messages
from agentrt.state import EPHEMERAL

_PASSING_PREFIX = "chat/"  # of the ids of sessions that last for one answer
_ABANDON_SECONDS = 30.0
_BUSY_SECONDS = 10  # for a rate limit of the model: events do not have its length
# Statuses and codes that clients of the API handle, by the class of the error that failed the reply.
_KNOWN_FAILURES = {
    "ContextOverflow": (400, "context_length_exceeded"),
    "RateLimitTimeout": (429, "rate_limit_exceeded"),
    "RateLimited": (429, "rate_limit_exceeded"),
}


class OpenAIApi:
    """Answers the requests under `/v1`."""

    def __init__(self, gate: Gate, *, has_studio: bool) -> None:
        self._gate = gate
        self._has_studio = has_studio

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, RouteHandler]] = [
            ("GET", "/v1/models", self._list_models),
            ("GET", "/v1/models/{model:path}", self._read_model),
            ("POST", "/v1/chat/completions", self._complete),
        ]
        return [
            Route(path, self._gate.endpoint(handler, reshape=openai_error), methods=[method])
            for method, path, handler in table
        ]

    async def _list_models(self, _: Request, __: OwnerSessions) -> Response:
        return JsonResponse({"object": "list", "data": [_describe_model(name) for name in self._gate.runners]})

    async def _read_model(self, request: Request, _: OwnerSessions) -> Response:
        name = request.path_params["model"]
        self._check_model(name)
        return JsonResponse(_describe_model(name))

    def _check_model(self, name: str) -> None:
        if name not in self._gate.runners:
            raise ApiError(
                404,
                "model_not_found",
                "this server has no agent with this name: GET /v1/models lists them",
                details={"param": "model"},
            )

    async def _complete(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        key = read_idempotency_key(request)
        chat = ChatRequest.read(await read_json(request, self._gate.limits, None, items=("messages",)))
        self._check_model(chat.model)
        sessions = sessions.with_runner(self._gate.open_runner(chat.model))
        # Before anything is stored: a refused request must not leave a reply that runs.
        sessions.take_place("streams")
        handle = await self._begin(sessions, chat, key)
        session, agent = quote(handle.session_id, safe=""), quote(chat.model, safe="")
        # On the page the user can answer; without it a program can.
        place = f"studio#agent={agent}&session={session}"
        if not self._has_studio:
            place = f"api/sessions/{session}?agent={agent}"
        # Without `base_url`, which is that of the outermost application, and not of one that is mounted in it.
        root = request.url.replace(path=quote(request.scope.get("root_path", "")), query="")
        turn = _Turn(sessions, chat, handle, f"{root}/{place}")
        if not chat.stream:
            return AwaitedResponse(turn.respond, on_leave=turn.abandon)
        return EventStream(
            turn.messages, self._gate.limits, name=f"reply {handle.reply_id}", on_leave=turn.abandon, headers={}
        )

    async def _begin(self, sessions: OwnerSessions, chat: ChatRequest, key: str | None) -> ReplyHandle:
        # Read before a session is made, so that a bad message leaves none.
        history, new = await chat.conversation(sessions.agent.name)
        if chat.session_id is not None:
            # The session has what was said before.
            return await submit_messages(sessions, chat.session_id, new, key, chat.schema)
        session_id = f"{_PASSING_PREFIX}{token_hex(12)}"
        # The label has it removed later, if this process is killed before it answers.
        return await submit_first(sessions, session_id, new, key, history=history, labels=EPHEMERAL, schema=chat.schema)


class _Turn(NamedTuple):
    """One completion: who asked for what, and the reply that answers; `url` is where its session is."""

    sessions: OwnerSessions
    chat: ChatRequest
    handle: ReplyHandle
    url: str

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Answer in chunks, which come as the reply does."""
        completion, answer = self._completion(), self._reply_text()
        yield encode_data(completion.chunk({"role": "assistant", "content": ""}))
        try:
            async with aclosing(self.handle.events()) as events:
                async for event in events:
                    text, reasoning = answer.read(event)
                    if text:
                        yield encode_data(completion.chunk({"content": text}))
                    if reasoning:
                        yield encode_data(completion.chunk({"reasoning_content": reasoning}))
            await self._settle(answer)
            answer.check()
        except (AgentRTError, ApiError) as error:
            # The status was sent long ago, so the failure is a chunk, which clients raise as they would a status.
            yield encode_data(openai_error(as_api_error(error, "a completion")).body)
            return
        if answer.status == "waiting":
            start = "\n\n" if answer.text else ""
            yield encode_data(completion.chunk({self._question_field: f"{start}{answer.question(self.url)}"}))
        yield encode_data(completion.chunk({}, answer.status))
        if self.chat.include_usage:
            yield encode_data(completion.usage_chunk(answer))
        yield b"data: [DONE]\n\n"

    async def respond(self) -> Response:
        """Answer as a whole."""
        try:
            answer = self._reply_text()
            async with aclosing(self.handle.events()) as events:
                async for event in events:
                    answer.read(event)
            await self._settle(answer)
            question = answer.question(self.url) if answer.status == "waiting" else ""
            if self._question_field == "refusal":
                return JsonResponse(self._completion().to_json(answer, answer.text, question or None))
            parts = [answer.text, question]
            return JsonResponse(self._completion().to_json(answer, "\n\n".join(filter(None, parts)), None))
        except (AgentRTError, ApiError) as error:
            failure = openai_error(as_api_error(error, "a completion"))
            return JsonResponse(failure.body, failure.status, failure.headers)

    @property
    def _question_field(self) -> str:
        # Where a client expects JSON, words are what the API calls a refusal: it does not parse them.
        return "content" if self.chat.schema is None else "refusal"

    async def abandon(self) -> None:
        """End the reply, since nobody else can read it; one of a session that is named continues."""
        if self.chat.session_id is None:
            with anyio.move_on_after(_ABANDON_SECONDS):
                # The worker saves the end, so the session is deleted behind that.
                await self.handle.interrupt()
                await self.handle.result()
                await self.sessions.forget(self.handle.session_id)

    async def _settle(self, answer: ReplyText) -> None:
        """Forget a session that was for this answer alone; raises `ApiError` where the reply failed."""
        # A reply that was over before, under the same key, may say its end in no event.
        answer.status = answer.status or await read_status(self.sessions, self.handle)
        # A reply that waits for an answer is kept until it gets one.
        if self.chat.session_id is None and answer.status != "waiting":
            await self.sessions.forget(self.handle.session_id)
        if answer.status in ("error", "failed"):
            code = answer.error or answer.status
            status, code = _KNOWN_FAILURES.get(code, (500, code))
            headers = {"Retry-After": str(_BUSY_SECONDS)} if status == 429 else {}
            raise ApiError(status, code, f"the reply failed: {answer.error or answer.status}", headers=headers)

    def _completion(self) -> Completion:
        return Completion(self.handle.reply_id, self.chat.model)

    def _reply_text(self) -> ReplyText:
        reply_id, name, schema = self.handle.reply_id, self.sessions.agent.name, self.chat.schema
        return ReplyText(reply_id, name) if schema is None else TypedText(reply_id, name, schema)


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentrt"}
