"""An agent of another program: the reference server of the protocol's SDK."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from starlette.applications import Starlette

from tests.serving.conftest import run_server


class ReferenceAgent(AgentExecutor):
    """Does what the message says, and notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.canceled: list[str] = []
        self.may_go_on = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        self.heard.append((context.message.message_id, text))
        task = context.current_task
        if text == "greet":
            await event_queue.enqueue_event(new_text_message("Hello."))
            return
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        if text == "ask":
            await updater.add_artifact([new_text_part("I ask. ")], artifact_id="a")
            await updater.requires_input(updater.new_agent_message([new_text_part("Which city?")]))
            return
        if text.endswith("decline"):
            await updater.reject(updater.new_agent_message([new_text_part("not mine")]))
            return
        await updater.start_work(updater.new_agent_message([new_text_part("looking")]))
        if text == "fail":
            await updater.failed(updater.new_agent_message([new_text_part("no map")]))
            return
        if text == "wait":
            await self.may_go_on.wait()
        for number, word in enumerate(("It ", "rains ", f"({text}).")):
            await updater.add_artifact([new_text_part(word)], artifact_id="b", append=number > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.canceled.append(context.task_id or "")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


@contextmanager
def run_reference_agent(*, streaming: bool = True) -> Iterator[tuple[str, ReferenceAgent]]:
    """Serve it, and return its URL."""
    executor = ReferenceAgent()
    card = AgentCard(
        name="reference",
        description="Does what it is told.",
        version="1",
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore(), agent_card=card)
    app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
    with run_server(app) as url:
        # Read by each request, so that it can be told where it is.
        card.supported_interfaces.append(
            AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
        )
        yield url, executor
