"""Answers of a given form: the model gives them through a tool that exists for one reply only."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from pydantic_core import ValidationError, from_json

from agentrt._runtime.conversation.conversation import ReplyingAgent, bound_toolkit
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.answer_form import AnswerForm, add_defaults, describe_misfit
from agentrt.errors import ResumeError, UsageError
from agentrt.message import ContentBlock, Msg, TextBlock, ToolCallBlock
from agentrt.state import ReplyContext, StructuredTask
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.arguments import parse_arguments
from agentrt.tool.to_response import failure
from agentrt.types import STRUCTURED_OUTPUT, ToolOutput, ToolResponse

_logger = logging.getLogger("agentrt")
_MAX_MISFIT = 500  # characters
_REFUSED = "the answer does not fit: "
_TAKEN = "The answer was taken."


def form_of(run: ReplyRun, structured_schema: object) -> AnswerForm:
    """Return the form that the schema describes, which is made once for the caller's own."""
    form = run.progress.form
    if isinstance(structured_schema, AnswerForm):
        return structured_schema
    return form if form is not None and form.source is structured_schema else AnswerForm(structured_schema)


def require_structured_output(agent: ReplyingAgent, context: ReplyContext, structured_schema: object) -> None:
    """Make the reply end with an answer of that form, `None` for any."""
    if structured_schema is None:
        return
    run = agent.live_conversation.run
    form = form_of(run, structured_schema)
    context.structured = StructuredTask(
        form.schema,
        is_wrapped=form.is_wrapped,
        is_replaced=form is not run.progress.form,
        max_attempts=agent.react_config.max_form_attempts,
    )
    toolkit = toolkit_for_reply(agent, context, form)
    run.toolkit = run.progress.lasting_toolkit = toolkit


def check_form(context: ReplyContext, form: AnswerForm | None) -> None:
    """Raise `ResumeError` for another form than the one that the reply began with."""
    task = context.structured
    if form is None or (task is not None and form.is_form_of(task)):
        return
    began = "without one" if task is None else "with another one"
    raise ResumeError(
        f"the reply {context.reply_id!r} cannot resume with the structured_schema {form.source!r:.200}, since it began "
        f"{began}: leave structured_schema out{'' if task is None else ' to get the answer as JSON'}",
        code="mismatch",
    )


def restore_form(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext, structured_schema: object) -> None:
    """Have the type, which is not saved, check the answer of a reply that resumes."""
    if structured_schema is None:
        return
    form = form_of(run, structured_schema)
    if context.structured is None or not form.is_form_of(context.structured):  # of a layer, or it will be checked there
        _logger.warning("structured_schema is ignored: the reply %r resumes with the schema it began with", run.id)
        return
    if context.structured.output is not None:
        _recall_answer(form, context.blocks)
    run.progress.lasting_toolkit = toolkit_for_reply(agent, context, form)
    run.toolkit = agent.live_conversation.round_toolkit or run.progress.lasting_toolkit


def toolkit_for_reply(agent: ReplyingAgent, context: ReplyContext, form: AnswerForm | None = None) -> Toolkit:
    """Return the tools of a reply; without its form, the answer is checked by its schema alone."""
    task = context.structured
    if task is None:
        return bound_toolkit(agent)
    if agent.toolkit.get(STRUCTURED_OUTPUT) is not None:
        raise UsageError(
            f"structured_schema needs the name {STRUCTURED_OUTPUT!r} for a tool of its own, but the toolkit has a tool "
            f"of that name: rename that tool"
        )
    return bound_toolkit(agent).with_tools([_StructuredOutput(task, form)])


def _recall_answer(form: AnswerForm, blocks: Sequence[ContentBlock]) -> None:
    """Take the answer once more that an earlier process took, from the blocks of its reply.

    So the caller gets an equal instance, also of a type that does not accept what it dumps.
    """
    for block in reversed(blocks):
        if isinstance(block, ToolCallBlock) and block.name == STRUCTURED_OUTPUT:
            with suppress(Exception):  # whatever a validator raises: it did not fit, then or for this type
                form.fill_in(from_json(block.input))
                return


def with_instance(message: Msg, form: AnswerForm | None, context: Sequence[Msg] = ()) -> Msg:
    """Return the message as the caller gets it: with an instance of the type that it asked for.

    The messages of the conversation are needed where its answer was taken in an earlier reply. Raises `ResumeError`
    where the answer does not fit, which was given to another process, or for another type.
    """
    output = message.structured_output
    if form is None or not form.has_type or output is None:
        return message
    for earlier in context:
        if earlier.id == message.id:
            _recall_answer(form, earlier.get_content_blocks())
    try:
        instance = form.load(output)
    except ValidationError as error:
        problem = describe_misfit(error)
    else:
        message = copy(message)  # what is on record keeps the JSON
        message.structured_output = instance
        return message
    raise ResumeError(
        f"the answer of the reply {message.id!r} does not fit the structured_schema {form.source!r:.200}: {problem}; "
        f"leave structured_schema out to get it as JSON",
        code="mismatch",
    )


def keep_as_written(context: ReplyContext | None, text: str) -> None:
    """Keep an answer that was taken as the model wrote it: with handles, which become values where it leaves."""
    task = None if context is None else context.structured
    if task is not None and task.output is not None:
        task.output = add_defaults(parse_arguments(text), task.schema, task.schema)


def count_answer(context: ReplyContext, result: ToolOutput) -> None:
    """Count a call of the form's tool, whose result says what did not fit, unless its answer was taken."""
    task = context.structured
    if task is not None and task.output is None:
        # When the result is there, and not after the round: so the number is saved together with the result.
        _count_misfit(task, "".join(block.text for block in result if isinstance(block, TextBlock)))


def count_answer_in_words(context: ReplyContext) -> None:
    """Count the current round if the model has called no tool in it."""
    task = context.structured
    # What is said before a call is not an answer: the model is about to work on.
    has_calls = any(isinstance(block, ToolCallBlock) for block in context.blocks[context.round_start :])
    if task is not None and not has_calls:
        _count_misfit(task, "it is in words")


def _count_misfit(task: StructuredTask, problem: str) -> None:
    task.attempts += 1
    # Without what the model reads in front of it, since the end of the reply has words of its own for that.
    task.misfit = f"{problem.removeprefix(_REFUSED):.{_MAX_MISFIT}}"
    number = f"{task.attempts} of {task.max_attempts}"
    _logger.debug("an answer does not fit the structured_schema (attempt %s): %s", number, task.misfit)


class _StructuredOutput(ToolBase):
    """Give the final answer, in the form that was asked for."""

    name = STRUCTURED_OUTPUT
    is_concurrency_safe = False
    is_read_only = True

    def __init__(self, task: StructuredTask, form: AnswerForm | None) -> None:
        self.input_schema = task.schema
        self._task = task
        self._form = form

    async def call(self, /, **answer: Any) -> str | ToolResponse:  # the structure may have a property `self`
        # What comes in fits the schema: that is checked for every tool.
        if self._form is None:
            self._task.output = add_defaults(answer, self._task.schema, self._task.schema)
            return _TAKEN
        try:
            self._task.output = self._form.fill_in(answer)
        except ValidationError as error:
            # A result, and no error of the tool, since those are logged with their frames.
            return failure(f"{_REFUSED}{describe_misfit(error, self._form.path)}")
        return _TAKEN
