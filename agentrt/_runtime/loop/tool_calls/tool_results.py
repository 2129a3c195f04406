"""The result of a tool call as events: pieces of output, and the end of the call."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from agentrt._runtime.boundary import json_problem, mend_message
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import mended_content, receive
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.base64_groups import DataPieces
from agentrt._runtime.loop.structured_output import count_answer
from agentrt._runtime.model_interface.estimate import text_length
from agentrt.event import AgentEvent, ToolResultDataDeltaEvent, ToolResultEndEvent, ToolResultTextDeltaEvent
from agentrt.message import (
    Base64Source,
    DataBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    find_block,
)
from agentrt.state import ReplyContext
from agentrt.tool.to_response import final_result_state
from agentrt.types import (
    STRUCTURED_OUTPUT,
    ContentSource,
    IncomingContent,
    JSONObject,
    PermissionBehavior,
    ToolOutput,
    ToolResponse,
)

_RUNNING = ToolCallState.RUNNING
_BLOCKS_OF_AN_ANSWER = ("text", "data", "thinking")


Tell = Callable[[Sequence[AgentEvent]], Awaitable[None]]
"""Tells events of a call."""
TakenResult = tuple[ToolOutput, ToolOutput, ToolResultState, JSONObject]
"""The result of a call as it is kept: content, what the user said when allowing the call, state, metadata."""
TellResult = Callable[[ToolCallBlock, TakenResult, ToolOutput], Awaitable[None]]
"""Tells the result of a call, after the pieces of output that were told already."""


def take_result(context: ReplyContext, call: ToolCallBlock, response: ToolResponse) -> TakenResult:
    """Check the result of a call, and note in the reply what it means for the rest of it."""
    if response.metadata:
        response = _take_metadata(context, response)
    try:
        content, state = mended_content(response.content), response.state
        if state.__class__ is not ToolResultState:
            state = ToolResultState(state)
    except ValueError as error:  # of a layer's making, since the tool's own is sound
        content, state = [TextBlock(f"Failed: the result holds {error}.")], ToolResultState.ERROR
    # Such totals tell, without reading the conversation, whether the next request may be too long.
    for block in content:
        if isinstance(block, TextBlock) and "/" not in call.id:  # a tool reads the others, and no model
            text = block.text
            context.received += len(text) if text.isascii() else text_length(text)
    if context.structured is not None and call.name == STRUCTURED_OUTPUT:
        count_answer(context, content)
    metadata = dict(response.metadata) if response.metadata else {}
    # A result is the end of its call, also where its tool forgot to say so.
    return content, note_of(context, call), final_result_state(state), metadata


async def receive_result(
    agent: ReplyingAgent, call: ToolCallBlock, source: ContentSource, response: ToolResponse
) -> ToolResponse:
    """Return the result of a call, and the tool's own answer in it, as on_content leaves them."""
    tool = agent.live_conversation.run.toolkit_of(call.id).get(call.name)
    try:
        content = [*mended_content(response.content)]
    except ValueError as error:
        response = _make_failure(response, f"the result holds {error}")
        content = response.content
    if not isinstance(response.metadata, dict):
        response = _make_failure(replace(response, metadata={}), "the metadata of the result is not a dict")
        content = response.content
    answer = response.metadata.get("response_msg")
    metadata = {key: value for key, value in response.metadata.items() if key != "response_msg"}
    copied = ToolCallBlock(call.id, call.name, call.input, call.state)
    incoming = IncomingContent(source, content, copied, call.name, tool, response.state, metadata)
    received = await receive(agent, incoming)
    if received is incoming and answer is None:
        return response
    metadata = received.metadata
    if isinstance(answer, Msg):
        answer = answer.copy()
        # Its thoughts stay behind, which nobody has looked at.
        blocks: Any = answer.get_content_blocks(["text", "data"])
        form = answer.structured_output
        if blocks or answer.metadata or form is not None:  # one without a word ends the reply, and says nothing
            incoming_answer = replace(incoming, content=blocks, metadata=answer.metadata, structured_output=form)
            replaced = await receive(agent, incoming_answer)
            answer.content, answer.metadata = [*replaced.content], replaced.metadata
            answer.structured_output = replaced.structured_output
        metadata = {**metadata, "response_msg": answer}
    state = response.state if received.state is None else received.state
    return replace(response, content=received.content, state=state, metadata=metadata)


def only_text(result: TakenResult) -> TextBlock | None:
    """Return the one block that the events of a result make, where that is text and needs no event."""
    content, note, _, _ = result
    if note or len(content) != 1 or content[0].__class__ is not TextBlock:
        return None
    return TextBlock(content[0].text, content[0].id)  # a layer or the tool may keep its own


def events_of_result(
    context: ReplyContext, run: ReplyRun, call: ToolCallBlock, result: TakenResult, streamed: ToolOutput
) -> list[AgentEvent]:
    """Return the end of a call; before it, output that was not streamed, and in it, output that is not what was."""
    content, note, state, metadata = result
    output: ToolOutput | None = None
    has_more = call.state is _RUNNING
    # A call that is entered again may have told of more output than it gave this time; of one inside of another, which
    # is in no message, that is not known.
    if has_more and "/" not in call.id:
        begun: ToolResultBlock = find_block(context.message, call.id, ToolResultBlock)
        has_more = bool(streamed or begun.output)
    if not streamed and not has_more:
        events = delta_events(run, call, [*content, *note] if note else content)
    elif not has_more and (text := _text_alone(streamed)) is not None and text == _text_alone(content):
        events = delta_events(run, call, note)
    else:  # what was streamed, perhaps before the call had to wait, is replaced by what the end says
        events, output = [], [*content, *note]
    end = ToolResultEndEvent(run.id, call.id, state, output, tool_call_name=call.name, metadata=metadata or None)
    events.append(end)
    return events


def _take_metadata(context: ReplyContext, response: ToolResponse) -> ToolResponse:
    """Take the tool's own answer to the user out of the metadata; what cannot be saved makes the result an error.

    Returns a copy where it changes something, since a layer may keep the response that it gave, for the next time.
    """
    if not isinstance(response.metadata, dict):
        why = f"the metadata of the result is {response.metadata!r:.100}: it must be a dict"
        return _make_failure(replace(response, metadata={}), why)
    answer = response.metadata.get("response_msg")
    if isinstance(answer, Msg):
        metadata = {key: value for key, value in response.metadata.items() if key != "response_msg"}
        response = replace(response, metadata=metadata)
        kinds = [block.type for block in answer.get_content_blocks()]
        refused = next((kind for kind in kinds if kind not in _BLOCKS_OF_AN_ANSWER), None)
        try:
            answer = mend_message(answer)
        except ValueError as error:
            response = _make_failure(response, f"the tool's answer to the user could not be saved: {error}")
        else:
            if refused is None:
                context.response = context.response or answer
            else:
                response = _make_failure(response, f"the tool's answer to the user holds a {refused} block")
    problem = json_problem(response.metadata)
    if problem is None:
        return response
    return _make_failure(replace(response, metadata={}), f"the metadata of the result has no JSON form: {problem}")


def _make_failure(response: ToolResponse, why: str) -> ToolResponse:
    return replace(response, state=ToolResultState.ERROR, content=[TextBlock(f"Failed: {why}.")])


def lost_response() -> ToolResponse:
    """Return the result of a call whose own was lost in a layer."""
    text = "Failed: the result of this call was lost on its way. It may have taken effect."
    return ToolResponse([TextBlock(text)], ToolResultState.ERROR)


def note_of(context: ReplyContext, call: ToolCallBlock) -> ToolOutput:
    """Return what the user said when allowing the call; it comes at the end of the result."""
    decision = context.decision_about(call.id) if "/" in call.id else context.decisions.get(call.id)
    if decision is None or decision.by == "policy" or decision.behavior is PermissionBehavior.DENY:
        return []
    return [TextBlock(f"[The user adds: {decision.message}]")] if decision.message else []


def delta_events(run: ReplyRun, call: ToolCallBlock, content: ToolOutput) -> list[AgentEvent]:
    """Return the events that announce these pieces of output."""
    events: list[AgentEvent] = []
    for block in content:
        if isinstance(block, TextBlock):
            events.append(ToolResultTextDeltaEvent(run.id, call.id, block.text, block.id, tool_call_name=call.name))
        else:
            source = block.source
            data, url = (source.data, None) if isinstance(source, Base64Source) else (None, source.url)
            events.append(
                ToolResultDataDeltaEvent(
                    run.id, call.id, block.id, source.media_type, data, url, block.name, tool_call_name=call.name
                )
            )
    return events


def whole_base64_groups(block: TextBlock | DataBlock, pieces: DataPieces) -> TextBlock | DataBlock:
    """Return the block with data that can be joined cheaply; see `DataPieces`.

    What is left after the last piece is not announced: output that holds data is announced whole in the end.
    """
    if not isinstance(block, DataBlock) or not isinstance(block.source, Base64Source):
        return block
    source = Base64Source(pieces.take(block.id, block.source.data), block.source.media_type)
    return DataBlock(source, block.name, block.id)


def _text_alone(content: Sequence[TextBlock | DataBlock]) -> str | None:
    """Return the text of content that is nothing else.

    Only text can be compared cheaply, since data comes in pieces that are encoded one by one; data is sent whole again.
    """
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    return "".join(texts) if len(texts) == len(content) else None
