"""Resuming a reply that waits: which answer is taken, and what it changes.

An answer is checked whole before anything of it is applied, so one that is refused leaves the state as it was. It must
name the reply and the call that asked, and repeat the tool and its input to the byte; other input is taken only where
the conversation's permissions say so, and rules likewise. An answer for a call inside of a running one names it by
its path; it never changes an input, and wakes that one call.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pydantic
from pydantic_core import CoreConfig, SchemaSerializer, ValidationError, from_json, to_json

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.boundary import is_base64
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import ANSWERS, AnswerEvent, receive
from agentrt._runtime.conversation.open_calls import (
    asked_calls,
    begun_calls,
    describe_calls,
    relative_id,
    waiting_calls,
)
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.loop.reasoning import known_tools
from agentrt._runtime.loop.tool_calls.approval import prepare_released
from agentrt._runtime.loop.tool_calls.caller import keep_result, toolkit_of_calls
from agentrt._runtime.loop.tool_calls.tool_results import events_of_result, note_of, receive_result, take_result
from agentrt.errors import ResumeError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    ExternalExecutionResultEvent,
    ToolResultStartEvent,
    UserConfirmResultEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.message import (
    Base64Source,
    DataBlock,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    find_block,
)
from agentrt.permission import accept_rules, covers, digest
from agentrt.state import CallDecision, ReplyContext
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.arguments import parse_arguments
from agentrt.tool.base import MAX_OUTPUT
from agentrt.tool.call import PreparedCall
from agentrt.tool.to_response import MAX_DATA, data_size
from agentrt.types import IncomingContent, JSONObject, PermissionBehavior, PermissionRule, ToolOutput, ToolResponse

_MAX_QUOTE = 200  # characters of what an answer says that a message repeats
_ALLOW, _DENY = PermissionBehavior.ALLOW, PermissionBehavior.DENY
_ANSWER_TO = {"user": "a UserConfirmResultEvent", "external": "an ExternalExecutionResultEvent"}

# An answer comes from outside, and joins what is saved and sent to the model.
_MAX_RESULTS = 1_000
_MAX_RULES = 100
_MAX_FEEDBACK = 10_000
_MAX_METADATA = 1_000_000


def reply_to_resume(agent: ReplyingAgent, inputs: ReplyInput) -> ReplyContext | None:
    """Return the reply that the input resumes, `None` when the input begins a new one; changes nothing.

    Raises `ResumeError` for an answer that does not fit, and for anything else while the reply waits for an answer.
    """
    context = agent.state.reply_context
    if context is None:
        if isinstance(inputs, ANSWERS):
            raise ResumeError(f"{inputs.type} answers a question, but this conversation asks none", code="not_waiting")
        return None
    if isinstance(inputs, ANSWERS):
        check_answer(agent, context, inputs)
        return context
    waiting = waiting_calls(context)
    # One that was left before it had asked is not parked: it resumes without an input, and asks then.
    if waiting and (inputs is not None or context.parked):
        questions = asked_calls(context)
        waited_for = {question.decision.waits_for for question in questions}
        answers = " and ".join(name for kind, name in _ANSWER_TO.items() if kind in waited_for)
        raise ResumeError(
            f"the reply {context.reply_id!r} waits for an answer about "
            f"{describe_calls([question.call for question in questions])}: send {answers} first"
            f"{' (agent.waiting() is the question)' if context.parked else ''}, or "
            f"UserInterruptEvent({context.reply_id!r}) to end it",
            code="pending",
        )
    return context if inputs is None else None


def already_answered(agent: ReplyingAgent, inputs: ReplyInput) -> bool:
    """Say whether the answer has nothing left to do: it came before, and the reply is over.

    Raises `ResumeError` for one that says otherwise than what was answered before.
    """
    state = agent.state
    outcome = state.last_reply
    if state.reply_context is not None or outcome is None or not isinstance(inputs, ANSWERS):
        return False
    if outcome.reply_id != inputs.reply_id:
        return False
    message = next((message for message in reversed(state.context) if message.id == outcome.reply_id), None)
    if message is None:
        return False
    # What is over is checked as if it were in progress: every call has its answer, and so no other is taken.
    check_answer(agent, ReplyContext(outcome.reply_id, message, 0, decisions=outcome.decisions), inputs)
    return True


def check_answer(agent: ReplyingAgent, context: ReplyContext, answer: AnswerEvent) -> AnswerEvent:
    """Return a copy of the answer; raises `ResumeError` unless every part of it fits what the reply asked."""
    answer = _parse_again(answer)
    if answer.reply_id != context.reply_id:
        raise ResumeError(
            f"the answer is for the reply {answer.reply_id!r}, but the one that waits is {context.reply_id!r}: "
            f"take it from agent.waiting().reply_id",
            code="mismatch",
        )
    if answer.session_id not in (None, agent.state.session_id):
        raise ResumeError(
            f"the answer is for the session {answer.session_id!r}, not for {agent.state.session_id!r}", code="mismatch"
        )
    if isinstance(answer, UserConfirmResultEvent):
        _check_each_once([result.tool_call.id for result in answer.confirm_results])
        for result in answer.confirm_results:
            _check_confirmation(agent, context, result)
    elif isinstance(answer, ExternalExecutionResultEvent):
        _check_each_once([execution.id for execution in answer.execution_results])
        for execution in answer.execution_results:
            _check_execution(agent, context, execution)
    return answer


async def receive_answer(agent: ReplyingAgent, context: ReplyContext, answer: AnswerEvent) -> AnswerEvent:
    """Return a checked answer with its feedback and its results as on_content leaves them.

    What came is kept by its digest, so that it is known if it comes again.
    """
    if isinstance(answer, UserConfirmResultEvent):
        confirmed: list[ConfirmResult] = []
        for result in answer.confirm_results:
            if result.feedback:
                call = result.tool_call
                is_of_another = _is_of_another(context, call.id)
                toolkit = agent.live_conversation.run.toolkit if is_of_another else _toolkit_of(agent, context, call.id)
                tool = toolkit.get(call.name)
                # A sub-agent's question is about a tool of its own, even if a tool of this agent has that name.
                if is_of_another and tool is not None and not tool.is_hidden:
                    tool = None
                incoming = IncomingContent("feedback", [TextBlock(result.feedback)], call, call.name, tool)
                result = replace(result, feedback=(await receive(agent, incoming)).text)
            confirmed.append(result)
        return replace(answer, confirm_results=confirmed)
    if not isinstance(answer, ExternalExecutionResultEvent):
        return answer
    executions: list[ToolResultBlock] = []
    for execution in answer.execution_results:
        call, decision = _find_asked(context, execution.id, execution.name)
        if decision is not None and decision.waits_for == "external":
            decision.result_digest = _digest_of_result(execution)
            response = ToolResponse(execution.blocks, execution.state, _metadata_of(execution))
            response = await receive_result(agent, call, "external", response)
            execution = replace(execution, output=response.content, state=response.state, metadata=response.metadata)
        executions.append(execution)
    return replace(answer, execution_results=executions)


def apply_answer(agent: ReplyingAgent, context: ReplyContext, answer: AnswerEvent) -> Iterator[AgentEvent]:
    """Take a checked answer in; yields the events of the results that came with it."""
    if isinstance(answer, UserConfirmResultEvent):
        rules: list[PermissionRule] = []
        for result in answer.confirm_results:
            _apply_confirmation(agent, context, result)
            if not _is_of_another(context, result.tool_call.id):
                rules += result.rules
        # After all of them, since what the user said of a call counts for more than a rule that came with another.
        _reconsider(agent, context, rules)
        context.message.append_event(answer)
    elif isinstance(answer, ExternalExecutionResultEvent):
        begun = begun_calls(context)
        for execution in answer.execution_results:
            if _is_of_another(context, execution.id):
                _apply_inner_result(context, execution)
                continue
            call, decision = _find_asked(context, execution.id, execution.name)
            if decision is None or not decision.waits_for:
                continue
            decision.waits_for = None
            if call.id not in begun:  # the process ended before it announced this call
                yield ToolResultStartEvent(context.reply_id, call.id, call.name)
            response = ToolResponse(execution.blocks, execution.state, _metadata_of(execution))
            taken = take_result(context, call, response)
            if "/" in call.id:
                decision.digest = decision.result_digest or _digest_of_result(execution)
                keep_result(context, call, taken)
                _wake(context, call.id)
            yield from events_of_result(context, agent.live_conversation.run, call, taken, [])


def _is_of_another(context: ReplyContext, call_id: str) -> bool:
    """Say whether a running call asks it for someone else, such as a sub-agent: this reply does not run it."""
    inner = context.inner.get(call_id)
    return "/" in call_id and (inner is None or not inner.is_call)


def _apply_confirmation(agent: ReplyingAgent, context: ReplyContext, result: ConfirmResult) -> None:
    """Apply the user's decision on a call; the rules that come for one of someone else are for that one alone."""
    answered = result.tool_call
    call, earlier = _find_asked(context, answered.id, answered.name)
    if earlier is None or earlier.waits_for != "user":
        return
    decision = CallDecision(
        PermissionBehavior.ALLOW if result.confirmed else PermissionBehavior.DENY,
        "user",
        result.feedback or "",
        digest(answered.name, answered.input),
        original_input=call.input if result.confirmed and answered.input != call.input else None,
        fingerprint=earlier.fingerprint,
    )
    context.record_decision(call, decision)
    _wake(context, call.id)
    if _is_of_another(context, call.id):
        inner_id = relative_id(context, call.id)
        context.inner[call.id].answer = replace(
            result, tool_call=ToolCallBlock(inner_id, answered.name, answered.input)
        )
        return
    permissions = agent.state.permission_context
    permissions.rules.extend(accept_rules(permissions, result.rules, call.name))


def _apply_inner_result(context: ReplyContext, execution: ToolResultBlock) -> None:
    """Apply the result of a call inside a running one."""
    inner = context.inner.get(execution.id)
    if inner is None or inner.decision.waits_for != "external":
        return
    result_digest = inner.decision.result_digest or _digest_of_result(execution)
    inner.decision = CallDecision(PermissionBehavior.ALLOW, digest=result_digest)
    inner.result = ToolResultBlock(
        relative_id(context, execution.id), execution.name, execution.blocks, execution.state, _metadata_of(execution)
    )
    _wake(context, execution.id)


def _wake(context: ReplyContext, path: str) -> None:
    """Have the call that asked go ahead, unless it is itself asked about again, or about to be."""
    while "/" in path:  # each call that this one is inside of
        path = path.rpartition("/")[0]
        decision = context.decision_about(path)
        if decision is not None and decision.waits_for == "inner":
            decision.waits_for = None


def _parse_again(answer: AnswerEvent) -> AnswerEvent:
    """Return the answer as it comes out of its JSON: what is in memory may be of any type, or hold a live message."""
    problem = "it holds something that has no JSON form"
    adapter, serializer = _adapter_and_serializer(type(answer))  # type: ignore[arg-type]  # a class is hashable
    try:
        text = serializer.to_json(answer, warnings="none")
        if b"NaN" in text or b"Infinity" in text:  # in a str, these are words like any other
            from_json(text, allow_inf_nan=False, cache_strings="none")
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
        problem = f"its {place:.{_MAX_QUOTE}} has the wrong type"
    except ValueError:
        pass
    # Raised here, since pydantic's error, which quotes what it refused, would become the context of this one.
    raise ResumeError(f"the answer {answer.type} cannot be used: {problem}", code="invalid")


@cache
def _adapter_and_serializer(kind: type[AnswerEvent]) -> "tuple[pydantic.TypeAdapter[AnswerEvent], SchemaSerializer]":
    adapter: pydantic.TypeAdapter[AnswerEvent] = pydantic.TypeAdapter(kind)
    # A number that is not finite is written as what it is, not as `null`: then it is noticed.
    return adapter, SchemaSerializer(adapter.core_schema, CoreConfig(ser_json_inf_nan="constants"))


def _check_each_once(ids: list[str]) -> None:
    if not ids:
        raise ResumeError("the answer is empty: give one result for each call that it answers", code="invalid")
    if len(ids) > _MAX_RESULTS:
        raise ResumeError(
            f"the answer holds {len(ids):,} results, but at most {_MAX_RESULTS:,} are allowed", code="invalid"
        )
    seen: set[str] = set()
    for call_id in ids:
        if call_id in seen:
            raise ResumeError(f"the answer holds two results for the call {call_id!r:.{_MAX_QUOTE}}", code="conflict")
        seen.add(call_id)


def _find_asked(context: ReplyContext, call_id: str, name: str) -> tuple[ToolCallBlock, CallDecision | None]:
    """Return the call that an answer is for, and what was decided on it; an inner call is found by its path."""
    decision = context.decision_about(call_id)
    inner = context.inner.get(call_id)
    if inner is not None:
        return inner.question.tool_call, decision
    if decision is not None and "/" in call_id:  # the call that it was inside of has its result
        return ToolCallBlock(call_id, name, state=ToolCallState.FINISHED), decision
    with suppress(ValueError):
        call: ToolCallBlock = find_block(context.message, call_id, ToolCallBlock)
        return call, decision
    raise ResumeError(f"the reply {context.reply_id!r} has no call {call_id!r:.{_MAX_QUOTE}}", code="unknown_call")


def _check_confirmation(agent: ReplyingAgent, context: ReplyContext, result: ConfirmResult) -> None:
    repeated = result.tool_call
    call, decision = _find_asked(context, repeated.id, repeated.name)
    waits = decision is not None and decision.waits_for == "user" and call.state is not ToolCallState.FINISHED
    if decision is None or not (waits or _answer_of_user(decision) is not None):
        raise ResumeError(
            f"the call {call.id!r} of {call.name!r} does not ask for the user's approval", code="not_waiting"
        )
    if not waits:  # a listener may send its answer again, where it does not know whether the first one came through
        if (_answer_of_user(decision), decision.digest) != (
            result.confirmed,
            digest(repeated.name, repeated.input),
        ):
            raise ResumeError(
                f"the call {call.id!r} of {call.name!r} was already answered in another way", code="conflict"
            )
        return
    if repeated.name != call.name:
        raise ResumeError(
            f"the answer names the tool {repeated.name!r:.{_MAX_QUOTE}}, but the call {call.id!r} is of {call.name!r}",
            code="mismatch",
        )
    seconds = agent.react_config.answer_within
    if result.confirmed and ReplyRun.now() - decision.asked_at > seconds * 1e9:
        raise ResumeError(
            f"{call.name!r} was asked about more than {seconds:g} seconds ago, which is too long to allow it: deny it, "
            f"or set ReActConfig(answer_within=...)",
            code="expired",
        )
    _check_size(f"the feedback about {call.name!r}", len(result.feedback or ""), _MAX_FEEDBACK)
    if len(result.rules) > _MAX_RULES:
        raise ResumeError(
            f"the answer brings {len(result.rules):,} rules, but at most {_MAX_RULES} are allowed", code="invalid"
        )
    if repeated.input != call.input:  # to the byte: the user has seen the one, and would allow the other
        _check_edited(agent, call, repeated)
    accept_rules(agent.state.permission_context, result.rules, call.name)
    if not result.confirmed and any(rule.behavior is PermissionBehavior.ALLOW for rule in result.rules):
        raise ResumeError(f"the answer denies {call.name!r} and brings a rule that allows it", code="invalid")


def _answer_of_user(decision: CallDecision) -> bool | None:
    """Return whether the user allowed the call, `None` if the user was not asked."""
    if decision.by == "user":
        return decision.behavior is PermissionBehavior.ALLOW
    # The digest of a denial is that of the yes which it overruled.
    return True if decision.behavior is PermissionBehavior.DENY and decision.digest else None


def _check_edited(agent: ReplyingAgent, call: ToolCallBlock, edited: ToolCallBlock) -> None:
    # What a layer asks is for the user to change; its tool is known here, also where a sub-agent's layer asks.
    question_id = call.id.rpartition("/")[2]
    tool = known_tools(agent).get(call.name)
    is_question = question_id.startswith(HIDDEN_CALL) and tool is not None and tool.is_hidden
    if "/" in call.id and not is_question:
        raise ResumeError(
            f"the answer gives the call {call.id!r} of {call.name!r} another input, which a call inside of another "
            f"cannot take: send it back as it was asked",
            code="mismatch",
        )
    if not is_question and not agent.state.permission_context.allow_edited_input:
        raise ResumeError(
            f"the answer gives the call {call.id!r} of {call.name!r} another input, which is not permitted: send it "
            f"back as it was asked, or set allow_edited_input in the conversation's permission_context",
            code="mismatch",
        )
    if tool is None and agent.chains.layers["on_tools"]:
        return  # it is checked again when the reply resumes, with the tools that these layers add
    new_call = ToolCallBlock(question_id, edited.name, edited.input)
    prepared = prepare_released(agent, known_tools(agent), new_call)
    if isinstance(prepared, ToolResponse):
        problem = "".join(block.text for block in prepared.content if isinstance(block, TextBlock))
        raise ResumeError(f"the edited input cannot be used: {problem:.{_MAX_QUOTE}}", code="invalid")


def _reconsider(agent: ReplyingAgent, context: ReplyContext, rules: list[PermissionRule]) -> None:
    """Decide the open questions that the new rules cover again, so that the user is not asked about them twice."""
    if not rules:
        return
    calls = waiting_calls(context) + [inner.question.tool_call for inner in context.inner.values() if inner.is_call]
    for call in calls:
        decision = context.decision_about(call.id)
        if decision is None or decision.waits_for != "user":
            continue
        prepared = prepare_released(agent, _toolkit_of(agent, context, call.id), call)
        if not isinstance(prepared, PreparedCall):
            continue
        forms = parse_arguments(prepared.input), prepared.effective_input
        if any(covers(rules, prepared.tool, *forms, behavior) for behavior in (_ALLOW, _DENY)):
            decision.waits_for = None
            _wake(context, call.id)


def _toolkit_of(agent: ReplyingAgent, context: ReplyContext, call_id: str) -> Toolkit:
    """Return the toolkit of a call before the call that makes it is entered again."""
    run, outer_id = agent.live_conversation.run, call_id.rpartition("/")[0]
    if outer_id and outer_id not in run.inner_toolkits:
        outer, _ = _find_asked(context, outer_id, "")
        tool = _toolkit_of(agent, context, outer_id).get(outer.name)
        if tool is not None:
            run.inner_toolkits = {**run.inner_toolkits, outer_id: toolkit_of_calls(agent, tool)}
    return run.toolkit_of(call_id)


def _check_execution(agent: ReplyingAgent, context: ReplyContext, execution: ToolResultBlock) -> None:
    call, decision = _find_asked(context, execution.id, execution.name)
    is_repeated = _is_earlier_result(context, call, decision, execution)
    if is_repeated is False:
        raise ResumeError(f"the call {execution.id!r:.{_MAX_QUOTE}} already has another result", code="conflict")
    if is_repeated:
        return
    if decision is None or decision.waits_for != "external":
        raise ResumeError(
            f"the call {call.id!r} of {call.name!r} does not run outside of the agent: "
            f"send a UserConfirmResultEvent if it waits for the user",
            code="not_waiting",
        )
    if execution.name != call.name:
        raise ResumeError(
            f"the result names the tool {execution.name!r:.{_MAX_QUOTE}}, but the call {call.id!r} is of {call.name!r}",
            code="mismatch",
        )
    if execution.state is ToolResultState.RUNNING:
        raise ResumeError(f"the result of {call.name!r} is not final: its state is RUNNING", code="invalid")
    # A sub-agent's question is about a tool of its own, even if a tool of this agent has that name.
    tool = None if _is_of_another(context, call.id) else _known_tool(agent, context, call)
    output = execution.blocks
    data = [block for block in output if isinstance(block, DataBlock) and isinstance(block.source, Base64Source)]
    total = sum(len(block.text) if isinstance(block, TextBlock) else data_size(block) for block in output)
    size = sum(map(data_size, data))
    limit = MAX_OUTPUT if tool is None else tool.max_output
    _check_size(f"the result of {call.name!r}", total - size, limit)
    _check_size(f"the data in the result of {call.name!r}", size, MAX_DATA if limit == MAX_OUTPUT else limit)
    for block in data:
        if isinstance(block.source, Base64Source) and not is_base64(block.source.data):
            raise ResumeError(
                f"the result of {call.name!r} holds data that is not base64: encode it with base64.b64encode",
                code="invalid",
            )
    _check_size(f"the metadata of the result of {call.name!r}", len(to_json(execution.metadata)), _MAX_METADATA)


def _known_tool(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock) -> ToolBase | None:
    """Return the tool of a call of this conversation, which may be one that only the calling tool has."""
    toolkit, outer_id = known_tools(agent), call.id.rpartition("/")[0]
    if outer_id:
        outer = _known_tool(agent, context, _find_asked(context, outer_id, "")[0])
        if outer is not None and isinstance(outer.inner_toolkit, Toolkit):
            toolkit = outer.inner_toolkit
    return toolkit.get(call.name)


def _is_earlier_result(
    context: ReplyContext, call: ToolCallBlock, decision: CallDecision | None, execution: ToolResultBlock
) -> bool | None:
    """Say whether it is the result that the call has already, `None` if the call has none yet."""
    if "/" not in call.id:
        if call.state is not ToolCallState.FINISHED:
            return None
        if decision is not None and decision.result_digest:
            return decision.result_digest == _digest_of_result(execution)
        earlier: ToolResultBlock = find_block(context.message, call.id, ToolResultBlock)
        repeated = [*execution.blocks, *note_of(context, call)]
        return earlier.state is execution.state and _comparable(earlier.blocks) == _comparable(repeated)
    if decision is None or decision.waits_for is not None:
        return None
    has_result = (decision.by, decision.behavior) == ("policy", _ALLOW)
    return decision.digest == _digest_of_result(execution) if has_result else None


def _check_size(part: str, size: int, limit: int) -> None:
    if size > limit:
        raise ResumeError(
            f"{part} has {size:,} characters, but at most {limit:,} are allowed: send less", code="invalid"
        )


def _metadata_of(execution: ToolResultBlock) -> JSONObject:
    # Only a tool of this program may end the reply with an answer of its own.
    return {key: value for key, value in execution.metadata.items() if key != "response_msg"}


def _digest_of_result(execution: ToolResultBlock) -> str:
    text, data = _comparable(execution.blocks)
    return digest(execution.name, to_json([execution.state, text, data, _metadata_of(execution)]).decode())


def _comparable(output: ToolOutput) -> tuple[str, list[object]]:
    text = "".join(block.text for block in output if isinstance(block, TextBlock))
    return text, [block.source for block in output if not isinstance(block, TextBlock)]
