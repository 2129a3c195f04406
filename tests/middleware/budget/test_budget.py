"""Budgets: what is counted, what follows when it is used up, and what is said before."""

import copy
import json
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from agentrt import Agent, AgentState
from agentrt.agent import ContextConfig, ReActAgentBase
from agentrt.errors import BudgetExceeded, SessionCorrupt, Transient
from agentrt.message import AssistantMsg, Msg, ToolCallBlock, UserMsg
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    CircuitBreakerMiddleware,
    GuardrailMiddleware,
    Judge,
    MiddlewareBase,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RetryMiddleware,
    ToolRetryMiddleware,
)
from agentrt.model import ChatModelBase, ChatUsage, ScriptedChatModel
from agentrt.testing import approve
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of, saved_state
from tests.middleware.budget.helpers import answer, calling, requests, result_states, warnings_in
from tests.middleware.fake_time import Clock, Least, in_jumping_time

ENDLESS = [calling(60, number) for number in range(9)]
PRICES = {"scripted": (1_000_000, 2_000_000)}  # one for each token that is sent


@pytest.mark.parametrize(
    ("budget", "asked", "ran"),
    [
        (Budget(tokens=100), 2, 1),
        (Budget(tokens=120), 2, 1),
        (Budget(tokens=121), 3, 2),
        (Budget(cost=100), 2, 1),
        (Budget(model_calls=2), 2, 2),
        (Budget(tool_calls=2), 3, 2),
        (Budget(tokens=1_000, tool_calls=1), 2, 1),
    ],
)
@pytest.mark.parametrize("scope", ["reply", "conversation", "owner"])
async def test_no_call_begins_in_a_used_up_scope(scope: str, budget: Budget, asked: int, ran: int) -> None:
    options: dict[str, Any] = {scope: budget}
    if scope == "owner":
        limits: Any = budget.limits
        options = {"owner": Budget(per="day", **limits), "owner_id": "ann"}
    agent = agent_of(list(ENDLESS), add, middlewares=[BudgetMiddleware(prices=PRICES, **options)])
    message = await agent.reply("go")
    assert message.finished_reason == "exceed_budget"
    assert message.get_text_content() == "I used up the budget that I have and could not finish."
    assert requests(agent) == asked
    assert result_states(agent).count("success") == ran


@pytest.mark.parametrize("scope", ["conversation", "owner"])
async def test_a_used_up_scope_stays_used_up(scope: str) -> None:
    options: dict[str, Any] = {"conversation": Budget(tokens=100)}
    if scope == "owner":
        options = {"owner": Budget(tokens=100, per="day"), "owner_id": "ann"}
    agent = agent_of(list(ENDLESS), add, middlewares=[BudgetMiddleware(**options)])
    for _ in range(3):
        assert (await agent.reply("go")).finished_reason == "exceed_budget"
        assert requests(agent) == 2


async def test_a_reply_that_stays_within_its_budget_is_complete() -> None:
    agent = agent_of([calling(60, 1), answer(39)], add, middlewares=[BudgetMiddleware(reply=Budget(tokens=100))])
    assert (await agent.reply("go")).finished_reason == "completed"
    assert agent.state_of(agent.middlewares[0])["reply"]["tokens"] == 99


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_says_which_scope_is_used_up(stream: bool) -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=100), on_exceed="raise")
    agent = agent_of([], add, middlewares=[budget])
    agent.model = ScriptedChatModel([answer(70), answer(70)], stream=stream)
    await agent.reply("go")
    await agent.reply("go on")
    with pytest.raises(BudgetExceeded, match="the budget of the conversation is used up: 140 of 100 tokens") as raised:
        await agent.reply("and on")
    error = raised.value
    assert (error.scope, error.counter, error.limit, error.spent) == ("conversation", "tokens", 100, 140)
    assert error.reply_id == agent.reply_id
    assert requests(agent) == 2


async def test_a_message_of_ones_own_ends_the_reply() -> None:
    budget = BudgetMiddleware(reply=Budget(model_calls=1), stop_message="Enough.")
    agent = agent_of(list(ENDLESS), add, middlewares=[budget])
    assert (await agent.reply("go")).get_text_content() == "Enough."


async def test_each_reply_has_a_budget_of_its_own() -> None:
    agent = agent_of([answer(100)] * 3, middlewares=[BudgetMiddleware(reply=Budget(tokens=100))])
    assert [(await agent.reply("go")).finished_reason for _ in range(3)] == ["completed"] * 3


async def test_a_loaded_conversation_has_spent_what_it_had() -> None:
    agent = agent_of([answer(100)], middlewares=[BudgetMiddleware(conversation=Budget(tokens=100))])
    await agent.reply("go")
    state = saved_state(agent)
    again = agent_of(["never"], middlewares=[BudgetMiddleware(conversation=Budget(tokens=100))], state=state)
    assert (await again.reply("go on")).finished_reason == "exceed_budget"
    assert requests(again) == 0


@pytest.mark.parametrize("damage", [{"tokens": -5}, {"tokens": "5"}, {"tokens": True}, {"raised_tokens": 1e400}, [], 5])
async def test_a_damaged_account_is_not_believed(damage: Any) -> None:
    agent = agent_of(["never"], middlewares=[BudgetMiddleware(conversation=Budget(tokens=100))])
    agent.state.middleware_data["BudgetMiddleware"] = {"conversation": damage}
    with pytest.raises(SessionCorrupt, match="its conversation has spent"):
        await agent.reply("go")
    assert requests(agent) == 0


async def test_weights_say_what_a_token_counts() -> None:
    budget = BudgetMiddleware(reply=Budget(tokens=10_000), weights=(1, 5, 0.1))
    agent = agent_of([answer(100, 10, 40)], middlewares=[budget])
    await agent.reply("go")
    assert agent.state_of(budget)["reply"]["tokens"] == pytest.approx(60 + 50 + 4)


@pytest.mark.parametrize(
    "usage", [ChatUsage(-500, -5), ChatUsage(10, 10, 10_000), ChatUsage(10**30, 5), ChatUsage(5, -1)]
)
async def test_no_report_of_a_provider_gives_anything_back(usage: ChatUsage) -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=1_000))
    agent = agent_of([answer(400), answer(1), answer(1)], middlewares=[budget])
    await agent.reply("go")
    agent.model.calls.clear()  # type: ignore[attr-defined]  # it is scripted
    response = answer(1)
    response.usage = usage
    agent.model = ScriptedChatModel([response])
    await agent.reply("go on")
    assert agent.state_of(budget)["conversation"]["tokens"] >= 400


async def test_tokens_that_are_not_reported_are_estimated() -> None:
    agent = agent_of(["word " * 400, "never"], middlewares=[BudgetMiddleware(conversation=Budget(tokens=300))])
    await agent.reply("go")
    assert (await agent.reply("go on")).finished_reason == "exceed_budget"


# ---- what is said before


async def test_a_warning_comes_once_with_a_hint_that_is_not_kept() -> None:
    budget = BudgetMiddleware(reply=Budget(tokens=100, model_calls=50), conversation=Budget(tokens=1_000))
    agent = agent_of([calling(50, 1), calling(35, 2), calling(5, 3), answer(5)], add, middlewares=[budget])
    items = await items_of(agent)
    assert warnings_in(items) == [{"scope": "reply", "counter": "tokens", "limit": 100.0, "spent": 85}]
    hinted = [made.messages[-1].get_content_blocks("hint") for made in agent.model.calls]  # type: ignore[attr-defined]
    assert [len(hints) for hints in hinted] == [0, 0, 1, 0]
    assert "nearly used up: 85 of 100 tokens" in hinted[2][0].hint
    assert "nearly used up" not in agent.state.model_dump_json()
    assert getattr(items[-1], "finished_reason", None) == "completed"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_answer_to_a_hint_is_not_for_a_store(stream: bool) -> None:
    seen: list[Any] = []

    class Outside(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            result = await next_handler()
            if not stream:
                seen.append((result.metadata or {}).get("no_store", False))
                return result
            return self.read(result)

        async def read(self, result: Any) -> Any:
            marks = []
            async for piece in result:
                marks.append((piece.metadata or {}).get("no_store", False))
                yield piece
            seen.append(any(marks))

    agent = agent_of([], middlewares=[Outside(), BudgetMiddleware(conversation=Budget(tokens=100))])
    agent.model = ScriptedChatModel([answer(85), answer(5), answer(5)], stream=stream)
    for _ in range(3):
        await agent.reply("go")
    assert seen == [False, True, False]


async def test_an_owner_is_warned_of_in_each_conversation() -> None:
    budget = BudgetMiddleware(owner=Budget(tokens=100, per="day"), owner_id="ann")
    agent = agent_of([answer(85)] + [answer(1)] * 4, middlewares=[budget])
    await agent.reply("go")
    first, second = agent.with_state(AgentState()), agent.with_state(AgentState())
    found = [len(warnings_in(await items_of(each))) for each in (first, first, second, second)]
    assert found == [1, 0, 1, 0]


async def test_without_warnings_nothing_is_said() -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=100), warn_at=None)
    agent = agent_of([answer(99), answer(5)], middlewares=[budget])
    assert [warnings_in(await items_of(agent)) for _ in range(2)] == [[], []]


# ---- what counts


async def test_every_attempt_counts_and_none_is_stopped_between() -> None:
    budget = BudgetMiddleware(conversation=Budget(model_calls=2))
    layers = [budget, RetryMiddleware(3, random=Least())]
    agent = agent_of([Transient("503")] * 3 + [answer(1), "never"], middlewares=layers)
    assert (await agent.reply("go")).finished_reason == "completed"
    assert agent.state_of(budget)["conversation"]["model_calls"] == 4
    assert (await agent.reply("go on")).finished_reason == "exceed_budget"


async def test_a_stream_that_is_tried_again_counts_twice() -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=1_000))
    script: list[Any] = [["half " * 40, Transient("cut")], answer(100, 10)]
    agent = agent_of(script, middlewares=[budget, RetryMiddleware(1, random=Least())])
    await agent.reply("go")
    spent = agent.state_of(budget)["conversation"]
    assert spent["model_calls"] == 2
    assert spent["tokens"] > 150


def every(error: Exception) -> bool:
    return True


@pytest.mark.parametrize("choice", [Exception, every])
@pytest.mark.parametrize(
    "make",
    [
        lambda choice: RetryMiddleware(5, retry_on=choice, random=Least()),
        lambda choice: ModelFallbackMiddleware([ScriptedChatModel(["spare"] * 9, model="second")], fallback_on=choice),
        lambda choice: CircuitBreakerMiddleware(1, trip_on=choice),
    ],
    ids=["retry", "fallback", "breaker"],
)
async def test_no_layer_takes_a_used_up_budget_for_a_failure(make: Any, choice: Any) -> None:
    class Inside(MiddlewareBase):
        """Asks a model of its own inside of the attempts, with a budget that is used up."""

        calls = 0

        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            self.calls += 1
            raise BudgetExceeded("used up")

    layer = Inside()
    agent = agent_of(["never"], middlewares=[make(choice), layer])
    for number in (1, 2):
        with pytest.raises(BudgetExceeded):
            await agent.reply("go")
        assert layer.calls == number


async def test_tool_retries_count_once_and_take_no_used_up_budget() -> None:
    runs = 0

    async def look() -> str:
        nonlocal runs
        runs += 1
        raise BudgetExceeded("used up") if runs > 2 else ConnectionError

    budget = BudgetMiddleware(reply=Budget(tool_calls=5))
    tool = FunctionTool(look, is_read_only=True)
    tool.raise_tool_errors = True
    agent = agent_of(
        [[call("1", "look")]], tool, middlewares=[budget, ToolRetryMiddleware(max_retries=5, random=Least())]
    )
    with pytest.raises(BudgetExceeded):
        await agent.reply("go")
    assert runs == 3
    assert agent.state_of(budget)["reply"]["tool_calls"] == 1


async def test_known_answers_cost_nothing() -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=100, cost=1_000, model_calls=2), prices=PRICES)
    agent = agent_of([answer(70)], middlewares=[budget, CacheMiddleware()])
    for _ in range(5):
        await agent.reply("go")
        agent.state.context.clear()
    assert requests(agent) == 1
    spent = agent.state_of(budget)["conversation"]
    assert (spent["tokens"], spent["model_calls"], spent["cost"]) == (70, 1, 70)


async def test_an_answer_in_a_form_is_no_tool_call() -> None:
    @dataclass
    class City:
        city: str

    form = call("1", "GenerateStructuredOutput", city="Rome")
    agent = agent_of(
        [[call("0", "add", a=1, b=2)], [form]], add, middlewares=[BudgetMiddleware(reply=Budget(tool_calls=1))]
    )
    assert (await agent.reply("go", structured_schema=City)).structured_output == City("Rome")


async def test_judges_spend_from_the_budget() -> None:
    no = [call("1", "GenerateStructuredOutput", is_yes=False)]
    judge = ScriptedChatModel([answer(500, content=no)], model="judge")
    budget = BudgetMiddleware(conversation=Budget(tokens=505))
    layers = [GuardrailMiddleware(output=[Judge(judge, "Is it rude?")]), budget]
    agent = agent_of([answer(5), "never"], middlewares=layers)
    assert (await agent.reply("go")).finished_reason == "completed"
    assert agent.state_of(budget)["conversation"] | {"seconds": 0} == {"tokens": 505, "model_calls": 2, "seconds": 0}
    assert (await agent.reply("go on")).finished_reason == "exceed_budget"


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
async def test_a_judge_that_may_not_be_asked_trips_no_guard(on_exceed: Any) -> None:
    judge = ScriptedChatModel([], model="judge")
    budget = BudgetMiddleware(conversation=Budget(tokens=5), on_exceed=on_exceed)
    agent = agent_of([answer(5)], middlewares=[GuardrailMiddleware(output=[Judge(judge, "Is it rude?")]), budget])
    if on_exceed == "raise":
        with pytest.raises(BudgetExceeded):
            await agent.reply("go")
    else:
        assert (await agent.reply("go")).finished_reason == "exceed_budget"
    assert judge.calls == []


def long_conversation(*layers: MiddlewareBase, **options: Any) -> Agent:
    state = AgentState(context=[UserMsg("user", "x" * 4_000), AssistantMsg("tester", "y" * 4_000)] * 2)
    agent = agent_of([answer(50), answer(5)], middlewares=list(layers), state=state, **options)
    agent.model.context_size = 3_000
    agent.context_config = ContextConfig(trigger_ratio=0.5, reserve_ratio=0.2)
    return agent


async def test_summaries_spend_from_the_budget() -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=1_000))
    agent = long_conversation(budget)
    await agent.reply("go")
    assert agent.state.summary
    assert agent.state_of(budget)["conversation"]["tokens"] == 55


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
async def test_a_used_up_budget_shortens_no_history(on_exceed: Any) -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=1_000), on_exceed=on_exceed)
    agent = long_conversation(budget)
    agent.state.middleware_data["BudgetMiddleware"] = {"conversation": {"tokens": 1_000}}
    if on_exceed == "raise":
        with pytest.raises(BudgetExceeded):
            await agent.reply("go")
    else:
        assert (await agent.reply("go")).finished_reason == "exceed_budget"
    assert agent.state.summary == ""
    assert len(agent.state.context) >= 5
    assert requests(agent) == 0
    with pytest.raises(BudgetExceeded):
        await agent.compress_context()


# ---- what a call costs


@pytest.mark.parametrize(
    "prices",
    [
        {"another": (1, 1)},
        lambda model, usage: None,
        lambda model, usage: 1 / 0,
        lambda model, usage: float("nan"),
        lambda model, usage: -1,
        lambda model, usage: True,
        lambda model, usage: "5",
        lambda model, usage: 10**400,
        lambda model, usage: 1e308,
        {"scripted": (1e308, 1)},
        lambda: 5,
    ],
)
@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
async def test_a_model_without_a_price_is_not_called(prices: Any, on_exceed: Any) -> None:
    agent = agent_of(
        ["never"], middlewares=[BudgetMiddleware(reply=Budget(cost=5), prices=prices, on_exceed=on_exceed)]
    )
    with pytest.raises(BudgetExceeded, match=r"'scripted' is not called.*prices=\{'scripted': \(input, output\)\}"):
        await agent.reply("go")
    assert requests(agent) == 0


async def test_without_a_cost_limit_no_price_is_needed() -> None:
    agent = agent_of([answer(5)], middlewares=[BudgetMiddleware(reply=Budget(tokens=50), prices={})])
    assert (await agent.reply("go")).finished_reason == "completed"


async def test_a_fallback_without_a_price_uses_the_whole_limit(caplog: pytest.LogCaptureFixture) -> None:
    budget = BudgetMiddleware(conversation=Budget(cost=5_000), prices=PRICES)
    second = ScriptedChatModel(["spare"] * 9, model="second")
    agent = agent_of([Transient("503"), "never"], middlewares=[budget, ModelFallbackMiddleware(second)])
    assert (await agent.reply("go")).get_text_content() == "spare"
    assert (await agent.reply("go on")).finished_reason == "exceed_budget"
    assert caplog.text.count("model 'second' has no price: its call counts as the whole cost limit") == 1


async def test_a_price_beyond_all_limits_breaks_no_conversation() -> None:
    budget = BudgetMiddleware(
        conversation=Budget(cost=5), prices=lambda model, usage: 1e308 if usage.input_tokens == 7 else 0.1
    )
    agent = agent_of([answer(7), "never"], middlewares=[budget])
    await agent.reply("go")
    assert (await agent.reply("go on")).finished_reason == "exceed_budget"
    assert agent.state_of(budget)["conversation"]["cost"] == 5


@pytest.mark.parametrize("key", ["entered", "announced"])
@pytest.mark.parametrize("damage", [None, 7, "abc", {"a": 1}])
async def test_damaged_names_are_begun_anew(key: str, damage: Any) -> None:
    budget = BudgetMiddleware(owner=Budget(tokens=10, per="day"), owner_id="ann")
    agent = agent_of([answer(9), calling(0, 1), answer(1)], add, middlewares=[budget])
    await agent.reply("go")
    agent.state_of(budget)[key] = damage
    message = await agent.reply("go on", reply_id=agent.state_of(budget)["reply_id"] if key == "entered" else None)
    assert message.finished_reason == "completed"


async def test_published_prices_are_used() -> None:
    pytest.importorskip("genai_prices")

    class Known(ScriptedChatModel):
        provider = "openai"

    budget = BudgetMiddleware(conversation=Budget(cost=0.5))
    agent = Agent("a", model=Known([answer(1_000_000), "never"], model="gpt-4o"), middlewares=[budget])
    await agent.reply("go")
    assert (await agent.reply("go on")).finished_reason == "exceed_budget"


# ---- reservations


async def test_a_call_that_would_not_fit_does_not_begin() -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=10_000), reserve=True)
    agent = agent_of([answer(3_000), answer(3_500), "never"], middlewares=[budget])
    await agent.reply("go")
    await agent.reply("go on")
    assert agent.state_of(budget)["conversation"]["tokens"] == 6_500  # and no estimate is left
    message = await agent.reply("and on")  # may take 4,096 tokens
    assert message.finished_reason == "exceed_budget"
    agent.model = ScriptedChatModel([answer(30)])
    agent.model.settings = {"max_tokens": 100}
    assert (await agent.reply("at last")).finished_reason == "completed"


@pytest.mark.parametrize("error", [Transient("503"), KeyboardInterrupt()])
async def test_what_was_reserved_is_given_back(error: BaseException) -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=10_000, model_calls=5), reserve=True)

    class Failing(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            raise error

    agent = agent_of(["never"], middlewares=[budget, Failing()])
    with pytest.raises(type(error)):
        await agent.reply("go")
    assert not any(agent.state_of(budget)["conversation"].values())


async def test_a_stream_that_is_left_gives_its_reservation_back() -> None:
    budget = BudgetMiddleware(conversation=Budget(tokens=10_000), reserve=True)
    agent = agent_of(["one two three"], middlewares=[budget])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert 0 < agent.state_of(budget)["conversation"]["tokens"] < 100


# ---- tools


async def test_neighbours_of_a_call_that_may_not_run_finish() -> None:
    budget = BudgetMiddleware(reply=Budget(tool_calls=2))
    agent = agent_of([calling(1, 1, 2, 3, 4), "never"], add, middlewares=[budget])
    assert (await agent.reply("go")).finished_reason == "exceed_budget"
    assert (result_states(agent), requests(agent)) == (["success", "success", "denied", "denied"], 1)


async def test_an_agent_without_the_loop_gets_an_error() -> None:
    class Own(ReActAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            for number in range(5):
                await self._acting(ToolCallBlock(str(number), "search", "{}"))
            return msg

        async def _reasoning(self) -> None: ...

        async def _acting(self, order: object) -> str:
            return "ran"

    agent = Own(name="own", middlewares=[BudgetMiddleware(reply=Budget(tool_calls=3))])
    with pytest.raises(BudgetExceeded, match="3 of 3 tool calls"):
        await agent(UserMsg("user", "hi"))


# ---- owners


async def test_an_owner_has_one_budget_in_all_conversations() -> None:
    budget = BudgetMiddleware(owner=Budget(tokens=100, per="day"), owner_id=lambda agent: agent.run.deps)
    agent = agent_of([answer(60)] * 9, middlewares=[budget])

    async def ask(owner: str) -> str | None:
        return (await agent.with_state(AgentState()).reply("go", deps=owner)).finished_reason

    assert [await ask(owner) for owner in ("ann", "ann", "ann", "bob")] == [
        "completed",
        "completed",
        "exceed_budget",
        "completed",
    ]


async def test_a_reply_is_paid_for_by_the_one_who_asked_for_it() -> None:
    budget = BudgetMiddleware(owner=Budget(tokens=100, per="day"), owner_id=lambda agent: agent.run.deps)
    agent = agent_of([calling(60, 1), answer(60), answer(60)], FunctionTool(add, ask=True), middlewares=[budget])
    await agent.reply("go", deps="ann")
    await agent.reply(approve(agent.state), deps="bob")
    ends = [(await agent.reply("go", deps=owner)).finished_reason for owner in ("ann", "bob")]
    assert ends == ["exceed_budget", "completed"]


@pytest.mark.parametrize(("per", "next_at"), [("hour", 3_600), ("day", 86_400), ("month", 31 * 86_400), (90, 90)])
async def test_a_period_ends_and_the_budget_begins_anew(per: Any, next_at: float) -> None:
    clock = Clock()
    clock.now = 0.0
    budget = BudgetMiddleware(owner=Budget(tokens=100, per=per), owner_id="ann", clock=clock)
    agent = agent_of([answer(100)] * 3, middlewares=[budget])
    found = []
    for clock.now in (0.0, next_at - 1.0, float(next_at), next_at + 1.0):
        found.append((await agent.reply("go")).finished_reason)
    assert found == ["completed", "exceed_budget", "completed", "exceed_budget"]


@pytest.mark.parametrize("owner", [lambda agent: 1 / 0, lambda agent: "", lambda agent: None, lambda: "ann"])
async def test_an_owner_who_is_not_known_spends_nothing(owner: Any) -> None:
    agent = agent_of(["never"], middlewares=[BudgetMiddleware(owner=Budget(tokens=9, per="day"), owner_id=owner)])
    with pytest.raises(BudgetExceeded, match=r"owner_id=\.\.\.\)"):
        await agent.reply("go")
    assert requests(agent) == 0


async def test_copies_of_an_agent_do_not_spend_more() -> None:
    budget = BudgetMiddleware(owner=Budget(tokens=100, per="day"), owner_id="ann", reply=Budget(tokens=1_000))
    agent = agent_of([answer(100)] * 3, middlewares=[budget])
    await agent.reply("go")
    assert (await copy.deepcopy(agent).reply("go")).finished_reason == "exceed_budget"
    elsewhere = pickle.loads(pickle.dumps(budget))
    assert elsewhere.owner == budget.owner


# ---- seconds


@in_jumping_time
async def test_seconds_are_those_of_work() -> None:
    import anyio

    class Slow(ChatModelBase):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            await anyio.sleep(10)
            return calling(1, len(messages), tool="wait")

    async def wait(a: int, b: int) -> str:
        await anyio.sleep(5)
        return "done"

    budget = BudgetMiddleware(reply=Budget(seconds=40))
    limit = RateLimitMiddleware(60.0)
    agent = Agent("a", model=Slow(model="slow"), tools=[wait], middlewares=[budget, limit])
    assert (await agent.reply("go")).finished_reason == "exceed_budget"
    spent = agent.state_of(budget)["reply"]
    # 15 a round; the third model call, and the waits of a minute between the calls do not count.
    assert spent["seconds"] == pytest.approx(40, abs=0.1)
    assert spent["model_calls"] == 3


@in_jumping_time
async def test_calls_side_by_side_take_their_time_once() -> None:
    import anyio

    async def wait(a: int, b: int) -> str:
        await anyio.sleep(a)
        return "done"

    budget = BudgetMiddleware(reply=Budget(seconds=1_000))
    agent = agent_of([calling(1, 3, 7, 5, tool="wait"), "done"], wait, middlewares=[budget])
    await agent.reply("go")
    assert agent.state_of(budget)["reply"]["seconds"] == pytest.approx(7, abs=0.1)


@in_jumping_time
async def test_a_question_costs_no_seconds() -> None:
    import anyio

    budget = BudgetMiddleware(reply=Budget(seconds=60))
    agent = agent_of([calling(1, 1), "done"], FunctionTool(add, ask=True), middlewares=[budget])
    await agent.reply("go")
    await anyio.sleep(3_600)
    message = await agent.reply(confirmation_of(agent))
    assert message.finished_reason == "completed"
    assert agent.state_of(budget)["reply"]["seconds"] < 1


async def test_what_is_spent_is_json() -> None:
    budget = BudgetMiddleware(reply=Budget(tokens=9), owner=Budget(tokens=10**6, per=60), owner_id="hunter2")
    agent = agent_of([answer(8), answer(1)], add, middlewares=[budget])
    await agent.reply("go")
    assert json.loads(json.dumps(agent.state_of(budget))) == agent.state_of(budget)
    assert "hunter2" not in json.dumps(agent.state.middleware_data)
