"""The door for what an agent is given: an input is read, mended or refused here, before anything else has it.

What is taken then passes `receive` before it joins the conversation, and so does all else that comes from outside:
results, feedback, hints, summaries.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrt._runtime.block import BLOCKS
from agentrt._runtime.boundary import (
    ANSWERS,
    AnswerEvent,
    is_plain_message,
    is_plain_text,
    json_problem,
    mend_block,
    mend_message,
    read_message,
    read_messages,
)
from agentrt._runtime.concurrency.interrupt import Interrupted
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.errors import ChainContractError, InvalidInputError
from agentrt.event import AgentEvent, HintBlockEvent
from agentrt.hooks import ReplyInput
from agentrt.message import DataBlock, MessageInput, Msg, TextBlock
from agentrt.types import ContentSource, IncomingContent, ToolOutput

__all__ = [
    "ANSWERS",
    "AgentInput",
    "AnswerEvent",
    "MessagesInput",
    "as_input",
    "as_messages",
    "as_observed",
    "check_content",
    "incoming_content",
    "mended_content",
    "receive",
    "receive_emitted",
    "receive_hint",
    "receive_messages",
]

# Blocks that only a reply can make: a call in an input would run without a decision about it.
_REFUSED_BLOCKS = ("tool_call", "tool_result", "thinking", "hint", "provider")

_WITHHELD_TEXT = "[withheld]"
_KEPT_OF_MESSAGES = ("name", "metadata", "structured_output")

MessagesInput = MessageInput | Sequence[MessageInput]
"""One message or several, in whatever form an agent takes them."""
AgentInput = MessagesInput | AnswerEvent | None
"""The input of `reply`: messages, the answer to a question, or nothing."""


def as_input(inputs: Any) -> ReplyInput:
    """Return the input in the form in which it is kept: a plain `str` is a message from the user, a dict one as well.

    Half surrogate pairs are replaced. Raises `InvalidInputError` for what no agent takes, or what could not be saved.
    """
    if isinstance(inputs, str):
        inputs = read_message(inputs)
    elif inputs.__class__ is not Msg:
        if inputs is None or isinstance(inputs, ANSWERS):
            return inputs
        if isinstance(inputs, (list, tuple)):
            messages = as_messages(inputs)
            check_content(messages)
            return messages
        inputs = read_message(inputs)
    message = _accept(inputs)
    if not _has_content(message):
        raise _empty_message(message)
    return message


def as_messages(inputs: Any) -> list[Msg]:
    """Return the messages in the input, empty ones too; raises `InvalidInputError` for anything else."""
    return [_accept(message) for message in read_messages(inputs)]


def as_observed(msg: Any) -> list[Msg]:
    """Return the messages to keep of those observed, without empty ones.

    One from a "system" counts as one from a user: the system prompt of a moderator is not the agent's own.
    """
    received = [replace(item, role="user") if item.role == "system" else item for item in read_messages(msg)]
    return [message for message in map(_accept, received) if _has_content(message)]


def check_content(messages: list[Msg]) -> None:
    """Raise `InvalidInputError` for a message without content, for which providers refuse a whole conversation."""
    for message in messages:
        if not _has_content(message):
            raise _empty_message(message)


def _accept(message: Msg) -> Msg:
    if message.role == "user" and is_plain_message(message):
        return message  # nearly every one, for which a closer look would change nothing
    sender, role, content = message.name, message.role, message.content
    if role not in ("user", "assistant"):
        remedy = "give Agent(system_prompt=...) instead, or send" if role == "system" else "send"
        raise InvalidInputError(f"the message from {sender!r} has the role {role!r}: {remedy} it with the role 'user'")
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, BLOCKS):
            raise InvalidInputError(
                f"the message from {sender!r} holds {repr_of(block)}, which is not a block: "
                f"give a str as the content, or a list of TextBlock and DataBlock"
            )
        if block.type in _REFUSED_BLOCKS:
            raise InvalidInputError(
                f"the message from {sender!r} holds a {block.type} block, which only a reply can make: "
                f"send its text with msg.get_text_content()"
            )
    try:
        return mend_message(message)
    except ValueError as error:
        problem = str(error)
    raise InvalidInputError(f"the message from {sender!r:.200} could not be saved: {problem}")


def _has_content(message: Msg) -> bool:
    content = message.content
    if isinstance(content, str):
        return bool(content) and not content.isspace()
    return any(not isinstance(block, TextBlock) or (block.text and not block.text.isspace()) for block in content)


def _empty_message(message: Msg) -> InvalidInputError:
    return InvalidInputError(
        f"the message from {message.name!r} is empty, and providers refuse a conversation that holds an empty "
        f"message: send text or data, or nothing at all (`reply()`) to answer what was observed"
    )


async def incoming_content(agent: Any, content: IncomingContent) -> IncomingContent:
    """The core of on_content: the content as it came."""
    return content


async def receive(agent: Any, content: IncomingContent) -> IncomingContent:
    """Return the content as it is to be kept: what the layers of on_content make of it.

    Raises `ChainContractError` for what cannot be kept.
    """
    run = agent.live_conversation.reply
    is_in_step = run is not None and run.interruption.is_in_step
    if run is not None:
        run.receiving += 1
    try:
        received: IncomingContent = await agent.chains.on_content(agent, content=content)
    except Interrupted:
        # What closes a step sees it; between steps, and for who observes, the next step finds that it is not to begin.
        if is_in_step and content.source != "observed":
            raise
        return replace(content.with_text(_WITHHELD_TEXT), metadata={}, structured_output=None)
    finally:
        if run is not None:
            run.receiving -= 1
    if received is content:  # as nearly always: it was sound when it came
        return content
    try:
        blocks = mended_content(received.content)
    except ValueError as error:
        problem = str(error)
    else:
        new = [value for name in _KEPT_OF_MESSAGES if (value := getattr(received, name)) is not getattr(content, name)]
        why = json_problem(new) if new else None
        kinds: list[object] = [received.name, received.metadata]  # as a layer gave them
        if why is None and isinstance(kinds[0], str) and isinstance(kinds[1], dict):
            return replace(received, content=blocks)
        problem = f"a name, metadata or a structured output that cannot be kept: {why or 'it is of another type'}"
    layers = " > ".join(layer.name for layer in agent.chains.layers["on_content"])
    raise ChainContractError(f"on_content gave {problem}; its layers are {layers}")


async def receive_messages(agent: Any, source: ContentSource, messages: Sequence[Msg]) -> list[Msg]:
    """Return messages of their own, as on_content leaves them."""
    copies = [message.copy() for message in messages]
    for message in copies:
        blocks: Any = message.get_content_blocks()  # of text and data alone, as all that is taken
        incoming = IncomingContent(
            source, blocks, None, message.name, None, None, message.metadata, message.structured_output, message.role
        )
        received = await receive(agent, incoming)
        if received is incoming:
            continue
        first = received.content[0] if len(received.content) == 1 else None
        is_text = isinstance(message.content, str) and isinstance(first, TextBlock)
        message.content = first.text if is_text and isinstance(first, TextBlock) else [*received.content]
        for name in _KEPT_OF_MESSAGES:
            setattr(message, name, getattr(received, name))
        if source == "input" and not _has_content(message):  # providers refuse a conversation that holds it
            raise ChainContractError(
                f"on_content left nothing of the message from {message.name!r:.200}: return "
                f"content.with_text('[withheld]')"
            )
    return copies


async def receive_hint(agent: Any, text: str, name: str) -> tuple[str, str]:
    """Return what is for the model alone, and its source, as on_content leaves them."""
    received = await receive(agent, IncomingContent("hint", [TextBlock(text)], name=name))
    return whole_characters(received.text), whole_characters(received.name)


async def receive_emitted(agent: Any, run: Any) -> list[AgentEvent]:
    """Take what was emitted and not seen yet, with its hints as on_content leaves them."""
    events: list[AgentEvent] = []
    for event in run.mailbox.take():
        if isinstance(event, HintBlockEvent) and event.reply_id == run.id and agent.chains.layers["on_content"]:
            hint, source = await receive_hint(agent, event.hint, event.source or "")
            event = replace(event, hint=hint, source=source or None)
        events.append(event)
    return events


def mended_content(content: Any) -> ToolOutput:
    """Return the content, which may come from a layer, as it can be kept; raises `ValueError` for what cannot be."""
    # A plain `str` is not content by its type, but its meaning is clear.
    if not isinstance(content, list):
        if isinstance(content, str):
            content = [TextBlock(content)]
        elif not isinstance(content, tuple):
            raise ValueError(f"the content {content!r:.200}, which is not a list of blocks")
    mended = []
    for block in content:
        if not isinstance(block, (TextBlock, DataBlock)):
            raise ValueError(f"{block!r:.200}, which is neither a TextBlock nor a DataBlock")
        mended.append(block if is_plain_text(block) else mend_block(block))
    return mended
