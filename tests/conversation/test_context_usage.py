"""How much of its context a conversation fills, as its history changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import AgentState, Msg, Toolkit, UserMsg
from agentrt._runtime.conversation.context_usage import ContextUsage
from agentrt.event import ModelCallEndEvent
from agentrt.message import AssistantMsg, TextBlock
from agentrt.state import ReplyContext
from tests.loop.helpers import add

_EDITS = ("append", "cut", "replace the end", "insert", "delete", "clear", "another list")
_TOOLKIT = Toolkit([add])


def message(length: int) -> Msg:
    return UserMsg("user", "x" * length) if length % 2 else AssistantMsg("tester", [TextBlock("y" * length)])


def edit(state: AgentState, kind: str, place: int, lengths: list[int]) -> None:
    context, new = state.context, [message(length) for length in lengths]
    place %= len(context) + 1
    if kind == "append":
        context += new
    elif kind == "cut":
        del context[place:]
    elif kind == "replace the end":
        context[place:] = new
    elif kind == "insert":
        context[place:place] = new
    elif kind == "delete":
        del context[place : place + 1]
    elif kind == "clear":
        context.clear()
    else:
        state.context = [*context[:place], *new]


def look(usage: ContextUsage, state: AgentState) -> bool:
    """Look at the history as the loop does before each request."""
    return usage.has_headroom(state, ReplyContext("r", AssistantMsg("tester", []), 50), None)


def tokens(usage: ContextUsage, state: AgentState) -> int:
    return usage.tokens(state, _TOOLKIT, "")


@given(st.lists(st.tuples(st.sampled_from(_EDITS), st.integers(0, 50), st.lists(st.integers(0, 40), max_size=6))))
def test_the_fill_after_any_edits_is_that_of_a_recount(edits: list[tuple[str, int, list[int]]]) -> None:
    state, usage = AgentState(), ContextUsage()
    for kind, place, lengths in edits:
        edit(state, kind, place, lengths)
        look(usage, state)
        assert tokens(usage, state) == tokens(ContextUsage(), state)


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(0, 50), st.integers(0, 50), st.integers(0, 400))
def test_a_message_replaced_in_the_middle_counts_until_a_cut(
    lengths: list[int], place: int, end: int, length: int
) -> None:
    state, usage = AgentState(context=[message(length) for length in lengths]), ContextUsage()
    before = tokens(usage, state)
    place %= len(lengths)
    state.context[place] = message(length)
    if place < len(lengths) - 1:
        assert tokens(usage, state) == before
    del state.context[end % (place + 1) :]
    assert tokens(usage, state) == tokens(ContextUsage(), state)


def test_taking_back_a_question_counts_the_new_one_alone(monkeypatch: Any) -> None:
    state, usage = AgentState(context=[message(2) for _ in range(2_000)]), ContextUsage()
    look(usage, state)
    counted: list[object] = []
    monkeypatch.setattr(
        "agentrt._runtime.conversation.context_usage.characters_of", lambda block: counted.append(block) or 0
    )
    for _ in range(10):
        state.context += [message(2), message(4)]
        look(usage, state)
        del state.context[2_000:]
    assert len(counted) == 20


def test_what_a_provider_counted_ends_with_its_history() -> None:
    state, usage = AgentState(context=[message(40) for _ in range(10)]), ContextUsage()
    usage.update(ModelCallEndEvent("r", input_tokens=5_000, output_tokens=10), state, _TOOLKIT, "")
    state.context.append(message(40))
    assert tokens(usage, state) == 5_020
    del state.context[5:]
    assert tokens(usage, state) == tokens(ContextUsage(), state) < 1_000


@pytest.mark.parametrize("reply_id", ["first", "second"])
def test_second_reply_is_measured_from_its_first_block(reply_id: str) -> None:
    state, usage = AgentState(), ContextUsage()
    blocks = [TextBlock("x" * 40) for _ in range(5)]
    state.reply_context = ReplyContext("first", AssistantMsg("tester", [*blocks]), 50)
    tokens(usage, state)
    for number in (1, 5, 6):
        state.reply_context = ReplyContext(reply_id, AssistantMsg("tester", [TextBlock("y" * 4_000)] * number), 50)
        assert tokens(usage, state) == tokens(ContextUsage(), state) > number * 900


def test_tools_registered_later_are_counted_from_then_on() -> None:
    state, usage, toolkit = AgentState(), ContextUsage(), Toolkit([add])
    before = usage.tokens(state, toolkit, "")

    def multiply(a: int, b: int) -> int:
        return a * b

    toolkit.register_tool_function(multiply)
    assert usage.tokens(state, toolkit, "") == ContextUsage().tokens(state, toolkit, "") > before


def test_the_schemas_of_a_toolkit_are_measured_once(monkeypatch: Any) -> None:
    toolkit = Toolkit([add])
    measured = toolkit.schema_characters()
    monkeypatch.setattr("agentrt.tool.toolkit.to_json", None)
    for _ in range(3):
        assert ContextUsage().tokens(AgentState(), toolkit, "") == measured // 4
