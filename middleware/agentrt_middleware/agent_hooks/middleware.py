"""The layer that asks the interceptors of the AGENT-HOOKS standard at its eight points."""

import json
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import anyio

from agentrt.agent import Agent, AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.event import AgentEvent
from agentrt.hooks import (
    ActingValues,
    CheckPermissionValues,
    MiddlewareBase,
    ModelCallValues,
    NextActing,
    NextCheckPermission,
    NextModelCall,
    NextReply,
    ReplyInput,
    ReplyValues,
)
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolResultState
from agentrt.model import ChatResponse, ModelResult
from agentrt.types import (
    STRUCTURED_OUTPUT,
    IncomingContent,
    PermissionBehavior,
    PermissionDecision,
    ToolChunk,
    ToolResponse,
)
from agentrt_middleware.agent_hooks.answers import (
    UNSUPPORTED,
    JudgedStream,
    answer_context,
    answer_from_wire,
    projecting,
)
from agentrt_middleware.agent_hooks.wire import (
    ProjectionError,
    arguments_of,
    calls_of,
    content_from_wire,
    content_to_wire,
    messages_from_wire,
    messages_to_wire,
    response_from_wire,
    text_of,
    tools_to_wire,
    value_from_wire,
    value_to_wire,
)
from agentrt_middleware.reply_info import messages_of
from agentrt_middleware.validation import check_function, check_number

_SECONDS = 5.0  # that one interceptor may take, and all of them at the end of a reply


@dataclass
class _JudgedCall:
    """A tool call that was judged before it runs: its arguments then, and as the interceptors have left them."""

    before: dict[str, Any]
    after: dict[str, Any]
    decision: PermissionDecision | None  # `None` for a call that may run
    is_approved: bool
    is_running: bool = False

    def covers(self, arguments: dict[str, Any]) -> bool:
        return arguments in (self.before, self.after)


class AgentHooksMiddleware(MiddlewareBase):
    """Asks interceptors of the AGENT-HOOKS standard, version 0.1, at its eight points.

    Give `interceptors`, which are asked in this order, or a `declaration`: the path of a document, or the document as a
    dict, with the SDK's `HostRegistry` as `registry`. Without an interceptor everything is denied, as the standard has
    it. `resolver` answers at once what a policy would have approved; without one, the call of a tool waits for the
    user. `mode`, `composition` and `identity_provider` are those of the standard; `redactor` makes the context that the
    resolver sees. An interceptor that takes more than `timeout` seconds denies. Each record goes to `on_record`.

    A tool call that is denied has a result that says so, and the reply continues. Any other denial raises the SDK's
    `InterceptionBlocked`. A reply is one session, also where it waits for an answer and resumes in another process: it
    starts once and ends once, and a call that waited is judged again before it runs. A call that another layer had the
    user approve, and that an interceptor changes, is denied: the user has approved other arguments.

    Where an answer is streamed, each piece leaves once a verdict covers it; with a declaration whose surface has no
    `buffered_output: false`, the whole answer is judged at once. What a provider runs by itself, such as its own
    search, reaches no point for tools, and messages that are observed reach none for input.

    Needs the extra: `pip install "agentrt[agent-hooks]"`.
    """

    position = "outermost"
    inherited = True
    rewrites = ("system", "history")  # where an interceptor changes a request
    needs_hooks: ClassVar = ("on_model_call", "on_check_permission", "on_acting", "on_content")

    def __init__(
        self,
        interceptors: Sequence[Any] = (),
        *,
        declaration: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        registry: Any = None,
        resolver: Any = None,
        mode: str | None = None,
        composition: Any = None,
        identity_provider: Any = "jcs-sha256",
        redactor: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        timeout: float | None = _SECONDS,
        on_record: Callable[[Any], object] | None = None,
    ) -> None:
        try:
            from agentrt_middleware.agent_hooks import emitter
        except ImportError as error:
            raise MiddlewareConfigError(
                'AgentHooksMiddleware needs the package agent-hooks-sdk: pip install "agentrt[agent-hooks]"'
            ) from error
        self.interceptors = _check_interceptors(interceptors)
        if timeout is not None:
            check_number("AgentHooksMiddleware(timeout=...)", timeout, finite=True)
        if on_record is not None:
            check_function("AgentHooksMiddleware(on_record=...)", on_record, "record", plain=True)
        self.timeout, self.on_record = timeout, on_record
        self._new_session = emitter.Session
        self._judges_pieces = True
        if declaration is None:
            if registry is not None:
                raise MiddlewareConfigError(
                    "AgentHooksMiddleware(registry=...) is for a declaration: give declaration=... as well"
                )
            self._emitter = emitter.emitter_from_code(
                interceptors,
                resolver=resolver,
                mode=mode,
                composition=composition,
                identity_provider=identity_provider,
                redactor=redactor,
                timeout=timeout,
            )
        else:
            beside = {
                "interceptors": bool(interceptors),
                "resolver": resolver is not None,
                "mode": mode is not None,
                "composition": composition is not None,
                "identity_provider": identity_provider != "jcs-sha256",
                "redactor": redactor is not None,
                "timeout": timeout != _SECONDS,
            }
            for name in (name for name, is_given in beside.items() if is_given):
                raise MiddlewareConfigError(
                    f"AgentHooksMiddleware({name}=...) cannot stand beside a declaration, which says that itself: "
                    f"leave it out, or write it into the declaration"
                )
            self._emitter, self._judges_pieces = emitter.emitter_from_declaration(declaration, registry)
        self._records: WeakKeyDictionary[AgentBase, deque[Any]] = WeakKeyDictionary()

    def records(self, agent: AgentBase) -> list[Any]:
        """Return the SDK's records of this conversation's current or last reply in this process, in order."""
        return list(self._records.get(agent, ()))

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        session = self._open(agent)
        reason = "error"
        try:
            if session.is_new:
                tools = sorted(name for name in agent.run.toolkit.names() if name != STRUCTURED_OUTPUT)
                await session.emit(session.build.agent_startup(tools_registered=tools))
            inputs = await self._mediate_input(session, input_kwargs["inputs"])
            async with aclosing(next_handler(inputs=inputs)) as stream:
                async for item in stream:
                    if isinstance(item, Msg) and not _is_parked(agent):
                        item = await self._mediate_output(session, item)
                    yield item
            reason = "completed"
        except Exception:
            raise
        except BaseException:  # cancelled, or its reader has left
            reason = "cancelled"
            raise
        finally:
            if not _is_parked(agent):
                with anyio.move_on_after(_SECONDS, shield=True):
                    await session.try_emit(session.build.agent_shutdown(reason=reason))

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        session = self._session(agent)
        model, messages = input_kwargs["current_model"].model, input_kwargs["messages"]
        before = messages_to_wire(messages)
        context = session.build.pre_model_call(
            model_id=model, messages=before, tools=tools_to_wire(input_kwargs["tools"])
        )
        after = await session.emit(context)
        if after == before:
            result = await next_handler(**input_kwargs)
        else:
            with projecting(session, context):
                messages = messages_from_wire(after, before, messages)
            result = await next_handler(messages=messages)
        if isinstance(result, ChatResponse):
            context = answer_context(session, model, result)
            answered = dict(context["target"])
            judged = await session.emit(context)
            if judged == answered:
                return result
            with projecting(session, context):
                return answer_from_wire(result, judged, answered)
        return JudgedStream(session, model, is_buffered=not self._judges_pieces).pieces(result)

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        decision = await next_handler(**input_kwargs)
        call = input_kwargs["tool_call"]
        # What a layer asks by a hidden tool is not the model's, and an answer in a form calls no tool.
        is_exempt = input_kwargs["tool"].is_hidden or call.name == STRUCTURED_OUTPUT
        if is_exempt or decision.behavior is PermissionBehavior.DENY:
            return decision
        judged = await self._judge_call(agent, call)
        is_change = judged.is_running and judged.before != judged.after == arguments_of(call)
        if is_change and decision.behavior is PermissionBehavior.ASK and not decision.bypass_immune:
            # The user has agreed to the call before this layer's interceptors changed it.
            return PermissionDecision(PermissionBehavior.ALLOW, decision_reason=type(self).__name__)
        return judged.decision or decision

    async def on_acting(
        self, agent: Agent, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = input_kwargs["tool_call"]
        session, judged = self._session(agent), await self._judge_call(agent, call)
        if judged.decision is not None and not judged.is_approved:
            yield ToolResponse(
                [TextBlock(f"This call is not permitted: {judged.decision.message}")], ToolResultState.DENIED
            )
            return
        arguments = judged.before
        judged.is_running = True
        if judged.after != judged.before:
            arguments = judged.after
            call = replace(call, input=json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
        async with aclosing(next_handler(tool_call=call)) as stream:
            async for item in stream:
                if not isinstance(item, ToolResponse):
                    continue  # no verdict covers a piece, and beside on_content none is announced
                yield item if item.waits else await self._mediate_result(session, call, arguments, item)

    async def on_content(self, agent: AgentBase, content: IncomingContent) -> IncomingContent:
        call = content.tool_call
        if content.source != "external" or call is None:
            return content
        external = ToolResponse(list(content.content), content.state or ToolResultState.SUCCESS)
        result = await self._mediate_result(self._session(agent), call, arguments_of(call), external)
        if result is external:
            return content
        # As for a result of this program: its metadata may say what is withheld or was changed.
        return replace(content, content=result.content, state=result.state, metadata={})

    def _open(self, agent: AgentBase) -> Any:
        """Begin a session for the reply in progress."""
        records = self._records[agent] = deque(maxlen=max(self._emitter.max_records, 1))

        def take(record: Any) -> None:
            records.append(record)
            if self.on_record is not None:
                self.on_record(record)

        session = self._new_session(self._emitter, agent.name, agent.run.id, agent.run.state_of(self), take)
        agent.run.scratch(self)["session"] = session
        return session

    def _session(self, agent: AgentBase) -> Any:
        return agent.run.scratch(self).get("session") or self._open(agent)

    async def _mediate_input(self, session: Any, inputs: ReplyInput) -> ReplyInput:
        messages = messages_of(inputs)
        if messages is None:
            return inputs  # an answer, or nothing
        mediated = []
        for message in messages:
            before = content_to_wire(message.content)
            role = message.role if message.role in ("user", "system") else "external"
            context = session.build.input(content=before, role=role)
            after = (await session.emit(context)).get("content")
            if after != before:
                with projecting(session, context):
                    blocks = content_from_wire(after, before, message.get_content_blocks())
                    message = replace(message, content=blocks)
            mediated.append(message)
        return mediated[0] if isinstance(inputs, Msg) else mediated

    async def _mediate_output(self, session: Any, message: Msg) -> Msg:
        blocks = message.get_content_blocks()
        before = text_of(blocks) or ""
        form: Any = message.structured_output
        extra = {} if form is None else {"structured_output": form}
        if hasattr(form, "model_dump"):
            extra = {"structured_output": form.model_dump(mode="json")}
        context = session.build.output(content=before, **extra)
        after = await session.emit(context)
        if after.get("content") == before and all(after.get(key) == value for key, value in extra.items()):
            return message
        with projecting(session, context):
            if any(after.get(key) != value for key, value in extra.items()):
                raise ProjectionError("structured output was changed, which has the caller's own type")
            response = response_from_wire(ChatResponse(blocks), after.get("content"), calls_of(blocks))
            return replace(message, content=response.content)

    async def _judge_call(self, agent: Agent, call: ToolCallBlock) -> _JudgedCall:
        """Ask about a call, once in each reply; a reply that resumes asks again, and a no counts then."""
        session, arguments = self._session(agent), arguments_of(call)
        judged: _JudgedCall | None = session.calls.get(call.id)
        if judged is None or not judged.covers(arguments):
            judged = session.calls[call.id] = await self._ask_about_call(agent, session, call, arguments)
        return judged

    async def _ask_about_call(
        self, agent: Agent, session: Any, call: ToolCallBlock, arguments: dict[str, Any]
    ) -> _JudgedCall:
        context = session.build.pre_tool_call(call_id=call.id, name=call.name, args=arguments_of(call))
        reply = agent.state.reply_context
        earlier = None if reply is None else reply.decisions.get(call.id)
        has_agreed = earlier is not None and earlier.by == "user" and earlier.behavior is PermissionBehavior.ALLOW
        is_approved = has_agreed and not session.emitter.has_resolver
        record = await session.try_emit(context, is_approved=is_approved)
        verdict, after = record.verdict, context["target"]
        why = verdict.message or verdict.reason or "a policy denies it"
        if record.proceeds and not isinstance(after, dict):
            session.refuse(context, UNSUPPORTED, "the arguments of a call are not an object")
            why = "a policy changed its arguments to something other than an object"
        elif record.proceeds:
            # The runtime knows whether the user's yes was to this very call; if not, the question is asked again.
            waits_for_user = record.resolved_by == "approval" and is_approved
            decision = self._question(why) if waits_for_user else None
            return _JudgedCall(arguments, after, decision, is_approved=waits_for_user)
        elif verdict.is_liftable and not session.emitter.has_resolver:
            return _JudgedCall(arguments, arguments, self._question(why), is_approved=False)
        decision = PermissionDecision(PermissionBehavior.DENY, why, type(self).__name__, bypass_immune=True)
        return _JudgedCall(arguments, arguments, decision, is_approved=False)

    def _question(self, why: str) -> PermissionDecision:
        return PermissionDecision(PermissionBehavior.ASK, why, type(self).__name__, bypass_immune=True)

    async def _mediate_result(
        self, session: Any, call: ToolCallBlock, arguments: dict[str, Any], result: ToolResponse
    ) -> ToolResponse:
        before = value_to_wire(result.content)
        context = session.build.post_tool_call(
            call_id=call.id,
            name=call.name,
            args=arguments,
            value=before,
            is_error=result.state is not ToolResultState.SUCCESS,
        )
        record = await session.try_emit(context)
        if not record.proceeds:
            why = record.verdict.message or record.verdict.reason or "a policy denies it"
            return ToolResponse([TextBlock(f"The result is withheld: {why}")], ToolResultState.DENIED)
        after = context["target"]
        return result if after == before else replace(result, content=value_from_wire(after), metadata={})


def _is_parked(agent: Agent) -> bool:
    context = agent.state.reply_context
    return context is not None and context.parked


def _check_interceptors(interceptors: Sequence[Any]) -> list[Any]:
    if isinstance(interceptors, (str, Mapping)) or callable(getattr(interceptors, "intercept", None)):
        raise MiddlewareConfigError(
            f"AgentHooksMiddleware(interceptors=...) must be a list of interceptors, not {interceptors!r:.200}: "
            f"write AgentHooksMiddleware([...])"
        )
    for interceptor in interceptors:
        if isinstance(interceptor, type) or not callable(getattr(interceptor, "intercept", None)):
            raise MiddlewareConfigError(
                f"AgentHooksMiddleware(interceptors=...) has {interceptor!r:.200}, which cannot intercept: give an "
                f"object with a method intercept(context)"
            )
    return list(interceptors)
