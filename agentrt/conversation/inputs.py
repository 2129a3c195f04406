"""What an agent takes as input."""

from typing import Any

from agentrt.block import BLOCKS
from agentrt.boundary import is_plain_message, mend_message, whole_characters
from agentrt.errors import InvalidInputError
from agentrt.event import AgentEvent, ExternalExecutionResultEvent, UserConfirmResultEvent, UserInterruptEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg, TextBlock, UserMsg

__all__ = ["ANSWERS", "Answer", "as_input", "as_messages", "check_content", "has_content"]

# Blocks that only a reply can make: a call in an input would run without a decision about it.
_REFUSED_BLOCKS = ("tool_call", "tool_result", "thinking", "hint", "provider")

Answer = UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent
ANSWERS = (UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent)


def as_input(inputs: Any) -> ReplyInput:
    """Return the input in the form in which it is kept, a plain `str` as a message from the user.

    Half surrogate pairs are replaced. Raises `InvalidInputError` for what no agent takes, or what could not be saved.
    """
    if isinstance(inputs, str):
        inputs = UserMsg("user", whole_characters(inputs))
    if inputs is None or isinstance(inputs, ANSWERS):
        return inputs
    if isinstance(inputs, list):
        messages = as_messages(inputs)
        check_content(messages)
        return messages
    message = _mended_message(inputs)
    if not has_content(message):
        raise _empty_message(message)
    return message


def as_messages(inputs: Any) -> list[Msg]:
    """Return the messages in the input, as `as_input` does; raises `InvalidInputError` for anything else."""
    if inputs is None:
        return []
    if inputs.__class__ is str:  # from a layer, since what comes from outside is a message by now
        return [UserMsg("user", whole_characters(inputs))]
    return [_mended_message(message) for message in inputs] if isinstance(inputs, list) else [_mended_message(inputs)]


def _mended_message(message: Any) -> Msg:
    if message.__class__ is Msg and message.role == "user" and is_plain_message(message):
        return message  # nearly every one, for which a closer look would change nothing
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


def _check_message(message: Any) -> None:
    if not isinstance(message, Msg):
        value = "an event" if isinstance(message, AgentEvent) else f"{message!r:.200}"
        raise InvalidInputError(f"an agent takes a str, a Msg or a list of Msg, not {value}")
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
                f"the message from {message.name!r} holds {block!r:.200}, which is not a block: "
                f"give a str as the content, or a list of TextBlock and DataBlock"
            )
        kind = block.type
        if kind in _REFUSED_BLOCKS:
            raise InvalidInputError(
                f"the message from {message.name!r} holds a {kind} block, which only a reply can make: "
                f"send its text with msg.get_text_content()"
            )
