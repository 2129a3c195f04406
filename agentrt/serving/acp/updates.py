"""The events of a reply, and saved messages, as the updates that an editor shows."""

from collections.abc import Callable, Iterator, Mapping
from posixpath import join
from typing import Any

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AudioContentBlock,
    ContentToolCallContent,
    FileEditToolCallContent,
    ImageContentBlock,
    PlanEntry,
    ResourceContentBlock,
    TextContentBlock,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
    UserMessageChunk,
)

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.text import one_line
from agentrt.agent import Agent
from agentrt.errors import ToolError
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    DataBlockEndEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
)
from agentrt.message import (
    ContentBlock,
    DataBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
)
from agentrt.serving.reply_blocks import ReplyBlocks
from agentrt.tool.arguments import parse_arguments

_Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | UsageUpdate
)
_LONGEST_TITLE = 120
_MAX_RESULT = 100_000  # characters that an editor is shown of one result
_STARTS_OVER = "\n\n*(the answer starts over)*\n\n"
_PLAN_STATES: Mapping[str, Any] = {"todo": "pending", "in_progress": "in_progress", "done": "completed"}
_CALL_STATES: Mapping[ToolResultState, Any] = {
    ToolResultState.SUCCESS: "completed",
    ToolResultState.RUNNING: "in_progress",  # of a reply that was left, which the next prompt finishes
}


class ReplyUpdates:
    """Translates the events of one reply; `folder` is the one that paths of the workspace are relative to.

    An editor has no way to take text back: where a model starts its answer over, it shows a line that says so.
    """

    def __init__(self, agent: Agent, folder: str) -> None:
        self._agent = agent
        self._folder = folder
        self.reply_id: str | None = None
        self._blocks = ReplyBlocks()
        self._translations: dict[type, Callable[[Any], Iterator[_Update]]] = {
            TextBlockDeltaEvent: self._text,
            ThinkingBlockDeltaEvent: self._thought,
            DataBlockEndEvent: self._show_data,
            ToolCallStartEvent: self._open_call,
            ToolCallEndEvent: self._complete_call,
            ToolResultStartEvent: self._begin_result,
            ToolResultEndEvent: self._end_result,
            ModelCallEndEvent: self._usage,
            ModelCallRetryEvent: self._withdraw,
            BlocksWithdrawnEvent: self._withdraw,
            CustomEvent: self._plan,
        }

    def translate(self, event: AgentEvent) -> Iterator[_Update]:
        """Yield the updates that say the same, none for what the protocol has no place for."""
        self.reply_id = self.reply_id or event.reply_id
        if event.reply_id != self.reply_id:
            return  # of a sub-agent, whose answer is the result of a call of this reply
        if getattr(event, "tool_call_id", "").startswith(HIDDEN_CALL):
            return  # of a layer, and no model sees it either
        self._blocks.read(event)
        translation = self._translations.get(event.__class__)
        if translation is not None:
            yield from translation(event)

    def _text(self, event: TextBlockDeltaEvent) -> Iterator[_Update]:
        yield message_chunk(event.delta)

    def _thought(self, event: ThinkingBlockDeltaEvent) -> Iterator[_Update]:
        yield _thought(event.delta)

    def _show_data(self, event: DataBlockEndEvent) -> Iterator[_Update]:
        block = self._blocks.find(event.block_id, DataBlock)
        if block is not None:
            yield _chunk(_content_block(block))

    def _open_call(self, event: ToolCallStartEvent) -> Iterator[_Update]:
        yield _call_start(ToolCallBlock(event.tool_call_id, event.tool_call_name), "pending")

    def _complete_call(self, event: ToolCallEndEvent) -> Iterator[_Update]:
        call = self._blocks.find(event.tool_call_id, ToolCallBlock)
        if call is not None:  # it may have been told to an earlier prompt
            yield _progress(call.id, title=call_title(call), raw_input=raw_input(call))

    def _begin_result(self, event: ToolResultStartEvent) -> Iterator[_Update]:
        yield _progress(event.tool_call_id, status="in_progress")

    def _end_result(self, event: ToolResultEndEvent) -> Iterator[_Update]:
        result = self._blocks.find(event.tool_call_id, ToolResultBlock)
        assert result is not None  # made by this event at the latest
        yield _call_result(result, self._folder)

    def _withdraw(self, event: ModelCallRetryEvent | BlocksWithdrawnEvent) -> Iterator[_Update]:
        withdrawn = [block_id for block_id in event.block_ids if self._blocks.find(block_id, ToolCallBlock)]
        for call_id in withdrawn:
            yield _progress(call_id, status="failed", content=[call_content("withdrawn")])
        if len(withdrawn) < len(event.block_ids):
            yield message_chunk(_STARTS_OVER)

    def _usage(self, event: ModelCallEndEvent) -> Iterator[_Update]:
        used = (event.input_tokens or 0) + (event.output_tokens or 0)
        if used:
            yield UsageUpdate(session_update="usage_update", used=used, size=self._agent.model.context_size)

    def _plan(self, event: CustomEvent) -> Iterator[_Update]:
        if event.name == "plan_updated" and isinstance(event.value, dict):
            plan, entries = event.value.get("plan"), []
            for item in plan.get("subtasks", []) if isinstance(plan, dict) else []:
                status = _PLAN_STATES.get(item.get("state"))
                if status is not None:  # an abandoned one has no place in the protocol
                    entries.append(PlanEntry(content=item.get("name", ""), priority="medium", status=status))
            yield AgentPlanUpdate(session_update="plan", entries=entries)


def saved_updates(message: Msg, folder: str) -> Iterator[_Update]:
    """Yield the updates that show a saved message again."""
    blocks = [TextBlock(message.content)] if isinstance(message.content, str) else message.content
    results = {block.id: block for block in blocks if isinstance(block, ToolResultBlock)}
    for block in blocks:
        match block:
            case TextBlock() | DataBlock() if message.role == "user":
                yield UserMessageChunk(session_update="user_message_chunk", content=_content_block(block))
            case TextBlock() | DataBlock() if message.role == "assistant":
                yield _chunk(_content_block(block))
            case ThinkingBlock():
                yield _thought(block.thinking)
            case ToolCallBlock() if not block.is_hidden:
                yield _call_start(block, "pending")
                if block.id in results:
                    yield _call_result(results[block.id], folder)


def call_title(call: ToolCallBlock) -> str:
    """Return a call in one line."""
    return one_line(f"{call.name} {call.input}".strip(), _LONGEST_TITLE)


def raw_input(call: ToolCallBlock) -> Any:
    """Return the arguments of a call; as text where they are not a JSON object."""
    try:
        return parse_arguments(call.input)
    except ToolError:
        return call.input


def _content_block(block: ContentBlock) -> Any:
    if isinstance(block, TextBlock):
        return TextContentBlock(type="text", text=block.text)
    assert isinstance(block, DataBlock)
    source, media_type = block.source, block.source.media_type or ""
    if isinstance(source, URLSource):
        return ResourceContentBlock(
            type="resource_link", name=block.name or source.url, uri=source.url, mime_type=source.media_type
        )
    if media_type.startswith("image/"):
        return ImageContentBlock(type="image", data=source.data, mime_type=media_type)
    if media_type.startswith("audio/"):
        return AudioContentBlock(type="audio", data=source.data, mime_type=media_type)
    return TextContentBlock(type="text", text=f"({media_type}, {len(source.data) * 3 // 4:,} bytes)")


def _chunk(content: Any) -> AgentMessageChunk:
    return AgentMessageChunk(session_update="agent_message_chunk", content=content)


def message_chunk(text: str) -> AgentMessageChunk:
    """Return the update by which the agent says something."""
    return _chunk(TextContentBlock(type="text", text=text))


def call_content(text: str) -> ContentToolCallContent:
    """Return text as a part of what a call shows."""
    return ContentToolCallContent(type="content", content=TextContentBlock(type="text", text=text))


def _thought(text: str) -> AgentThoughtChunk:
    content = TextContentBlock(type="text", text=text)
    return AgentThoughtChunk(session_update="agent_thought_chunk", content=content)


def _call_start(call: ToolCallBlock, status: Any) -> ToolCallStart:
    outer = call.id.rpartition("/")[0]
    return ToolCallStart(
        session_update="tool_call",
        tool_call_id=call.id,
        title=call_title(call),
        status=status,
        raw_input=raw_input(call) if call.input else None,
        # The protocol has no calls in calls; an editor that knows the field may indent them.
        field_meta={"agentrt/parentToolCallId": outer} if outer else None,
    )


def _progress(call_id: str, **values: Any) -> ToolCallProgress:
    return ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, **values)


def _call_result(result: ToolResultBlock, folder: str) -> ToolCallProgress:
    content: list[Any] = []
    for block in result.blocks:
        part = _content_block(block)
        if isinstance(part, TextContentBlock):
            if not part.text:
                continue
            if len(part.text) > _MAX_RESULT:
                part.text = f"{part.text[:_MAX_RESULT]} ... ({len(part.text):,} characters)"
        content.append(ContentToolCallContent(type="content", content=part))
    # Tools write metadata freely, so of a wrong type nothing is shown.
    match result.metadata.get("diff"):
        case {"path": str(path), "old_text": str() | None as old_text, "new_text": str(new_text)}:
            content.append(
                FileEditToolCallContent(type="diff", path=join(folder, path), old_text=old_text, new_text=new_text)
            )
    values = result.metadata.get("locations")
    locations = []
    for location in values if isinstance(values, list) else []:
        match location:
            case {"path": str(path), "line": int(line)} if line >= 0:
                locations.append(ToolCallLocation(path=join(folder, path), line=line))
            case {"path": str(path)}:
                locations.append(ToolCallLocation(path=join(folder, path)))
    return _progress(
        result.id, status=_CALL_STATES.get(result.state, "failed"), content=content, locations=locations or None
    )
