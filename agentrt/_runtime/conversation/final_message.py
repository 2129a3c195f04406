"""The message that answers an input: what the last round of a reply said."""

from copy import deepcopy

from pydantic_core import to_json

from agentrt.errors import StructuredOutputError
from agentrt.message import DataBlock, Msg, TextBlock, ToolCallBlock, copy_block, new_message_like
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason, ReActConfig

_LAST_WORDS: dict[FinishedReason, str] = {
    "exceed_max_iters": "I used up the rounds that I have for one reply and could not finish.",
    "exceed_max_tool_calls": "I used up the tool calls that I have for one reply and could not finish.",
    "exceed_max_seconds": "I used up the time that I have for one reply and could not finish.",
    "exceed_max_output": "I wrote more than I may in one reply and was stopped.",
    "exceed_max_form_attempts": "I could not give an answer in the form that was asked for.",
    "exceed_budget": "I used up the budget that I have and could not finish.",
    "guardrail": "I was stopped by a rule about what I may say or do.",
}


_MISFIT_REASONS = ("exceed_max_form_attempts", "exceed_max_iters")


def end_error(context: ReplyContext, reason: FinishedReason) -> str | None:
    """Return what the end of a reply says besides its reason: why no answer had the form that was asked for."""
    task = context.structured
    if task is None or not task.attempts or reason not in _MISFIT_REASONS:
        return None
    if task.attempts == 1:
        return f"the answer does not fit the structured_schema: {task.misfit}"
    return f"none of {task.attempts} answers fits the structured_schema; the last one: {task.misfit}"


def check_final_message(message: Msg, config: ReActConfig) -> Msg:
    """Return the message; raises `StructuredOutputError` if no answer of its reply fits the schema."""
    # By the message alone: the caller of a resumed reply may not have the schema.
    is_misfit = message.finished_reason in _MISFIT_REASONS and message.error is not None
    if config.raise_form_errors and is_misfit and message.structured_output is None:
        raise StructuredOutputError(
            f"{message.name!r:.100} gave no structured output ({message.finished_reason}): {message.error}; the "
            f"message is error.final_message, and ReActConfig(raise_form_errors=False) returns it",
            final_message=message,
        )
    return message


def final_message(context: ReplyContext, reason: FinishedReason, stopped_with: str | None = None) -> Msg:
    """Return the message that answers the input; the blocks are copies of those of the reply's own message.

    `stopped_with` is what the layer that has stopped the reply wants it to say.
    """
    message = context.message
    answer = [copy_block(block) for block in context.blocks[context.round_start :]]
    if stopped_with is not None and reason != "completed":
        answer = [TextBlock(stopped_with)]
    elif reason in _LAST_WORDS:
        has_calls = any(isinstance(block, ToolCallBlock) for block in answer)
        if has_calls or not any(isinstance(block, (TextBlock, DataBlock)) for block in answer):
            answer = [TextBlock(_LAST_WORDS[reason])]  # what was said before a call is not an answer
    task = context.structured
    if task is not None and task.output is not None:
        text = to_json(task.answer).decode()
        answer = [block for block in answer if isinstance(block, TextBlock)] or [TextBlock(text)]
    final = new_message_like(message, answer)
    final.role = "assistant"
    final.usage, final.finished_reason, final.error = message.usage, reason, end_error(context, reason)
    final.structured_output = None if task is None else deepcopy(task.answer)  # it is the caller's
    if context.response is not None:
        final.metadata = dict(context.response.metadata)
    return final
