"""The promise: no tool of a round that trips ran, and no event after it nor the state holds what it said."""

from typing import Any

import anyio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, Toolkit
from agentrt.errors import GuardrailTripped
from agentrt.message import TextBlock, ThinkingBlock
from agentrt.middleware import GuardrailMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.testing import InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import call


def mark(number: int) -> str:
    """Return what a round says, thinks and calls: no other text holds it."""
    return f"mark{number:03}x"


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[bool, bool, bool, int]]:
    """Rounds: whether each thinks, how it is delivered, whether it trips, and how many calls it has."""
    one = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2))
    return draw(st.lists(one, min_size=1, max_size=5))


def response(number: int, thinks: bool, in_pieces: bool, calls: int) -> Any:
    """Return the answer of one round, whole or in pieces that cut its words."""
    text = f"I say {mark(number)}."
    blocks: list[Any] = [ThinkingBlock(f"I think {mark(number)}.")] if thinks else []
    blocks += [TextBlock(text)]
    blocks += [call(f"{number}-{index}", "note", number=number, words=mark(number)) for index in range(calls)]
    if not in_pieces:
        return blocks
    pieces: list[Any] = [ChatResponse([TextBlock(letter)], is_last=False) for letter in text]
    return [*pieces, ChatResponse(blocks, is_last=True)]


async def run(plan: list[tuple[bool, bool, bool, int]], on_trip: str, is_async: bool) -> None:
    tripping = {number for number, (_, _, trips, _) in enumerate(plan) if trips}
    ran: list[int] = []
    events: list[str] = []
    tripped_at: dict[int, int] = {}

    async def note(number: int, words: str) -> str:
        ran.append(number)
        return "noted"

    def guard(value: str, agent: Any) -> str | None:
        for number in tripping:
            if mark(number) in value:
                tripped_at[number] = len(events)
                return "not this"
        return None

    async def slow_guard(value: str, agent: Any) -> str | None:
        await anyio.lowlevel.checkpoint()
        return guard(value, agent)

    script = [response(number, thinks, pieces, calls) for number, (thinks, pieces, _, calls) in enumerate(plan)]
    store = InMemoryStateStore()
    layer = GuardrailMiddleware(output=[slow_guard if is_async else guard], on_trip=on_trip)
    toolkit = Toolkit(tools=[FunctionTool(note, is_read_only=True)])
    model = ScriptedChatModel([*script, "end", "end"])
    agent = Agent("a", "", model, toolkit, [layer], state_store=store)
    try:
        async for event in agent.reply_stream("go", yield_final_msg=True):
            events.append(event.to_json())
    except GuardrailTripped:
        assert on_trip == "raise"
    saved = (await store.load(agent.state.session_id) or agent.state).model_dump_json() + agent.state.model_dump_json()
    for number in tripping:
        assert number not in ran
        # Nothing of it was sent before it was judged, either.
        assert mark(number) not in "".join(events)
        assert mark(number) not in saved
    passed = [number for number in range(len(model.calls)) if number < len(plan) and number not in tripping]
    assert ran == [number for number in passed for _ in range(plan[number][3])]
    if tripped_at and on_trip != "again":
        assert len(tripped_at) == 1


@settings(max_examples=60, deadline=None)
@given(rounds(), st.sampled_from(["answer", "raise", "again"]), st.booleans())
def test_nothing_of_a_tripped_round_runs_leaves_or_stays(
    plan: list[tuple[bool, bool, bool, int]], on_trip: str, is_async: bool
) -> None:
    anyio.run(run, plan, on_trip, is_async)


@settings(max_examples=20, deadline=None)
@given(rounds(), st.sampled_from(["answer", "raise", "again"]), st.booleans())
def test_the_same_holds_on_trio(plan: list[tuple[bool, bool, bool, int]], on_trip: str, is_async: bool) -> None:
    anyio.run(run, plan, on_trip, is_async, backend="trio")
