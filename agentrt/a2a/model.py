"""A remote agent in place of a model: a request is a message to a task, and the task's output is the answer."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from agentrt.a2a.connection import A2AConnection
from agentrt.a2a.content import answer_parts, message_digests, new_parts, unsent_messages
from agentrt.a2a.task import STATE_KEY, RemoteTask
from agentrt.errors import Rejected
from agentrt.message import HintBlock, Msg, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.types import JSONSchema, ToolChoice

_UNLIMITED_CONTEXT = 1 << 53  # the remote agent keeps the conversation, so it is never summarised here


class RemoteAgentModel(ChatModelBase):
    """The remote agent, for the conversation of `agent`."""

    is_remote_agent = True

    def __init__(self, connection: A2AConnection, agent: Any = None) -> None:
        super().__init__(model=connection.source, stream=True, context_size=_UNLIMITED_CONTEXT)
        self.connection = connection
        self._agent = agent

    # Each conversation has its own instance; for rate limits and circuit breakers all of them count as one.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteAgentModel) and self.connection is other.connection

    def __hash__(self) -> int:
        return hash(self.connection)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self.connection.aclose()

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> AsyncGenerator[ChatResponse, None]:
        source = self.connection.source
        if self._agent is None or self._agent.run.is_internal:
            raise Rejected(f"{source} answers messages of a conversation, and writes no summaries or titles beside it")
        if tool_choice is not None and tool_choice.mode not in ("auto", "none"):
            raise Rejected(f"{source} cannot be made to call {tool_choice.mode!r}: it gives answers in words alone")
        parts, step = self._parts_to_send(messages)
        parts = self._agent.released(parts)  # handles of this conversation stand for nothing there
        return self._converse(RemoteTask(self.connection, self._agent, parts, step))

    def _parts_to_send(self, messages: Sequence[Msg]) -> tuple[list[dict[str, Any]], int]:
        """Return the parts that the remote agent has not received, and the number of this step, from 0."""
        run = self._agent.run
        reply_message = next((message for message in messages if message.id == run.id), None)
        blocks = [] if reply_message is None else reply_message.get_content_blocks()
        steps = [block for block in blocks if isinstance(block, (ToolResultBlock, HintBlock))]
        # A layer's hint comes last, in the name of the runtime.
        if messages and messages[-1].name == "runtime" and (note := messages[-1].get_content_blocks("hint")):
            return [{"text": block.hint} for block in note], len(steps) + 1
        if steps:
            last = steps[-1]
            return [{"text": last.hint}] if isinstance(last, HintBlock) else answer_parts(last), len(steps)
        return self._unsent_parts(messages), 0

    def _unsent_parts(self, messages: Sequence[Msg]) -> list[dict[str, Any]]:
        run, record = self._agent.run, self._agent.state.middleware_data.setdefault(STATE_KEY, {})
        unsent, answered_in = unsent_messages(messages, record, self._agent.name)
        digests, taken = message_digests(unsent), record.get("taken", [])
        record |= {"answered_in": answered_in, "sending": digests}
        # A failed task received its messages but has no answer, so the next reply sends only later ones. The reply that
        # asked the failed task sends all of them again.
        is_failed = record.get("asked_by") not in (answered_in, run.id)
        if is_failed:
            # One by one, since layers insert temporary messages between those of the conversation.
            left, later = Counter(taken), []
            for message, digest in zip(unsent, digests, strict=True):
                if left[digest]:
                    left[digest] -= 1
                else:
                    later.append(message)
            unsent = later or unsent
        return new_parts(unsent)

    async def _converse(self, task: RemoteTask) -> AsyncGenerator[ChatResponse, None]:
        try:
            await task.begin()
            while (result := await task.next_result()) is not None:
                for piece in await task.read(result):
                    yield ChatResponse([piece], is_last=False)
            for block in await task.settle():
                yield ChatResponse([block], is_last=False)
        except BaseException as error:
            # The error decides whether the task is cancelled.
            await task.leave(error)
            raise
        finally:
            await task.aclose()
