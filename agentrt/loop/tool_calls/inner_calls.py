"""Calls that have begun and wait for answers: what they ask, and what they find when they are entered again.

`note_waiting` takes the questions of a call's result into the reply, each under its path, "{call}/{question}": that of
a call inside of a call inside of a call is as long as they are deep, and none of them meets another. `resume.py` puts
each answer beside its question, and `memory_of_call` gives them to the call that is entered again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache

import pydantic
from pydantic_core import ValidationError

from agentrt.boundary import json_problem
from agentrt.conversation.reply_run import ReplyRun
from agentrt.message import ToolCallBlock
from agentrt.permission import digest
from agentrt.state import CallDecision, InnerCall, ReplyContext
from agentrt.tool.context import CallMemory, check_kept
from agentrt.tool.to_response import failure
from agentrt.types import OpenQuestion, PermissionBehavior, ToolResponse

__all__ = ["memory_of_call", "note_waiting"]

_logger = logging.getLogger("agentrt")
# A tool's questions are saved with the conversation, and sent to the one who answers.
_MAX_QUESTIONS = 1_000
_MAX_QUESTION_SIZE = 1_000_000


def memory_of_call(context: ReplyContext, call: ToolCallBlock, save: Callable[[], Awaitable[None]]) -> CallMemory:
    """Return what a resumable call finds: what it kept, and the answers that came so far."""
    prefix = f"{call.id}/"
    answers = {
        path.removeprefix(prefix): answer
        for path, inner in context.inner.items()
        if path.startswith(prefix) and (answer := inner.answer or inner.result) is not None
    }
    return CallMemory(context.kept.setdefault(call.id, {}), answers, save)


def note_waiting(
    context: ReplyContext, run: ReplyRun, call: ToolCallBlock, response: ToolResponse
) -> ToolResponse | None:
    """Note in the reply what the call asks; returns the result of a call that cannot wait.

    Raises `SessionUnserializable` for something kept that JSON cannot hold.
    """
    tool = run.toolkit.get(call.name)
    if tool is None or not tool.is_resumable:
        _logger.error(
            "the tool %r returned ToolResponse(waits=...), but its calls cannot be resumed: set is_resumable = True on "
            "it, and have it find the answers in ToolContext.answers",
            call.name,
        )
        return failure(f"{call.name} failed: it wanted to wait for an answer, but its calls cannot be resumed.")
    try:
        questions = _checked_questions(response.waits)
    except ValueError as error:
        _logger.error("the tool %r cannot wait: %s", call.name, error)
        return failure(f"{call.name} failed: it wanted to wait for an answer, but {error}.")
    # Before anything is noted: a state that cannot be saved must not look as if it waited.
    check_kept(call.name, context.kept.get(call.id, {}))
    _note_questions(context, run, call, questions)
    decision = context.decisions[call.id]
    # A decision of its own: the one that allowed the call may be shared.
    context.decisions[call.id] = replace(decision, waits_for="inner")
    return None


def _note_questions(context: ReplyContext, run: ReplyRun, call: ToolCallBlock, questions: list[OpenQuestion]) -> None:
    """Take in the questions; one that is open already is not asked again, and one that is not repeated is closed."""
    prefix = f"{call.id}/"
    unasked = [
        path
        for path, inner in context.inner.items()
        if inner.decision.waits_for is not None and path.startswith(prefix)
    ]
    for question in questions:
        path = prefix + question.tool_call.id
        if path in unasked:
            unasked.remove(path)
            known = context.inner[path].question
            # One that another is to answer now, such as a program after the user's rule, is another question.
            if (known.tool_call.name, known.tool_call.input, known.kind) == (
                question.tool_call.name,
                question.tool_call.input,
                question.kind,
            ):
                continue
        inner_call = ToolCallBlock(path, question.tool_call.name, question.tool_call.input)
        decision = CallDecision(
            PermissionBehavior.ASK if question.kind == "user" else PermissionBehavior.ALLOW,
            message=question.message,
            digest=digest(inner_call.name, inner_call.input),
            waits_for=question.kind,
            asked_at=run.now(),
            suggested_rules=question.suggested_rules,
        )
        context.decisions.pop(path, None)  # of a question that was closed before
        # What was asked under this path before is over, and its answer with it: this is another question.
        context.inner[path] = InnerCall(replace(question, tool_call=inner_call), decision)
    for path in unasked:
        del context.inner[path]
        context.decisions[path] = CallDecision(PermissionBehavior.ASK)


def _checked_questions(waits: Sequence[OpenQuestion]) -> list[OpenQuestion]:
    """Return copies of the questions; raises `ValueError`, saying why, for what cannot be asked."""
    if not isinstance(waits, (list, tuple)) or not all(isinstance(question, OpenQuestion) for question in waits):
        raise ValueError(f"its waits are {waits!r:.200}, which is not a list of OpenQuestion")
    if len(waits) > _MAX_QUESTIONS:
        raise ValueError(f"it asks {len(waits):,} questions at once, and at most {_MAX_QUESTIONS:,} are allowed")
    seen: set[str] = set()
    checked: list[OpenQuestion] = []
    for question in waits:
        problem = json_problem(question)
        if problem is not None:
            raise ValueError(f"one of its questions cannot be saved: {problem}")
        # Through its JSON, which leaves a copy of the right types: the tool keeps its own object, and may change it.
        text = _question_adapter().dump_json(question, warnings="none")
        if len(text) > _MAX_QUESTION_SIZE:
            raise ValueError(
                f"one of its questions has {len(text):,} bytes, and at most {_MAX_QUESTION_SIZE:,} are allowed"
            )
        try:
            copied = _question_adapter().validate_json(text, strict=True)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
            problem = f"the {place} of one of its questions has the wrong type"
        if problem is not None:  # raised here, since pydantic's error quotes what it refused
            raise ValueError(problem)
        call_id = copied.tool_call.id
        if not all(call_id.split("/")):
            raise ValueError(f"the id {call_id!r:.100} of one of its questions is empty, or has an empty part")
        if call_id in seen:
            raise ValueError(f"two of its questions have the id {call_id!r:.100}")
        seen.add(call_id)
        checked.append(copied)
    return checked


@cache
def _question_adapter() -> "pydantic.TypeAdapter[OpenQuestion]":
    return pydantic.TypeAdapter(OpenQuestion)
