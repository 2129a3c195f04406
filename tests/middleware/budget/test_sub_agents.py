"""Budgets over several agents: what a sub-agent spends, all that it works for spend."""

from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import BudgetExceeded
from agentrt.middleware import Budget, BudgetMiddleware
from agentrt.model import ScriptedChatModel
from tests.agent.delegation.helpers import Counting, agent_of, boss_of, results_of
from tests.loop.helpers import call, confirmation_of, items_of, saved_state
from tests.middleware.budget.helpers import answer, requests, warnings_in


def three_levels(budget: BudgetMiddleware, tokens: int, *, rounds: int = 9) -> tuple[Agent, Agent, Agent, Counting]:
    """A boss that asks an editor that asks a writer that publishes in each round, at so many tokens each."""
    counting = Counting()
    publish = [answer(tokens, content=[call(f"w{number}", "publish", what=str(number))]) for number in range(rounds)]
    writer = agent_of("writer", [*publish, answer(tokens)], counting.tool())
    ask_writer = answer(tokens, content=[call("e1", "writer", query="write")])
    editor = agent_of("editor", [ask_writer, answer(tokens)], writer.as_tool("Writes."))
    ask_editor = answer(tokens, content=[call("b1", "editor", query="edit")])
    boss = agent_of("boss", [ask_editor, answer(tokens)], editor.as_tool("Edits."), middlewares=[budget])
    return boss, editor, writer, counting


def all_requests(*agents: Agent) -> int:
    return sum(map(requests, agents))


@pytest.mark.parametrize("scope", ["reply", "conversation", "owner"])
async def test_what_is_spent_at_depth_three_counts_at_every_level(scope: str) -> None:
    options: dict[str, Any] = {scope: Budget(tokens=1_000)}
    if scope == "owner":
        options = {"owner": Budget(tokens=1_000, per="day"), "owner_id": "ann", "reply": Budget(tokens=1_000)}
    budget = BudgetMiddleware(**options)
    boss, editor, writer, _ = three_levels(budget, 10, rounds=2)
    assert (await boss.reply("go")).finished_reason == "completed"
    assert all_requests(boss, editor, writer) == 7
    spent = boss.state_of(budget)["conversation" if scope == "conversation" else "reply"]
    assert (spent["tokens"], spent["model_calls"], spent["tool_calls"]) == (70, 7, 4)
    if scope == "owner":
        [(account, _)] = budget.store._accounts.values()  # type: ignore[union-attr]  # in memory
        assert (account["tokens"], account["model_calls"]) == (70, 7)


@pytest.mark.parametrize("on_exceed", ["stop", "raise"])
@pytest.mark.parametrize("scope", ["reply", "conversation", "owner"])
async def test_a_used_up_budget_of_the_boss_ends_all_that_work_for_it(scope: str, on_exceed: Any) -> None:
    options: dict[str, Any] = {scope: Budget(tokens=50)}
    if scope == "owner":
        options = {"owner": Budget(tokens=50, per="day"), "owner_id": "ann"}
    boss, editor, writer, counting = three_levels(BudgetMiddleware(on_exceed=on_exceed, **options), 10)
    if on_exceed == "raise":
        with pytest.raises(BudgetExceeded) as raised:
            await boss.reply("go")
        assert raised.value.reply_id == boss.reply_id
        assert boss.state.last_reply.finished_reason == "error"
    else:
        assert (await boss.reply("go")).finished_reason == "exceed_budget"
    assert all_requests(boss, editor, writer) == 5
    assert counting.runs == ["0", "1"]


async def test_tool_calls_of_sub_agents_are_those_of_the_boss() -> None:
    boss, _, writer, counting = three_levels(BudgetMiddleware(reply=Budget(tool_calls=4)), 1)
    assert (await boss.reply("go")).finished_reason == "exceed_budget"
    assert counting.runs == ["0", "1"]
    assert requests(writer) == 3


async def test_a_delegation_that_has_waited_counts_once() -> None:
    counting = Counting()
    writer = agent_of("writer", [[call("k1", "publish", what="a")], "Written."], counting.tool(ask=True))
    budget = BudgetMiddleware(reply=Budget(tool_calls=2))
    boss = boss_of(writer, middlewares=[budget])
    await boss.reply("go")
    boss = boss.with_state(saved_state(boss))
    assert (await boss.reply(confirmation_of(boss))).finished_reason == "completed"
    assert counting.runs == ["a"]
    assert boss.state_of(budget)["reply"]["tool_calls"] == 2


async def test_a_delegation_that_uses_up_the_budget_may_end() -> None:
    counting = Counting()
    writer = agent_of("writer", [[call("k1", "publish", what="a")], "Written."], counting.tool(ask=True))
    boss = boss_of(writer, middlewares=[BudgetMiddleware(reply=Budget(tool_calls=1))])
    assert (await boss.reply("go")).finished_reason != "completed"
    if boss.waiting() is not None:
        await boss.reply(confirmation_of(boss))
    assert counting.runs == []


async def test_children_side_by_side_share_what_is_left() -> None:
    writers = [agent_of(name, [answer(10)] * 3) for name in ("one", "two", "three")]
    boss = boss_of(*writers, middlewares=[BudgetMiddleware(reply=Budget(model_calls=3))])
    assert (await boss.reply("go")).finished_reason == "exceed_budget"
    assert all_requests(boss, *writers) == 3


async def test_a_sub_agent_without_the_layer_is_not_seen() -> None:
    writer = agent_of("writer", [answer(1_000)])
    tool = writer.as_tool("Writes.", inherit=False)
    budget = BudgetMiddleware(reply=Budget(tokens=100))
    script = [answer(10, content=[call("1", "writer", query="go")]), answer(10)]
    boss = agent_of("boss", script, tool, middlewares=[budget])
    assert (await boss.reply("go")).finished_reason == "completed"
    assert boss.state_of(budget)["reply"]["tokens"] == 20


async def test_the_boss_is_warned_of_its_own_budget() -> None:
    boss, _, _, _ = three_levels(BudgetMiddleware(reply=Budget(tokens=70)), 10, rounds=2)
    items = await items_of(boss)
    [warning] = [event for event in items if getattr(event, "name", "") == "budget_warning"]
    assert warning.reply_id == boss.reply_id  # type: ignore[union-attr]  # an event
    assert warnings_in(items) == [{"scope": "reply", "counter": "tokens", "limit": 70, "spent": 60}]
    model = boss.model
    assert isinstance(model, ScriptedChatModel)
    assert model.calls[-1].messages[-1].has_content_blocks("hint")


async def test_a_budget_of_a_sub_agent_ends_only_that() -> None:
    own = BudgetMiddleware(reply=Budget(tokens=5), on_exceed="raise")
    writer = agent_of(
        "writer", [answer(10, content=[call("1", "publish", what="a")])], Counting().tool(), middlewares=[own]
    )
    boss = boss_of(writer)
    assert (await boss.reply("go")).finished_reason == "completed"
    assert results_of(boss)["1"].text == "[subagent_error] writer: BudgetExceeded"


async def test_a_no_to_a_sub_agent_over_budget_ends_it_alone() -> None:
    counting = Counting()
    publish = [answer(1, content=[call(f"w{number}", "publish", what=str(number))]) for number in range(3)]
    writer = agent_of("writer", publish, counting.tool())
    boss = boss_of(writer, middlewares=[BudgetMiddleware(reply=Budget(tool_calls=2), on_exceed="ask")])
    await boss.reply("go")
    assert counting.runs == ["0"]
    assert list(boss.waiting().inside.values()) == [["writer"]]
    assert (await boss.reply(confirmation_of(boss, confirmed=False))).finished_reason == "completed"
    assert counting.runs == ["0"]
    assert results_of(boss)["1"].metadata["error"] == "budget"
    assert requests(writer) == 2
