"""Budgets: limits the spending of replies, conversations and their owners."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from time import time
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeGuard

from agentrt.agent import Agent, AgentBase, Run
from agentrt.errors import BudgetExceeded, UsageError
from agentrt.hooks import (
    ActingValues,
    CompressContextValues,
    MiddlewareBase,
    ModelCallValues,
    NextActing,
    NextCompressContext,
    NextModelCall,
)
from agentrt.message import HintBlock, TextBlock, ToolCallBlock, ToolResultState, UserMsg
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ModelResult, WireRecord
from agentrt.types import STRUCTURED_OUTPUT, ToolChunk, ToolResponse
from agentrt_middleware.attempts import ATTEMPT_LAYERS, usage_on_wire
from agentrt_middleware.budget.account import Ledger
from agentrt_middleware.budget.admission import AdmittedCall, AdmittedStream, current_calls, without_store
from agentrt_middleware.budget.limits import MAX_AMOUNT, Amounts, Budget
from agentrt_middleware.budget.options import check_behaviour, check_budgets, check_owner
from agentrt_middleware.budget.owners import OwnerAccounts
from agentrt_middleware.budget.prices import CallPrices, Prices
from agentrt_middleware.budget.report import BudgetRefusal, error_of, hint_of, question_of, warning_of
from agentrt_middleware.budget.scopes import OwnerId, Scopes
from agentrt_middleware.budget.stores import BudgetStore, MemoryBudgetStore
from agentrt_middleware.clock import loop_time
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.tool_calls.question import Answer, Question

_logger = logging.getLogger("agentrt")
_MAX_OUTPUT = 4_096  # tokens of an answer, if its model's settings do not limit it
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")  # in the settings of models
_REFUSAL = "Not run: the budget is used up."


class BudgetMiddleware(MiddlewareBase):
    """Limits the spending of replies, conversations and their owners, and refuses calls beyond their budgets.

    Every request to a model counts, including all attempts, and every tool call; the spending of sub-agents counts in
    each reply above them too. `owner_id` identifies the owner of the budget `owner`: a str, or a function of the agent.
    `store` counts the spending of owners: in memory, or with a `SQLiteBudgetStore` or `RedisBudgetStore` for all
    processes. While it fails, no call starts; with `on_store_error="open"`, owners are not limited. `clock` is in
    seconds since the epoch.

    `weights` are the weights of a token of input, output and cached input. `prices` are the prices of calls: "genai"
    (extra `prices`), which the `capabilities` of a model override, a table as for `UsageMiddleware`, or a function of a
    model and a `ChatUsage`; they are required for a limit of `cost`. With `reserve=True`, a call starts only if its
    estimate fits too.

    At `warn_at` of a limit, listeners see a `CustomEvent` "budget_warning", and the model a hint to finish, once for
    each scope. `on_exceed` is the reaction to a reached limit: "stop" ends the reply with `stop_message`, "raise"
    raises `BudgetExceeded`, and "ask" asks the user, whose yes raises the limit by the share `raise_by`, or by the
    amount that the user enters.
    """

    emits = True
    inherited = True
    wraps: ClassVar = {
        "RedactionMiddleware": "what a budget tells the model is redacted like all that is sent",
        "CacheMiddleware": "a used-up budget answers nothing, and a known answer costs nothing",
        **dict.fromkeys(ATTEMPT_LAYERS, "a started call may be tried again"),
        "ToolErrorMiddleware": "a call that is not run has not failed",
        "ToolRetryMiddleware": "a started call may be run again, and counts once",
        "ToolEmulatorMiddleware": "a made-up result counts like any other",
    }

    def __init__(
        self,
        *,
        reply: Budget | None = None,
        conversation: Budget | None = None,
        owner: Budget | None = None,
        owner_id: OwnerId | None = None,
        store: BudgetStore | None = None,
        prices: Prices = "genai",
        weights: Sequence[float] = (1, 1, 1),
        warn_at: float | None = 0.8,
        on_exceed: Literal["stop", "raise", "ask"] = "stop",
        raise_by: float = 1.0,
        stop_message: str = "I used up the budget that I have and could not finish.",
        reserve: bool = False,
        on_store_error: Literal["closed", "open"] = "closed",
        clock: Callable[[], float] = time,
    ) -> None:
        check_budgets(reply, conversation, owner)
        check_owner(owner, owner_id, store)
        check_behaviour(weights, warn_at, on_exceed, raise_by, stop_message, reserve, on_store_error)
        self.reply, self.conversation, self.owner, self.owner_id = reply, conversation, owner, owner_id
        self.prices, self.weights, self.warn_at = prices, tuple(weights), warn_at
        self.on_exceed, self.raise_by, self.stop_message = on_exceed, raise_by, stop_message
        self._question = Question("raise_budget", scope=str, counter=str, amount=float)
        self.reserve, self.on_store_error = reserve, on_store_error
        costs = [budget.cost for budget in (reply, conversation, owner) if budget is not None and budget.cost]
        self._most_cost = max(costs, default=0.0)
        self._prices = CallPrices(prices) if costs else None
        self.store = store
        owners = None
        if owner is not None:
            self.store = store or MemoryBudgetStore()
            owners = OwnerAccounts(owner, self.store, on_store_error, clock)
        self._scopes = _scopes_of(self, owners)
        self._unpriced: set[str] = set()

    def __copy__(self) -> Self:
        # With the same accounts of owners: more copies of an agent must not spend more.
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        vars(new).update(_scopes=_scopes_of(new, self._scopes.owners))
        return new

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return copy(self)

    def list_tools(self) -> Sequence[Question]:
        return [self._question] if self.on_exceed == "ask" else []

    def identify(self, agent: AgentBase) -> dict[str, str]:
        return self._scopes.identify(agent)

    def on_wire(self, agent: AgentBase, record: WireRecord) -> None:
        run = agent.run
        if record.kind == "request":
            self._scopes.ledger.begin_work(run)
            call = next((call for call in reversed(current_calls.get()) if call.layer is self), None)
            if call is None or not call.send():  # another attempt of a call
                self._scopes.count(run, {"model_calls": 1})
            return
        self._scopes.end_work(run)
        usage = usage_on_wire(agent, record)
        # A replay counts what the record paid for, so that its own limits are reached where they were.
        if usage is not None and (run.is_replay or not usage.replayed):
            self._scopes.count(run, self._amounts(record.model, usage))

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        run, model = agent.run, input_kwargs["current_model"]
        if self._prices is not None and not self._prices.covers(model):
            self._refuse_unpriced(run, model)
        # Before anything is reserved: a tool call of this reply could not start.
        if self._scopes.ledger.data(run).get("stopped"):
            self._stop(agent)
        call, answer = await self._admit(agent, "model_calls", self._estimate(agent, input_kwargs))
        if isinstance(call, BudgetRefusal):
            # A request outside the rounds, such as a judge's, cannot wait for the user's answer.
            if not run.is_internal and self._may_ask(agent) and (answer is None or answer.confirmed):
                text, values = self._question_for(call)
                return self._question.response(agent, text, **values)
            self._refuse(agent, call)
        hints = [] if run.is_internal else self._warn(agent, call)
        messages = input_kwargs["messages"]
        if hints:
            messages = [*messages, UserMsg("runtime", [HintBlock(" ".join(hints), "budget")])]
        # While the request is being sent, so that the first one is known to be counted.
        token = current_calls.set((*current_calls.get(), call))
        try:
            result = await next_handler(messages=messages)
        except BaseException:
            await call.close()
            raise
        finally:
            current_calls.reset(token)
        if isinstance(result, ChatResponse):
            await call.close()
            return without_store(result) if hints else result
        if hints or call.must_be_closed:
            return AdmittedStream(result, call, is_hinted=bool(hints))  # type: ignore[return-value]  # as good as one
        return result

    async def on_compress_context(
        self, agent: AgentBase, input_kwargs: CompressContextValues, next_handler: NextCompressContext
    ) -> None:
        # A summary cannot ask the user. The next round asks, and compresses the context once it may start.
        if self._may_ask(agent) and agent.state.reply_context is not None:
            call, answer = await self._admit(agent, "model_calls", {})
            if isinstance(call, BudgetRefusal):
                if answer is not None and not answer.confirmed:
                    self._refuse(agent, call)
                return
            await call.close()
        await next_handler(**input_kwargs)

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        run, tool_call = agent.run, call_of(input_kwargs)
        tool = run.tool_of(tool_call)
        # The structured answer and a question to the user are free.
        if tool_call.name == STRUCTURED_OUTPUT or (tool is not None and tool.is_hidden):
            async for item in next_handler(**input_kwargs):
                yield item
            return
        entered = self._scopes.ledger.names(run, "entered")
        # Such a call has already started, and has waited for an answer since, or was cut off with its process.
        if tool_call.id not in entered:
            call, answer = await self._admit(agent, "tool_calls", {"tool_calls": 1}, tool_call)
            if isinstance(call, BudgetRefusal):
                if answer is None and self._may_ask(agent):
                    text, values = self._question_for(call)
                    question = self._question.open(agent, text, **values)
                    yield ToolResponse(state=ToolResultState.RUNNING, waits=[question])
                    return
                if self.on_exceed == "raise" or not isinstance(agent, Agent):
                    self._refuse(agent, call)
                # Parallel calls run to their end, and then all replies of the used-up scope stop before their next
                # model call. The reply above a sub-agent can ask the user.
                runs = [run] if self.on_exceed == "ask" else self._scopes.ledger.runs(run)
                for one in runs[runs.index(call.run) if call.run in runs else 0 :]:
                    self._scopes.ledger.data(one)["stopped"] = True
                yield ToolResponse([TextBlock(_REFUSAL)], ToolResultState.DENIED)
                return
            entered.append(tool_call.id)
        self._scopes.ledger.begin_work(run)
        is_waiting = False
        try:
            async for item in next_handler(**input_kwargs):
                is_waiting = isinstance(item, ToolResponse) and bool(item.waits)
                yield item
        finally:
            if not is_waiting:
                entered.remove(tool_call.id)
            self._scopes.end_work(run)
            await self._scopes.tell_stores()

    # Spending

    def _amounts(self, model: ChatModelBase, usage: ChatUsage) -> Amounts:
        # A provider may report anything, but it must never reduce the spending.
        total, output = max(usage.input_tokens, 0), max(usage.output_tokens, 0)
        cached = min(max(usage.cache_input_tokens, 0), total)
        counts = (total - cached, output, cached)
        amounts = {"tokens": sum(count * weight for count, weight in zip(counts, self.weights, strict=True))}
        if self._prices is not None:
            cost = self._prices.cost(model, usage)
            if cost is None:  # such as a fallback's, which is known only now
                if model.model not in self._unpriced:
                    self._unpriced.add(model.model)
                    _logger.warning("model %r has no price: its call counts as the whole cost limit", model.model)
                cost = self._most_cost
            amounts["cost"] = cost
        return amounts

    def _estimate(self, agent: AgentBase, values: ModelCallValues) -> Amounts:
        """Return the reserve of a call: the call itself, and with `reserve` its maximum amounts."""
        amounts: dict[str, float] = {"model_calls": 1}
        if self.reserve:
            model = values["current_model"]
            limits = [(model.settings or {}).get(name) for name in _OUTPUT_LIMITS]
            maximum = min(_MAX_OUTPUT, model.capabilities.max_output_tokens or _MAX_OUTPUT)
            output = min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=maximum)
            request = agent.run.estimate_tokens(values["messages"], values["tools"], model=model)
            amounts.update(self._amounts(model, ChatUsage(request, output)))
        return amounts

    # Admission

    async def _admit(
        self, agent: AgentBase, kind: str, amounts: Amounts, tool_call: ToolCallBlock | None = None
    ) -> tuple[AdmittedCall | BudgetRefusal, Answer | None]:
        """Admit a call, perhaps because the user has just allowed it; returns that answer too."""
        run = agent.run
        answer = None
        if self._may_ask(agent) and not (tool_call is None and run.is_internal):
            answer = self._question.answer(agent, tool_call)
        call = await self._scopes.admit(run, kind, amounts)
        if isinstance(call, BudgetRefusal) and answer is not None and answer.confirmed:
            asked_for = answer.input["scope"], answer.input["counter"]
            amount: float = answer.input["amount"]
            # Not for another limit, and not if another yes already covered both.
            if asked_for == (call.scope, call.excess.counter) and 0 < amount <= MAX_AMOUNT:
                await self._scopes.raise_limit(call, amount)
                call = await self._scopes.admit(run, kind, amounts)
        return call, answer

    def _may_ask(self, agent: AgentBase) -> TypeGuard[Agent]:
        """Say whether the user can be asked: not in sub-agents, where an inherited layer has no question."""
        if self.on_exceed != "ask" or not isinstance(agent, Agent):
            return False
        return agent.run.toolkit.get(self._question.name) is self._question

    def _question_for(self, refusal: BudgetRefusal) -> tuple[str, dict[str, Any]]:
        """Return the text of the question to the user, and its values, which the user may change."""
        counter = refusal.excess.counter
        limit = getattr(self, refusal.scope).limits[counter]
        amount = refusal.excess.raise_in_steps(self.raise_by * limit)
        return question_of(refusal, amount), {"scope": refusal.scope, "counter": counter, "amount": amount}

    def _refuse(self, agent: AgentBase, refusal: BudgetRefusal) -> NoReturn:
        # A custom agent has no steps that could be ended.
        if self.on_exceed != "raise" and isinstance(agent, Agent):
            self._stop(agent, refusal)
        raise error_of(refusal)

    def _stop(self, agent: AgentBase, refusal: BudgetRefusal | None = None) -> None:
        try:
            agent.run.stop("exceed_budget", self.stop_message)
        except UsageError:  # no reply is in progress: the context is being compressed
            if refusal is not None:
                raise error_of(refusal) from None

    def _refuse_unpriced(self, run: Run, model: ChatModelBase) -> NoReturn:
        raise BudgetExceeded(
            f"model {model.model!r} is not called, since its price is not known and a cost is limited: give "
            f"BudgetMiddleware(prices={{{model.model!r}: (input, output)}}), for a million tokens",
            scope=next(
                scope for scope in ("reply", "conversation", "owner") if getattr(getattr(self, scope), "cost", None)
            ),
            counter="cost",
            limit=self._most_cost,
            reply_id=run.root.id,  # even in a sub-agent, this is a mistake of the program
        )

    # Warnings

    def _warn(self, agent: AgentBase, call: AdmittedCall) -> list[str]:
        """Announce this reply's own scopes that are nearly used up; returns a hint for the model."""
        if self.warn_at is None:
            return []
        run, hints = agent.run, []
        for scope, near in self._scopes.near_limits(run, call, self.warn_at):
            run.emit(warning_of(scope, near, run.id))
            hints.append(hint_of(scope, near))
        return hints


def _scopes_of(layer: BudgetMiddleware, owners: OwnerAccounts | None) -> Scopes:
    ledger = Ledger(layer, layer.reply, layer.conversation, loop_time)
    return Scopes(layer, ledger, layer.owner, layer.owner_id, owners)
