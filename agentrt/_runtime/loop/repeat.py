"""A reply that is asked for by its id: repeated when it is over, resumed when it is not, and never run twice."""

from copy import copy
from typing import Any

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.final_message import final_message
from agentrt._runtime.conversation.inputs import ANSWERS
from agentrt._runtime.conversation.open_calls import waiting_calls
from agentrt._runtime.conversation.question import question_message
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import InvalidInputError, ResumeError
from agentrt.hooks import ReplyInput
from agentrt.message import AssistantMsg, Msg, ToolCallBlock
from agentrt.state import AgentState, ReplyContext, StructuredTask
from agentrt.state.state import WRAPPER
from agentrt.types import STRUCTURED_OUTPUT

_REPLY_ID = lazy_pattern(r"[A-Za-z0-9._:-]{1,128}")
_MAX_NUMBER = 2**53 - 1


def check_reply_id(reply_id: Any) -> None:
    """Raise `InvalidInputError` for what cannot be the id of a reply."""
    if reply_id is not None and not (isinstance(reply_id, str) and _REPLY_ID.fullmatch(reply_id)):
        raise InvalidInputError(
            f"reply_id must be a str of 1 to 128 letters (A-Z, a-z), digits, '.', '_', ':' and '-', "
            f"not {reply_id!r:.200}"
        )
    if reply_id is not None and reply_id.startswith(HIDDEN_CALL):
        raise InvalidInputError(
            f"reply_id must not begin with {HIDDEN_CALL!r}, as the ids of calls do that no model sees: {reply_id!r}"
        )


def check_sequence_number(after: Any) -> None:
    """Raise `InvalidInputError` for what cannot be the number of an event."""
    if type(after) is not int or not 0 <= after <= _MAX_NUMBER:
        raise InvalidInputError(f"after must be the number of an event, an int from 0 to 2**53 - 1, not {after!r:.200}")


def is_in_progress(agent: ReplyingAgent, reply_id: str, inputs: ReplyInput) -> bool:
    """Say whether that reply is the one in progress, which resumes whatever the input says.

    Raises `ResumeError` for an input that resumes another reply.
    """
    unfinished = agent.state.reply_context
    id_of_input = reply_id
    if isinstance(inputs, ANSWERS):
        id_of_input = inputs.reply_id
    elif inputs is None and unfinished is not None:
        id_of_input = unfinished.reply_id
    if id_of_input != reply_id:
        raise ResumeError(
            f"the input is for the reply {id_of_input!r:.200}, and reply_id={reply_id!r} names another one: "
            f"leave reply_id out",
            code="mismatch",
        )
    return unfinished is not None and unfinished.reply_id == reply_id


def find_reply(state: AgentState, reply_id: str, name: str | None = None) -> Msg | None:
    """Return the message of a finished reply, by the agent of that name if one is given."""
    # A caller may send a message with the same id, and another agent's reply with it may have been observed.
    message: Msg
    for message in reversed(state.context):
        is_reply = message.id == reply_id and message.role == "assistant" and message.finished_reason is not None
        if is_reply and (name is None or message.name == name):
            return message
    return None


def repeat_reply(agent: ReplyingAgent, reply_id: str) -> Msg | None:
    """Return the message of that reply if there is nothing to run, because it is over or waits for an answer.

    Raises `ResumeError` for one that is over and has others after it.
    """
    state = agent.state
    unfinished, outcome = state.reply_context, state.last_reply
    if unfinished is not None and unfinished.reply_id == reply_id:
        return question_message(unfinished) if unfinished.parked and waiting_calls(unfinished) else None
    message = find_reply(state, reply_id, agent.name)
    if outcome is None or outcome.reply_id != reply_id:
        if message is None:
            return None
        raise ResumeError(
            f"the reply {reply_id!r} is over, and others came after it: give each new reply an id of its own",
            code="conflict",
        )
    if message is None:  # nothing was said in it
        message = AssistantMsg(agent.name, [], id=reply_id)
    # A copy, since `blocks` makes a list of a `str`, which would change the history without saving it.
    context = ReplyContext(reply_id, copy(message), 0, round_start=outcome.answer_start)
    calls = (block for block in context.blocks[outcome.answer_start :] if isinstance(block, ToolCallBlock))
    is_null = outcome.finished_reason == "completed" and any(call.name == STRUCTURED_OUTPUT for call in calls)
    if message.structured_output is not None or is_null:  # a layer may have answered where the model did not
        context.structured = StructuredTask({}, {WRAPPER: message.structured_output}, is_wrapped=True)
    final = final_message(context, outcome.finished_reason)
    final.error = outcome.error
    return final
