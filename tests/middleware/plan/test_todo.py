"""TodoMiddleware: one tool over the data, hints and events of plans."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import AgentState
from agentrt.errors import MiddlewareConfigError
from agentrt.event import CustomEvent
from agentrt.middleware import TodoMiddleware
from agentrt.plan import Plan, SubTask
from agentrt.plan.plan import plan_to_json
from tests.loop.helpers import items_of
from tests.middleware.plan.helpers import agent_with, call, hint_of, play, reloaded


def write(*todos: tuple[Any, ...]) -> Any:
    """Write items, each given as (id or None, content, state)."""
    items = [{"id": name, "content": content, "state": state} for name, content, state in todos]
    return call("write_todos", todos=[{key: value for key, value in item.items() if value} for item in items])


def todos_of(plan: Plan | None) -> list[tuple[str, str, str]]:
    return [] if plan is None else [(subtask.id, subtask.name, subtask.state) for subtask in plan.subtasks]


async def test_items_get_ids_and_are_matched_by_them():
    todos = TodoMiddleware()
    agent, results = await play(
        todos,
        write((None, "book", "in_progress"), (None, "pack", "todo")),
        write((None, "call a taxi", "todo"), ("2", "pack the bag", "in_progress"), ("1", "book", "done")),
    )
    assert results[1] == ("success: - [ ] call a taxi (id: 3)\n- [ ] [WIP] pack the bag (id: 2)\n- [x] book (id: 1)")
    assert todos_of(todos.plan_of(agent)) == [
        ("3", "call a taxi", "todo"),
        ("2", "pack the bag", "in_progress"),
        ("1", "book", "done"),
    ]


async def test_an_id_of_the_models_own_is_kept():
    todos = TodoMiddleware()
    agent, _ = await play(todos, write(("a", "x", "todo"), ("7", "y", "todo"), (None, "z", "todo")))
    assert [name for name, _, _ in todos_of(todos.plan_of(agent))] == ["a", "7", "8"]


async def test_no_two_items_get_one_id():
    todos = TodoMiddleware()
    first = ("999999999", "x", "todo"), ("1000000001", "y", "todo"), (None, "z", "todo")
    agent, _ = await play(todos, write(*first), write(*first[:2], ("1000000000", "z", "todo"), (None, "last", "todo")))
    names = [name for name, _, _ in todos_of(todos.plan_of(agent))]
    assert names == ["999999999", "1000000001", "1000000000", "1000000002"]


async def test_steps_of_a_plan_get_ids_that_the_items_lack():
    todos = TodoMiddleware()
    plan = Plan("mixed", subtasks=[SubTask("a", id="2"), SubTask("b"), SubTask("c", id="2")])
    agent = agent_with(todos, "ok", state=AgentState(middleware_data={"plan": {"plan": plan_to_json(plan)}}))
    assert [name for name, _, _ in todos_of(todos.plan_of(agent))] == ["2", "3", "4"]


BEFORE = ("1", "book", "in_progress"), ("2", "pack", "todo")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ([("1", "book", "done")], "unfinished and missing: '2' (pack): keep them, or give them the state 'abandoned'"),
        ([], "unfinished and missing: '1' (book), '2' (pack)"),
        ([("1", "book", "in_progress"), ("2", "pack", "in_progress")], "'book' and 'pack' cannot both be in progress"),
        ([*BEFORE, ("2", "pack", "todo")], "two items have the id '2'"),
        ([*BEFORE, ("3\n- [x] 2", "x", "todo")], "an id is one line of at most 100 characters, not '3 - [x] 2'"),
        ([*BEFORE, (None, "x", "todo"), (None, "y", "todo")], "the list may have at most 3 items, not 4"),
    ],
)
async def test_a_list_that_breaks_a_rule_is_refused(after: Any, words: str):
    todos = TodoMiddleware(max_todos=3)
    agent, results = await play(todos, write(*BEFORE), write(*after))
    assert results[1].startswith("error: ")
    assert words in results[1]
    assert "The list is as it was." in results[1]
    assert todos_of(todos.plan_of(agent)) == [*BEFORE]


async def test_what_is_closed_may_leave_the_list():
    todos = TodoMiddleware()
    closed = ("1", "book", "done"), ("2", "pack", "abandoned")
    agent, results = await play(todos, write(*BEFORE), write(*closed), write())
    assert results[2] == "success: The list is empty."
    assert todos.plan_of(agent) is None


async def test_the_hint_shows_the_list_last_in_each_request():
    agent, _ = await play(TodoMiddleware(), write(*BEFORE))
    first, second = (hint_of(request.messages) for request in agent.model.calls)  # type: ignore[attr-defined]
    assert "write_todos" in str(first)
    assert "- [ ] [WIP] book (id: 1)\n- [ ] pack (id: 2)" in str(second)


async def test_the_list_is_saved_and_told_as_a_plan():
    agent = agent_with(TodoMiddleware(), write(*BEFORE), "ok")
    items = await items_of(agent)
    events = [item.value for item in items if isinstance(item, CustomEvent) and item.name == "plan_updated"]
    assert [subtask["name"] for subtask in events[0]["plan"]["subtasks"]] == ["book", "pack"]
    other = agent_with(TodoMiddleware(), "ok", state=reloaded(agent.state))
    await other.reply("Go.")
    assert "pack (id: 2)" in str(hint_of(other.model.calls[0].messages))  # type: ignore[attr-defined]


STATES = st.sampled_from(["todo", "in_progress", "done", "abandoned"])
LISTS = st.lists(st.lists(st.tuples(st.sampled_from([None, "1", "2", "3", "x"]), st.just("do"), STATES), max_size=4))


@given(LISTS)
@settings(max_examples=30)
async def test_an_unfinished_item_never_disappears(lists: list[Any]):
    todos = TodoMiddleware()
    seen: list[list[tuple[str, str, str]]] = []
    todos.register_plan_change_hook("see", lambda _, plan: seen.append(todos_of(plan)))
    await play(todos, *(write(*items) for items in lists[:8]))
    for before, after in pairwise(seen):
        unfinished = {name for name, _, state in before if state in ("todo", "in_progress")}
        assert unfinished <= {name for name, _, _ in after}
        assert [state for _, _, state in after].count("in_progress") <= 1


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_a_wrong_limit_is_refused(value: Any):
    with pytest.raises(MiddlewareConfigError, match=r"TodoMiddleware\(max_todos=...\) must be a whole number"):
        TodoMiddleware(value)
