"""The promise: in a used-up scope no call of a model or a tool begins, whatever happens at the same time."""

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.errors import BudgetExceeded, Transient
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import TextBlock
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    BudgetStore,
    MemoryBudgetStore,
    MiddlewareBase,
    RedisBudgetStore,
    SQLiteBudgetStore,
)
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.tool import FunctionTool
from tests.loop.helpers import call, elsewhere
from tests.middleware.redis_server import answers, when_redis_fails

pytestmark = when_redis_fails  # garbage of one test is collected at the end of the file

TOKENS = 10  # of each answer
known_at_admission: ContextVar[Counter[str]] = ContextVar("known_at_admission")
ROUND = st.tuples(
    st.sampled_from(["tool", "tools", "delegate", "delegates", "ask", "fail", "answer"]),
    st.integers(0, 3),  # how long the model takes
)
PLAN = st.lists(ROUND, min_size=1, max_size=4)
CONVERSATION = st.tuples(PLAN, st.sampled_from([None, None, 3, 7, 12]))  # and when it is cancelled, if it is
LIMITS = st.fixed_dictionaries(
    {}, optional={"tokens": st.integers(1, 80), "model_calls": st.integers(1, 8), "tool_calls": st.integers(1, 8)}
).filter(bool)


class Beginning(MiddlewareBase):
    """Outermost: has a place for each call, where `Elsewhere` writes what was known when the call was admitted."""

    inherited = True

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        known_at_admission.set(Counter())
        return await next_handler()

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        known_at_admission.set(Counter())
        async for item in next_handler():
            yield item


class Witness(MiddlewareBase):
    """Innermost: sees each call begin, and knows by counts of its own what has been spent.

    Of an owner whose store is elsewhere it knows what the store had answered when the call was admitted.
    """

    inherited = True

    def __init__(self, limits: dict[str, dict[str, float]]) -> None:
        self.limits = limits
        self.is_store_elsewhere = False
        self.spent: dict[Any, Counter[str]] = {}
        self.seen: set[Any] = set()
        self.broken: list[str] = []

    def scopes(self, run: Any) -> Iterator[tuple[str, Counter[str]]]:
        yield "owner", self.spent.setdefault("owner", Counter())
        while run is not None:
            yield "reply", self.spent.setdefault(run.id, Counter())
            yield "conversation", self.spent.setdefault(run.agent.state.session_id, Counter())
            run = run.parent

    def begin(self, run: Any, kind: str) -> None:
        for scope, spent in self.scopes(run):
            limits = self.limits.get(scope, {})
            known = known_at_admission.get() if scope == "owner" and self.is_store_elsewhere else spent
            for counter in ("tokens", kind):
                if known[counter] >= limits.get(counter, 1e9):
                    self.broken.append(f"{kind} began in a {scope} that had spent {dict(known)} of {limits}")
            spent[kind] += 1

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.begin(agent.run, "model_calls")
        return await next_handler()

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        key = agent.run.id, input_kwargs["tool_call"].id
        if key not in self.seen:  # one that is entered again has begun before
            self.seen.add(key)
            self.begin(agent.run, "tool_calls")
        async for item in next_handler():
            yield item

    def on_wire(self, agent: Any, record: Any) -> None:
        if record.response is not None and record.response.usage is not None:
            for _, spent in self.scopes(agent.run):
                spent["tokens"] += TOKENS


class Elsewhere:
    """A store whose answers take a while: what it has counted is known when its answer has come."""

    def __init__(self, store: BudgetStore) -> None:
        self.store = store
        self.counted: Counter[str] = Counter()

    async def reserve(self, account: str, limits: Any, amounts: Any, ttl: float) -> tuple[bool, Any]:
        known_at_admission.get().update(self.counted)
        added, spent = await self.store.reserve(account, limits, amounts, ttl)
        if added:
            self.counted.update(amounts)
        return added, spent

    async def settle(self, account: str, amounts: Any, ttl: float) -> None:
        await self.store.settle(account, amounts, ttl)
        self.counted.update(amounts)


class Planned(ChatModelBase):
    """Answers as the plan of its conversation says, which is in the text of the first message."""

    def __init__(self, plans: dict[str, list[tuple[str, int]]], numbers: Iterator[int]) -> None:
        super().__init__(model="planned", stream=False)
        self.plans = plans
        self.numbers = numbers

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> ChatResponse:
        question = next(message for message in messages if message.role == "user").get_text_content()
        plan = self.plans.get(question, [])
        kind, pace = plan.pop(0) if plan else ("answer", 0)
        for _ in range(pace):
            await anyio.lowlevel.checkpoint()
        if kind == "fail":
            raise Transient("503")
        names = {"tool": ["work"], "tools": ["work", "work", "work"], "delegate": ["child"], "ask": ["pay"]}
        names["delegates"] = ["child", "child", "work"]
        content: list[Any] = [
            call(str(next(self.numbers)), name, **({"query": f"{question}>"} if name == "child" else {}))
            for name in names.get(kind, [])
        ]
        return ChatResponse(content or [TextBlock("Done.")], usage=ChatUsage(TOKENS, 0))


async def work() -> str:
    await anyio.lowlevel.checkpoint()
    return "worked"


async def pay() -> str:
    return "paid"


async def converse(agent: Agent, question: str, cancelled_after: int | None) -> None:
    """Ask, and answer what is asked back, until it is over; from elsewhere each time, as another process would."""
    inputs: Any = question
    for _ in range(4):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def reply(agent: Agent = agent, inputs: Any = inputs) -> None:
                    with suppress(Transient, BudgetExceeded):
                        await agent.reply(inputs)

                group.start_soon(reply)
                if cancelled_after is not None:
                    for _ in range(cancelled_after):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
        agent = elsewhere(agent)
        event = agent.waiting()
        if event is None:
            return
        inputs = UserConfirmResultEvent(
            event.reply_id,
            [
                # The user pays, and gives nobody more to spend.
                ConfirmResult(block.name == "pay", block)
                for block in event.tool_calls
            ],
        )


async def play_plans(
    conversations: list[Any], limits: dict[str, Any], child_plan: Any, options: dict[str, Any], store: BudgetStore
) -> Witness:
    witness = Witness(limits)
    budgets: dict[str, Any] = {scope: Budget(**given) for scope, given in limits.items() if scope != "owner"}
    if "owner" in limits:
        witness.is_store_elsewhere = not isinstance(store, MemoryBudgetStore)
        store = Elsewhere(store) if witness.is_store_elsewhere else store
        budgets.update(owner=Budget(per=1e9, **limits["owner"]), owner_id="ann", store=store)
    budget = BudgetMiddleware(**budgets, **options)
    plans = {str(number): list(plan) for number, (plan, _) in enumerate(conversations)}
    plans.update({f"{number}>": list(child_plan) for number in range(len(conversations))})
    model = Planned(plans, count(1))
    child = Agent("child", model=model, tools=[work, FunctionTool(pay, ask=True)])
    tools: list[Any] = [work, FunctionTool(pay, ask=True), child.as_tool("Helps.")]
    agent = Agent("boss", model=model, tools=tools, middlewares=[Beginning(), budget, witness])
    async with anyio.create_task_group() as group:
        for number, (_, cancelled_after) in enumerate(conversations):
            group.start_soon(converse, agent.with_state(AgentState()), str(number), cancelled_after)
    return witness


ARGUMENTS = {
    "conversations": st.lists(CONVERSATION, min_size=1, max_size=3),
    "limits": st.dictionaries(st.sampled_from(["reply", "conversation", "owner"]), LIMITS, min_size=1),
    "child_plan": PLAN,
    "options": st.fixed_dictionaries(
        {"on_exceed": st.sampled_from(["stop", "raise", "ask"]), "reserve": st.booleans()}
    ),
    "backend": st.sampled_from(["asyncio", "trio"]),
}


def hold_promise(store: BudgetStore, backend: str, options: dict[str, Any], **plans: Any) -> None:
    options = {**options, "warn_at": 0.5}
    if options["reserve"]:  # an estimate is larger than all the limits here
        options["weights"] = (1, 0, 1)
    witness = anyio.run(partial(play_plans, store=store, options=options, **plans), backend=backend)
    assert witness.broken == []


@given(**ARGUMENTS)
@settings(max_examples=25, deadline=None)
def test_no_call_begins_in_a_used_up_scope(**arguments: Any) -> None:
    hold_promise(MemoryBudgetStore(), **arguments)


@pytest.mark.slow
@given(**ARGUMENTS)
@settings(max_examples=400, deadline=None)
def test_no_call_begins_in_a_used_up_scope_at_length(**arguments: Any) -> None:
    hold_promise(MemoryBudgetStore(), **arguments)


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'budget.db'}"
    pytest.importorskip("coredis")
    if "REDIS_URL" not in os.environ and not answers(6379):
        pytest.skip("Redis is not available")
    return f"redis:{os.environ.get('REDIS_URL', 'redis://127.0.0.1:6379/0')}"


@pytest.mark.slow
@given(**ARGUMENTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_call_begins_in_a_used_up_scope_of_any_store(
    address: str, tmp_path: Path, prefix: str, **arguments: Any
) -> None:
    kind, _, place = address.partition(":")
    number = len(list(tmp_path.iterdir())) + monotonic()
    if kind == "sqlite":
        hold_promise(SQLiteBudgetStore(tmp_path / f"{number}.db"), **arguments)
    else:
        hold_promise(RedisBudgetStore(place, prefix=f"{prefix}{number}:"), **arguments)
        gc.collect()  # while the warnings are ignored


def start(address: str, prefix: str, limit: int, backend: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.middleware.budget.spender", address, prefix, str(limit), backend]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_processes_together_begin_no_more_calls_than_are_left(address: str, prefix: str, killed: bool) -> None:
    limit = 60
    processes = [start(address, prefix, limit, backend) for backend in ("asyncio", "trio", "asyncio")]
    if killed:
        # Mid-way: it has begun some calls.
        stream = processes[0].stdout
        assert stream is not None
        begun = sum(stream.readline() == "begin\n" for _ in range(4))
        processes[0].kill()
    outputs = [process.communicate(timeout=120) for process in processes]
    total = sum(output.count("begin\n") for output, _ in outputs) + (begun if killed else 0)
    assert all("exceed_budget" in output for output, _ in outputs[killed:]), outputs
    # What a killed process had reserved stays counted, and so does what a slow store has counted without an answer.
    assert limit // 2 < total <= limit
