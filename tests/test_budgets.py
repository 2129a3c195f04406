"""The budgets of the tests name the rooms that take too long, and all rooms there are."""

import tomllib

from tests.budgets import TESTS, rooms_over_budget

BUDGETS = {"chain": 10.0, "loop": 20.0, "others": 5.0}


def test_rooms_within_their_budgets_are_not_named():
    assert rooms_over_budget({"chain": 10, "loop": 1, "plan": 5}, BUDGETS, 1) == []


def test_rooms_over_budget_are_named_worst_first():
    assert rooms_over_budget({"chain": 11, "loop": 40}, BUDGETS, 1) == [
        "loop: 40 s, budget 20 s",
        "chain: 11 s, budget 10 s",
    ]


def test_rooms_without_a_budget_share_one():
    assert rooms_over_budget({"plan": 3, "text": 3}, BUDGETS, 1) == ["others: 6 s, budget 5 s"]


def test_budgets_grow_by_a_factor():
    assert rooms_over_budget({"chain": 14}, BUDGETS, 1.5) == []
    assert rooms_over_budget({"chain": 16}, BUDGETS, 1.5) == ["chain: 16 s, budget 15 s"]


def test_every_budget_is_of_a_room_that_exists():
    rooms = tomllib.loads((TESTS / "budgets.toml").read_text(encoding="utf-8"))["seconds"].keys() - {"others"}
    assert not [room for room in rooms if not (TESTS / room).is_dir() and not (TESTS / f"test_{room}.py").exists()]
