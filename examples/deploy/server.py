"""A chat server: one process, many users, each with a conversation that outlives the process.

usage: python server.py

The environment configures it: see docs/how-to/deploy.md, and the Dockerfile beside this file.
"""

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentrt import Agent
from agentrt.errors import AgentBusyError, ModelError, RateLimited, SessionConflict
from agentrt.middleware import LoggingMiddleware, RetryMiddleware, TimeoutMiddleware, TracingMiddleware, setup_tracing
from agentrt.model import default_model
from agentrt.state import AgentState, FileStateStore

GRACE_SECONDS = float(os.environ.get("GRACE_SECONDS", "20"))  # how long a reply may continue after SIGTERM

store = FileStateStore(os.environ.get("STATE_FOLDER", "conversations"))
agent = Agent(
    "assistant",
    system_prompt="You help the customers of a shop.",
    model=default_model(offline=False),  # rules must not answer customers if a key is missing
    middlewares=[TracingMiddleware(), LoggingMiddleware(), RetryMiddleware(), TimeoutMiddleware(total=120)],
    state_store=store,
)
in_use: WeakValueDictionary[str, Agent] = WeakValueDictionary()  # a conversation is dropped with its last request


async def conversation_of(user: str) -> Agent:
    """Return the conversation of a user: the same object for concurrent requests."""
    if user not in in_use:
        state = await store.load(user) or AgentState(session_id=user)
        return in_use.setdefault(user, agent.with_state(state))
    return in_use[user]


class Question(BaseModel):
    user: str
    text: str
    id: str | None = None  # of the request; a repeated one is answered once


async def chat(request: Request) -> JSONResponse:
    question = Question.model_validate_json(await request.body())
    conversation = await conversation_of(question.user)  # authenticate the user before this line
    msg = await conversation.reply(question.text, reply_id=question.id)
    return JSONResponse({"text": msg.get_text_content(), "finished_reason": msg.finished_reason})


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"conversations": len(in_use)})


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Answer with a status that tells the client what to do; messages of providers stay in the log."""
    if isinstance(error, ValidationError):
        return JSONResponse({"error": error.errors(include_input=False, include_url=False)}, 422)
    if isinstance(error, AgentBusyError | SessionConflict):
        return JSONResponse({"error": "this conversation is answering another message"}, 409)
    if isinstance(error, RateLimited):
        return JSONResponse({"error": "too many requests"}, 429, {"retry-after": str(int(error.retry_after or 10))})
    return JSONResponse({"error": "no answer"}, 502)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    delivery = setup_tracing(service_name="chat") if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ else None
    async with agent:  # closes the connections to the model at the end
        yield
    if delivery is not None:
        await anyio.to_thread.run_sync(delivery.shutdown)  # SIGTERM ends a process without its exit handlers


app = Starlette(
    routes=[Route("/chat", chat, methods=["POST"]), Route("/health", health)],
    exception_handlers=dict.fromkeys((ValidationError, AgentBusyError, SessionConflict, ModelError), refuse),
    lifespan=lifespan,
)


async def stop_replies(server: uvicorn.Server) -> None:
    """After SIGTERM, give the replies in progress some time, then interrupt them, which saves them."""
    while not server.should_exit:  # noqa: ASYNC110  # uvicorn has no event for it
        await anyio.sleep(0.1)
    await anyio.sleep(GRACE_SECONDS)
    for conversation in list(in_use.values()):
        _ = conversation.interrupt(reason="the server stops")


async def main() -> None:
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    settings = uvicorn.Config(
        app,
        host=os.environ.get("HOST", "127.0.0.1"),
        port=int(os.environ.get("PORT", "8000")),
        timeout_graceful_shutdown=int(GRACE_SECONDS) + 10,  # longer than the replies get
        log_config=None,
    )
    server = uvicorn.Server(settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_replies, server)
        await server.serve()
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
