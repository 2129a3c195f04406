"""What a budget refuses when it is made: the value, the place and the remedy are named."""

import sys
from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import ConfigError, MiddlewareConfigError
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    BudgetStore,
    MemoryBudgetStore,
    RedisBudgetStore,
    SQLiteBudgetStore,
)
from agentrt.model import ScriptedChatModel

LIMITS = ["tokens", "cost", "model_calls", "tool_calls", "seconds"]
NOT_A_LIMIT: list[Any] = [
    0,
    -1,
    0.0,
    True,
    "5",
    "",
    "\ud800",
    float("nan"),
    float("inf"),
    -float("inf"),
    10**400,
    1e16,
    [5],
    {},
    object(),
    1j,
]
OWNER = {"owner": Budget(tokens=5, per="day"), "owner_id": "ann"}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", NOT_A_LIMIT, ids=lambda value: f"{value!r:.20}")
def test_a_limit_that_cannot_be_kept_is_refused(limit: str, value: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match=rf"Budget\({limit}=\.\.\.\) must be .*not ") as refused:
        Budget(**{limit: value})
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("limit", ["model_calls", "tool_calls"])
def test_calls_are_whole_numbers(limit: str) -> None:
    with pytest.raises(
        MiddlewareConfigError, match=rf"Budget\({limit}=\.\.\.\) must be a whole number above 0, not 2.5"
    ):
        Budget(**{limit: 2.5})  # type: ignore[arg-type]  # the point


def test_a_budget_without_a_limit_is_refused() -> None:
    with pytest.raises(MiddlewareConfigError, match=r"Budget\(\) has no limit.*as in Budget\(tokens=50_000\)"):
        Budget(per="day")


@pytest.mark.parametrize("per", [0, 0.5, -1, True, float("nan"), float("inf"), 10**400, [1], "week", "", "Day"])
def test_a_period_that_does_not_end_is_refused(per: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match=r"Budget\(per=\.\.\.\) must be "):
        Budget(tokens=1, per=per)


def test_the_nearest_period_is_suggested() -> None:
    with pytest.raises(MiddlewareConfigError, match=r"not 'days': did you mean .day.\?"):
        Budget(tokens=1, per="days")


NOT_AN_OWNER: list[Any] = ["", 7, True, str, [], b"ann"]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, r"BudgetMiddleware\(\) has no budget.*reply=Budget"),
    ({"reply": 5_000}, r"BudgetMiddleware\(reply=...\) must be a Budget, not 5000: write reply=Budget"),
    ({"conversation": {"tokens": 5}}, r"BudgetMiddleware\(conversation=...\) must be a Budget"),
    ({"owner": "ann"}, r"BudgetMiddleware\(owner=...\) must be a Budget"),
    ({"reply": Budget(tokens=5, per="day")}, r"reply=...\) has per='day', which only the budget of an owner"),
    ({"conversation": Budget(tokens=5, per=60)}, r"conversation=...\) has per=60"),
    ({"owner": Budget(tokens=5), "owner_id": "ann"}, r"owner=...\) needs a period: write Budget\(..., per='day'\)"),
    ({"owner": Budget(tokens=5, per="day")}, r"owner_id=...\) must be a str that is not empty, .*, not None"),
    (
        {"reply": Budget(tokens=5), "owner_id": "ann"},
        r"owner_id=...\) is for the budget of an owner, and there is none",
    ),
    ({"reply": Budget(tokens=5), "store": MemoryBudgetStore()}, r"store=...\) is for the budget of an owner"),
    *[({**OWNER, "owner_id": value}, "owner_id=...") for value in NOT_AN_OWNER],
    *[({**OWNER, "store": value}, "store=...") for value in ("redis://u:hunter2@h", 7, MemoryBudgetStore, object())],
    *[
        ({"reply": Budget(tokens=5), "weights": value}, r"BudgetMiddleware\(weights=...\) ")
        for value in (
            (1, 1),
            (1, 1, 1, 1),
            "111",
            5,
            (1, -1, 1),
            (1, True, 1),
            (1, float("nan"), 1),
            (1, float("inf"), 1),
            (0, 0, 0),
            (10**400, 1, 1),
            {1, 2, 3},
        )
    ],
    *[
        ({"reply": Budget(tokens=5), "warn_at": value}, r"BudgetMiddleware\(warn_at=...\) must be ")
        for value in (-0.1, 1.1, 80, True, "0.8", float("nan"), float("inf"), 10**400, [0.8])
    ],
    (
        {"reply": Budget(tokens=5), "on_exceed": "stopp"},
        "on_exceed=...\\) must be .* not 'stopp': did you mean \"stop\"?",
    ),
    *[
        ({"reply": Budget(tokens=5), "raise_by": value}, r"BudgetMiddleware\(raise_by=...\) must be ")
        for value in (0, -1, True, "1", float("nan"), float("inf"), 10**400, None)
    ],
    ({"reply": Budget(tokens=5), "on_exceed": None}, "on_exceed=..."),
    ({"reply": Budget(tokens=5), "on_exceed": True}, "on_exceed=..."),
    ({"reply": Budget(tokens=5), "on_store_error": "close"}, 'did you mean "closed"?'),
    ({"reply": Budget(tokens=5), "stop_message": ""}, "stop_message=...\\) must be a str for the user, not ''"),
    ({"reply": Budget(tokens=5), "stop_message": 7}, "stop_message=..."),
    ({"reply": Budget(tokens=5), "reserve": 1}, "reserve=...\\) must be True or False, not 1"),
    *[
        ({"reply": Budget(cost=5), "prices": value}, r"BudgetMiddleware\(prices=...\) ")
        for value in ("openai", 7, None, [1, 2], int, {"m": 1}, {"m": (1,)}, {"m": (1, -1)}, {"m": (1, True)})
    ],
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: f"{value!r:.60}")
def test_options_that_cannot_be_kept_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=words) as refused:
        BudgetMiddleware(**options)
    assert "hunter2" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_coroutine_function_cannot_say_who_the_owner_is() -> None:
    async def owner(agent: Agent) -> str:
        return "ann"

    with pytest.raises(MiddlewareConfigError, match="a plain function of the agent"):
        BudgetMiddleware(owner=Budget(tokens=5, per="day"), owner_id=owner)  # type: ignore[arg-type]  # the point


def test_a_missing_extra_is_named_only_where_a_cost_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    BudgetMiddleware(reply=Budget(tokens=5))
    with pytest.raises(MiddlewareConfigError, match=r'pip install "agentrt\[prices\]"'):
        BudgetMiddleware(reply=Budget(cost=5))


@pytest.mark.parametrize("path", ["", ":memory:", None, 7, "/no/such/folder/budget.db"])
def test_a_file_that_cannot_be_is_refused(path: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match=r"SQLiteBudgetStore\(path=\.\.\.\)"):
        SQLiteBudgetStore(path)


@pytest.mark.parametrize("address", ["localhost:6379", "http://u:hunter2@h", "", None, 7])
def test_a_redis_url_is_checked(address: Any) -> None:
    pytest.importorskip("coredis")
    with pytest.raises(ConfigError, match=r"RedisBudgetStore\(url=\.\.\.\) must begin with one of redis://") as refused:
        RedisBudgetStore(address)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(MiddlewareConfigError, match="prefix"):
        RedisBudgetStore("redis://h", 7)  # type: ignore[arg-type]  # the point


def test_options_show_and_passwords_do_not() -> None:
    pytest.importorskip("coredis")
    store: BudgetStore = RedisBudgetStore("redis://user:hunter2@host")
    budget = BudgetMiddleware(owner=Budget(tokens=5, per="day"), owner_id="ann", store=store, on_exceed="raise")
    assert "on_exceed='raise'" in repr(budget)
    assert "hunter2" not in repr(budget)
    assert "hunter2" not in Agent("a", model=ScriptedChatModel([]), middlewares=[budget]).explain()
