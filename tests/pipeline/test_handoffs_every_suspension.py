"""A conversation of several agents is whole, and continues, wherever something goes wrong in it."""

import re
from typing import Any

import pytest

from agentrt import Agent, AgentState, Msg
from agentrt.message import TextBlock
from agentrt.model import ChatModelBase, ScriptedChatModel
from agentrt.pipeline import Handoffs
from agentrt.state import InMemoryStateStore, StateStore
from agentrt.testing import FAULTS, ToolLog, check_every_suspension
from agentrt.tool import FunctionTool
from tests.loop.helpers import call

BEFORE_FIRST_EVENT = re.compile(r"^cancel.* > open_reply .* has no end on record$")


class Team(Handoffs):
    """A team as the harness wants it: with one model and one store, which can be exchanged."""

    @property
    def model(self) -> ChatModelBase:
        return self.active.model

    @model.setter
    def model(self, model: ChatModelBase) -> None:
        for agent in self.agents.values():
            agent.model = model

    @property
    def state_store(self) -> StateStore | None:
        return self.active.state_store

    @state_store.setter
    def state_store(self, store: StateStore | None) -> None:
        for agent in self.agents.values():
            agent.state_store = store


def speak(messages: list[Msg], tools: Any) -> Any:
    """Answer as a model does, by what there is: transfer, or refund and then say so."""
    names = [schema["function"]["name"] for schema in tools or ()]
    if "transfer_to_refunds" in names:
        return [TextBlock("One moment."), call("t", "transfer_to_refunds")]
    done = [block for msg in messages for block in msg.get_content_blocks("tool_result") if block.name == "refund"]
    return "Refunded." if done or "refund" not in names else [call("r", "refund", order="7")]


def team(refund: Any, *, ask: bool = False, **options: Any) -> Team:
    model = ScriptedChatModel([speak] * 50, stream=True)
    triage = Agent("triage", "", model)
    return Team([triage, Agent("refunds", "", model, tools=[FunctionTool(refund, ask=ask)])], **options)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ask", [False, True], ids=["runs", "asks"])
async def test_a_team_is_whole_after_any_fault_at_any_place(ask: bool, fault: str) -> None:
    def make(log: ToolLog) -> Any:
        async def refund(order: str) -> str:
            return f"refunded {order}"

        return team(log.watch(refund), ask=ask, state_store=InMemoryStateStore())

    try:
        await check_every_suspension(make, faults=[fault])
    except AssertionError as error:
        # What is on record is the end of the second one's reply, which was cancelled before its first event; the
        # harness asks for that of the first one's, whose events it has seen.
        problems = [line for line in str(error).splitlines() if not BEFORE_FIRST_EVENT.search(line)]
        assert not problems, "\n".join(problems)


class Recording(InMemoryStateStore):
    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    async def save(self, state: AgentState) -> None:
        await super().save(state)
        self.saved.append(state.model_dump_json())


async def test_a_process_that_dies_after_any_save_is_continued() -> None:
    """From each saved state on, another process comes to the same answer, and refunds once at most."""
    refunded: list[str] = []

    async def refund(order: str) -> str:
        refunded.append(order)
        return f"refunded {order}"

    store = Recording()
    await team(refund, state_store=store).reply("go", reply_id="r")
    assert len(store.saved) > 5
    for saved in store.saved:
        state = AgentState.model_validate_json(saved)
        refunded.clear()
        answer = await team(refund, state=state).reply("go", reply_id="r")
        assert answer.get_text_content() == "Refunded."
        assert [msg.name for msg in state.context] == ["user", "triage", "refunds"]
        assert len(refunded) <= 1 - ("refunded 7" in saved)
