"""Guardrails: functions and judges that stop what must not be asked, said, called or read."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from anyio.lowlevel import checkpoint

from agentrt.agent import Agent, AgentBase
from agentrt.errors import GuardrailTripped, MiddlewareConfigError
from agentrt.event import AgentEvent, BlocksWithdrawnEvent, CustomEvent, HintBlockEvent
from agentrt.hooks import (
    ActingValues,
    CheckPermissionValues,
    MiddlewareBase,
    ModelCallValues,
    NextActing,
    NextCheckPermission,
    NextModelCall,
    NextReasoning,
    ReasoningValues,
)
from agentrt.message import Msg, TextBlock, ToolResultState
from agentrt.model import ChatResponse, ModelResult
from agentrt.types import (
    STRUCTURED_OUTPUT,
    IncomingContent,
    PermissionBehavior,
    PermissionDecision,
    ToolChunk,
    ToolResponse,
)
from agentrt_middleware.attempts import ATTEMPT_LAYERS, close, only_if
from agentrt_middleware.guardrail.concurrency import MAX_READ_AHEAD, GuardTime, ReadAhead, may_withdraw, run_beside
from agentrt_middleware.guardrail.guards import Guard, GuardedCall, Guards, Trip, check_guards
from agentrt_middleware.guardrail.held_round import HeldRound
from agentrt_middleware.guardrail.user_inputs import UserInputs
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.validation import check_choice, check_flag, check_number

_MIN_WINDOW = 20  # characters; guards that see less could judge nothing

_STAGES: dict[str, str] = {
    **dict.fromkeys(("input", "feedback"), "input"),
    **dict.fromkeys(("tool_result", "not_run", "external", "hint", "passage", "memory"), "tool_result"),
}
_Stage = Guard | Sequence[Guard]


class GuardrailMiddleware(MiddlewareBase):
    """Has guards judge what users ask, what models answer, which tools are called and what these give.

    A guard is a function of a value and the agent, plain or a coroutine function, or a `Judge`. It returns `None`, a
    reason to stop, or `Replace(text)`. The value is a `str`, and a `GuardedCall` for `tool_call`. With `parallel`, the
    guards of `input` judge while the model is asked already; nothing of its answer leaves before they are done.

    An answer is held until the guards of `output` have judged it. With `window`, they judge it while it comes, in
    pieces of that many characters, with half as many before each. What has left when one objects is withdrawn, and none
    may replace.

    `on_trip` says what a reason leads to: "answer" ends the reply with `message`, "raise" raises `GuardrailTripped`,
    and "again" has the model see the reason and answer once more, up to `attempts` times. A call that trips is denied
    in any case. A guard that raises, answers nonsense or takes longer than `timeout` seconds has tripped, unless
    `on_error` is "open". Beside a request these are counted from its end, since a judge may have to wait for its turn.
    """

    emits = True
    inherited = True
    wraps: ClassVar = {
        "HumanApprovalMiddleware": "nobody is asked about a call that a guard denies",
        "BudgetMiddleware": "what a budget tells the model is not what a user says",
        "RedactionMiddleware": "what its judges are asked is redacted",
        "CacheMiddleware": "a known answer is judged too",
        **dict.fromkeys(ATTEMPT_LAYERS, "it judges an answer once, and not each attempt"),
        "ToolErrorMiddleware": "what is said of a failure is judged too",
        "ToolRetryMiddleware": "it judges a result once, and not each run",
        "ToolEmulatorMiddleware": "a made-up result is judged too",
    }

    def __init__(
        self,
        *,
        input: _Stage = (),
        tool_call: _Stage = (),
        tool_result: _Stage = (),
        output: _Stage = (),
        parallel: bool = True,
        window: int | None = None,
        on_trip: str = "answer",
        message: str = "I may not help with that.",
        attempts: int = 2,
        timeout: float = 10,
        on_error: str = "closed",
    ) -> None:
        stages = {"input": input, "tool_call": tool_call, "tool_result": tool_result, "output": output}
        guards = {stage: check_guards(stage, value) for stage, value in stages.items()}
        if not any(guards.values()):
            raise MiddlewareConfigError(
                "GuardrailMiddleware() has no guards, so it would stop nothing: write GuardrailMiddleware(output=[...])"
            )
        # As what it may be, whatever the annotation says.
        last_words: object = message
        check_flag("GuardrailMiddleware(parallel=...)", parallel)
        if not isinstance(last_words, str) or not message:
            raise MiddlewareConfigError(
                f"GuardrailMiddleware(message=...) must be a str for the user, not {message!r:.200}"
            )
        check_choice("GuardrailMiddleware(on_trip=...)", on_trip, ("answer", "raise", "again"))
        check_choice("GuardrailMiddleware(on_error=...)", on_error, ("closed", "open"))
        check_number("GuardrailMiddleware(attempts=...)", attempts, least=1, whole=True)
        check_number("GuardrailMiddleware(timeout=...)", timeout, finite=True)
        if window is not None:
            check_number("GuardrailMiddleware(window=...)", window, least=_MIN_WINDOW, whole=True)
            if not guards["output"]:
                raise MiddlewareConfigError(
                    f"GuardrailMiddleware(window={window}) is for guards of output, and there are none: write "
                    f"output=[...]"
                )
        self.input, self.tool_call = guards["input"], guards["tool_call"]
        self.tool_result, self.output = guards["tool_result"], guards["output"]
        self.parallel, self.on_trip, self.message = parallel, on_trip, message
        self.attempts, self.timeout, self.on_error = attempts, timeout, on_error
        self.window = window
        self.holds_answers = bool(self.output) and window is None
        self._guards = {
            stage: Guards(
                chosen, stage, timeout, fails_open=on_error == "open", can_replace=stage != "output" or window is None
            )
            for stage, chosen in guards.items()
        }

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if not self.input:
            return await next_handler(**input_kwargs)
        inputs = self._inputs_of(agent)
        sent = input_kwargs["messages"]
        messages = inputs.apply(sent)
        # A judge's own request, or a summary: not what a user says.
        new = [] if agent.run.is_internal else inputs.new_messages(sent)
        if not new:
            return await next_handler(messages=messages)
        check = _InputCheck(self._guards["input"], agent, inputs, new)
        if not self.parallel:  # what was observed; an input has passed `on_content`
            await check.run(None)
            result = None
        else:
            result = await check.run_beside(next_handler, messages, GuardTime(self.timeout, has_begun=False))
        if isinstance(agent, Agent):
            # There is one text of what was said, for summaries and memories too.
            agent.state.context = inputs.rewrite(agent.state.context)
        for guard in check.replaced_by:
            self._tell(agent, guard, "input", "replace")
        if check.trip is not None:
            # The model cannot mend what a user has said, so that "again" ends the reply as well.
            self._end(agent, check.trip, "input")
        if result is None:  # not asked yet, or with what has been replaced since
            return await next_handler(messages=inputs.apply(sent))
        return result

    @only_if(lambda guardrail, _: guardrail.output)
    async def on_reasoning(
        self, agent: AgentBase, input_kwargs: ReasoningValues, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        run = agent.run
        held = HeldRound(run.id, self.window)
        trip: Trip | None = None
        replaced_by: list[str] = []
        stream = next_handler(**input_kwargs)
        async for item in stream:
            if held.take(item):
                yield item
            if held.is_due:
                trip, passing = await self._judge_window(agent, held, stream)
                for passed in passing:
                    yield passed
                if trip is not None:
                    await close(stream)  # the rest of the answer is not wanted
                    break
                for released in held.release_window():
                    yield released
        if trip is None:
            trip, replaced_by = await self._judge_output(agent, held)
        for guard in replaced_by:
            yield _event(guard, "output", "replace", run.id)
        if trip is None:
            for released in held.release():
                yield released
            return
        scratch = agent.run.scratch(self)
        scratch["attempts"] = scratch.get("attempts", 0) + 1
        asks_again = self.on_trip == "again" and scratch["attempts"] <= self.attempts and isinstance(agent, Agent)
        for event in self._rejection(agent, held, trip, asks_again=asks_again):
            yield event
        if not asks_again:
            self._stop(agent, trip, "output")

    async def on_check_permission(
        self, agent: AgentBase, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        decision = await next_handler(**input_kwargs)
        name = input_kwargs["tool_call"].name
        # What a layer asks by a hidden tool is not the model's, and an answer in a form is for the guards of output.
        is_judged = self.tool_call and not input_kwargs["tool"].is_hidden and name != STRUCTURED_OUTPUT
        if not is_judged or decision.behavior is PermissionBehavior.DENY:
            return decision
        call = GuardedCall(name, input_kwargs["tool_input"])
        trip, _, _ = await self._guards["tool_call"].judge(call, agent)
        if trip is None:
            return decision
        self._denied_calls(agent).add(input_kwargs["tool_call"].id)
        self._tell(agent, trip.guard, "tool_call", "deny")
        return PermissionDecision(PermissionBehavior.DENY, trip.reason, "GuardrailMiddleware", bypass_immune=True)

    async def on_content(self, agent: AgentBase, content: IncomingContent) -> IncomingContent:
        is_judged_later = content.source == "observed" or (content.source == "input" and self.parallel)
        stage = _STAGES.get(content.source)
        if stage is None or is_judged_later or not self._guards[stage] or self._is_own(agent, content):
            return content
        trip, text, replaced_by = await self._guards[stage].judge(content.text, agent)
        for guard in replaced_by:
            self._tell(agent, guard, stage, "replace")
        if trip is not None:
            # The model cannot mend what a user has said.
            if stage == "input" or self.on_trip != "again" or not isinstance(agent, Agent):
                self._end(agent, trip, stage)
            self._tell(agent, trip.guard, stage, "again")
            return replace(content.with_text(_reproach(trip)), state=ToolResultState.ERROR, metadata={})
        if replaced_by:
            others = [block for block in content.content if not isinstance(block, TextBlock)]
            is_message = content.source == "input"
            content = replace(content, content=[TextBlock(text), *(others if is_message else ())])
            content = content if is_message else replace(content, metadata={})
        if content.source == "input":
            self._inputs_of(agent).accept_content(content.content)
        return content

    def _judges_acting(self, agent: AgentBase) -> bool:
        return bool(self.tool_result) and not agent.runs_reply_loop  # elsewhere, results pass `on_content`

    @only_if(_judges_acting)
    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = call_of(input_kwargs)
        # The pieces do not leave: they need not say the same as the result, which is what is judged.
        async for item in next_handler(**input_kwargs):
            if isinstance(item, ToolResponse):
                content = IncomingContent("tool_result", item.content, call, call.name, state=item.state)
                judged = await self.on_content(agent, content)
                yield item if judged is content else replace(item, content=judged.content, metadata={})
            elif not isinstance(item, ToolChunk):
                yield item  # of an agent that runs its tools itself

    def _is_own(self, agent: AgentBase, content: IncomingContent) -> bool:
        """Say whether it is what this layer itself says to the model, or an answer in a form, which is the model's."""
        if content.source == "hint":
            return content.name == "guardrail"
        if content.name == STRUCTURED_OUTPUT:
            return True
        call = content.tool_call
        return content.source == "not_run" and call is not None and call.id in self._denied_calls(agent)

    def _denied_calls(self, agent: AgentBase) -> set[str]:
        denied: set[str] = agent.run.scratch(self).setdefault("denied", set())
        return denied

    def _inputs_of(self, agent: AgentBase) -> UserInputs:
        return UserInputs(agent.state_of(self), agent.run.scratch(self).setdefault("digests", {}))

    async def _judge_window(
        self, agent: AgentBase, held: HeldRound, stream: AsyncGenerator[AgentEvent | Msg, None]
    ) -> tuple[Trip | None, list[AgentEvent | Msg]]:
        """Judge what is held while the answer is read on; returns the objection, and what may leave in any case."""
        text = held.begin_window()
        time = GuardTime(self.timeout, has_begun=False)
        trip: Trip | None = None
        is_judged = False
        passing: list[AgentEvent | Msg] = []

        async def judge() -> bool:
            nonlocal trip, is_judged
            trip, _, _ = await self._guards["output"].judge(text, agent, time)
            is_judged = True
            return trip is None

        async def read_on() -> None:
            # Plain functions are done then, and what they let pass need not wait for the next piece. Twice, since trio
            # runs the tasks of one turn in any order.
            await checkpoint()
            await checkpoint()
            for _ in range(MAX_READ_AHEAD):
                item = None if is_judged else await anext(stream, None)
                if item is None:
                    break
                if held.take(item):
                    passing.append(item)
            time.begin()

        failure = await run_beside(judge, read_on)
        if failure is not None and trip is None:
            raise failure
        return trip, passing

    async def _judge_output(self, agent: AgentBase, held: HeldRound) -> tuple[Trip | None, list[str]]:
        guards = self._guards["output"]
        all_replaced: list[str] = []
        text = held.text()
        if text:
            trip, new_text, replaced_by = await guards.judge(text, agent)
            if trip is not None:
                return trip, []
            if replaced_by:
                held.replace_text(new_text)
                all_replaced += replaced_by
        for call_id, output in held.structured_outputs().items():
            trip, new_output, replaced_by = await guards.judge(output, agent)
            if trip is not None:
                return trip, []
            if replaced_by:
                held.replace_input(call_id, new_output)
                all_replaced += replaced_by
        return None, all_replaced

    def _rejection(self, agent: AgentBase, held: HeldRound, trip: Trip, *, asks_again: bool) -> Iterator[AgentEvent]:
        """Yield what is said in the place of an answer that does not count."""
        run = agent.run
        yield _event(trip.guard, "output", "again" if asks_again else self._final_action(agent), run.id)
        if sent_ids := held.sent_ids():
            yield BlocksWithdrawnEvent(run.id, sent_ids)
        if asks_again:
            # In the place of an answer, so that the round counts, and the model is asked again while rounds are left.
            yield HintBlockEvent(run.id, run.new_id(), _reproach(trip), "guardrail")
        yield from held.end_of_call()

    def _final_action(self, agent: AgentBase) -> str:
        # An agent that writes its own reply has no steps that could be ended.
        return "raise" if self.on_trip == "raise" or not isinstance(agent, Agent) else "answer"

    def _end(self, agent: AgentBase, trip: Trip, stage: str) -> None:
        self._tell(agent, trip.guard, stage, self._final_action(agent))
        self._stop(agent, trip, stage)

    def _stop(self, agent: AgentBase, trip: Trip, stage: str) -> None:
        if not isinstance(agent, Agent) or self.on_trip == "raise":
            raise GuardrailTripped(f"the guard {trip.guard} objects to the {stage}", guard=trip.guard, stage=stage)
        agent.run.stop("guardrail", self.message)

    def _tell(self, agent: AgentBase, guard: str, stage: str, action: str) -> None:
        agent.run.emit(_event(guard, stage, action, agent.run.id))


class _InputCheck:
    """The judgement on what users have said since the last one."""

    def __init__(self, guards: Guards, agent: AgentBase, inputs: UserInputs, new: list[Msg]) -> None:
        self._guards = guards
        self._agent = agent
        self._inputs = inputs
        self._new = new
        self.trip: Trip | None = None
        self.replaced_by: list[str] = []

    async def run(self, time: GuardTime | None) -> None:
        for message in self._new:
            text = message.get_text_content() or ""
            self.trip, new_text, replaced_by = await self._guards.judge(text, self._agent, time)
            if self.trip is not None:
                self._inputs.withhold(message)
                return
            if replaced_by:
                self._inputs.replace(message, new_text)
                self.replaced_by += replaced_by
            else:
                self._inputs.accept(message)

    async def run_beside(self, next_handler: NextModelCall, messages: list[Msg], time: GuardTime) -> ModelResult | None:
        """Judge while the model is asked; returns its answer, `None` if that does not count."""
        result: ModelResult | None = None
        is_judged = False

        async def judge() -> bool:
            nonlocal is_judged
            await self.run(time)
            is_judged = True
            return self.trip is None and not self.replaced_by

        async def request() -> None:
            nonlocal result
            result = await next_handler(messages=messages)
            if not (isinstance(result, ChatResponse) or may_withdraw(self._agent)):
                ahead = ReadAhead(result)
                result = ahead  # type: ignore[assignment]  # as good as an async generator
                await ahead.read_while(lambda: not is_judged)
            time.begin()

        failure = await run_beside(judge, request)
        if failure is None and self.trip is None and not self.replaced_by:
            return result
        if result is not None and not isinstance(result, ChatResponse):
            await close(result)
        if failure is not None and self.trip is None:
            raise failure
        return None


def _event(guard: str, stage: str, action: str, reply_id: str) -> CustomEvent:
    return CustomEvent("guardrail", {"guard": guard, "stage": stage, "action": action}, reply_id=reply_id)


def _reproach(trip: Trip) -> str:
    return f"What was here does not count, and nobody has seen it: {trip.reason}"
