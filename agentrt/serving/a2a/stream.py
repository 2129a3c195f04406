"""The events of a reply as the updates of a task's artifact."""

from collections.abc import Iterator
from typing import Any

from agentrt import Msg
from agentrt.a2a.content import file_part
from agentrt.event import (
    AnyEvent,
    BlocksWithdrawnEvent,
    DataBlockEndEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    TextBlockDeltaEvent,
    TextBlockStartEvent,
)
from agentrt.message import DataBlock, TextBlock
from agentrt.serving.a2a.request import TaskName
from agentrt.serving.a2a.task import answer_artifact, message_parts

_REPLACING_EVENTS = (ModelCallRetryEvent, BlocksWithdrawnEvent, ReplyResumedEvent)


class ArtifactUpdates:
    """Translates the events of one reply into updates; `message` is what the client has of the reply already.

    Text is appended as it comes. If something that was sent is withdrawn, such as an attempt at the model that was
    given up, the artifact is replaced by a new one.
    """

    def __init__(self, name: TaskName, message: Msg) -> None:
        self._name = name
        self._message = message
        self._has_sent = bool(message_parts(message))
        self._begins_paragraph = False

    def read(self, event: AnyEvent) -> Iterator[dict[str, Any]]:
        """Return the updates for an event."""
        if event.reply_id != self._name.reply_id:
            return  # of a sub-agent
        self._message.append_event(event)
        # Made from the event alone: to join all of the text for each word would take too long.
        if isinstance(event, TextBlockDeltaEvent):
            if event.delta:
                text = f"\n\n{event.delta}" if self._begins_paragraph else event.delta
                self._begins_paragraph = False
                yield self._update([{"text": text}])
        elif isinstance(event, TextBlockStartEvent):
            # A paragraph of its own, as it is in the task that is read later.
            blocks = self._message.get_content_blocks()
            self._begins_paragraph = any(isinstance(block, TextBlock) and block.text for block in blocks[:-1])
        elif isinstance(event, DataBlockEndEvent):
            block = next(block for block in self._message.get_content_blocks() if block.id == event.block_id)
            if isinstance(block, DataBlock):
                yield self._update([file_part(block)])
        elif isinstance(event, ReplyEndEvent) and event.structured_output is not None:
            yield self._update([{"data": event.structured_output}])
        elif isinstance(event, _REPLACING_EVENTS):
            parts = message_parts(self._message)
            if parts or self._has_sent:
                self._has_sent = False
                yield self._update(parts or [{"text": ""}])

    def end(self) -> Iterator[dict[str, Any]]:
        """Return the update that ends the artifact, if there is one."""
        # An artifact needs a part, and this one adds nothing to it.
        if self._has_sent:
            yield self._update([{"text": ""}], is_last=True)

    def _update(self, parts: list[dict[str, Any]], *, is_last: bool = False) -> dict[str, Any]:
        update = {
            "taskId": str(self._name),
            "contextId": self._name.session_id,
            "artifact": answer_artifact(parts),
            "append": self._has_sent,
            "lastChunk": is_last,
        }
        self._has_sent = True
        return {"artifactUpdate": update}
