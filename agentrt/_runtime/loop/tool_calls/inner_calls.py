"""Running calls that wait for answers: their questions, and their state on resume.

`note_waiting` takes the questions of a call's result into the reply, each under its path, "{call}/{question}": that of
a call inside of a call inside of a call is as long as they are deep, and none of them meets another. `resume.py` puts
each answer beside its question, and `memory_of_call` gives them to the call that is entered again.

A layer of on_acting asks in the same way, about a hidden tool, before it lets the call run. What the permissions forbid
to ask is a no at once, and a no is not asked again: what a layer that asks again gets is a denied result.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache

import pydantic
from pydantic_core import ValidationError

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.boundary import json_problem
from agentrt._runtime.conversation.open_calls import asker_of, entries_inside, questions_inside, relative_id
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt.event import ConfirmResult
from agentrt.message import ToolCallBlock, ToolCallState, ToolResultState
from agentrt.permission import covers, digest
from agentrt.state import CallDecision, InnerCall, ReplyContext
from agentrt.tool import ToolBase
from agentrt.tool.arguments import parse_arguments
from agentrt.tool.context import CallMemory, check_kept
from agentrt.tool.to_response import failure
from agentrt.types import OpenQuestion, PermissionBehavior, PermissionMode, ToolResponse

_logger = logging.getLogger("agentrt")
# A tool's questions are saved with the conversation, and sent to the one who answers.
_MAX_QUESTIONS = 1_000
_MAX_QUESTION_SIZE = 1_000_000
_DENY = PermissionBehavior.DENY


def memory_of_call(context: ReplyContext, call: ToolCallBlock, save: Callable[[], Awaitable[None]]) -> CallMemory:
    """Return what a resumable call finds: what it kept, and the answers that came so far."""
    prefix = f"{call.id}/"
    answers = {
        path.removeprefix(prefix): answer
        for path, inner in entries_inside(context, call.id).items()
        if (answer := inner.answer or inner.result) is not None
        and not inner.is_call
        and not is_of_layer(inner.question)
        and asker_of(context, path) == call.id
    }
    return CallMemory(context.kept.setdefault(call.id, {}), answers, save)


def note_waiting(
    context: ReplyContext, run: ReplyRun, call: ToolCallBlock, response: ToolResponse
) -> ToolResponse | None:
    """Note in the reply what the call asks; returns the result of a call that cannot wait.

    Raises `SessionUnserializable` for something kept that JSON cannot hold.
    """
    tool = run.toolkit_of(call.id).get(call.name)
    # A layer that asks has not let the call run yet, so that it may be entered again.
    if (tool is None or not tool.is_resumable) and not all(_hidden_tool(run, question) for question in response.waits):
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
    for question in questions:  # no is the answer to one that a layer has asked before in this call
        inner = context.inner.get(f"{call.id}/{question.tool_call.id}")
        if inner is not None and inner.is_call and not inner.decision.waits_for:
            _logger.error("the tool %r asks under the id %r, which a call of its has", call.name, question.tool_call.id)
            return failure(f"{call.name} failed: one of its questions has the id of a call that it has made.")
        if is_of_layer(question) and inner is not None and inner.answer is not None and not inner.answer.confirmed:
            refusal = inner.decision.message or "the user said no"
            return failure(f"{call.name} was not run: {refusal}.", ToolResultState.DENIED)
    # Before anything is noted: a state that cannot be saved must not look as if it waited.
    check_kept(call.name, context.kept.get(call.id, {}))
    _note_questions(context, run, call, questions)
    _refuse_by_permissions(context, run, call)
    waits = any(questions_inside(context, call.id))
    if not waits:
        call.state = ToolCallState.RUNNING  # it is entered again at once, and its result has started
    decision = context.decision_about(call.id)
    assert decision is not None  # it runs
    # A decision of its own: the one that allowed the call may be shared.
    context.record_decision(call, replace(decision, waits_for="inner" if waits else None))
    return None


def is_of_layer(question: OpenQuestion) -> bool:
    """Say whether a layer of this agent asks, and not the tool that is called, nor an agent inside of it."""
    return question.tool_call.id.rpartition("/")[2].startswith(HIDDEN_CALL) and not question.inside


def _hidden_tool(run: ReplyRun, question: object) -> ToolBase | None:
    """Return the hidden tool that a layer asks about, `None` for what is not such a question."""
    if not isinstance(question, OpenQuestion) or not is_of_layer(question):
        return None
    tool = run.toolkit.get(question.tool_call.name)
    return tool if tool is not None and tool.is_hidden else None


def _refuse_by_permissions(context: ReplyContext, run: ReplyRun, call: ToolCallBlock) -> None:
    """Answer with no what layers ask of this call and the conversation's permissions forbid to ask."""
    # A tool's own questions are not among these: the agent that asks them has permissions of its own.
    permissions = run.agent.state.permission_context
    for path, inner in context.inner.items():
        tool = _hidden_tool(run, inner.question)
        if inner.decision.waits_for is None or tool is None or not path.startswith(f"{call.id}/"):
            continue
        question = inner.question.tool_call
        if covers(permissions.rules, tool, parse_arguments(question.input), None, _DENY):
            why = f"a deny rule covers {question.name}"
        elif permissions.mode is PermissionMode.DONT_ASK:
            why = f"nobody can be asked ({inner.question.message})"
        else:
            continue
        inner.decision = CallDecision(_DENY, message=why)
        call_asked = ToolCallBlock(relative_id(context, path), question.name, question.input)
        inner.answer = ConfirmResult(False, call_asked, feedback=why)


def _note_questions(context: ReplyContext, run: ReplyRun, call: ToolCallBlock, questions: list[OpenQuestion]) -> None:
    """Take in the questions; one that is open already is not asked again, and one that is not repeated is closed."""
    prefix = f"{call.id}/"
    unasked = list(questions_inside(context, call.id))
    for question in questions:
        path = prefix + question.tool_call.id
        if path in unasked:
            unasked.remove(path)
            known = context.inner[path].question
            # One that another is to answer now, such as a program after the user's rule, is another question.
            if context.inner[path].is_call or (known.tool_call.name, known.tool_call.input, known.kind) == (
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
