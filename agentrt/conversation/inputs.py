"""What an agent takes as input."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrt.block import BLOCKS, new_id
from agentrt.boundary import is_plain_message, mend_message, whole_characters
from agentrt.errors import InvalidInputError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.message import MessageInput, Msg, TextBlock, new_message
from agentrt.model_interface.message_dict import message_from_dict
from agentrt.text import repr_of

__all__ = [
    "ANSWERS",
    "AgentInput",
    "AnswerEvent",
    "MessagesInput",
    "as_input",
    "as_message",
    "as_messages",
    "as_observed",
    "check_content",
    "has_content",
    "observed_messages",
]

_EXAMPLE = '{"role": "user", "content": "Hi"}'
_ANSWER_REMEDY = (
    ": answer with agent.reply(question.approve()), or question.deny(...), where question = agent.waiting()"
)
# Blocks that only a reply can make: a call in an input would run without a decision about it.
_REFUSED_BLOCKS = ("tool_call", "tool_result", "thinking", "hint", "provider")

AnswerEvent = UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent
MessagesInput = MessageInput | Sequence[MessageInput]
"""One message or several, in whatever form an agent takes them."""
AgentInput = MessagesInput | AnswerEvent | None
"""What `reply` takes: messages, the answer to a question, or nothing."""
ANSWERS = (UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent)


def as_input(inputs: Any) -> ReplyInput:
    """Return the input in the form in which it is kept: a plain `str` is a message from the user, a dict one as well.

    Half surrogate pairs are replaced. Raises `InvalidInputError` for what no agent takes, or what could not be saved.
    """
    if inputs.__class__ is not Msg:  # as nearly every one is
        if inputs is None or isinstance(inputs, ANSWERS):
            return inputs
        if isinstance(inputs, (list, tuple)):
            messages = as_messages(inputs)
            check_content(messages)
            return messages
    message = _mended_message(inputs)
    if not has_content(message):
        raise _empty_message(message)
    return message


def as_observed(msg: Any, taker: str = "an agent") -> Msg | list[Msg] | None:
    """Return what is to be observed as layers of `on_observe` see it: messages, whatever form they were given in."""
    if msg is None:
        return None
    return [as_message(item, taker) for item in msg] if isinstance(msg, (list, tuple)) else as_message(msg, taker)


def observed_messages(msg: Any, taker: str = "an agent") -> list[Msg]:
    """Return what is to be observed as a list of messages."""
    observed = as_observed(msg, taker)
    return observed if isinstance(observed, list) else [] if observed is None else [observed]


def as_messages(inputs: Any) -> list[Msg]:
    """Return the messages in the input, as `as_input` does; raises `InvalidInputError` for anything else."""
    if inputs is None:
        return []
    return [_mended_message(item) for item in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]


def as_message(value: Any, taker: str = "an agent") -> Msg:
    """Return the message that a `str`, a dict or a `Msg` stands for; raises `InvalidInputError` for anything else."""
    if isinstance(value, Msg):
        return value
    if isinstance(value, str):
        return new_message("user", whole_characters(value), "user", new_id())
    if isinstance(value, Mapping):
        return message_from_dict(value)
    if isinstance(value, ANSWERS):
        raise InvalidInputError(
            f"{value.type} came where {taker} takes messages: give it by itself, as in agent.reply(event)"
        )
    # An event is named by its kind: a layer or a listener most likely passed on what it read.
    what = f"an event, {type(value).__name__}" if isinstance(value, AgentEvent) else repr_of(value)
    remedy = _ANSWER_REMEDY if isinstance(value, (bool, ConfirmResult, RequireUserConfirmEvent)) else ""
    raise InvalidInputError(
        f"{taker} takes a str, a Msg, a dict such as {_EXAMPLE}, or a list of these, not {what}{remedy}"
    )


def _mended_message(value: Any) -> Msg:
    if value.__class__ is Msg and value.role == "user" and is_plain_message(value):
        return value  # nearly every one, for which a closer look would change nothing
    message = as_message(value)
    _check_message(message)
    try:
        return mend_message(message)
    except ValueError as error:
        problem = str(error)
    raise InvalidInputError(f"the message from {message.name!r:.200} could not be saved: {problem}")


def has_content(message: Msg) -> bool:
    """Say whether the message holds anything but empty text, for which providers refuse a whole conversation."""
    content = message.content
    if isinstance(content, str):
        return bool(content) and not content.isspace()
    return any(not isinstance(block, TextBlock) or (block.text and not block.text.isspace()) for block in content)


def check_content(messages: list[Msg]) -> None:
    """Raise `InvalidInputError` for a message without content."""
    for message in messages:
        if not has_content(message):
            raise _empty_message(message)


def _empty_message(message: Msg) -> InvalidInputError:
    return InvalidInputError(
        f"the message from {message.name!r} is empty, and providers refuse a conversation that holds an empty "
        f"message: send text or data, or nothing at all (`reply()`) to answer what was observed"
    )


def _check_message(message: Msg) -> None:
    if message.role == "system":
        raise InvalidInputError(
            f"the message from {message.name!r} has the role 'system': give Agent(system_prompt=...) instead, "
            f"or send it with the role 'user'"
        )
    if isinstance(message.content, str):
        return
    for block in message.content:
        if not isinstance(block, BLOCKS):
            raise InvalidInputError(
                f"the message from {message.name!r} holds {repr_of(block)}, which is not a block: "
                f"give a str as the content, or a list of TextBlock and DataBlock"
            )
        kind = block.type
        if kind in _REFUSED_BLOCKS:
            raise InvalidInputError(
                f"the message from {message.name!r} holds a {kind} block, which only a reply can make: "
                f"send its text with msg.get_text_content()"
            )
